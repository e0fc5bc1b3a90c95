//! The HTTP client for signed requests: those of AWS and of buckets.
//!
//! The clients of the SDK and of `object_store` speak HTTP/2, which none of these services needs. It
//! would be added to every client of this program.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
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
/// Most bytes of a response: more than the largest object has.
const MAX_RESPONSE_BYTES: usize = 128 << 20;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("the response has more than {MAX_RESPONSE_BYTES} bytes")]
    TooLarge,
}

/// A client that sends each request once, to its own URL.
pub(crate) fn builder() -> ClientBuilder {
    Client::builder()
        .http1_only()
        // The signature of a request is valid only for its own URL.
        .redirect(redirect::Policy::none())
        // The callers retry, and count it.
        .retry(reqwest::retry::never())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
}

/// Sends a request and reads the complete response, within `timeout`.
pub(crate) async fn send(
    client: &Client,
    request: Request<Bytes>,
    timeout: Option<Duration>,
) -> Result<Response<Bytes>, SendError> {
    let mut request = reqwest::Request::try_from(request)?;
    *request.timeout_mut() = timeout;
    let mut response = client.execute(request).await?;
    let mut read = Response::new(Bytes::new());
    *read.status_mut() = response.status();
    *read.headers_mut() = std::mem::take(response.headers_mut());
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(SendError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(read.map(|_| body.freeze()))
}

/// As [`send`], for a request of `object_store`.
///
/// # Errors
///
/// There was no response; the kind of the error tells whether a retry may help.
pub(crate) async fn send_signed(
    client: &Client,
    request: store::HttpRequest,
    timeout: Duration,
) -> Result<store::HttpResponse, store::HttpError> {
    let (parts, body) = request.into_parts();
    let unsent = |error| store::HttpError::new(store::HttpErrorKind::Unknown, error);
    let bytes = match body.as_bytes() {
        Some(bytes) => bytes.clone(),
        None => body.collect().await.map_err(unsent)?.to_bytes(),
    };
    let answer = send(client, Request::from_parts(parts, bytes), Some(timeout)).await;
    let answer = answer.map_err(|error| match error {
        SendError::Http(error) => {
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
        }
        error @ SendError::TooLarge => store::HttpError::new(store::HttpErrorKind::Unknown, error),
    });
    Ok(answer?.map(Into::into))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::{Router, body::Body, routing::get};
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_response_is_bounded_while_it_is_read() {
        let megabyte = Bytes::from(vec![0; 1 << 20]);
        let body = move || Body::from_stream(stream::repeat(Ok::<_, Infallible>(megabyte.clone())));
        let endless = Router::new().route("/", get(async move || body()));
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", socket.local_addr().unwrap());
        tokio::spawn(async { axum::serve(socket, endless).await });
        let request = Request::get(url).body(Bytes::new()).unwrap();
        let answer = send(&builder().build().unwrap(), request, None).await;
        assert!(matches!(answer, Err(SendError::TooLarge)));
    }
}
