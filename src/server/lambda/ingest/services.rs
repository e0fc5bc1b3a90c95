//! The services of AWS: the format of their records, and the event that each record becomes.
//! `docs/events.md` has the table.
//!
//! Records are read by the types of `aws_lambda_events`, except those of DynamoDB: the types would
//! parse every attribute value, but the event contains the record unchanged.

use aws_lambda_events::event::{
    eventbridge::EventBridgeEvent,
    kinesis::KinesisEventRecord,
    s3::S3EventRecord,
    sns::{SnsMessage, SnsRecord},
    sqs::SqsMessage,
};
use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use url::form_urlencoded;

use super::{
    message::{MAX_NESTING, RawMessage},
    record::{EventResult, MalformedRecord, Record, RedeliveryScope},
};
use crate::lambda::ingest::event_builder::EventBuilder;
use tidegate_core::{
    event::trigger::{digest, hex},
    job::Payload,
};

const JSON: &str = "application/json";

fn parsed<T: DeserializeOwned>(raw: &Bytes) -> Result<T, String> {
    serde_json::from_slice(raw)
        .map_err(|error| format!("the record does not match the format of its service: {error}"))
}

fn named(name: Option<String>) -> RedeliveryScope {
    name.filter(|name| !name.is_empty()).map_or(RedeliveryScope::Whole, RedeliveryScope::Named)
}

/// An event of an event bus. Its data is the detail, byte for byte.
pub fn event_bridge(raw: &Bytes) -> EventResult {
    let event: EventBridgeEvent<Box<RawValue>> =
        parsed(raw).map_err(|why| MalformedRecord::new(raw, why))?;
    // A source is a URI reference in CloudEvents, and any text in EventBridge.
    let source = event.source.replace(char::is_whitespace, "%20");
    EventBuilder::new(event.id.unwrap_or_default(), source, event.detail_type)
        .time(event.time.map(|at| at.timestamp_millis()))
        .attribute("subject", event.resources.and_then(|resources| resources.into_iter().next()))
        .attribute("account", event.account)
        .attribute("region", event.region)
        .data(JSON, Payload::json(String::from(Box::<str>::from(event.detail))))
        .build(raw)
}

/// A message of a topic.
pub fn sns(raw: &Bytes) -> Result<Record, String> {
    let record: SnsRecord = parsed(raw)?;
    Ok(Record {
        redelivery: RedeliveryScope::Whole,
        events: published(record.sns, raw, MAX_NESTING),
    })
}

/// A message of a topic, as a queue delivers it.
pub fn notification(raw: &Bytes, nesting: usize) -> Vec<EventResult> {
    match parsed(raw) {
        Ok(message) => published(message, raw, nesting),
        Err(why) => vec![Err(MalformedRecord::new(raw, why))],
    }
}

fn published(message: SnsMessage, raw: &Bytes, nesting: usize) -> Vec<EventResult> {
    let builder =
        EventBuilder::new(message.message_id, message.topic_arn, "com.amazonaws.sns.Notification")
            .time(Some(message.timestamp.timestamp_millis()))
            .attribute("subject", message.subject);
    let texts = message
        .message_attributes
        .into_iter()
        .filter(|(_, attribute)| attribute.data_type != "Binary");
    let headers = in_order(texts.map(|(name, attribute)| (name, attribute.value)));
    RawMessage { builder, headers, bytes: Some(message.message.into()) }.read(raw, nesting)
}

/// A message of a queue.
pub fn sqs(raw: &Bytes) -> Result<Record, String> {
    let message: SqsMessage = parsed(raw)?;
    let body = message.body.ok_or("the message has no body")?;
    let id = message.message_id.unwrap_or_default();
    let of = |name: &str| message.attributes.get(name);
    let builder = EventBuilder::new(
        &id,
        message.event_source_arn.unwrap_or_default(),
        "com.amazonaws.sqs.Message",
    )
    .time(of("SentTimestamp").and_then(|millis| millis.parse().ok()))
    .attribute("partitionkey", of("MessageGroupId"));
    let texts = message
        .message_attributes
        .into_iter()
        .filter_map(|(name, attribute)| Some((name, attribute.string_value?)));
    let events = RawMessage { builder, headers: in_order(texts), bytes: Some(body.into()) }
        .read(raw, MAX_NESTING);
    Ok(Record { redelivery: named(Some(id)), events })
}

/// An event of a bucket. Its data is the record, unchanged.
pub fn s3(raw: &Bytes) -> Result<Record, String> {
    let record: S3EventRecord = parsed(raw)?;
    let object = record.s3.object;
    let key = object.key.ok_or("the record names no object")?;
    let bucket =
        record.s3.bucket.arn.or_else(|| Some(format!("arn:aws:s3:::{}", record.s3.bucket.name?)));
    let name = record.event_name.unwrap_or_default();
    // A request may change many objects, and an object may change many times. The sequencer tells
    // the changes of an object apart; not every event has one.
    let when = object.sequencer.unwrap_or_else(|| record.event_time.to_rfc3339());
    let id =
        hex(&digest(&[&name, &key, object.version_id.as_deref().unwrap_or_default(), &when])[..20]);
    let event =
        EventBuilder::new(id, bucket.unwrap_or_default(), format!("com.amazonaws.s3.{name}"))
            .time(Some(record.event_time.timestamp_millis()))
            .attribute("subject", Some(object_key(&key)))
            .attribute("region", record.aws_region)
            .data(JSON, Payload::json(raw.clone()))
            .build(raw);
    Ok(Record { redelivery: RedeliveryScope::Whole, events: vec![event] })
}

/// The key of an object, decoded: S3 encodes it as in an HTML form.
fn object_key(key: &str) -> String {
    let form = format!("key={}", key.replace('&', "%26"));
    form_urlencoded::parse(form.as_bytes())
        .next()
        .map(|(_, key)| key.into_owned())
        .unwrap_or_default()
}

/// A record of a stream.
pub fn kinesis(raw: &Bytes) -> Result<Record, String> {
    let record: KinesisEventRecord = parsed(raw)?;
    let kinesis = record.kinesis;
    let builder = EventBuilder::new(
        record.event_id.unwrap_or_default(),
        record.event_source_arn.unwrap_or_default(),
        "com.amazonaws.kinesis.Record",
    )
    .time(Some(kinesis.approximate_arrival_timestamp.timestamp_millis()))
    .attribute("partitionkey", Some(kinesis.partition_key))
    .attribute("region", record.aws_region);
    let events = RawMessage { builder, headers: Vec::new(), bytes: Some(kinesis.data.0.into()) }
        .read(raw, MAX_NESTING);
    Ok(Record { redelivery: named(Some(kinesis.sequence_number)), events })
}

/// A change of an item. Its data is the change, byte for byte: keys and images in DynamoDB's JSON.
pub fn dynamodb(raw: &Bytes) -> Result<Record, String> {
    #[derive(Deserialize)]
    struct Change<'a> {
        #[serde(rename = "eventID")]
        id: String,
        #[serde(rename = "eventName")]
        name: String,
        #[serde(rename = "eventSourceARN")]
        stream: String,
        #[serde(rename = "awsRegion")]
        region: Option<String>,
        #[serde(borrow)]
        dynamodb: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Of {
        #[serde(rename = "SequenceNumber")]
        sequence: Option<String>,
        #[serde(rename = "ApproximateCreationDateTime")]
        seconds: Option<f64>,
    }
    let malformed = |error: serde_json::Error| {
        format!("the record does not match the format of its service: {error}")
    };
    let change: Change<'_> = serde_json::from_slice(raw).map_err(malformed)?;
    let of: Of = serde_json::from_str(change.dynamodb.get()).map_err(malformed)?;
    let event = EventBuilder::new(
        change.id,
        change.stream,
        format!("com.amazonaws.dynamodb.{}", change.name),
    )
    .time(of.seconds.map(|seconds| (seconds * 1000.0) as i64))
    .attribute("region", change.region)
    .data(JSON, Payload::json(raw.slice_ref(change.dynamodb.get().as_bytes())))
    .build(raw);
    Ok(Record { redelivery: named(of.sequence), events: vec![event] })
}

/// Attributes sorted by name, so that a redelivery gives the same event.
fn in_order(attributes: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut attributes: Vec<_> = attributes.collect();
    attributes.sort_unstable();
    attributes
}
