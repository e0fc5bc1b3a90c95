//! The HTTP client of all AWS requests: those of the SDK, and those of the bucket.
//!
//! The size limit of a function permits only one client
//! (`docs/decisions/0015-lambda-binaries-under-12-mb.md`). Unlike the SDK's client, this one keeps a
//! connection after a server error.

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
use http::Request;
use object_store::client as store;
use reqwest::Client;

use crate::signed_requests::{SendError, builder, send, send_signed};

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
        send_signed(&self.0, request, timeout).await
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
            // No request of the SDK has a streaming body.
            let bytes = body
                .bytes()
                .map(Bytes::copy_from_slice)
                .ok_or_else(|| ConnectorError::user("the body is a stream".into()))?;
            let answer =
                send(&calls.0, Request::from_parts(parts, bytes), None).await.map_err(|error| {
                    let error = match error {
                        SendError::Http(error) => error,
                        SendError::TooLarge => return ConnectorError::other(error.into(), None),
                    };
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
