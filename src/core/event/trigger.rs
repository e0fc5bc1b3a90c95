//! Triggers: rules that make a new job, or the reply to a waiting one, of each event that they are about.
//!
//! The one thing to know: a rule is checked as a whole when it is put, so that what can fail later depends on the event
//! alone. Such a failure is a value, [`Decision::Failed`], which is kept as a dead letter.

use crate::error_code::ErrorCode;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{
    expression::MOST_OUTPUT,
    fields::JobFields,
    filter::Filter,
    template::{Compiled, Template},
    value::Event,
};
use crate::event::event_view::EventView;
use crate::{
    job::{JobId, Payload, TriggerName, TypeName, lifecycle::ReplyId},
    validate::ValidationError,
};

/// Most triggers of a server.
pub const MOST_TRIGGERS: usize = 500;
/// Most bytes of what people are told of a failure, as a worker's own report has it.
const MESSAGE_BYTES: usize = 4 << 10;
/// Most bytes of what is kept of a failure besides.
const DETAILS_BYTES: usize = 16 << 10;

/// What becomes of the events that a filter lets pass: `enqueue` or `complete`, one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerConfig {
    /// Which events; all if it is empty.
    pub filter: Filter,
    /// The job to enqueue: `type` and any other field of `POST /v1/jobs` but `id`, each a value in which
    /// `{"$expr": "..."}` stands for a JMESPath expression over the event. Without `data` it carries the event's data, byte for byte.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub enqueue: BTreeMap<String, Template>,
    /// The job to complete: its `type` and `correlation_key`, and what became of it: `attempt`, `status` (`succeeded`, `failed`, or
    /// true and false), `result`, `message`, `error`, `retryable`, each as under `enqueue`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub complete: BTreeMap<String, Template>,
}

/// A trigger as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriggerItem {
    /// What its owner said.
    pub config: TriggerConfig,
    /// Raised by every change.
    pub version: u64,
}

/// The fields of `complete`.
const COMPLETE: [&str; 8] =
    ["type", "correlation_key", "attempt", "status", "result", "message", "error", "retryable"];

/// A rule that was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Trigger {
    /// Its name.
    pub name: TriggerName,
    filter: Filter,
    enqueues: bool,
    fields: BTreeMap<String, Compiled>,
}

/// What a trigger makes of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// This job is to be enqueued.
    Enqueue(Box<Wanted>),
    /// This job is to be completed.
    Complete(Box<Reply>),
    /// Its templates cannot be filled from this event: why.
    Failed(String),
}

/// A job that an event asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The id that the trigger and the event make.
    pub id: JobId,
    /// Its type.
    pub job_type: TypeName,
    /// What it carries.
    pub data: Payload,
    /// Everything else.
    pub fields: JobFields,
}

/// What an event says of a job that waits for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// What the trigger and the event make, so that a second delivery is known for one.
    pub id: ReplyId,
    /// The job's type.
    pub job_type: TypeName,
    /// Its correlation key.
    pub correlation_key: String,
    /// The attempt it is about, if the event says so.
    pub attempt: Option<u16>,
    /// What became of it.
    pub said: TriggerOutcome,
}

/// What became of a job that waited for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum TriggerOutcome {
    /// It worked, with this.
    Succeeded(Option<Payload>),
    /// It did not.
    Failed {
        /// For people.
        message: Option<String>,
        /// JSON text.
        details: Option<String>,
        /// Whether another attempt makes sense.
        retryable: bool,
    },
}

impl Trigger {
    /// The rule that `config` is.
    ///
    /// # Errors
    ///
    /// The first fault, with code `invalid_trigger`, `unknown_field` or `invalid_expression`.
    pub fn new(name: &TriggerName, config: &TriggerConfig) -> Result<Self, ValidationError> {
        let coded = |fault: ValidationError| {
            if fault.code == ErrorCode::InvalidField {
                ValidationError { code: ErrorCode::InvalidTrigger, ..fault }
            } else {
                fault
            }
        };
        Self::checked(name, config).map_err(coded)
    }

    fn checked(name: &TriggerName, config: &TriggerConfig) -> Result<Self, ValidationError> {
        config.filter.check().map_err(|fault| fault.within("filter"))?;
        let (enqueues, part, given) = match (config.enqueue.is_empty(), config.complete.is_empty())
        {
            (false, true) => (true, "enqueue", &config.enqueue),
            (true, false) => (false, "complete", &config.complete),
            (true, true) => {
                return Err(ValidationError::new("enqueue", "or `complete` must be given"));
            }
            (false, false) => {
                return Err(ValidationError::new("complete", "goes not together with `enqueue`"));
            }
        };
        let known = |name: &str| {
            if enqueues {
                matches!(name, "type" | "data") || JobFields::has(name)
            } else {
                COMPLETE.contains(&name)
            }
        };
        let mut fields = BTreeMap::new();
        for (field, template) in given {
            if !known(field) {
                let more = if enqueues && field == "id" {
                    ": the event's source and id make it"
                } else {
                    ""
                };
                return Err(ValidationError {
                    code: ErrorCode::UnknownField,
                    field: format!("{part}.{field}"),
                    message: format!("is no field here{more}"),
                });
            }
            let compiled = template.compile().map_err(|fault| ValidationError {
                code: ErrorCode::InvalidExpression,
                ..fault.within(field).within(part)
            })?;
            if !enqueues || field == "type" {
                check_literal(field, &compiled).map_err(|fault| fault.within(part))?;
            }
            fields.insert(field.clone(), compiled);
        }
        if enqueues {
            check_literals(&fields).map_err(|fault| fault.within(part))?;
        }
        let required: &[&str] = if enqueues { &["type"] } else { &["type", "correlation_key"] };
        match required.iter().find(|name| !fields.contains_key(**name)) {
            Some(missing) => Err(ValidationError::new(format!("{part}.{missing}"), "is required")),
            None => {
                Ok(Self { name: name.clone(), filter: config.filter.clone(), enqueues, fields })
            }
        }
    }

    /// Whether it enqueues jobs, rather than completing them.
    pub fn enqueues(&self) -> bool {
        self.enqueues
    }

    /// What it makes of an event; none if its filter does not let it pass.
    pub fn decide(&self, look: &EventView<'_>) -> Option<Decision> {
        if !self.filter.matches(look.event, &look.found) {
            return None;
        }
        let made = if self.enqueues {
            self.job(look).map(Decision::Enqueue)
        } else {
            self.reply(look).map(Decision::Complete)
        };
        Some(made.unwrap_or_else(|fault| {
            let field =
                if fault.field.is_empty() { String::new() } else { format!("{}: ", fault.field) };
            Decision::Failed(format!("{field}{}", fault.message))
        }))
    }

    fn job(&self, look: &EventView<'_>) -> Result<Box<Wanted>, ValidationError> {
        let mut left = MOST_OUTPUT;
        let mut values = Map::new();
        let (mut job_type, mut data) = (None, None);
        for (name, template) in &self.fields {
            if name == "data" {
                data = Some(look.payload(template, &mut left).map_err(|fault| fault.within(name))?);
                continue;
            }
            let value = look.fill(template, &mut left).map_err(|fault| fault.within(name))?;
            match (name.as_str(), value) {
                ("type", value) => job_type = Some(type_of(&value)?),
                (_, Value::Null) => {}
                (_, value) => drop(values.insert(name.clone(), value)),
            }
        }
        let fields = JobFields::read(values)?;
        fields.check()?;
        Ok(Box::new(Wanted {
            id: self.job_id(look.event),
            job_type: job_type.ok_or_else(|| ValidationError::new("type", "is required"))?,
            data: data.unwrap_or_else(|| look.data()),
            fields,
        }))
    }

    fn reply(&self, look: &EventView<'_>) -> Result<Box<Reply>, ValidationError> {
        let mut left = MOST_OUTPUT;
        let mut value = |name: &str| match self.fields.get(name) {
            None => Ok(None),
            Some(template) => {
                Ok(Some(look.fill(template, &mut left).map_err(|fault| fault.within(name))?)
                    .filter(|value| !value.is_null()))
            }
        };
        let job_type = type_of(&value("type")?.unwrap_or_default())?;
        let correlation_key = match value("correlation_key")? {
            Some(Value::String(text)) if (1..=256).contains(&text.len()) => text,
            Some(Value::Number(number)) => number.to_string(),
            _ => {
                return Err(ValidationError::new(
                    "correlation_key",
                    "must be a text of 1 to 256 bytes, or a number",
                ));
            }
        };
        let attempt = match value("attempt")? {
            None => None,
            Some(Value::Number(number)) => Some(number.as_u64()),
            // What comes as a header is a text.
            Some(Value::String(text)) => Some(text.parse().ok()),
            Some(_) => Some(None),
        };
        let attempt = match attempt {
            None => None,
            Some(number) => match number
                .and_then(|number| u16::try_from(number).ok())
                .filter(|number| *number > 0)
            {
                Some(number) => Some(number),
                None => {
                    return Err(ValidationError::new(
                        "attempt",
                        "must be a whole number from 1 to 65535",
                    ));
                }
            },
        };
        let succeeded = match value("status")? {
            None if self.fields.contains_key("status") => {
                return Err(ValidationError::new("status", "must not be null"));
            }
            None | Some(Value::Bool(true)) => true,
            Some(Value::Bool(false)) => false,
            Some(Value::String(word)) if word == "succeeded" => true,
            Some(Value::String(word)) if word == "failed" => false,
            Some(_) => {
                return Err(ValidationError::new(
                    "status",
                    "must be succeeded, failed, true or false",
                ));
            }
        };
        let said = if succeeded {
            let result = match self.fields.get("result") {
                None => look.event.data.clone(),
                Some(template) => Some(
                    look.payload(template, &mut left).map_err(|fault| fault.within("result"))?,
                ),
            };
            TriggerOutcome::Succeeded(result)
        } else {
            let message = match value("message")? {
                None => None,
                Some(Value::String(text)) => Some(cut(text)),
                Some(_) => return Err(ValidationError::new("message", "must be a text")),
            };
            let retryable = match value("retryable")? {
                None => true,
                Some(Value::Bool(retryable)) => retryable,
                Some(_) => return Err(ValidationError::new("retryable", "must be true or false")),
            };
            let details = match (value("error")?, self.fields.contains_key("error")) {
                (Some(details), _) => Some(details.to_string()),
                (None, true) => None,
                (None, false) => look
                    .event
                    .data
                    .as_ref()
                    .and_then(|data| String::from_utf8(data.to_json().ok()?.into()).ok()),
            };
            // The job is to fail all the same.
            let details = details.map(|text| {
                if text.len() > DETAILS_BYTES {
                    format!("{{\"left_out_bytes\":{}}}", text.len())
                } else {
                    text
                }
            });
            TriggerOutcome::Failed { message, details, retryable }
        };
        Ok(Box::new(Reply {
            id: self.reply_id(look.event),
            job_type,
            correlation_key,
            attempt,
            said,
        }))
    }

    /// The id of the job that it makes of `event`: the same for a second delivery.
    pub fn job_id(&self, event: &Event) -> JobId {
        format!("ev-{}", hex(&self.digest(event)[..20]))
            .parse()
            .expect("hexadecimal digits make an id")
    }

    /// The same for what `event` says of a job.
    fn reply_id(&self, event: &Event) -> ReplyId {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.digest(event)[..16]);
        ReplyId(u128::from_be_bytes(bytes))
    }

    fn digest(&self, event: &Event) -> [u8; 32] {
        digest(&[self.name.as_str(), &event.source, &event.id])
    }
}

/// What a trigger's `name` (none: no trigger saw it) and `event` make together: the name of its dead letter.
pub fn letter_id(name: Option<&TriggerName>, event: &Event) -> String {
    hex(&digest(&[name.map_or("", TriggerName::as_str), &event.source, &event.id])[..20])
}

/// A digest of texts, each with its length, so that no two lists are one.
pub fn digest(texts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    }
    hash.finalize().into()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        text.extend(
            [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])),
        );
        text
    })
}

fn type_of(value: &Value) -> Result<TypeName, ValidationError> {
    let text = value.as_str().ok_or_else(|| ValidationError::new("type", "must be a text"))?;
    text.parse()
        .map_err(|error: crate::job::name::BadName| ValidationError::new("type", error.to_string()))
}

/// Checks what the fields of a job are whatever the event, together, as `POST /v1/jobs` would.
fn check_literals(fields: &BTreeMap<String, Compiled>) -> Result<(), ValidationError> {
    let literal = |(field, template): (&String, &Compiled)| match template {
        Compiled::Literal(value) if JobFields::has(field) && !value.is_null() => {
            Some((field.clone(), value.clone()))
        }
        _ => None,
    };
    JobFields::read(fields.iter().filter_map(literal).collect())?.check()
}

/// Checks what a field is whatever the event.
fn check_literal(field: &str, template: &Compiled) -> Result<(), ValidationError> {
    let Compiled::Literal(value) = template else {
        return Ok(());
    };
    match field {
        "type" => type_of(value).map(drop),
        "correlation_key"
            if !value.is_number()
                && value.as_str().is_none_or(|text| !(1..=256).contains(&text.len())) =>
        {
            Err(ValidationError::new(field, "must be a text of 1 to 256 bytes, or a number"))
        }
        "status"
            if !matches!(value, Value::Bool(_))
                && !matches!(value.as_str(), Some("succeeded" | "failed")) =>
        {
            Err(ValidationError::new(field, "must be succeeded, failed, true or false"))
        }
        "retryable" if !value.is_boolean() => {
            Err(ValidationError::new(field, "must be true or false"))
        }
        "message" if !value.is_string() => Err(ValidationError::new(field, "must be a text")),
        "attempt" if value.as_u64().is_none_or(|number| !(1..=65_535).contains(&number)) => {
            Err(ValidationError::new(field, "must be a whole number from 1 to 65535"))
        }
        _ => Ok(()),
    }
}

/// At most 4 KiB of a text.
fn cut(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES {
        let mut end = MESSAGE_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

/// Every trigger, ready to look at events.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    list: Vec<Trigger>,
    /// Where their filters look in the data, each pointer under itself.
    pointers: BTreeMap<String, String>,
}

impl Triggers {
    /// These triggers, by name.
    pub fn new(mut list: Vec<Trigger>) -> Self {
        list.sort_by(|a, b| a.name.cmp(&b.name));
        let mut pointers = BTreeSet::new();
        for trigger in &list {
            trigger.filter.pointers(&mut pointers);
        }
        let pointers =
            pointers.into_iter().map(|pointer| (pointer.to_owned(), pointer.to_owned())).collect();
        Self { list, pointers }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The one of this name.
    pub fn get(&self, name: &TriggerName) -> Option<&Trigger> {
        self.list.iter().find(|trigger| trigger.name == *name)
    }

    /// What each trigger that is about `event` makes of it, by name.
    pub fn decide<'a>(&'a self, event: &Event) -> Vec<(&'a Trigger, Decision)> {
        let look = EventView::new(event, &self.pointers);
        self.list.iter().filter_map(|trigger| Some((trigger, trigger.decide(&look)?))).collect()
    }

    /// What one of them makes of `event`.
    pub fn decide_one(&self, trigger: &Trigger, event: &Event) -> Option<Decision> {
        trigger.decide(&EventView::new(event, &self.pointers))
    }
}
