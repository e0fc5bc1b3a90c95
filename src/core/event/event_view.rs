//! An event in the form that rules read, shared by all rules.

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

/// An event in the form that rules read. Costly parts are computed once, when a rule first needs
/// them.
pub struct EventView<'a> {
    /// The event.
    pub event: &'a Event,
    /// The values of its data at the pointers of filters, with texts in full length.
    pub found: Attributes,
    whole: OnceCell<Result<Rcvar, String>>,
}

impl<'a> EventView<'a> {
    /// `event`, with the values of its data at `pointers`; each key is its own value.
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

    /// Fills `template` from it. Subtracts the size of results from `left`, the bytes that the rule
    /// may still yield.
    ///
    /// # Errors
    ///
    /// The path of the expression that failed, and why.
    pub fn fill(&self, template: &Compiled, left: &mut usize) -> Result<Value, ValidationError> {
        template.fill(&mut |expression: &Expression| expression.evaluate(self.whole()?, left))
    }

    /// Fills `template` as a payload; the event's own bytes if it is exactly its data.
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

/// The value that expressions read: the attributes and extensions by name, and `data`, in which
/// binary is `{"$binary": "base64"}`.
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
