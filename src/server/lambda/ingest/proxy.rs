//! API Gateway: its event becomes a request to `POST /v1/events`, and the response its answer.
//!
//! The one thing to know: the request always goes to this route of the API, which checks its token,
//! whatever the path was. A gateway can add checks in front, but cannot remove any.

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

/// The fields in use of a request in either format: 1.0 (REST APIs), 2.0 (HTTP APIs, function
/// URLs).
///
/// A header that HTTP does not permit is left out. The types of `aws_lambda_events` fail at it, and
/// the caller would get no answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Proxied {
    http_method: Option<String>,
    request_context: Context,
    headers: Option<HashMap<String, Option<String>>>,
    /// In format 1.0, all values of each header. `headers` has only the last value.
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

/// The request that `payload` contains, if there is one.
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

/// `answer` in the format that both kinds of API accept.
pub async fn answer(answer: Response<Body>) -> Value {
    let (head, body) = answer.into_parts();
    // The body was created in this process and is complete, so the read cannot fail.
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
    json!({
        "statusCode": head.status.as_u16(),
        "headers": headers,
        "body": body,
        "isBase64Encoded": encoded,
    })
}
