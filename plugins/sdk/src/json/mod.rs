//! Parses JSON text into any serde type, and names the place of an error.
//!
//! It is small rather than fast, and functions are `inline(never)` to keep it small. The usual
//! parser adds 50 KB to a component, most of it for decimal fractions. Here only types with
//! fractions need that code, and an error has its JSON pointer without another crate.

mod reader;

mod deserializer;
mod key;
mod list;
mod variant;

mod error;
mod quote;
mod raw;

pub use quote::quote;
pub use raw::Raw;

use serde::de::DeserializeOwned;

use crate::Problem;
use error::Error;
use reader::Reader;

/// Parses JSON text.
///
/// # Errors
///
/// What is wrong with the text, and where.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut reader = Reader::new(text);
    let value = T::deserialize(&mut reader).and_then(|value| match reader.peek() {
        None => Ok(value),
        Some(_) => Err(reader.syntax("the end")),
    });
    value.map_err(|Error { path, message }| Problem { path, message })
}

#[cfg(test)]
mod tests;
