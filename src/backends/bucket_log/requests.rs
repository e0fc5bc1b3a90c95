//! The HTTP client of a bucket.

use std::time::Duration;

use async_trait::async_trait;
use object_store::{
    ClientOptions, Result,
    client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService},
};
use reqwest::Client;

use crate::signed_requests::{builder, send_signed};

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
        Ok(Self { client: builder().build()?, timeout })
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
        send_signed(&self.client, request, self.timeout).await
    }
}
