//! Filters: which events a trigger handles. The conditions are those of matchers.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::value::{Event, Extension, NAME_BYTES};
use crate::{
    job::{Attributes, extract::is_pointer},
    queue::matcher::{Condition, Operand},
    validate::{LIST_VALUES, MATCHER_CONDITIONS, MATCHER_DEPTH, ValidationError, check_condition},
};

/// Conditions that all hold for an event that matches; an empty one matches every event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = EventFilter)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// The event's type: a text, a list of them, or comparisons.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub event_type: Option<Condition>,
    /// Its source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Condition>,
    /// Its subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Condition>,
    /// Any other attribute or extension of it, by name.
    #[serde(
        deserialize_with = "crate::strict::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub attribute: BTreeMap<String, Condition>,
    /// Texts, numbers and booleans in its data, by JSON pointer: `{"/order/total": {"gt": 100}}`.
    #[serde(
        deserialize_with = "crate::strict::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub data: BTreeMap<String, Condition>,
    /// Every one of these matches.
    #[serde(deserialize_with = "crate::strict::or_default", skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub all: Vec<Filter>,
    /// At least one of these matches, unless the list is empty.
    #[serde(deserialize_with = "crate::strict::or_default", skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub any: Vec<Filter>,
    /// This does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub not: Option<Box<Filter>>,
}

impl Filter {
    /// Whether `event` meets every condition. `found` has the values of its data at
    /// [`Filter::pointers`].
    pub fn matches(&self, event: &Event, found: &Attributes) -> bool {
        let text = |condition: &Option<Condition>, text: Option<&str>| {
            condition.as_ref().is_none_or(|c| c.holds(text.map(Operand::Text)))
        };
        text(&self.event_type, Some(&event.event_type))
            && text(&self.source, Some(&event.source))
            && text(&self.subject, event.subject.as_deref())
            && self
                .attribute
                .iter()
                .all(|(name, condition)| holds(condition, event.attribute(name).as_ref()))
            && self
                .data
                .iter()
                .all(|(pointer, condition)| condition.holds(found.get(pointer).map(Operand::of)))
            && self.all.iter().all(|inner| inner.matches(event, found))
            && (self.any.is_empty() || self.any.iter().any(|inner| inner.matches(event, found)))
            && self.not.as_ref().is_none_or(|inner| !inner.matches(event, found))
    }

    /// Adds its pointers into the data to `pointers`.
    pub fn pointers<'a>(&'a self, pointers: &mut BTreeSet<&'a str>) {
        pointers.extend(self.data.keys().map(String::as_str));
        for inner in self.all.iter().chain(&self.any).chain(self.not.as_deref()) {
            inner.pointers(pointers);
        }
    }

    /// Checks its depth, its size, and that each condition can hold.
    ///
    /// # Errors
    ///
    /// The first fault.
    pub fn check(&self) -> Result<(), ValidationError> {
        self.check_level(1, &mut 0)
    }

    fn check_level(&self, depth: usize, conditions: &mut usize) -> Result<(), ValidationError> {
        if depth > MATCHER_DEPTH {
            return Err(ValidationError::new(
                "",
                format!("must have at most {MATCHER_DEPTH} levels"),
            ));
        }
        let texts =
            [("type", &self.event_type), ("source", &self.source), ("subject", &self.subject)];
        *conditions += texts.iter().filter(|(_, condition)| condition.is_some()).count()
            + self.attribute.len()
            + self.data.len();
        if *conditions > MATCHER_CONDITIONS {
            return Err(ValidationError::new(
                "",
                format!("must have at most {MATCHER_CONDITIONS} conditions in all"),
            ));
        }
        for (field, condition) in
            texts.into_iter().filter_map(|(field, condition)| Some((field, condition.as_ref()?)))
        {
            check_condition(condition).map_err(|fault| fault.within(field))?;
        }
        for (name, condition) in &self.attribute {
            if !(1..=NAME_BYTES).contains(&name.len()) {
                return Err(ValidationError::new(
                    "attribute",
                    format!("must have names of 1 to {NAME_BYTES} bytes"),
                ));
            }
            check_condition(condition).map_err(|fault| fault.within(name).within("attribute"))?;
        }
        for (pointer, condition) in &self.data {
            if pointer.len() > 1024 || !is_pointer(pointer) {
                return Err(ValidationError::new(
                    "data",
                    "must have JSON pointers of at most 1024 bytes as keys, such as /order/total",
                ));
            }
            check_condition(condition).map_err(|fault| fault.within(pointer).within("data"))?;
        }
        for (field, list) in [("all", &self.all), ("any", &self.any)] {
            if list.len() > LIST_VALUES {
                return Err(ValidationError::new(
                    field,
                    format!("must have at most {LIST_VALUES} entries"),
                ));
            }
            for (index, inner) in list.iter().enumerate() {
                inner
                    .check_level(depth + 1, conditions)
                    .map_err(|fault| fault.within(format_args!("{field}[{index}]")))?;
            }
        }
        self.not.as_ref().map_or(Ok(()), |inner| {
            inner.check_level(depth + 1, conditions).map_err(|fault| fault.within("not"))
        })
    }
}

fn holds(condition: &Condition, value: Option<&Extension>) -> bool {
    condition.holds(value.map(|value| match value {
        Extension::Text(text) => Operand::Text(text),
        Extension::Whole(whole) => Operand::Whole((*whole).into()),
        Extension::Flag(flag) => Operand::Text(if *flag { "true" } else { "false" }),
    }))
}
