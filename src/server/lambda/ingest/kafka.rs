//! Kafka, on MSK or self-managed: lists of records by topic and partition, with keys and values in
//! base64 and headers as numbers.
//!
//! The one thing to know: the offsets of a recreated topic start at 0 again, so the id of a record
//! contains its timestamp.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    message::{MAX_NESTING, RawMessage},
    record::{EventResult, MalformedRecord, Record, RedeliveryScope},
    source::{Fields, text},
};
use crate::lambda::ingest::event_builder::EventBuilder;

/// A record. Its headers may have no value. The types of `aws_lambda_events` reject such headers,
/// and panic at a timestamp with a fraction.
#[derive(Deserialize)]
struct KafkaRecord {
    topic: String,
    partition: i64,
    offset: i64,
    timestamp: Option<i64>,
    key: Option<String>,
    value: Option<String>,
    /// One header in each map. Bytes are numbers; those from 128 are negative.
    #[serde(default)]
    headers: Vec<BTreeMap<String, Option<Vec<i16>>>>,
}

/// The records of an invocation by Kafka; `None` if it has another source.
///
/// If one fails, all are redelivered. Lambda understands the names of single Kafka records only in
/// its provisioned mode, and otherwise takes an answer with names for a success.
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
        raw.map(|raw| Record { redelivery: RedeliveryScope::Whole, events: read(&raw, &cluster) })
            .collect(),
    )
}

/// The name of a cluster without an ARN: its servers, sorted.
fn named_by_servers(fields: &Fields<'_>) -> String {
    let servers = text(fields, "bootstrapServers").unwrap_or_default();
    let mut servers: Vec<&str> = servers.split(',').map(str::trim).collect();
    servers.sort_unstable();
    format!("kafka://{}", servers.join(","))
}

fn read(raw: &Bytes, cluster: &str) -> Vec<EventResult> {
    message(raw, cluster).map_or_else(
        |why| vec![Err(MalformedRecord::new(raw, why))],
        |message| message.read(raw, MAX_NESTING),
    )
}

fn message(raw: &Bytes, cluster: &str) -> Result<RawMessage, String> {
    let record: KafkaRecord = serde_json::from_slice(raw).map_err(|error| {
        format!("the record does not match the format of Kafka's poller: {error}")
    })?;
    let decoded = |what: &str, text: Option<String>| match text {
        None => Ok(None),
        Some(text) => BASE64_STANDARD
            .decode(text)
            .map(Some)
            .map_err(|error| format!("the record's {what} is not valid base64: {error}")),
    };
    let key = decoded("key", record.key)?.and_then(|key| String::from_utf8(key).ok());
    let bytes = decoded("value", record.value)?.map(Bytes::from);
    // Records of brokers before version 0.10 have -1.
    let at = record.timestamp.filter(|millis| *millis >= 0);
    let position = format!("{}-{}-{}", record.topic, record.partition, record.offset);
    let id = at.map_or_else(|| position.clone(), |at| format!("{position}@{at}"));
    let builder = EventBuilder::new(id, cluster, "org.apache.kafka.Record")
        .time(at)
        .attribute("subject", Some(record.topic))
        .attribute("partitionkey", key);
    let header = |(name, value): (String, Option<Vec<i16>>)| {
        let value: Vec<u8> = value?.into_iter().map(|byte| byte as u8).collect();
        Some((name, String::from_utf8(value).ok()?))
    };
    let headers = record.headers.into_iter().flatten().filter_map(header).collect();
    Ok(RawMessage { builder, headers, bytes })
}
