//! One request to a worker, and its outcome.
//!
//! [`TargetError::NotConnected`] guarantees that the worker has received nothing, so even a job
//! that may run only once is retried after it. It is returned only if no connection was
//! established. Every later or unclear failure is another error.

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::BytesMut;
use reqwest::{
    Client, ClientBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{HeaderMap, HeaderName, HeaderValue},
    redirect,
};

use super::{Guard, Refused};
use tidegate_core::port::target::{Request, Response, Target, TargetError};

/// Timeout of establishing a connection, within the request's own timeout.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The same of a connection to a server that shares the store. It is near, and a worker waits.
const PEER_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an idle connection is kept. Common servers close theirs after five seconds. A request
/// on a connection that closes at that moment gets no answer, and may have been received.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum idle connections of each host.
const MAX_IDLE_CONNECTIONS: usize = 256;
/// The response headers that the engine and the server use.
const RESPONSE_HEADERS: [&str; 5] =
    ["content-type", "retry-after", "tidegate-claims", "tidegate-retryable", "tidegate-status"];

type BoxError = Box<dyn Error + Send + Sync>;

/// Calls workers over HTTP. Clones share their connections.
#[derive(Clone, Debug)]
pub struct HttpTarget {
    client: Client,
    guard: Guard,
}

impl HttpTarget {
    /// A target with `guard`, whose names the operating system resolves.
    ///
    /// # Errors
    ///
    /// The TLS library could not be set up.
    pub fn new(guard: Guard) -> Result<Self, TargetError> {
        Self::with_resolver(guard, Arc::new(SystemResolver))
    }

    /// A target for the servers that share a store. Their addresses come from operators, so every
    /// address may be called.
    ///
    /// # Errors
    ///
    /// As [`HttpTarget::new`].
    pub fn of_peers() -> Result<Self, TargetError> {
        Self::build(Guard::Off, Arc::new(SystemResolver), PEER_CONNECT_TIMEOUT)
    }

    /// A target with `guard`, whose names `resolver` resolves.
    ///
    /// # Errors
    ///
    /// The TLS library could not be set up.
    pub(crate) fn with_resolver(
        guard: Guard,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, TargetError> {
        Self::build(guard, resolver, CONNECT_TIMEOUT)
    }

    fn build(
        guard: Guard,
        resolver: Arc<dyn Resolve>,
        connect_timeout: Duration,
    ) -> Result<Self, TargetError> {
        let resolver = Arc::new(GuardedResolver { guard, resolver });
        let builder = |resolver| builder(resolver).connect_timeout(connect_timeout);
        let client = builder(resolver.clone()).build().or_else(|fault| {
            // A minimal container has no certificates, but can still call workers over plain HTTP.
            tracing::warn!(
                reason = %chain(&fault),
                "https targets will fail: this machine's certificates cannot be read"
            );
            builder(resolver).tls_certs_only([]).build()
        });
        let client = client.map_err(|fault| TargetError::NotConnected(chain(&fault)))?;
        Ok(Self { client, guard })
    }

    /// Fetches `url` within `timeout`. A body of more than `most` bytes is an error.
    ///
    /// # Errors
    ///
    /// As [`Target::call`].
    pub async fn get(
        &self,
        url: &str,
        timeout: Duration,
        most: usize,
    ) -> Result<Response, TargetError> {
        let url = self.guard.url(url).map_err(|Refused(reason)| TargetError::Forbidden(reason))?;
        let answer =
            read(self.client.get(url).timeout(timeout).send().await.map_err(classify)?, most)
                .await?;
        if answer.body.len() > most {
            Err(TargetError::NoAnswer(format!("its body is over {most} bytes")))
        } else {
            Ok(answer)
        }
    }
}

fn builder(resolver: Arc<GuardedResolver>) -> ClientBuilder {
    Client::builder()
        .user_agent(concat!("tidegate/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        // The port sends once; the engine decides on retries.
        .retry(reqwest::retry::never())
        // A proxy would connect to the target and bypass the guard.
        .no_proxy()
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .dns_resolver(resolver)
}

#[async_trait]
impl Target for HttpTarget {
    async fn call(&self, request: Request) -> Result<Response, TargetError> {
        let url = self
            .guard
            .url(&request.url)
            .map_err(|Refused(reason)| TargetError::Forbidden(reason))?;
        let mut call = self
            .client
            .post(url)
            .headers(headers(&request.headers)?)
            .timeout(request.timeout)
            .body(request.body);
        if let Some((user, password)) = &request.basic_auth {
            call = call.basic_auth(user, Some(password));
        }
        let answer = call.send().await.map_err(classify)?;
        read(answer, request.most_bytes).await
    }
}

/// Reads the response, but at most `most` bytes and one more of its body.
async fn read(mut answer: reqwest::Response, most: usize) -> Result<Response, TargetError> {
    let status = answer.status().as_u16();
    let value = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
    let headers = RESPONSE_HEADERS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), value(name)?)))
        .collect();
    let mut body = BytesMut::new();
    while body.len() <= most
        && let Some(chunk) = answer.chunk().await.map_err(classify)?
    {
        body.extend_from_slice(&chunk[..chunk.len().min(most + 1 - body.len())]);
    }
    Ok(Response { status, headers, body: body.freeze() })
}

fn headers(given: &[(String, String)]) -> Result<HeaderMap, TargetError> {
    let mut headers = HeaderMap::with_capacity(given.len());
    for (name, value) in given {
        let bad = || {
            TargetError::NotConnected(format!(
                "the header {name:?} cannot be sent: its name or value has characters that HTTP \
                 does not allow"
            ))
        };
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        headers.append(name, HeaderValue::from_str(value).map_err(|_| bad())?);
    }
    Ok(headers)
}

/// The error of a failed exchange. A timeout while connecting counts as [`TargetError::TimedOut`].
fn classify(fault: reqwest::Error) -> TargetError {
    // URLs may contain secrets, and the job's history contains the message.
    let fault = fault.without_url();
    if let Some(Refused(reason)) = causes(&fault).find_map(|cause| cause.downcast_ref()) {
        TargetError::Forbidden(reason.clone())
    } else if fault.is_connect() {
        TargetError::NotConnected(chain(&fault))
    } else if fault.is_timeout() {
        TargetError::TimedOut
    } else if fault.is_builder() {
        TargetError::NotConnected(chain(&fault))
    } else {
        TargetError::NoAnswer(chain(&fault))
    }
}

fn causes<'a>(fault: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(fault), |fault: &&'a (dyn Error + 'static)| (*fault).source())
}

/// The causes of `fault` in one line, without reqwest's own message, which adds nothing to its
/// causes.
fn chain(fault: &reqwest::Error) -> String {
    let mut texts: Vec<String> = causes(fault).skip(1).map(ToString::to_string).collect();
    texts.dedup();
    if texts.is_empty() { fault.to_string() } else { texts.join(": ") }
}

/// Resolves names with the operating system.
#[derive(Debug)]
struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Resolves names to those of their addresses that the guard allows.
struct GuardedResolver {
    guard: Guard,
    resolver: Arc<dyn Resolve>,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, resolving) = (self.guard, self.resolver.resolve(name));
        Box::pin(async move {
            let mut allowed = Vec::new();
            let mut refused = None;
            for address in resolving.await? {
                match guard.address(address.ip()) {
                    Ok(()) => allowed.push(address),
                    Err(reason) => refused = Some(reason),
                }
            }
            match refused {
                Some(reason) if allowed.is_empty() => Err(BoxError::from(reason)),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests;
