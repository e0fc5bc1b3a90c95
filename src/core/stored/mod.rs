//! The stored form of records, which several releases read and write at the same time.
//!
//! During a rolling upgrade, and after a rollback, a release reads records that a newer one wrote.
//! A record is a list of its fields, in a fixed order. So:
//!
//! - **A later release adds fields behind the existing ones.** A reader that does not know them
//!   keeps them as [`UnknownFields`], and writes them back. A reader that misses them has their
//!   defaults.
//! - **No field is ever removed, moved or read as another type.** A field that is no longer needed
//!   is still written.
//! - **A value that a reader does not know, such as a new variant, makes the record unreadable.**
//!   The record then waits for a release that knows it; nothing of it is lost.
//!
//! Only a struct declared with [`record!`](crate::record) has unknown fields. In every other struct
//! a field is no more extensible than a variant.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{
    Deserialize,
    de::{self, SeqAccess},
};

/// The fields of a stored JSON object that a newer release added, by name. It is the flattened last
/// field of an object that is no [`document`](crate::document).
pub type UnknownNames = serde_json::Map<String, serde_json::Value>;

/// The fields of a record that a newer release added, in their order.
///
/// Nearly always there are none, so these take eight bytes and no allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnknownFields(Option<Arc<Vec<rmpv::Value>>>);

// A stored number is never NaN: JSON has none.
impl Eq for UnknownFields {}

impl UnknownFields {
    /// These fields.
    pub fn new(fields: impl IntoIterator<Item = rmpv::Value>) -> Self {
        let fields: Vec<rmpv::Value> = fields.into_iter().collect();
        Self((!fields.is_empty()).then(|| Arc::new(fields)))
    }

    /// The fields, in their order.
    pub fn as_slice(&self) -> &[rmpv::Value] {
        self.0.as_ref().map_or(&[], |fields| fields)
    }

    /// The fields that are left in a stored record.
    ///
    /// # Errors
    ///
    /// Those of the record.
    pub fn rest_of<'de, A: SeqAccess<'de>>(record: &mut A) -> Result<Self, A::Error> {
        let Some(first) = record.next_element()? else {
            return Ok(Self::default());
        };
        let mut fields = vec![first];
        while let Some(field) = record.next_element()? {
            fields.push(field);
        }
        Ok(Self(Some(Arc::new(fields))))
    }
}

/// The next field of a stored record, which every release has written.
///
/// # Errors
///
/// The record's, or that the field is missing.
#[inline]
pub fn required<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    record: &mut A,
    name: &'static str,
) -> Result<T, A::Error> {
    record.next_element()?.ok_or_else(|| de::Error::missing_field(name))
}

/// Reads and writes a struct with a field `unknown: UnknownFields` as a [stored record](self): a
/// list of the named fields in this order, which releases never change. Fields that a later release
/// adds follow a semicolon; their type has a default, for records without them.
#[macro_export]
macro_rules! record {
    ($name:ident { $($field:ident),+ $(,)? $(; $($added:ident),+ $(,)?)? }) => {
        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(
                &self,
                serializer: S,
            ) -> ::std::result::Result<S::Ok, S::Error> {
                use ::serde::ser::SerializeTuple as _;
                let Self { $($field,)+ $($($added,)+)? unknown } = self;
                let known = [$(stringify!($field),)+ $($(stringify!($added),)+)?].len();
                let length = known + unknown.as_slice().len();
                let mut record = serializer.serialize_tuple(length)?;
                $(record.serialize_element($field)?;)+
                $($(record.serialize_element($added)?;)+)?
                for field in unknown.as_slice() {
                    record.serialize_element(field)?;
                }
                record.end()
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                struct Reader;
                impl<'de> ::serde::de::Visitor<'de> for Reader {
                    type Value = $name;

                    fn expecting(
                        &self,
                        f: &mut ::std::fmt::Formatter<'_>,
                    ) -> ::std::fmt::Result {
                        f.write_str(concat!("a stored ", stringify!($name)))
                    }

                    fn visit_seq<A: ::serde::de::SeqAccess<'de>>(
                        self,
                        mut record: A,
                    ) -> ::std::result::Result<$name, A::Error> {
                        Ok($name {
                            $($field: $crate::stored::required(&mut record, stringify!($field))?,)+
                            $($($added: record.next_element()?.unwrap_or_default(),)+)?
                            unknown: $crate::stored::UnknownFields::rest_of(&mut record)?,
                        })
                    }
                }
                deserializer.deserialize_seq(Reader)
            }
        }
    };
}
