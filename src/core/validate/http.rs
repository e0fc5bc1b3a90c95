//! The bounds of URLs, headers and credentials in deliveries.

use std::collections::BTreeMap;

use base64::Engine as _;
use url::{Position, Url};

use super::{ValidationError, check_count};
use crate::target::{Push, Secrets};

/// Most headers of a job or a target.
pub const MAX_HEADERS: usize = 32;

pub(super) fn check_push(push: &Push) -> Result<(), ValidationError> {
    check_template(&push.url)?;
    check_headers(&push.headers)?;
    if let Some(auth) = &push.basic_auth {
        let plain = |text: &str| !text.chars().any(char::is_control);
        if auth.username.len() > 256 || auth.username.contains(':') || !plain(&auth.username) {
            return Err(ValidationError::new(
                "basic_auth.username",
                "must be at most 256 bytes without `:` and control characters",
            ));
        }
        if auth.password.len() > 1024 || !plain(&auth.password) {
            return Err(ValidationError::new(
                "basic_auth.password",
                "must be at most 1024 bytes without control characters",
            ));
        }
        if push.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
            return Err(ValidationError::new(
                "headers.authorization",
                "must not be given together with `basic_auth`",
            ));
        }
    }
    check_secrets("signing_secret", &push.signing_secret)
}

/// Checks the secrets that sign requests.
///
/// # Errors
///
/// More than two, or one that is no key.
pub(super) fn check_secrets(field: &str, secrets: &Secrets) -> Result<(), ValidationError> {
    let secrets = secrets.list();
    check_count(field, secrets.len(), 2)?;
    if secrets.iter().all(|secret| good_secret(secret)) {
        return Ok(());
    }
    Err(ValidationError::new(
        field,
        "must be 1 to 256 bytes of text, or `whsec_` and the base64 of 24 to 64 bytes",
    ))
}

/// The key of a secret: `whsec_` and base64, as in Standard Webhooks, or any text as it is.
fn good_secret(secret: &str) -> bool {
    match secret.strip_prefix("whsec_") {
        Some(key) => base64::engine::general_purpose::STANDARD
            .decode(key)
            .is_ok_and(|key| (24..=64).contains(&key.len())),
        None => (1..=256).contains(&secret.len()),
    }
}

/// The URL of a target's `template` for one job. `job_type` and `id` need no escaping in a path or
/// a query.
pub fn target_url(template: &str, job_type: &str, id: &str) -> String {
    template.replace("{type}", job_type).replace("{id}", id)
}

pub(super) fn check_template(template: &str) -> Result<(), ValidationError> {
    if target_url(template, "", "").contains(['{', '}']) {
        return Err(ValidationError::new("url", "must have only {type} and {id} in braces"));
    }
    // A placeholder in the host would let the sender of a job choose the server that gets its
    // secrets.
    let parse = |sample| {
        Url::parse(&target_url(template, sample, sample))
            .map_err(|_| ValidationError::new("url", "must be an http or https URL"))
    };
    let (url, other) = (parse("1")?, parse("2")?);
    if url[..Position::BeforePath] != other[..Position::BeforePath] {
        return Err(ValidationError::new(
            "url",
            "can have {type} and {id} only in its path and query",
        ));
    }
    check_url("url", &url)
}

/// Checks the URL of a target or a callback.
///
/// # Errors
///
/// Another scheme than http and https, credentials in it, over 2048 bytes.
pub fn check_url(field: &str, url: &Url) -> Result<(), ValidationError> {
    if !matches!(url.scheme(), "http" | "https") {
        Err(ValidationError::new(field, "must be an http or https URL"))
    } else if !url.username().is_empty() || url.password().is_some() {
        Err(ValidationError::new(field, "must not have credentials in it"))
    } else if url.as_str().len() > 2048 {
        Err(ValidationError::new(field, "must be at most 2048 bytes"))
    } else {
        Ok(())
    }
}

/// Names that the delivery itself sets, or that would change the framing of the request.
const RESERVED_HEADERS: [&str; 13] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "accept-encoding",
];

/// Headers that prove who calls: an enqueuer must not speak for the server.
const CREDENTIALS: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];

/// Checks the headers of a job, or of a type, whose jobs get them.
///
/// # Errors
///
/// As [`check_headers`]; a header with credentials.
pub fn check_job_headers(headers: &BTreeMap<String, String>) -> Result<(), ValidationError> {
    check_headers(headers)?;
    let is_credential = |name: &&String| CREDENTIALS.iter().any(|it| it.eq_ignore_ascii_case(name));
    match headers.keys().find(is_credential) {
        Some(name) => Err(ValidationError::new(
            format!("headers.{name}"),
            "must not be given: credentials belong to the target of the type",
        )),
        None => Ok(()),
    }
}

/// Checks the headers of a target.
///
/// # Errors
///
/// More than 32 headers, an invalid (1 to 128 bytes) or reserved name, a value that is not valid in
/// a request or is over 4096 bytes.
pub fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), ValidationError> {
    check_count("headers", headers.len(), MAX_HEADERS)?;
    for (name, value) in headers {
        let field = || format!("headers.{name}");
        let symbol = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if !(1..=128).contains(&name.len()) || !name.bytes().all(symbol) {
            return Err(ValidationError::new(
                "headers",
                "must have names of 1 to 128 letters, digits and !#$%&'*+-.^_`|~",
            ));
        }
        let lower = name.to_ascii_lowercase();
        if RESERVED_HEADERS.contains(&lower.as_str())
            || lower.starts_with("webhook-")
            || lower.starts_with("tidegate-")
        {
            return Err(ValidationError::new(field(), "must not be given: the delivery sets it"));
        }
        if value.len() > 4096
            || !value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
        {
            return Err(ValidationError::new(
                field(),
                "must be at most 4096 bytes of visible ASCII",
            ));
        }
    }
    Ok(())
}
