//! The request or the message that carries a job to its target.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use bytes::Bytes;
use tidegate_api::{AnyValue, PushCallback, PushRequest};
use url::Url;

use crate::runtime::Inner;
use tidegate_core::{
    job::{Encoding, Job, Payload, TypeName, Value, trace},
    port::target::{Request, ServiceMessage},
    target::{ExternalTarget, Push, PushEncoding, signature},
    time::Timestamp,
    validate::target_url,
};
use tidegate_engine::{CALLBACK_TYPE, Catalog, events::ingest::HOPS_HEADER};

/// Headers that a message also has as attributes, because services pass attributes on unchanged:
/// the hop count and the trace.
const HEADERS_AS_ATTRIBUTES: [&str; 3] = [HOPS_HEADER, trace::PARENT, trace::STATE];

/// The URL for the result of a running job, and the token that permits the report.
fn callback(inner: &Inner, job: &Job) -> Result<(String, String), String> {
    let run = job.life.running().ok_or("it does not run")?;
    Ok((
        format!("{}/v1/jobs/{}/{}", inner.options.public_url, job.spec.job_type, job.id),
        run.token.secret().ok_or("the token of its attempt is not known here")?,
    ))
}

/// The message that carries `job` to a service.
pub(super) fn message_to(
    inner: &Inner,
    job: &Job,
    target: &ExternalTarget,
    timeout: Duration,
) -> Result<ServiceMessage, String> {
    let data = job.data.inline().ok_or("its body was not read")?;
    let (url, token) = callback(inner, job)?;
    let mut attributes = vec![
        ("id", job.id.to_string()),
        ("type", job.spec.job_type.to_string()),
        ("attempt", job.life.attempt.to_string()),
    ];
    attributes.extend(job.spec.correlation_key.clone().map(|key| ("correlation_key", key)));
    let copied = HEADERS_AS_ATTRIBUTES
        .into_iter()
        .filter_map(|name| Some((name, trace::named(&job.spec.headers, name)?.1.clone())));
    // Services reject an attribute without a value.
    attributes.extend(copied.filter(|(_, value)| !value.is_empty()));
    Ok(ServiceMessage {
        to: target.clone(),
        group: job.id.to_string(),
        key: format!("{}.{}", job.id, job.life.attempt),
        kind: job.spec.job_type.to_string(),
        attributes,
        body: json_body(job, data, &url, &token, Some(&job.spec.headers))?,
        timeout,
    })
}

/// The request that carries `job` to `target`.
pub(super) fn request_to(
    inner: &Inner,
    job: &Job,
    target: &Push,
    catalog: &Catalog,
    now: Timestamp,
    timeout: Duration,
) -> Result<Request, String> {
    let data = job.data.inline().ok_or("its body was not read")?;
    let is_callback = job.spec.job_type.as_str() == CALLBACK_TYPE;
    let rules = inner.engine.rules();
    let (url, body, content_type) = if is_callback {
        let url = job.spec.callback_url.as_ref().ok_or("it has no callback_url")?;
        (url.to_string(), data.bytes.clone(), "application/json")
    } else {
        // A target that was removed since is replaced by the type's own.
        let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
        let chosen = job.spec.retry_target.as_ref();
        let chosen = chosen.and_then(|name| config?.retry_targets.get(name));
        let template = chosen.unwrap_or(&target.url);
        let url = target_url(template, job.spec.job_type.as_str(), job.id.as_str());
        let (callback, token) = callback(inner, job)?;
        match target.encoding {
            PushEncoding::Json => {
                (url, json_body(job, data, &callback, &token, None)?, "application/json")
            }
            PushEncoding::Msgpack => {
                (url, msgpack_body(job, data, &callback, &token)?, "application/msgpack")
            }
        }
    };
    let secrets = if is_callback {
        callback_secrets(job, catalog)
    } else {
        target.signing_secret.list().to_vec()
    };
    let mut headers: Vec<(String, String)> = vec![("content-type".into(), content_type.into())];
    headers.extend(passed_on(&job.spec.headers, &target.headers));
    // The settings may have changed since the URL was accepted.
    let allowed = if is_callback { &rules.allowed_callbacks } else { &rules.allowed_targets };
    let called = url.parse::<Url>().map_err(|error| format!("its URL is not valid: {error}"))?;
    allowed.check("the URL", &called).map_err(|refused| refused.to_string())?;
    let message = format!("{}.{}", job.id, job.life.attempt);
    headers.extend(
        signature::sign(&secrets, &message, now, &body).map_err(|error| error.to_string())?,
    );
    let basic_auth =
        target.basic_auth.as_ref().map(|basic| (basic.username.clone(), basic.password.clone()));
    Ok(Request { url, headers, basic_auth, body, timeout, most_bytes: rules.max_data_bytes })
}

/// The headers of a request: those of its target, and those of the job that the target does not
/// have. Of two with one name, receivers take different ones.
fn passed_on(
    job: &BTreeMap<String, String>,
    target: &BTreeMap<String, String>,
) -> Vec<(String, String)> {
    let is_set = |name: &str| target.keys().any(|other| other.eq_ignore_ascii_case(name));
    let job = job.iter().filter(|(name, _)| !is_set(name));
    job.chain(target).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The secrets that sign a completion callback, of the type of the finished job. They are not those
/// of its target: otherwise a callback to the target's own URL would pass for a push.
fn callback_secrets(job: &Job, catalog: &Catalog) -> Vec<String> {
    let Some(Value::Text(name)) = job.spec.attributes.get("type") else {
        return Vec::new();
    };
    let item = name.parse::<TypeName>().ok().and_then(|name| catalog.types.get(&name));
    item.map(|item| item.config.callback_signing_secret.list().to_vec()).unwrap_or_default()
}

fn json_body(
    job: &Job,
    data: &Payload,
    url: &str,
    token: &str,
    headers: Option<&BTreeMap<String, String>>,
) -> Result<Bytes, String> {
    let body = PushRequest {
        id: Cow::Borrowed(&job.id),
        r#type: Cow::Borrowed(&job.spec.job_type),
        attempt: job.life.attempt,
        max_attempts: job.spec.max_attempts,
        data: AnyValue::new(data, Encoding::Json),
        checkpoint: checkpoint(job).map(|kept| AnyValue::new(&kept, Encoding::Json)),
        attributes: Cow::Borrowed(&job.spec.attributes),
        correlation_key: job.spec.correlation_key.as_deref().map(Cow::Borrowed),
        headers: headers.filter(|headers| !headers.is_empty()).map(Cow::Borrowed),
        callback: PushCallback { url: url.into(), token: token.into() },
    };
    serde_json::to_vec(&body).map(Bytes::from).map_err(|error| error.to_string())
}

/// The same map as [`json_body`] in MessagePack, with the data converted to MessagePack.
fn msgpack_body(job: &Job, data: &Payload, url: &str, token: &str) -> Result<Bytes, String> {
    use rmpv::Value as V;
    let attributes = job.spec.attributes.iter().map(|(name, value)| {
        let value = match value {
            Value::Text(text) => V::from(text.as_str()),
            Value::Number(number) => number
                .as_i64()
                .map(V::from)
                .or_else(|| number.as_f64().map(V::from))
                .unwrap_or(V::Nil),
        };
        (V::from(name.as_str()), value)
    });
    let callback = V::Map(vec![(V::from("url"), V::from(url)), (V::from("token"), V::from(token))]);
    let key = job.spec.correlation_key.as_deref().map(|key| ("correlation_key", V::from(key)));
    let fields: Vec<(&str, V)> = [
        ("id", V::from(job.id.as_str())),
        ("type", V::from(job.spec.job_type.as_str())),
        ("attempt", V::from(job.life.attempt)),
        ("max_attempts", V::from(job.spec.max_attempts)),
        ("attributes", V::Map(attributes.collect())),
        ("callback", callback),
    ]
    .into_iter()
    .chain(key)
    .collect();
    let values = [Some(("data", data.clone())), checkpoint(job).map(|kept| ("checkpoint", kept))];
    let values: Vec<(&str, Payload)> = values.into_iter().flatten().collect();
    let mut body = vec![0x80 | (fields.len() + values.len()) as u8];
    let mut put =
        |value: &V| rmpv::encode::write_value(&mut body, value).map_err(|error| error.to_string());
    for (name, value) in &fields {
        put(&V::from(*name))?;
        put(value)?;
    }
    for (name, value) in values {
        rmpv::encode::write_value(&mut body, &V::from(name)).map_err(|error| error.to_string())?;
        body.extend_from_slice(&value.to_msgpack().map_err(|malformed| malformed.to_string())?);
    }
    Ok(body.into())
}

/// What an earlier attempt of `job`, which is loaded, has stored for this one.
fn checkpoint(job: &Job) -> Option<Payload> {
    job.life.checkpoint.as_ref().and_then(|kept| kept.body().inline().cloned())
}
