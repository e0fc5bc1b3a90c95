//! Files with events.

use std::path::Path;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::io::AsyncReadExt as _;

use crate::cli::UsageError;
use tidegate_core::{
    event::{Event, read},
    validate::ValidationError,
};

/// Returns the content of a file, where `-` means standard input.
///
/// # Errors
///
/// It cannot be read.
pub async fn contents(path: &Path) -> anyhow::Result<Bytes> {
    let read = if path == Path::new("-") {
        let mut text = Vec::new();
        tokio::io::stdin().read_to_end(&mut text).await.map(|_| text)
    } else {
        tokio::fs::read(path).await
    };
    Ok(read
        .map_err(|error| UsageError(format!("{} cannot be read: {error}", path.display())))?
        .into())
}

/// Parses the events of a file: a list, one, one on each line, or the payload of an AWS service.
pub fn events(text: &Bytes) -> Vec<Result<Event, String>> {
    if text.trim_ascii_start().first() == Some(&b'[') {
        return list(text);
    }
    let fault = match read::structured(text) {
        Ok(event) => return vec![Ok(event)],
        Err(fault) => fault,
    };
    lines(text).unwrap_or_else(|| {
        let events = invoked(text);
        let known = events.iter().any(Result::is_ok);
        if known { events } else { vec![Err(message(&fault))] }
    })
}

/// Parses a list of any length: the limit of a request does not apply to a file.
fn list(text: &Bytes) -> Vec<Result<Event, String>> {
    match serde_json::from_slice::<Vec<&RawValue>>(text) {
        Ok(list) => {
            list.into_iter().map(|raw| structured(&text.slice_ref(raw.get().as_bytes()))).collect()
        }
        Err(error) => vec![Err(format!("not a list of events: {error}"))],
    }
}

/// Parses an event on each line, if there are several lines and the first is JSON.
fn lines(text: &Bytes) -> Option<Vec<Result<Event, String>>> {
    let lines: Vec<&[u8]> =
        text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect();
    let first = lines.first().filter(|_| lines.len() > 1)?;
    serde_json::from_slice::<&RawValue>(first).ok()?;
    Some(lines.into_iter().map(|line| structured(&text.slice_ref(line))).collect())
}

fn structured(text: &Bytes) -> Result<Event, String> {
    read::structured(text).map_err(|fault| message(&fault))
}

fn message(fault: &ValidationError) -> String {
    fault.to_string().trim().to_owned()
}

/// Returns the events in the payload of a Lambda call.
#[cfg(feature = "aws")]
fn invoked(payload: &Bytes) -> Vec<Result<Event, String>> {
    tidegate_server::lambda::ingest::events(payload)
}

/// Without the feature `aws` the payloads of AWS services are unknown.
#[cfg(not(feature = "aws"))]
fn invoked(_: &Bytes) -> Vec<Result<Event, String>> {
    Vec::new()
}
