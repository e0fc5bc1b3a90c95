//! One request to a worker, and what came of it.
//!
//! The one thing to know: [`TargetError::NotConnected`] promises that the worker saw nothing, and
//! jobs that may run only once are tried again on the strength of it. It is answered only when no
//! connection was established; whatever happens later, or in doubt, is another answer.

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::BytesMut;
use reqwest::{
    Client, ClientBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{HeaderMap, HeaderName, HeaderValue},
    redirect,
};

use super::guard::{Guard, Refused};
use tidegate_core::port::target::{Request, Response, Target, TargetError};

/// How long a connection may take to be established, within the request's own time.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection is kept for the next request. Shorter than the five seconds after which common servers
/// close theirs, since a request that meets the close half-way has no answer and may have been seen.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Most connections that wait for the next request, for each host.
const POOL_CONNECTIONS: usize = 256;
/// The headers of an answer that the engine looks at.
const HEADERS: [&str; 3] = ["content-type", "retry-after", "tidegate-retryable"];

type BoxError = Box<dyn Error + Send + Sync>;

/// Calls workers by HTTP. Connections are kept and shared; clones share them too.
#[derive(Clone, Debug)]
pub struct HttpTarget {
    client: Client,
    guard: Guard,
}

impl HttpTarget {
    /// A target behind `guard`, with names resolved by the operating system.
    ///
    /// # Errors
    ///
    /// The TLS library could not be set up.
    pub fn new(guard: Guard) -> Result<Self, TargetError> {
        Self::with_resolver(guard, Arc::new(SystemResolver))
    }

    /// A target behind `guard`, with names resolved by `resolver`.
    ///
    /// # Errors
    ///
    /// The TLS library could not be set up.
    pub fn with_resolver(guard: Guard, resolver: Arc<dyn Resolve>) -> Result<Self, TargetError> {
        let resolver = Arc::new(GuardedResolver { guard, resolver });
        let client = builder(resolver.clone()).build().or_else(|fault| {
            // A bare container has no certificates; its workers on plain HTTP are to be reached all the same.
            tracing::warn!(reason = %chain(&fault), "no https target can be trusted: this machine's certificates cannot be read");
            builder(resolver).tls_certs_only([]).build()
        });
        let client = client.map_err(|fault| TargetError::NotConnected(chain(&fault)))?;
        Ok(Self { client, guard })
    }

    /// What stands at `url`: the whole exchange within `timeout`, the body of at most `most` bytes. A longer one is no answer.
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
        // The port asks once; the engine knows when to ask again.
        .retry(reqwest::retry::never())
        // A proxy would connect on our behalf, past the guard.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(POOL_CONNECTIONS)
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

/// The answer, whole; of a body of over `most` bytes one byte more than that.
async fn read(mut answer: reqwest::Response, most: usize) -> Result<Response, TargetError> {
    let status = answer.status().as_u16();
    let value = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
    let headers =
        HEADERS.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?))).collect();
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
                "the header {name:?} cannot be sent: its name or value has characters that HTTP has not"
            ))
        };
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        headers.append(name, HeaderValue::from_str(value).map_err(|_| bad())?);
    }
    Ok(headers)
}

/// What a failed exchange means. A request that was cut by its time while it was still connecting counts as timed out.
fn classify(fault: reqwest::Error) -> TargetError {
    // URLs may carry secrets, and messages are kept with the job.
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

/// The causes of `fault` in one line, without reqwest's own words, which say less than what they wrap.
fn chain(fault: &reqwest::Error) -> String {
    let mut texts: Vec<String> = causes(fault).skip(1).map(ToString::to_string).collect();
    texts.dedup();
    if texts.is_empty() { fault.to_string() } else { texts.join(": ") }
}

/// Resolves names by the operating system.
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

/// Resolves names to what the guard lets through of their addresses.
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
