//! Which rules are valid.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Trigger, TriggerConfig, config::MAX_JOB_TYPES, type_of};
use crate::{
    error_code::ErrorCode,
    event::{
        fields::JobFields,
        template::{Compiled, Template},
    },
    job::{TriggerName, TypeName},
    validate::ValidationError,
};

/// The fields of `complete`.
const COMPLETE_FIELDS: [&str; 8] =
    ["type", "correlation_key", "attempt", "status", "result", "message", "error", "retryable"];

impl Trigger {
    /// The rule with this configuration.
    ///
    /// # Errors
    ///
    /// The first fault, with code `invalid_trigger`, `unknown_field` or `invalid_expression`.
    pub fn new(name: &TriggerName, config: &TriggerConfig) -> Result<Self, ValidationError> {
        Self::checked(name, config).map_err(|fault| {
            if fault.code == ErrorCode::InvalidField {
                ValidationError { code: ErrorCode::InvalidTrigger, ..fault }
            } else {
                fault
            }
        })
    }

    fn checked(name: &TriggerName, config: &TriggerConfig) -> Result<Self, ValidationError> {
        if config.job_types.len() > MAX_JOB_TYPES {
            let message = format!("must have at most {MAX_JOB_TYPES} names");
            return Err(ValidationError::new("job_types", message));
        }
        if config.job_types.iter().any(TypeName::is_internal) {
            return Err(ValidationError::new("job_types", "must not name a type of the server"));
        }
        config.filter.check().map_err(|fault| fault.within("filter"))?;
        let (enqueues, part, given) = match (config.enqueue.is_empty(), config.complete.is_empty())
        {
            (false, true) => (true, "enqueue", &config.enqueue),
            (true, false) => (false, "complete", &config.complete),
            (true, true) => {
                return Err(ValidationError::new("enqueue", "must be given, unless `complete` is"));
            }
            (false, false) => {
                return Err(ValidationError::new(
                    "complete",
                    "must not be given together with `enqueue`",
                ));
            }
        };
        let mut fields = BTreeMap::new();
        for (field, template) in given {
            let compiled =
                check_field(enqueues, field, template).map_err(|fault| fault.within(part))?;
            fields.insert(field.clone(), compiled);
        }
        if enqueues {
            check_literals(&fields).map_err(|fault| fault.within(part))?;
        }
        let required: &[&str] = if enqueues { &["type"] } else { &["type", "correlation_key"] };
        if let Some(missing) = required.iter().find(|name| !fields.contains_key(**name)) {
            return Err(ValidationError::new(format!("{part}.{missing}"), "is required"));
        }
        let (job_types, filter) = (config.job_types.clone(), config.filter.clone());
        Ok(Self { name: name.clone(), job_types, filter, enqueues, fields })
    }
}

/// One field of `enqueue` or `complete`, compiled.
fn check_field(
    enqueues: bool,
    field: &str,
    template: &Template,
) -> Result<Compiled, ValidationError> {
    let known = if enqueues {
        matches!(field, "type" | "data") || JobFields::has(field)
    } else {
        COMPLETE_FIELDS.contains(&field)
    };
    if !known {
        let more = if enqueues && field == "id" {
            ": the id of the job follows from the event's source and id"
        } else {
            ""
        };
        return Err(ValidationError {
            code: ErrorCode::UnknownField,
            field: field.to_owned(),
            message: format!("is not a known field{more}"),
        });
    }
    let compiled = template.compile().map_err(|fault| ValidationError {
        code: ErrorCode::InvalidExpression,
        ..fault.within(field)
    })?;
    if !enqueues || field == "type" {
        check_literal(field, &compiled)?;
    }
    Ok(compiled)
}

/// Checks the literal fields of a job together, as `POST /v1/jobs` would. They are the same for
/// every event.
fn check_literals(fields: &BTreeMap<String, Compiled>) -> Result<(), ValidationError> {
    let literal = |(field, template): (&String, &Compiled)| match template {
        Compiled::Literal(value) if JobFields::has(field) && !value.is_null() => {
            Some((field.clone(), value.clone()))
        }
        _ => None,
    };
    JobFields::read(fields.iter().filter_map(literal).collect())?.check()
}

/// Checks a field whose value is the same for every event.
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
