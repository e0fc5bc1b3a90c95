//! A part of a JSON text, kept as text.

use std::fmt;

use serde::{Deserialize, Deserializer, de::Visitor};

/// A part of a JSON text, unchanged. Only [`parse`](crate::parse) can read it. It does not work within flattened
/// fields or untagged enums of serde.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw(pub String);

impl Raw {
    /// The name by which the parser recognises that the text itself is requested.
    pub(super) const NAME: &'static str = "$tidegate::Raw";
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Raw;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("JSON")
            }

            fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
                Ok(Raw(text.to_owned()))
            }
        }
        deserializer.deserialize_newtype_struct(Self::NAME, Text)
    }
}
