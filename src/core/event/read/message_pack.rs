//! Events and batches in MessagePack.

use std::fmt;

use bytes::Bytes;
use rmpv::ValueRef;

use super::{Batch, MAX_EVENTS, over};
use crate::{
    error_code::ErrorCode,
    event::value::{Draft, Event, Extension, shortened},
    job::{Encoding, Payload, payload::MAX_DEPTH},
    validate::ValidationError,
};

fn not_msgpack(why: impl fmt::Display) -> ValidationError {
    ValidationError {
        code: ErrorCode::InvalidBody,
        field: String::new(),
        message: format!("must be MessagePack in the form of CloudEvents JSON: {why}"),
    }
}

/// Reads an event from a MessagePack map: the same fields as in JSON; `data` may be binary.
///
/// # Errors
///
/// As for [`structured`](super::structured).
pub fn structured_msgpack(bytes: &Bytes) -> Result<Event, ValidationError> {
    let mut rest = &bytes[..];
    let event = packed_event(bytes, &mut rest)?;
    if rest.is_empty() { event } else { Err(not_msgpack("there is more after the event")) }
}

/// Reads a MessagePack list of events: each event, or its fault.
///
/// # Errors
///
/// As for [`batch`](super::batch).
pub fn batch_msgpack(bytes: &Bytes) -> Result<Batch, ValidationError> {
    let mut rest = &bytes[..];
    let count =
        length(&mut rest, [0x90, 0xdc, 0xdd]).ok_or_else(|| not_msgpack("it is not a list"))?;
    if count > MAX_EVENTS {
        return Err(over());
    }
    let events = (0..count)
        .map(|_| packed_event(bytes, &mut rest))
        .collect::<Result<Batch, ValidationError>>()?;
    if rest.is_empty() { Ok(events) } else { Err(not_msgpack("there is more after the list")) }
}

/// The next event of `bytes`; `rest` is the part that was not read yet. An outer error ends the
/// batch.
fn packed_event(
    bytes: &Bytes,
    rest: &mut &[u8],
) -> Result<Result<Event, ValidationError>, ValidationError> {
    let count =
        length(rest, [0x80, 0xde, 0xdf]).ok_or_else(|| not_msgpack("an event is not a map"))?;
    let mut draft = Draft::default();
    let mut wrong = None;
    for _ in 0..count {
        let name = next(rest)?;
        let start = bytes.len() - rest.len();
        let value = next(rest)?;
        if wrong.is_some() {
            continue;
        }
        let raw = bytes.slice(start..bytes.len() - rest.len());
        let ValueRef::String(name) = name else {
            wrong = Some(ValidationError::new("", "must have names that are texts"));
            continue;
        };
        let Some(name) = name.into_str() else {
            wrong = Some(ValidationError::new("", "must have names in UTF-8"));
            continue;
        };
        let set = match (name, value) {
            ("data", _) => {
                draft.data("data", Payload { encoding: Encoding::MessagePack, bytes: raw })
            }
            (_, ValueRef::Nil) => Ok(()),
            (name, ValueRef::Boolean(flag)) => draft.set(name.to_owned(), Extension::Flag(flag)),
            (name, ValueRef::Integer(whole)) => {
                match whole.as_i64().and_then(|whole| i32::try_from(whole).ok()) {
                    Some(whole) => draft.set(name.to_owned(), Extension::Whole(whole)),
                    None => Err(ValidationError::new(
                        shortened(name),
                        "must be a whole number from -2147483648 to 2147483647, or a text",
                    )),
                }
            }
            (name, ValueRef::String(text)) => match text.into_str() {
                Some(text) => draft.set(name.to_owned(), Extension::Text(text.to_owned())),
                None => Err(ValidationError::new(shortened(name), "must be a text in UTF-8")),
            },
            (name, _) => Err(ValidationError::new(
                shortened(name),
                "must be a text, a whole number, true or false",
            )),
        };
        wrong = set.err();
    }
    Ok(wrong.map_or_else(|| draft.finish(), Err))
}

fn next<'a>(rest: &mut &'a [u8]) -> Result<ValueRef<'a>, ValidationError> {
    // The decoder counts a list or a map as two levels, and another value as up to four.
    rmpv::decode::read_value_ref_with_max_depth(rest, 2 * MAX_DEPTH + 4).map_err(not_msgpack)
}

/// The length of the list or map that starts here; `None` if none does.
///
/// The markers are those of the short form and of lengths with two and four bytes.
fn length(rest: &mut &[u8], [short, two, four]: [u8; 3]) -> Option<usize> {
    let (marker, after) = rest.split_first()?;
    let (count, after) = match *marker {
        marker if marker & 0xf0 == short => (usize::from(marker & 0x0f), after),
        marker if marker == two => {
            let (count, after) = after.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*count)), after)
        }
        marker if marker == four => {
            let (count, after) = after.split_first_chunk::<4>()?;
            (u32::from_be_bytes(*count) as usize, after)
        }
        _ => return None,
    };
    *rest = after;
    Some(count)
}
