//! The HTTP client through which AWS is asked: by the SDK, and for the bucket.
//!
//! The one thing to know: the SDK would bring a client of its own, with HTTP/2, which none of these services needs. A function has room for one
//! (`docs/decisions/0015-lambda-binaries-under-12-mb.md`). What the SDK's would do besides: leave a connection after an answer that blames the server.

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
use reqwest::{Client, redirect};

/// How long making a connection may take: the first packet may be lost, which is noticed after a second.
const CONNECT: Duration = Duration::from_secs(3);

/// A client for requests to AWS, with its connections. A clone shares them.
#[derive(Clone, Debug)]
pub struct Calls(Client);

impl Calls {
    /// A client without connections.
    ///
    /// # Errors
    ///
    /// The certificates of those whom the machine trusts cannot be used.
    pub fn new() -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .http1_only()
            // A request is signed for where it goes.
            .redirect(redirect::Policy::none())
            // Whoever asks knows when to ask again, and counts it.
            .retry(reqwest::retry::never())
            .no_proxy()
            .connect_timeout(CONNECT);
        client.build().map(Self)
    }

    /// Asks for something in a bucket, and waits no longer than `patience` for all of the answer.
    ///
    /// # Errors
    ///
    /// There was none; its kind says whether it is worth another try.
    pub async fn ask_for(
        &self,
        request: store::HttpRequest,
        patience: Duration,
    ) -> Result<store::HttpResponse, store::HttpError> {
        let (parts, body) = request.into_parts();
        let unsent = |error| store::HttpError::new(store::HttpErrorKind::Unknown, error);
        let bytes = match body.as_bytes() {
            Some(bytes) => bytes.clone(),
            None => body.collect().await.map_err(unsent)?.to_bytes(),
        };
        let answer =
            self.ask(Request::from_parts(parts, bytes), Some(patience)).await.map_err(|error| {
                let kind = if error.is_connect() {
                    store::HttpErrorKind::Connect
                } else if error.is_timeout() {
                    store::HttpErrorKind::Timeout
                } else if error.is_builder() {
                    store::HttpErrorKind::Unknown
                } else {
                    // A connection that broke, as one does that was idle while the function was frozen. All that is asked of the bucket may be asked again.
                    store::HttpErrorKind::Request
                };
                store::HttpError::new(kind, error.without_url())
            })?;
        Ok(answer.map(Into::into))
    }

    /// Asks, and reads the answer whole: nothing is asked for that a function could not hold.
    async fn ask(
        &self,
        request: Request<Bytes>,
        patience: Option<Duration>,
    ) -> Result<Response<Bytes>, reqwest::Error> {
        let mut request = reqwest::Request::try_from(request)?;
        *request.timeout_mut() = patience;
        let mut answer = self.0.execute(request).await?;
        let mut read = Response::new(Bytes::new());
        *read.status_mut() = answer.status();
        *read.headers_mut() = std::mem::take(answer.headers_mut());
        let bytes = answer.bytes().await?;
        Ok(read.map(|_| bytes))
    }
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
            // None of these calls has a body that is made while it is sent.
            let bytes = body
                .bytes()
                .map(Bytes::copy_from_slice)
                .ok_or_else(|| ConnectorError::user("the body is not at hand".into()))?;
            let answer =
                calls.ask(Request::from_parts(parts, bytes), None).await.map_err(|error| {
                    if error.is_connect() {
                        // Worth another try, and no doubt that nothing was sent.
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
