//! `create`, the only way in which an object comes into being: an object exists once, and the slot
//! alone decides whose it is.
//!
//! ```text
//!   PUT if absent ──Created──▶ own
//!        ▲   └──any other answer──▶ GET ──equal bytes──▶ own
//!        │                           ├───other bytes───▶ other
//!        └────the same bytes─────────┴─absent
//! ```
//!
//! "It exists" may be one's own PUT, answered twice. A conflict means on S3 that nothing was
//! written. Silence says nothing at all. So every answer but a plain success reads the slot, and an
//! undecided PUT is never taken for a failed one.

use bytes::Bytes;

/// The answer to a PUT of an object that must be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutAnswer {
    /// The object was written.
    Created,
    /// There is an object, or another request for the name was under way.
    Exists,
    /// No answer, or an error of the store: the object was written, or not, or will be.
    Unknown,
}

/// The answer to a GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetAnswer {
    /// The object.
    Found(Bytes),
    /// There is none.
    Absent,
    /// No answer, or an error of the store.
    Unknown,
}

/// Whose object is in the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// One's own: the bytes are equal.
    Own,
    /// Another one, with these bytes.
    Other(Bytes),
}

/// Whether a PUT has decided the slot; none if the slot must be read.
pub(super) fn after_put(answer: PutAnswer) -> Option<Created> {
    match answer {
        PutAnswer::Created => Some(Created::Own),
        PutAnswer::Exists | PutAnswer::Unknown => None,
    }
}

/// Whether the object `found` in a slot has decided it; none if the same bytes must be sent again.
pub(super) fn after_get(own: &Bytes, found: Option<Bytes>) -> Option<Created> {
    found.map(|found| if found == *own { Created::Own } else { Created::Other(found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the procedure concludes from an answer to a PUT, and from what the slot contains.
    fn conclusion(put: PutAnswer, slot: Option<&'static [u8]>) -> Option<Created> {
        let own = Bytes::from_static(b"own");
        after_put(put).or_else(|| after_get(&own, slot.map(Bytes::from_static)))
    }

    #[test]
    fn only_the_slot_decides_after_an_unclear_answer() {
        let other = Some(Created::Other(Bytes::from_static(b"other")));
        for (put, slot, concluded) in [
            // A store that answers "created" has written these bytes.
            (PutAnswer::Created, Some(&b"own"[..]), Some(Created::Own)),
            // One's own PUT, repeated within the client or on the way.
            (PutAnswer::Exists, Some(b"own"), Some(Created::Own)),
            (PutAnswer::Exists, Some(b"other"), other.clone()),
            // A conflict of S3: nothing was written.
            (PutAnswer::Exists, None, None),
            (PutAnswer::Unknown, Some(b"own"), Some(Created::Own)),
            (PutAnswer::Unknown, Some(b"other"), other),
            (PutAnswer::Unknown, None, None),
        ] {
            assert_eq!(conclusion(put, slot), concluded, "{put:?} with {slot:?}");
        }
    }
}
