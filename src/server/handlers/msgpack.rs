//! MessagePack tokens and where each ends, so that `data` and `result` are taken from a request,
//! and put into an answer, byte for byte.
//!
//! ```text
//!   request ──split──▶ {"type": "a", "data": 0} as JSON, and the bytes of value 0
//!   answer  ◀──join── tokens, with an extension of type FRAME around each value that is kept
//! ```
//!
//! MessagePack is prefix-coded: each token has its length and the number of values inside it. So
//! skipping needs no recursion, and copying needs no parsed structure.

use bytes::Bytes;
use tidegate_api::FRAME;

use tidegate_core::job::payload::MAX_DEPTH;

/// Fields that are kept byte for byte, in the request itself and in the items of its lists.
const KEPT: [&[u8]; 3] = [b"data", b"result", b"error"];
/// Lists whose items have such fields.
const LISTS: [&[u8]; 2] = [b"jobs", b"reports"];

/// Why bytes are not a request in MessagePack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends in the middle of a value.
    #[error("it ends in the middle of a value")]
    Cut,
    /// A byte that cannot begin a value.
    #[error("byte {0} begins no value")]
    Marker(usize),
    /// Bytes follow the value.
    #[error("it goes on after its value, from byte {0}")]
    Trailing(usize),
    /// Nested too deeply; the name of the field, or empty outside fields.
    #[error("it is nested deeper than {MAX_DEPTH}")]
    Deep(String),
    /// The envelope around the kept values has no JSON form.
    #[error("it has no JSON form: {0}")]
    Envelope(String),
}

impl Malformed {
    /// The same, with `field` as the place of too deep nesting.
    fn within(self, field: &[u8]) -> Self {
        if let Self::Deep(_) = self {
            Self::Deep(String::from_utf8_lossy(field).into_owned())
        } else {
            self
        }
    }
}

/// One token: its kind, the bytes of its head, its length with its content, and the number of
/// values inside it.
#[derive(Clone, Copy)]
struct Token {
    kind: Kind,
    head: usize,
    len: usize,
    inner: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Scalar,
    Text,
    List,
    Map,
    Extension(i8),
}

fn token(bytes: &[u8], at: usize) -> Result<Token, Malformed> {
    let rest = bytes.get(at..).unwrap_or_default();
    let number = |from: usize, width: usize| -> Result<usize, Malformed> {
        let digits = rest.get(from..from + width).ok_or(Malformed::Cut)?;
        Ok(digits.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let marker = *rest.first().ok_or(Malformed::Cut)?;
    let scalar = |len: usize| Token { kind: Kind::Scalar, head: len, len, inner: 0 };
    let sized = |kind: Kind, head: usize, content: usize| Token {
        kind,
        head,
        len: head + content,
        inner: 0,
    };
    let nest = |kind: Kind, head: usize, count: usize| Token {
        kind,
        head,
        len: head,
        inner: if kind == Kind::Map { count * 2 } else { count },
    };
    let extension = |head: usize, content: usize| -> Result<Token, Malformed> {
        let tag = *rest.get(head - 1).ok_or(Malformed::Cut)?;
        Ok(sized(Kind::Extension(i8::from_be_bytes([tag])), head, content))
    };
    let token = match marker {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => scalar(1),
        0x80..=0x8f => nest(Kind::Map, 1, usize::from(marker & 0x0f)),
        0x90..=0x9f => nest(Kind::List, 1, usize::from(marker & 0x0f)),
        0xa0..=0xbf => sized(Kind::Text, 1, usize::from(marker & 0x1f)),
        0xc1 => return Err(Malformed::Marker(at)),
        0xc4..=0xc6 => {
            let width = 1 << (marker - 0xc4);
            sized(Kind::Scalar, 1 + width, number(1, width)?)
        }
        0xc7..=0xc9 => {
            let width = 1 << (marker - 0xc7);
            extension(2 + width, number(1, width)?)?
        }
        0xca | 0xce | 0xd2 => scalar(5),
        0xcb | 0xcf | 0xd3 => scalar(9),
        0xcc | 0xd0 => scalar(2),
        0xcd | 0xd1 => scalar(3),
        0xd4..=0xd8 => extension(2, 1 << (marker - 0xd4))?,
        0xd9..=0xdb => {
            let width = 1 << (marker - 0xd9);
            sized(Kind::Text, 1 + width, number(1, width)?)
        }
        0xdc | 0xdd => {
            let width = 2 << (marker - 0xdc);
            nest(Kind::List, 1 + width, number(1, width)?)
        }
        0xde | 0xdf => {
            let width = 2 << (marker - 0xde);
            nest(Kind::Map, 1 + width, number(1, width)?)
        }
    };
    if token.len > rest.len() { Err(Malformed::Cut) } else { Ok(token) }
}

/// Where the value that begins at `at` ends, if it is nested at most `depth` deep.
fn skip(bytes: &[u8], mut at: usize, depth: usize) -> Result<usize, Malformed> {
    let mut open = Vec::new();
    loop {
        let token = token(bytes, at)?;
        at += token.len;
        if matches!(token.kind, Kind::List | Kind::Map) {
            if open.len() == depth {
                return Err(Malformed::Deep(String::new()));
            }
            open.push(token.inner);
        }
        while open.last() == Some(&0) {
            open.pop();
        }
        match open.last_mut() {
            Some(left) => *left -= 1,
            None => return Ok(at),
        }
    }
}

/// A request in MessagePack as JSON, with the kept values replaced by their index in the list.
///
/// # Errors
///
/// [`Malformed`].
pub fn split(bytes: &Bytes) -> Result<(Vec<u8>, Vec<Bytes>), Malformed> {
    let mut split =
        Split { bytes, at: 0, out: Vec::with_capacity(bytes.len().min(4096)), kept: Vec::new() };
    split.record(true)?;
    if split.at != bytes.len() {
        return Err(Malformed::Trailing(split.at));
    }
    let mut json = Vec::with_capacity(split.out.len() * 2);
    // Field by field: a value in between would take many times the memory of a small body, and keep
    // only the last of two fields with one name.
    serde_transcode::transcode(
        &mut rmp_serde::Deserializer::from_read_ref(&split.out),
        &mut serde_json::Serializer::new(&mut json),
    )
    .map_err(|error| Malformed::Envelope(error.to_string()))?;
    Ok((json, split.kept))
}

struct Split<'a> {
    bytes: &'a Bytes,
    at: usize,
    out: Vec<u8>,
    kept: Vec<Bytes>,
}

impl Split<'_> {
    fn copy(&mut self, to: usize) -> &[u8] {
        let start = self.out.len();
        self.out.extend_from_slice(&self.bytes[self.at..to]);
        self.at = to;
        &self.out[start..]
    }

    fn value(&mut self) -> Result<(), Malformed> {
        let end = skip(self.bytes, self.at, MAX_DEPTH)?;
        self.copy(end);
        Ok(())
    }

    /// Copies the request, or an item of one of its lists, and takes out the kept values. Anything
    /// but a map is copied unchanged.
    fn record(&mut self, outermost: bool) -> Result<(), Malformed> {
        let map = token(self.bytes, self.at)?;
        if map.kind != Kind::Map {
            return self.value();
        }
        self.copy(self.at + map.len);
        for _ in 0..map.inner / 2 {
            let name = token(self.bytes, self.at)?;
            if name.kind != Kind::Text {
                self.value()?;
                self.value()?;
                continue;
            }
            let from = name.head;
            let field = self.bytes.slice(self.at + from..self.at + name.len);
            self.copy(self.at + name.len);
            let value = token(self.bytes, self.at)?;
            if KEPT.contains(&&*field) {
                let end = skip(self.bytes, self.at, MAX_DEPTH)
                    .map_err(|malformed| malformed.within(&field))?;
                // 0xce begins an unsigned number of 32 bits.
                self.out.push(0xce);
                self.out.extend_from_slice(
                    &u32::try_from(self.kept.len())
                        .map_err(|_| Malformed::Deep(String::new()))?
                        .to_be_bytes(),
                );
                self.kept.push(self.bytes.slice(self.at..end));
                self.at = end;
            } else if outermost && value.kind == Kind::List && LISTS.contains(&&*field) {
                self.copy(self.at + value.len);
                for _ in 0..value.inner {
                    self.record(false)?;
                }
            } else {
                self.value().map_err(|malformed| malformed.within(&field))?;
            }
        }
        Ok(())
    }
}

/// An answer with its frames taken off.
pub fn join(framed: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(framed.len());
    let mut at = 0;
    while let Ok(token) = token(framed, at) {
        let from = if token.kind == Kind::Extension(FRAME) { at + token.head } else { at };
        out.extend_from_slice(&framed[from..at + token.len]);
        at += token.len;
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rmpv::Value;
    use tidegate_api::AnyValue;
    use tidegate_core::job::{Encoding, Payload};

    use super::*;

    fn pack(value: &Value) -> Bytes {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        bytes.into()
    }

    fn map(fields: &[(&str, Value)]) -> Value {
        Value::Map(fields.iter().map(|(name, value)| (Value::from(*name), value.clone())).collect())
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f32>().prop_map(Value::F32),
            any::<f64>().prop_map(Value::F64),
            ".{0,300}".prop_map(Value::from),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::Binary),
            (any::<i8>(), prop::collection::vec(any::<u8>(), 0..300))
                .prop_map(|(tag, bytes)| Value::Ext(tag, bytes)),
        ];
        leaf.prop_recursive(5, 64, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
                prop::collection::vec((inner.clone(), inner), 0..20).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_ends_where_the_reference_decoder_says(
            value in any_value(),
            tail in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let bytes = pack(&value);
            let mut longer = bytes.to_vec();
            longer.extend(tail);
            prop_assert_eq!(skip(&longer, 0, MAX_DEPTH), Ok(bytes.len()));
            for cut in 0..bytes.len().min(40) {
                prop_assert_eq!(skip(&bytes[..cut], 0, MAX_DEPTH), Err(Malformed::Cut));
            }
        }

        #[test]
        fn any_bytes_are_accepted_or_refused_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = split(&bytes.into());
        }

        #[test]
        fn kept_values_are_taken_from_a_request_unchanged(
            first in any_value(),
            second in any_value(),
        ) {
            let jobs = Value::Array(vec![
                map(&[("type", "a".into()), ("data", first.clone())]),
                map(&[("data", second.clone()), ("type", "b".into())]),
            ]);
            let (json, kept) = split(&pack(&map(&[("jobs", jobs)]))).unwrap();
            prop_assert_eq!(kept, vec![pack(&first), pack(&second)]);
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            let jobs = serde_json::json!([{"type": "a", "data": 0}, {"data": 1, "type": "b"}]);
            prop_assert_eq!(json, serde_json::json!({"jobs": jobs}));
        }

        #[test]
        fn kept_values_are_put_into_an_answer_unchanged(value in any_value()) {
            let bytes = pack(&value);
            let payload = Payload { encoding: Encoding::MessagePack, bytes: bytes.clone() };
            let value = AnyValue::new(&payload, Encoding::MessagePack);
            let framed = rmp_serde::to_vec(&(1, value, "end")).unwrap();
            let wanted = [&[0x93, 1][..], &bytes, &[0xa3], b"end"].concat();
            prop_assert_eq!(join(&framed), wanted);
        }
    }

    #[test]
    fn only_the_outermost_fields_are_kept() {
        let inner = map(&[("data", 7.into())]);
        let (json, kept) =
            split(&pack(&map(&[("attributes", inner.clone()), ("data", inner.clone())]))).unwrap();
        assert_eq!(String::from_utf8(json).unwrap(), r#"{"attributes":{"data":7},"data":0}"#);
        assert_eq!(kept, [pack(&inner)]);
    }

    #[test]
    fn a_value_may_be_64_deep_and_no_deeper() {
        let nested =
            |depth: usize| (0..depth).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
        assert!(split(&pack(&map(&[("data", nested(64))]))).is_ok());
        assert_eq!(
            split(&pack(&map(&[("data", nested(65))]))),
            Err(Malformed::Deep("data".into()))
        );
    }

    #[test]
    fn bytes_after_the_value_are_refused() {
        assert_eq!(split(&Bytes::from_static(&[0x80, 0xc0])), Err(Malformed::Trailing(1)));
    }
}
