//! The services of AWS: what each calls its records, and which event each record makes. `docs/events.md` has the table.
//!
//! Records are read by the types of `aws_lambda_events`. Those of DynamoDB are not: it would take every attribute value apart, and they are
//! handed on as they came.

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
    message::{LEVELS, Message},
    record::{Read, Record, RedeliveryScope, Unread},
};
use crate::lambda::ingest::event_builder::Sketch;
use tidegate_core::{
    event::trigger::{digest, hex},
    job::Payload,
};

const JSON: &str = "application/json";

fn parsed<T: DeserializeOwned>(raw: &Bytes) -> Result<T, String> {
    serde_json::from_slice(raw)
        .map_err(|error| format!("the record is not as its service makes it: {error}"))
}

fn named(name: Option<String>) -> RedeliveryScope {
    name.filter(|name| !name.is_empty()).map_or(RedeliveryScope::Whole, RedeliveryScope::Named)
}

/// An event of a bus. Its data is the detail, byte for byte.
pub fn event_bridge(raw: &Bytes) -> Read {
    let event: EventBridgeEvent<Box<RawValue>> =
        parsed(raw).map_err(|why| Unread::new(raw, why))?;
    // A source is a URI reference here, and any text there.
    let source = event.source.replace(char::is_whitespace, "%20");
    Sketch::new(event.id.unwrap_or_default(), source, event.detail_type)
        .at(event.time.map(|at| at.timestamp_millis()))
        .say("subject", event.resources.and_then(|resources| resources.into_iter().next()))
        .say("account", event.account)
        .say("region", event.region)
        .carry(JSON, Payload::json(String::from(Box::<str>::from(event.detail))))
        .finish(raw)
}

/// A message of a topic.
pub fn sns(raw: &Bytes) -> Result<Record, String> {
    let record: SnsRecord = parsed(raw)?;
    Ok(Record { again: RedeliveryScope::Whole, events: published(record.sns, raw, LEVELS) })
}

/// A message of a topic as it arrives in a queue.
pub fn notification(raw: &Bytes, levels: usize) -> Vec<Read> {
    match parsed(raw) {
        Ok(message) => published(message, raw, levels),
        Err(why) => vec![Err(Unread::new(raw, why))],
    }
}

fn published(message: SnsMessage, raw: &Bytes, levels: usize) -> Vec<Read> {
    let sketch =
        Sketch::new(message.message_id, message.topic_arn, "com.amazonaws.sns.Notification")
            .at(Some(message.timestamp.timestamp_millis()))
            .say("subject", message.subject);
    let texts = message
        .message_attributes
        .into_iter()
        .filter(|(_, attribute)| attribute.data_type != "Binary");
    let beside = in_order(texts.map(|(name, attribute)| (name, attribute.value)));
    Message { sketch, beside, bytes: Some(message.message.into()) }.read(raw, levels)
}

/// A message of a queue.
pub fn sqs(raw: &Bytes) -> Result<Record, String> {
    let message: SqsMessage = parsed(raw)?;
    let body = message.body.ok_or("the message has no body")?;
    let id = message.message_id.unwrap_or_default();
    let of = |name: &str| message.attributes.get(name);
    let sketch =
        Sketch::new(&id, message.event_source_arn.unwrap_or_default(), "com.amazonaws.sqs.Message")
            .at(of("SentTimestamp").and_then(|millis| millis.parse().ok()))
            .say("partitionkey", of("MessageGroupId"));
    let texts = message
        .message_attributes
        .into_iter()
        .filter_map(|(name, attribute)| Some((name, attribute.string_value?)));
    let events =
        Message { sketch, beside: in_order(texts), bytes: Some(body.into()) }.read(raw, LEVELS);
    Ok(Record { again: named(Some(id)), events })
}

/// What happened to an object. Its data is the record, as it came.
pub fn s3(raw: &Bytes) -> Result<Record, String> {
    let record: S3EventRecord = parsed(raw)?;
    let object = record.s3.object;
    let key = object.key.ok_or("the record does not say which object it is about")?;
    let bucket =
        record.s3.bucket.arn.or_else(|| Some(format!("arn:aws:s3:::{}", record.s3.bucket.name?)));
    let name = record.event_name.unwrap_or_default();
    // Requests may change many objects, and an object may change many times: the sequencer orders the latter, where there is one.
    let when = object.sequencer.unwrap_or_else(|| record.event_time.to_rfc3339());
    let id =
        hex(&digest(&[&name, &key, object.version_id.as_deref().unwrap_or_default(), &when])[..20]);
    let event = Sketch::new(id, bucket.unwrap_or_default(), format!("com.amazonaws.s3.{name}"))
        .at(Some(record.event_time.timestamp_millis()))
        .say("subject", Some(object_key(&key)))
        .say("region", record.aws_region)
        .carry(JSON, Payload::json(raw.clone()))
        .finish(raw);
    Ok(Record { again: RedeliveryScope::Whole, events: vec![event] })
}

/// An object's key, which is written as in a form.
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
    let sketch = Sketch::new(
        record.event_id.unwrap_or_default(),
        record.event_source_arn.unwrap_or_default(),
        "com.amazonaws.kinesis.Record",
    )
    .at(Some(kinesis.approximate_arrival_timestamp.timestamp_millis()))
    .say("partitionkey", Some(kinesis.partition_key))
    .say("region", record.aws_region);
    let events = Message { sketch, beside: Vec::new(), bytes: Some(kinesis.data.0.into()) }
        .read(raw, LEVELS);
    Ok(Record { again: named(Some(kinesis.sequence_number)), events })
}

/// A change of an item. Its data is what the record says of it, byte for byte: keys, images, in DynamoDB's own JSON.
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
    let wrong =
        |error: serde_json::Error| format!("the record is not as its service makes it: {error}");
    let change: Change<'_> = serde_json::from_slice(raw).map_err(wrong)?;
    let of: Of = serde_json::from_str(change.dynamodb.get()).map_err(wrong)?;
    let event =
        Sketch::new(change.id, change.stream, format!("com.amazonaws.dynamodb.{}", change.name))
            .at(of.seconds.map(|seconds| (seconds * 1000.0) as i64))
            .say("region", change.region)
            .carry(JSON, Payload::json(raw.slice_ref(change.dynamodb.get().as_bytes())))
            .finish(raw);
    Ok(Record { again: named(of.sequence), events: vec![event] })
}

/// Attributes by name, so that a second delivery makes the same of them.
fn in_order(attributes: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut attributes: Vec<_> = attributes.collect();
    attributes.sort_unstable();
    attributes
}
