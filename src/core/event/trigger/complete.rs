//! The reply to a waiting job that a rule makes of an event.

use serde_json::Value;

use super::{Trigger, type_of};
use crate::{
    event::{event_view::EventView, expression::MAX_OUTPUT_BYTES},
    job::{Payload, TypeName, lifecycle::ReplyId},
    validate::ValidationError,
};

/// Most bytes of a failure's message, as in a worker's own report.
const MESSAGE_BYTES: usize = 4 << 10;
/// Most bytes of a failure's details, as in a worker's own report.
const DETAILS_BYTES: usize = 16 << 10;

/// The result that an event brings for a waiting job.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Its id, which follows from the trigger and the event, so that a second delivery is
    /// recognised.
    pub id: ReplyId,
    /// The job's type.
    pub job_type: TypeName,
    /// The job's correlation key.
    pub correlation_key: String,
    /// The attempt that the event names, if it does.
    pub attempt: Option<u16>,
    /// The result of the attempt.
    pub said: TriggerOutcome,
}

/// The result of an attempt that waited for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum TriggerOutcome {
    /// It succeeded, with this result.
    Succeeded(Option<Payload>),
    /// It failed.
    Failed {
        /// For people.
        message: Option<String>,
        /// JSON text.
        details: Option<String>,
        /// Whether another attempt makes sense.
        retryable: bool,
    },
}

/// The fields of a rule, filled from one event. Expressions may yield [`MAX_OUTPUT_BYTES`] bytes in
/// total.
struct Filling<'a> {
    trigger: &'a Trigger,
    view: &'a EventView<'a>,
    left: usize,
}

impl Trigger {
    pub(super) fn reply(&self, view: &EventView<'_>) -> Result<Box<Reply>, ValidationError> {
        let mut filling = Filling { trigger: self, view, left: MAX_OUTPUT_BYTES };
        let job_type = type_of(&filling.value("type")?.unwrap_or_default())?;
        let correlation_key = filling.correlation_key()?;
        let attempt = filling.attempt()?;
        let said = if filling.succeeded()? {
            TriggerOutcome::Succeeded(filling.result()?)
        } else {
            let message = filling.message()?;
            let retryable = filling.retryable()?;
            TriggerOutcome::Failed { message, details: filling.details()?, retryable }
        };
        Ok(Box::new(Reply {
            id: self.reply_id(view.event),
            job_type,
            correlation_key,
            attempt,
            said,
        }))
    }
}

impl Filling<'_> {
    fn has(&self, name: &str) -> bool {
        self.trigger.fields.contains_key(name)
    }

    /// The value of a field; none if the rule lacks it or it is null.
    fn value(&mut self, name: &str) -> Result<Option<Value>, ValidationError> {
        let Some(template) = self.trigger.fields.get(name) else {
            return Ok(None);
        };
        let value = self.view.fill(template, &mut self.left).map_err(|fault| fault.within(name))?;
        Ok(Some(value).filter(|value| !value.is_null()))
    }

    fn correlation_key(&mut self) -> Result<String, ValidationError> {
        match self.value("correlation_key")? {
            Some(Value::String(text)) if (1..=256).contains(&text.len()) => Ok(text),
            Some(Value::Number(number)) => Ok(number.to_string()),
            _ => Err(ValidationError::new(
                "correlation_key",
                "must be a text of 1 to 256 bytes, or a number",
            )),
        }
    }

    fn attempt(&mut self) -> Result<Option<u16>, ValidationError> {
        let number = match self.value("attempt")? {
            None => return Ok(None),
            Some(Value::Number(number)) => number.as_u64(),
            // The value of a header is a text.
            Some(Value::String(text)) => text.parse().ok(),
            Some(_) => None,
        };
        number
            .and_then(|number| u16::try_from(number).ok())
            .filter(|number| *number > 0)
            .map(Some)
            .ok_or_else(|| {
                ValidationError::new("attempt", "must be a whole number from 1 to 65535")
            })
    }

    /// Whether the attempt succeeded, which is so without a `status`.
    fn succeeded(&mut self) -> Result<bool, ValidationError> {
        match self.value("status")? {
            None if self.has("status") => Err(ValidationError::new("status", "must not be null")),
            None | Some(Value::Bool(true)) => Ok(true),
            Some(Value::Bool(false)) => Ok(false),
            Some(Value::String(word)) if word == "succeeded" => Ok(true),
            Some(Value::String(word)) if word == "failed" => Ok(false),
            Some(_) => {
                Err(ValidationError::new("status", "must be succeeded, failed, true or false"))
            }
        }
    }

    /// The result, which is the event's data if the rule does not say otherwise.
    fn result(&mut self) -> Result<Option<Payload>, ValidationError> {
        match self.trigger.fields.get("result") {
            None => Ok(self.view.event.data.clone()),
            Some(template) => self
                .view
                .payload(template, &mut self.left)
                .map(Some)
                .map_err(|fault| fault.within("result")),
        }
    }

    fn message(&mut self) -> Result<Option<String>, ValidationError> {
        match self.value("message")? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(cut(text))),
            Some(_) => Err(ValidationError::new("message", "must be a text")),
        }
    }

    fn retryable(&mut self) -> Result<bool, ValidationError> {
        match self.value("retryable")? {
            None => Ok(true),
            Some(Value::Bool(retryable)) => Ok(retryable),
            Some(_) => Err(ValidationError::new("retryable", "must be true or false")),
        }
    }

    /// The details of a failure, which are the event's data if the rule does not say otherwise.
    fn details(&mut self) -> Result<Option<String>, ValidationError> {
        let details = match self.value("error")? {
            Some(details) => Some(details.to_string()),
            None if self.has("error") => None,
            None => {
                let data = self.view.event.data.as_ref();
                data.and_then(|data| String::from_utf8(data.to_json().ok()?.into()).ok())
            }
        };
        // Details that are too long are left out, so that the job fails all the same.
        Ok(details.map(|text| {
            if text.len() > DETAILS_BYTES {
                format!("{{\"left_out_bytes\":{}}}", text.len())
            } else {
                text
            }
        }))
    }
}

/// `text`, cut at [`MESSAGE_BYTES`].
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
