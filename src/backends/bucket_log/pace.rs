//! When the PUT of a record starts, which decides what the log costs and how long an answer takes.
//!
//! ```text
//!   latency   request ──▶ PUT   ──interval──▶ PUT              several under way
//!   price     request ──interval, or enough bytes──▶ PUT       one for all that waited
//! ```
//!
//! In both, a request is answered after its record is in the bucket.

use std::time::Duration;

use bytes::Bytes;

use super::{
    body::plain_bytes,
    handle::{LogRequest, MAX_GROUP_COMMANDS},
};

/// When the PUT of a record starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As soon as there is a request, and at least `interval` after the start of the last PUT.
    Latency {
        /// The least time between the starts of two PUTs.
        interval: Duration,
    },
    /// Once the first request of the record has waited for `interval`, or its requests have `bytes`.
    Price {
        /// The longest that a request waits for others.
        interval: Duration,
        /// The bytes of requests, before compression, at which the wait ends.
        bytes: usize,
    },
}

impl Pace {
    /// Answers come about one PUT after their requests.
    pub const LATENCY: Self = Self::Latency { interval: Duration::from_millis(10) };

    /// Few PUTs. The usual bounds, in place of those that are not given, are such that a million jobs cost
    /// less than 0.60 $ at 100 jobs a second and the list price of S3.
    pub fn price(interval: Option<Duration>, bytes: Option<usize>) -> Self {
        let (usual_interval, usual_bytes) = (Duration::from_millis(100), 1 << 20);
        Self::Price {
            interval: interval.unwrap_or(usual_interval),
            bytes: bytes.unwrap_or(usual_bytes),
        }
    }
}

/// The requests that wait for the next record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gathered {
    commands: usize,
    bytes: usize,
    /// Whether one is without commands: it proves the leadership to a caller that waits for no other.
    has_proof: bool,
}

impl Gathered {
    /// That of `requests`.
    pub(super) fn of<'a, A: 'a>(requests: impl IntoIterator<Item = &'a LogRequest<A>>) -> Self {
        let mut gathered = Self::default();
        requests.into_iter().for_each(|request| gathered.add(&request.commands));
        gathered
    }

    /// Adds a request with these commands.
    pub(super) fn add(&mut self, commands: &[Bytes]) {
        self.commands += commands.len();
        self.bytes += plain_bytes(commands);
        self.has_proof |= commands.is_empty();
    }

    /// Whether the record need not wait for more of them, if `bytes` are enough.
    pub(super) fn is_enough(&self, bytes: usize) -> bool {
        self.has_proof || self.bytes >= bytes || self.commands >= MAX_GROUP_COMMANDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_waits_until_it_is_large_or_a_proof() {
        let small = [Bytes::from_static(b"123456")];
        let mut gathered = Gathered::default();
        gathered.add(&small);
        // Each command has 4 bytes for its length.
        assert!(!gathered.is_enough(11));
        assert!(gathered.is_enough(10));
        let mut many = gathered;
        many.add(&vec![Bytes::new(); MAX_GROUP_COMMANDS]);
        assert!(many.is_enough(usize::MAX), "the record is full");
        gathered.add(&[]);
        assert!(gathered.is_enough(usize::MAX), "a proof does not wait");
    }

    #[test]
    fn what_is_left_for_the_next_record_is_counted_again() {
        let request = LogRequest::<()>::empty();
        assert_eq!(Gathered::of([&request]), Gathered { has_proof: true, ..Gathered::default() });
        assert_eq!(Gathered::of::<()>([]), Gathered::default());
    }
}
