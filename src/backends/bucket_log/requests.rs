//! The HTTP client of a bucket.
//!
//! The client of `object_store` speaks HTTP/2, which no bucket needs, and would add it to every
//! client of this program.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use object_store::{
    ClientOptions, Result,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    },
};
use reqwest::{Client, redirect};

/// How long the connection of a request may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an idle connection is kept, less than a service does.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends each request once, and reads the complete response within a time.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    client: Client,
    timeout: Duration,
}

impl Requests {
    /// A client without connections.
    ///
    /// # Errors
    ///
    /// The trusted certificates of this machine cannot be used.
    pub(super) fn new(timeout: Duration) -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .http1_only()
            // The signature of a request is valid only for its own URL.
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .build()?;
        Ok(Self { client, timeout })
    }

    async fn send(&self, request: http::Request<Bytes>) -> Result<HttpResponse, reqwest::Error> {
        let mut request = reqwest::Request::try_from(request)?;
        *request.timeout_mut() = Some(self.timeout);
        let mut response = self.client.execute(request).await?;
        let mut read = http::Response::new(Bytes::new());
        *read.status_mut() = response.status();
        *read.headers_mut() = std::mem::take(response.headers_mut());
        let bytes = response.bytes().await?;
        Ok(read.map(|_| bytes.into()))
    }
}

impl HttpConnector for Requests {
    fn connect(&self, _: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Requests {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let unsent = |error| HttpError::new(HttpErrorKind::Unknown, error);
        let bytes = match body.as_bytes() {
            Some(bytes) => bytes.clone(),
            None => body.collect().await.map_err(unsent)?.to_bytes(),
        };
        let request = http::Request::from_parts(parts, bytes);
        self.send(request).await.map_err(|error| {
            let kind = match () {
                () if error.is_connect() => HttpErrorKind::Connect,
                () if error.is_timeout() => HttpErrorKind::Timeout,
                () if error.is_builder() => HttpErrorKind::Unknown,
                () => HttpErrorKind::Request,
            };
            HttpError::new(kind, error.without_url())
        })
    }
}
