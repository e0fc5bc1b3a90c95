//! The HTTP client of all AWS requests: those of the SDK, and those of the bucket.
//!
//! The SDK's own client supports HTTP/2, which none of these services needs. The size limit of a
//! function permits only one client (`docs/decisions/0015-lambda-binaries-under-12-mb.md`). Unlike
//! the SDK's client, this one keeps a connection after a server error.

use std::time::Duration;

use aws_smithy_runtime_api::client::{
    http::{
        HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
    },
    orchestrator::{HttpRequest, HttpResponse},
    result::ConnectorError,
    runtime_components::RuntimeComponents,
};
use aws_smithy_types::retry::ErrorKind;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use object_store::client as store;
use reqwest::{Client, ClientBuilder, redirect};

/// Timeout of a connection. It allows for the loss of the first packet, which is repeated after a
/// second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an idle connection is kept. A function may be frozen for longer than the service keeps
/// its end, and then the first request on the connection fails.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// A client for requests to AWS, with its connections. A clone shares them.
#[derive(Clone, Debug)]
pub struct Calls(Client);

impl Calls {
    /// A client without connections.
    ///
    /// # Errors
    ///
    /// The trusted certificates of this machine cannot be used.
    pub fn new() -> Result<Self, reqwest::Error> {
        builder().no_proxy().build().map(Self)
    }

    /// The same through the proxies of the environment, such as `HTTPS_PROXY`: for a program on the
    /// machine of an operator.
    ///
    /// # Errors
    ///
    /// The trusted certificates of this machine cannot be used.
    pub fn through_proxies() -> Result<Self, reqwest::Error> {
        builder().build().map(Self)
    }

    /// Sends a signed request, to the bucket for example, with a `timeout` for the complete
    /// response.
    ///
    /// # Errors
    ///
    /// There was no response; the kind of the error tells whether a retry may help.
    pub(crate) async fn send_signed(
        &self,
        request: store::HttpRequest,
        timeout: Duration,
    ) -> Result<store::HttpResponse, store::HttpError> {
        let (parts, body) = request.into_parts();
        let unsent = |error| store::HttpError::new(store::HttpErrorKind::Unknown, error);
        let bytes = match body.as_bytes() {
            Some(bytes) => bytes.clone(),
            None => body.collect().await.map_err(unsent)?.to_bytes(),
        };
        let answer =
            self.send(Request::from_parts(parts, bytes), Some(timeout)).await.map_err(|error| {
                let kind = if error.is_connect() {
                    store::HttpErrorKind::Connect
                } else if error.is_timeout() {
                    store::HttpErrorKind::Timeout
                } else if error.is_builder() {
                    store::HttpErrorKind::Unknown
                } else {
                    // A broken connection, for example one that was idle while the function was
                    // frozen. All requests of this kind can be repeated.
                    store::HttpErrorKind::Request
                };
                store::HttpError::new(kind, error.without_url())
            })?;
        Ok(answer.map(Into::into))
    }

    /// Sends a request and reads the complete response, which always fits into a function's memory.
    async fn send(
        &self,
        request: Request<Bytes>,
        timeout: Option<Duration>,
    ) -> Result<Response<Bytes>, reqwest::Error> {
        let mut request = reqwest::Request::try_from(request)?;
        *request.timeout_mut() = timeout;
        let mut response = self.0.execute(request).await?;
        let mut read = Response::new(Bytes::new());
        *read.status_mut() = response.status();
        *read.headers_mut() = std::mem::take(response.headers_mut());
        let bytes = response.bytes().await?;
        Ok(read.map(|_| bytes))
    }
}

fn builder() -> ClientBuilder {
    Client::builder()
        .http1_only()
        // The signature of a request is valid only for its own URL.
        .redirect(redirect::Policy::none())
        // The callers retry, and count it.
        .retry(reqwest::retry::never())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
}

impl HttpClient for Calls {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Calls {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let calls = self.clone();
        HttpConnectorFuture::new(async move {
            let request =
                request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
            let (parts, body) = request.into_parts();
            // No request of the SDK has a streaming body.
            let bytes = body
                .bytes()
                .map(Bytes::copy_from_slice)
                .ok_or_else(|| ConnectorError::user("the body is a stream".into()))?;
            let answer =
                calls.send(Request::from_parts(parts, bytes), None).await.map_err(|error| {
                    if error.is_connect() {
                        // A retry may help, and certainly nothing was sent.
                        ConnectorError::other(error.into(), Some(ErrorKind::TransientError))
                    } else if error.is_timeout() {
                        ConnectorError::timeout(error.into())
                    } else if error.is_builder() {
                        ConnectorError::user(error.into())
                    } else {
                        ConnectorError::io(error.into())
                    }
                })?;
            HttpResponse::try_from(answer.map(Into::into))
                .map_err(|error| ConnectorError::other(error.into(), None))
        })
    }
}
