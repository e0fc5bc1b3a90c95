//! The error of the parser: what is wrong, and where.

use std::fmt::{self, Display};

use serde::de::{self, Expected, Unexpected};

/// What is wrong, and the JSON pointer to it.
#[derive(Debug)]
pub(super) struct Error {
    pub(super) path: String,
    pub(super) message: String,
}

impl Error {
    /// The same error, in the list that has it at `index`.
    #[inline(never)]
    pub(super) fn at(self, index: usize) -> Self {
        self.under(&index.to_string())
    }

    /// The same error, in the object that has it under `key`.
    #[inline(never)]
    pub(super) fn under(mut self, key: &str) -> Self {
        let mut path = String::from('/');
        for character in key.chars() {
            match character {
                '~' => path.push_str("~0"),
                '/' => path.push_str("~1"),
                _ => path.push(character),
            }
        }
        self.path.insert_str(0, &path);
        self
    }
}

impl Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    #[inline(never)]
    fn custom<T: Display>(message: T) -> Self {
        Self { path: String::new(), message: message.to_string() }
    }

    // The default formats numbers with fractions, which takes 20 KB of code.
    fn invalid_type(unexpected: Unexpected, expected: &dyn Expected) -> Self {
        let found = match unexpected {
            Unexpected::Bool(_) => "true or false",
            Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a whole number",
            Unexpected::Float(_) => "a number with a fraction",
            Unexpected::Char(_) | Unexpected::Str(_) => "a text",
            Unexpected::Unit | Unexpected::Option => "null",
            Unexpected::Seq => "a list",
            Unexpected::Map => "an object",
            _ => "something else",
        };
        Self::custom(format_args!("expected {expected}, not {found}"))
    }

    fn invalid_value(unexpected: Unexpected, expected: &dyn Expected) -> Self {
        match unexpected {
            Unexpected::Unsigned(number) => {
                Self::custom(format_args!("expected {expected}, not {number}"))
            }
            Unexpected::Signed(number) => {
                Self::custom(format_args!("expected {expected}, not {number}"))
            }
            Unexpected::Str(text) => {
                Self::custom(format_args!("expected {expected}, not {text:?}"))
            }
            other => Self::invalid_type(other, expected),
        }
    }
}
