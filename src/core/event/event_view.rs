//! An event as rules look at it: once for all of them, and only as closely as they ask.

use std::{cell::OnceCell, collections::BTreeMap};

use jmespath::{Rcvar, Variable};
use serde_json::{Number, Value};

use super::{
    expression::{self, Expression},
    template::Compiled,
    value::{Event, Extension},
};
use crate::{
    job::{Attributes, Payload, extract::extract},
    validate::ValidationError,
};

/// An event as rules look at it: what is costly is done once, and only if a rule asks.
pub struct EventView<'a> {
    /// The event.
    pub event: &'a Event,
    /// What its data holds where filters look, texts as long as they are.
    pub found: Attributes,
    whole: OnceCell<Result<Rcvar, String>>,
}

impl<'a> EventView<'a> {
    /// `event`, with what its data holds where `pointers` (each under itself) lead.
    pub fn new(event: &'a Event, pointers: &BTreeMap<String, String>) -> Self {
        let found = event
            .data
            .as_ref()
            .filter(|_| !pointers.is_empty())
            .and_then(|data| extract(pointers, data, usize::MAX).ok());
        Self { event, found: found.unwrap_or_default(), whole: OnceCell::new() }
    }

    fn whole(&self) -> Result<&Rcvar, String> {
        self.whole.get_or_init(|| whole(self.event)).as_ref().map_err(String::clone)
    }

    /// What `template` is for it. Of `left`, the bytes that may still be answered, it takes what it uses.
    ///
    /// # Errors
    ///
    /// The path of the expression that failed, and why.
    pub fn fill(&self, template: &Compiled, left: &mut usize) -> Result<Value, ValidationError> {
        template.fill(&mut |expression: &Expression| expression.evaluate(self.whole()?, left))
    }

    /// The same as a payload: the event's own bytes where it is all of its data.
    ///
    /// # Errors
    ///
    /// As for [`EventView::fill`].
    pub fn payload(
        &self,
        template: &Compiled,
        left: &mut usize,
    ) -> Result<Payload, ValidationError> {
        if template.is_data() {
            Ok(self.data())
        } else {
            Ok(Payload::json(self.fill(template, left)?.to_string()))
        }
    }

    /// The event's data; null if it has none.
    pub fn data(&self) -> Payload {
        self.event.data.clone().unwrap_or_else(Payload::null)
    }
}

/// What expressions see: the attributes and extensions by name, and `data`; binary in it as `{"$binary": "base64"}`.
fn whole(event: &Event) -> Result<Rcvar, String> {
    let attribute = |value| match value {
        Extension::Text(text) => Variable::String(text),
        Extension::Whole(number) => Variable::Number(Number::from(number)),
        Extension::Flag(flag) => Variable::Bool(flag),
    };
    let mut fields: BTreeMap<String, Rcvar> = event
        .attributes()
        .map(|(name, value)| (name.to_owned(), Rcvar::new(attribute(value))))
        .collect();
    if let Some(data) = &event.data {
        let json = data.to_json().map_err(|malformed| malformed.to_string())?;
        fields.insert("data".to_owned(), Rcvar::new(expression::variable(&json)?));
    }
    Ok(Rcvar::new(Variable::Object(fields)))
}
