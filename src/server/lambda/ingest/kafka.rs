//! Kafka, of MSK or one's own: lists of records by topic and partition, keys and values in base64, headers as numbers.
//!
//! The one thing to know: a topic that was made anew counts its offsets from 0 again, so a record's id has its timestamp too.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    message::{LEVELS, Message},
    record::{Read, Record, RedeliveryScope, Unread},
    source::{Fields, text},
};
use crate::lambda::ingest::event_builder::Sketch;

/// A record, with headers that may have no value; the types of `aws_lambda_events` take none, and panic at a timestamp with a fraction.
#[derive(Deserialize)]
struct KafkaRecord {
    topic: String,
    partition: i64,
    offset: i64,
    timestamp: Option<i64>,
    key: Option<String>,
    value: Option<String>,
    /// Each with one header. Bytes are numbers, those of 128 and over negative.
    #[serde(default)]
    headers: Vec<BTreeMap<String, Option<Vec<i16>>>>,
}

/// The records of an invocation by Kafka; none if it is by somebody else.
///
/// All of them are to come again if one is: Lambda understands names of Kafka's records only in its provisioned mode, and otherwise takes an
/// answer with names for one that says all is well.
pub fn records(fields: &Fields<'_>, payload: &Bytes) -> Option<Vec<Record>> {
    let service = text(fields, "eventSource")?;
    if !matches!(service.as_ref(), "aws:kafka" | "SelfManagedKafka") {
        return None;
    }
    let partitions: BTreeMap<String, Vec<&RawValue>> =
        serde_json::from_str(fields.get("records")?.get()).ok()?;
    let cluster =
        text(fields, "eventSourceArn").map_or_else(|| named_by_servers(fields), Cow::into_owned);
    let raw = partitions.into_values().flatten().map(|raw| payload.slice_ref(raw.get().as_bytes()));
    Some(
        raw.map(|raw| Record { again: RedeliveryScope::Whole, events: read(&raw, &cluster) })
            .collect(),
    )
}

/// A cluster without a name of its own: by its servers, in an order that does not change.
fn named_by_servers(fields: &Fields<'_>) -> String {
    let servers = text(fields, "bootstrapServers").unwrap_or_default();
    let mut servers: Vec<&str> = servers.split(',').map(str::trim).collect();
    servers.sort_unstable();
    format!("kafka://{}", servers.join(","))
}

fn read(raw: &Bytes, cluster: &str) -> Vec<Read> {
    message(raw, cluster)
        .map_or_else(|why| vec![Err(Unread::new(raw, why))], |message| message.read(raw, LEVELS))
}

fn message(raw: &Bytes, cluster: &str) -> Result<Message, String> {
    let record: KafkaRecord = serde_json::from_slice(raw)
        .map_err(|error| format!("the record is not as Kafka's poller makes it: {error}"))?;
    let decoded = |what: &str, text: Option<String>| match text {
        None => Ok(None),
        Some(text) => BASE64_STANDARD
            .decode(text)
            .map(Some)
            .map_err(|error| format!("the record's {what} is no base64: {error}")),
    };
    let key = decoded("key", record.key)?.and_then(|key| String::from_utf8(key).ok());
    let bytes = decoded("value", record.value)?.map(Bytes::from);
    // Before brokers wrote timestamps, it was -1.
    let at = record.timestamp.filter(|millis| *millis >= 0);
    let place = format!("{}-{}-{}", record.topic, record.partition, record.offset);
    let id = at.map_or_else(|| place.clone(), |at| format!("{place}@{at}"));
    let sketch = Sketch::new(id, cluster, "org.apache.kafka.Record")
        .at(at)
        .say("subject", Some(record.topic))
        .say("partitionkey", key);
    let header = |(name, value): (String, Option<Vec<i16>>)| {
        let value: Vec<u8> = value?.into_iter().map(|byte| byte as u8).collect();
        Some((name, String::from_utf8(value).ok()?))
    };
    let beside = record.headers.into_iter().flatten().filter_map(header).collect();
    Ok(Message { sketch, beside, bytes })
}
