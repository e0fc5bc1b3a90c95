//! Triggers: rules that turn each matching event into a new job, or into the reply to a waiting
//! job.
//!
//! A rule is checked as a whole when it is stored, so that what can fail later depends on the event
//! alone. Such a failure is a value, [`Decision::Failed`]; the event becomes a dead letter.
//!
//! Read in this order: [`config`] (the rule as its author writes it), `check` (which rules are
//! valid), `enqueue` and `complete` (what a rule makes of an event), [`identity`] (ids that a
//! second delivery makes again), [`set`] (all triggers of a server).

mod check;
mod complete;
pub mod config;
mod enqueue;
pub mod identity;
pub mod set;

use std::collections::{BTreeMap, BTreeSet};

pub use complete::{Reply, TriggerOutcome};
pub use config::{MAX_TRIGGERS, TriggerConfig, TriggerItem};
pub use enqueue::RequestedJob;
pub use identity::{digest, hex, letter_id};
use serde_json::Value;
pub use set::Triggers;

use super::{event_view::EventView, filter::Filter, template::Compiled};
use crate::{
    job::{TriggerName, TypeName, name::BadName},
    validate::ValidationError,
};

/// A checked rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Trigger {
    /// Its name.
    pub name: TriggerName,
    /// The types whose ends it handles; without any, it handles events from elsewhere.
    job_types: BTreeSet<TypeName>,
    filter: Filter,
    enqueues: bool,
    fields: BTreeMap<String, Compiled>,
}

/// What a trigger makes of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Enqueue this job.
    Enqueue(Box<RequestedJob>),
    /// Complete the job that waits for this reply.
    Complete(Box<Reply>),
    /// Its templates cannot be filled from this event, with the reason.
    Failed(String),
}

impl Trigger {
    /// Whether it enqueues jobs; otherwise it completes them.
    pub fn enqueues(&self) -> bool {
        self.enqueues
    }

    /// Whether its filter matches.
    fn matches(&self, view: &EventView<'_>) -> bool {
        self.filter.matches(view.event, &view.found)
    }

    /// What it makes of an event; none if its filter does not match.
    pub fn decide(&self, view: &EventView<'_>) -> Option<Decision> {
        if !self.matches(view) {
            return None;
        }
        let made = if self.enqueues {
            self.job(view).map(Decision::Enqueue)
        } else {
            self.reply(view).map(Decision::Complete)
        };
        Some(made.unwrap_or_else(|fault| {
            let field =
                if fault.field.is_empty() { String::new() } else { format!("{}: ", fault.field) };
            Decision::Failed(format!("{field}{}", fault.message))
        }))
    }
}

fn type_of(value: &Value) -> Result<TypeName, ValidationError> {
    let text = value.as_str().ok_or_else(|| ValidationError::new("type", "must be a text"))?;
    text.parse().map_err(|error: BadName| ValidationError::new("type", error.to_string()))
}
