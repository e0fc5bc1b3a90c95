//! The conditions on jobs of lists, error groups and bulk operations: one set of names, as a JSON
//! object in bodies and as parameters in queries.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::{
    job::{Attributes, QueueName, TypeName, Value as AttributeValue},
    time::Timestamp,
};

/// Conditions; a job matches if all of them hold.
#[derive(
    Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema, utoipa::IntoParams,
)]
#[serde(deny_unknown_fields)]
#[schema(as = JobFilter)]
#[into_params(parameter_in = Query)]
pub struct FilterBody {
    /// Only this type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[param(value_type = Option<String>)]
    pub job_type: Option<TypeName>,
    /// Only this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[param(value_type = Option<String>)]
    pub queue: Option<QueueName>,
    /// Only these jobs: an id or a list of at most 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub id: Option<Words>,
    /// Only these states: a word or a list of words, `ended` among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub state: Option<Words>,
    /// Only these phases: a word or a list of words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub phase: Option<Words>,
    /// Only with these attribute values.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, AttributeValue>>)]
    #[param(value_type = Option<BTreeMap<String, String>>)]
    pub attribute: Option<Attributes>,
    /// Only with at least this many attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_attempt: Option<u16>,
    /// Only with at most this many attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempt: Option<u16>,
    /// Only those whose latest attempt runs or ran at the worker of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Only those whose latest error has one of these reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub error_reason: Option<Words>,
    /// Only those whose latest error's message contains this text, in upper or lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_contains: Option<String>,
    /// Only those whose latest error's message has this pattern, as `GET /v1/errors` shows it, or is
    /// like this message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_pattern: Option<String>,
    /// Only accepted at this instant or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_from: Option<Timestamp>,
    /// Only accepted before this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_to: Option<Timestamp>,
    /// Only first due at this instant or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_from: Option<Timestamp>,
    /// Only first due before this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_to: Option<Timestamp>,
    /// Only those whose latest attempt started at this instant or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_from: Option<Timestamp>,
    /// Only those whose latest attempt started before this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_to: Option<Timestamp>,
    /// Only ended at this instant or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_from: Option<Timestamp>,
    /// Only ended before this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_to: Option<Timestamp>,
    /// Only with these values in the data: JSON pointers, each with a text or a number, at most 8.
    /// The data of every other matching job is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, AttributeValue>>)]
    #[param(value_type = Option<BTreeMap<String, String>>)]
    pub data: Option<BTreeMap<String, AttributeValue>>,
}

impl FilterBody {
    /// The parameters of a query with these conditions.
    pub fn query(&self) -> Vec<(String, String)> {
        let Self {
            job_type,
            queue,
            id,
            state,
            phase,
            attribute,
            min_attempt,
            max_attempt,
            worker,
            error_reason,
            error_contains,
            error_pattern,
            created_from,
            created_to,
            due_from,
            due_to,
            started_from,
            started_to,
            ended_from,
            ended_to,
            data,
        } = self;
        let words = |words: &Option<Words>| words.as_ref().map(|words| words.as_slice().join(","));
        let text = |at: &Option<Timestamp>| at.map(|at| at.to_string());
        let single = [
            ("type", job_type.as_ref().map(ToString::to_string)),
            ("queue", queue.as_ref().map(ToString::to_string)),
            ("id", words(id)),
            ("state", words(state)),
            ("phase", words(phase)),
            ("min_attempt", min_attempt.map(|attempt| attempt.to_string())),
            ("max_attempt", max_attempt.map(|attempt| attempt.to_string())),
            ("worker", worker.clone()),
            ("error_reason", words(error_reason)),
            ("error_contains", error_contains.clone()),
            ("error_pattern", error_pattern.clone()),
            ("created_from", text(created_from)),
            ("created_to", text(created_to)),
            ("due_from", text(due_from)),
            ("due_to", text(due_to)),
            ("started_from", text(started_from)),
            ("started_to", text(started_to)),
            ("ended_from", text(ended_from)),
            ("ended_to", text(ended_to)),
        ];
        let single = single.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let named = |map: &str, name: &str, value: &AttributeValue| {
            (format!("{map}[{name}]"), value.text())
        };
        let attributes = attribute.iter().flatten();
        let attributes = attributes.map(|(name, value)| named("attribute", name, value));
        let data = data.iter().flatten().map(|(pointer, value)| named("data", pointer, value));
        single.chain(attributes).chain(data).collect()
    }
}

/// A word or a list of words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "expected a word or a list of words")]
pub enum Words {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Words {
    /// The words.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(word) => std::slice::from_ref(word),
            Self::Many(words) => words,
        }
    }
}

impl FromIterator<String> for Words {
    fn from_iter<I: IntoIterator<Item = String>>(words: I) -> Self {
        Self::Many(words.into_iter().collect())
    }
}
