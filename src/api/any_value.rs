//! Any value, byte for byte: the data of a job, a result, the details of a failure.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _};
use serde_json::value::RawValue;
use tidegate_core::job::{Encoding, Payload};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

/// The extension type of MessagePack that marks a value whose bytes an answer keeps as they are.
pub const FRAME: i8 = 0x54;

/// A value inside an answer: its own bytes where the encodings agree, else converted.
///
/// Serialised to MessagePack it is inside an extension of type [`FRAME`], which the writer of the
/// answer removes.
#[derive(Clone, Debug)]
pub struct AnyValue {
    encoding: Encoding,
    /// The bytes, or the fault of the stored ones.
    value: Result<Bytes, String>,
}

impl AnyValue {
    /// `payload` for an answer in `encoding`.
    pub fn new(payload: &Payload, encoding: Encoding) -> Self {
        let converted = match encoding {
            Encoding::Json => payload.to_json(),
            Encoding::MessagePack => payload.to_msgpack(),
        };
        Self { encoding, value: converted.map_err(|malformed| malformed.to_string()) }
    }

    /// The JSON text, if the value was read from JSON or converted to it.
    pub fn json(&self) -> Option<&str> {
        let bytes = self.value.as_ref().ok().filter(|_| self.encoding == Encoding::Json)?;
        std::str::from_utf8(bytes).ok()
    }
}

impl From<Box<RawValue>> for AnyValue {
    fn from(raw: Box<RawValue>) -> Self {
        let text: Box<str> = raw.into();
        Self { encoding: Encoding::Json, value: Ok(String::from(text).into()) }
    }
}

impl Serialize for AnyValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.value.as_ref().map_err(S::Error::custom)?;
        match self.encoding {
            // Parsing checks the stored text, so that a damaged one never breaks the JSON around
            // it.
            Encoding::Json => serde_json::from_slice::<&RawValue>(bytes)
                .map_err(S::Error::custom)?
                .serialize(serializer),
            Encoding::MessagePack => frame(bytes, serializer),
        }
    }
}

/// Reads JSON text. It must not be inside a flattened or untagged type, which would parse it.
impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

/// Writes a value of MessagePack in its frame.
fn frame<S: Serializer>(value: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    struct Content<'a>(&'a [u8]);
    impl Serialize for Content<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(self.0)
        }
    }
    serializer
        .serialize_newtype_struct(rmp_serde::MSGPACK_EXT_STRUCT_NAME, &(FRAME, Content(value)))
}

impl PartialSchema for AnyValue {
    fn schema() -> RefOr<Schema> {
        Payload::schema()
    }
}

impl ToSchema for AnyValue {
    fn name() -> Cow<'static, str> {
        Payload::name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_and_written_byte_for_byte() {
        let text = r#"{"n": 1.0e2,  "s":"\u00e9"}"#;
        let value: AnyValue = serde_json::from_str(text).unwrap();
        assert_eq!(value.json(), Some(text));
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
    }
}
