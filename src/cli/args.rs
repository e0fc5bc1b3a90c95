//! Parsers of command-line values: spans, instants, attributes, JSON.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::io::AsyncReadExt as _;

use super::context::UsageError;
use tidegate_core::{
    job::spec::Value,
    time::{Seconds, Timestamp},
};

/// Reads a span: `20s`, `5m`, `1h30m`, `500ms`, `1.5h`; a bare number is seconds.
///
/// # Errors
///
/// A message for the user.
pub fn span(text: &str) -> Result<Seconds, String> {
    const HELP: &str = "a span such as 20s, 5m, 1h30m or 500ms is expected";
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let number =
            &rest[..rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len())];
        rest = &rest[number.len()..];
        let unit = &rest[..rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len())];
        rest = &rest[unit.len()..];
        let size = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "" if number.len() == text.len() => 1.0,
            _ => return Err(HELP.to_owned()),
        };
        total += size * number.parse::<f64>().map_err(|_| HELP)?;
    }
    if text.is_empty() {
        return Err(HELP.to_owned());
    }
    Seconds::try_from(total).map_err(str::to_owned)
}

/// An instant, absolute or relative to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// That instant.
    At(Timestamp),
    /// This span after now.
    Ahead(Duration),
    /// This span before now.
    Ago(Duration),
}

impl When {
    /// Now.
    pub const NOW: Self = Self::Ahead(Duration::ZERO);

    /// Returns the instant, with `now` as the base of a relative one.
    pub fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ahead(span) => now + span,
            Self::Ago(span) => now - span,
        }
    }
}

/// Reads an instant: RFC 3339, `now`, or a signed span from now such as `+10m` or `-1h`.
///
/// # Errors
///
/// A message for the user.
pub fn when(text: &str) -> Result<When, String> {
    match text.as_bytes().first() {
        _ if text == "now" => Ok(When::NOW),
        Some(b'+') => Ok(When::Ahead(span(&text[1..])?.duration())),
        Some(b'-') => Ok(When::Ago(span(&text[1..])?.duration())),
        _ => text.parse().map(When::At).map_err(|_| {
            "2026-01-31T08:00:00Z, now, or a span from now such as +10m or -1h, is expected"
                .to_owned()
        }),
    }
}

/// Reads an attribute, `name=value`. A numeric value becomes a number.
///
/// # Errors
///
/// A message for the user.
pub fn attribute(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("name=value is expected")?;
    let value =
        serde_json::from_str(value).map_or_else(|_| Value::Text(value.to_owned()), Value::Number);
    Ok((name.to_owned(), value))
}

/// Reads a field of a request, `name=JSON`.
///
/// # Errors
///
/// A message for the user.
pub fn field(text: &str) -> Result<(String, Json), String> {
    let (name, value) =
        text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("name=JSON is expected")?;
    Ok((name.to_owned(), json(value)?))
}

/// JSON text, unchanged.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Json(pub Box<RawValue>);

impl Json {
    /// The JSON value `null`.
    pub fn null() -> Self {
        Self(RawValue::from_string("null".to_owned()).expect("null is JSON"))
    }
}

/// Reads JSON text.
///
/// # Errors
///
/// A message for the user.
pub fn json(text: &str) -> Result<Json, String> {
    serde_json::from_str::<Box<RawValue>>(text)
        .map(Json)
        .map_err(|err| format!("not JSON ({err}); a text needs its quotes: '\"like this\"'"))
}

/// Returns the JSON given inline or in a file, where `-` means standard input, or `None` without
/// both.
///
/// # Errors
///
/// The file cannot be read, or its text is not JSON.
pub async fn json_from(inline: Option<&str>, file: Option<&Path>) -> anyhow::Result<Option<Json>> {
    let (text, source) = match (inline, file) {
        (Some("-"), _) => (read_stdin().await?, "standard input".to_owned()),
        (_, Some(path)) if path == Path::new("-") => {
            (read_stdin().await?, "standard input".to_owned())
        }
        (Some(text), _) => (text.to_owned(), "the value".to_owned()),
        (None, Some(path)) => {
            let source = path.display().to_string();
            (
                tokio::fs::read_to_string(path)
                    .await
                    .map_err(|err| UsageError(format!("{source} cannot be read: {err}")))?,
                source,
            )
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(json(&text).map_err(|err| UsageError(format!("{source} is {err}")))?))
}

async fn read_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    tokio::io::stdin().read_to_string(&mut text).await.context("standard input cannot be read")?;
    Ok(text)
}

/// The fields of a request body. An unset field is absent, so the server's default applies.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    /// Sets a field.
    pub fn set(&mut self, name: &str, value: impl Serialize) {
        self.0
            .insert(name.to_owned(), to_raw_value(&value).expect("plain values have a JSON form"));
    }

    /// Sets a field if there is a value for it.
    pub fn maybe(&mut self, name: &str, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Whether no field is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the fields of `--field`.
    pub fn extend(&mut self, fields: &[(String, Json)]) {
        self.0.extend(fields.iter().map(|(name, json)| (name.clone(), json.0.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_in_their_units() {
        for (text, millis) in [
            ("20s", 20_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("1.5h", 5_400_000),
            ("2d", 172_800_000),
            ("7", 7000),
        ] {
            assert_eq!(span(text).map(Seconds::millis), Ok(millis), "{text}");
        }
        for text in ["", "s", "5x", "1h30", "-5s", "1..5s", "5 s"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn instants_are_read_outright_or_from_now() {
        let now = Timestamp::from_millis(1_000_000);
        assert_eq!(when("+10s").unwrap().at(now).millis(), 1_010_000);
        assert_eq!(when("-10s").unwrap().at(now).millis(), 990_000);
        assert_eq!(when("1970-01-01T00:00:01Z").unwrap().at(now).millis(), 1000);
        assert!(when("tomorrow").is_err());
    }

    #[test]
    fn an_attribute_that_looks_like_a_number_is_one() {
        assert_eq!(attribute("size=3"), Ok(("size".to_owned(), Value::Number(3.into()))));
        assert_eq!(
            attribute("region=east=1"),
            Ok(("region".to_owned(), Value::Text("east=1".to_owned())))
        );
        assert!(attribute("region").is_err() && attribute("=x").is_err());
    }

    #[test]
    fn json_is_kept_as_it_was_written() {
        let body = {
            let mut fields = Fields::default();
            fields.extend(&[field(r#"data={"b":1.0, "a":10000000000000000000000}"#).unwrap()]);
            fields.maybe("priority", None::<i32>);
            serde_json::to_string(&fields).unwrap()
        };
        assert_eq!(body, r#"{"data":{"b":1.0, "a":10000000000000000000000}}"#);
        assert!(json("hello").unwrap_err().contains("quotes"));
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_named() {
        let err = json_from(None, Some(Path::new("/no/such.json"))).await.unwrap_err();
        assert!(err.to_string().starts_with("/no/such.json cannot be read"), "{err}");
    }
}
