//! API Gateway: what it hands on, as a request to `POST /v1/events`, and the answer as it wants it.
//!
//! The one thing to know: it is the very route of the API, tokens and all, whatever path the gateway was asked for. A gateway may check more in
//! front of it, never less.

use std::collections::HashMap;

use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

const PATH: &str = "/v1/events";

/// What is looked at of a request in either format, that of REST APIs (1.0) and that of HTTP APIs and function URLs (2.0).
///
/// A header that HTTP cannot have is left out. The types of `aws_lambda_events` fail at it, and there would be nobody to answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Proxied {
    http_method: Option<String>,
    request_context: Context,
    headers: Option<HashMap<String, Option<String>>>,
    /// In format 1.0 all values of a header, of which `headers` has the last.
    multi_value_headers: Option<HashMap<String, Option<Vec<String>>>>,
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: bool,
}

#[derive(Deserialize)]
struct Context {
    http: Option<Http>,
}

#[derive(Deserialize)]
struct Http {
    method: String,
}

/// The request that `payload` hands on, if it is one.
pub fn request(payload: &Bytes) -> Option<Request<Body>> {
    let proxied: Proxied = serde_json::from_slice(payload).ok()?;
    let method = proxied.request_context.http.map(|http| http.method).or(proxied.http_method)?;
    let mut headers = HeaderMap::new();
    let all = proxied.multi_value_headers.unwrap_or_default();
    let several = all.into_iter().flat_map(|(name, values)| {
        values.unwrap_or_default().into_iter().map(move |value| (name.clone(), value))
    });
    for (name, value) in several {
        add(&mut headers, &name, &value);
    }
    if headers.is_empty() {
        for (name, value) in proxied.headers.unwrap_or_default() {
            add(&mut headers, &name, &value.unwrap_or_default());
        }
    }
    let body = proxied.body.unwrap_or_default();
    let body = if proxied.is_base64_encoded {
        BASE64_STANDARD.decode(body).ok()?.into()
    } else {
        Bytes::from(body)
    };
    let mut request = Request::new(Body::from(body));
    *request.method_mut() = Method::from_bytes(method.as_bytes()).ok()?;
    *request.uri_mut() = axum::http::Uri::from_static(PATH);
    *request.headers_mut() = headers;
    Some(request)
}

fn add(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) =
        (name.parse::<HeaderName>(), HeaderValue::from_bytes(value.as_bytes()))
    {
        headers.append(name, value);
    }
}

/// `answer` in the format that both kinds of API take.
pub async fn answer(answer: Response<Body>) -> Value {
    let (head, body) = answer.into_parts();
    // It was made here, and has its bytes: nothing of it can be missing.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let headers: HashMap<&str, &str> = head
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
        .collect();
    let (body, encoded) = match String::from_utf8(body.to_vec()) {
        Ok(text) => (text, false),
        Err(_) => (BASE64_STANDARD.encode(&body), true),
    };
    json!({ "statusCode": head.status.as_u16(), "headers": headers, "body": body, "isBase64Encoded": encoded })
}
