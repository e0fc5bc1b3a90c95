//! New ids: ULIDs in lower case, growing within one engine, so that ids sort by creation.

use ulid::Ulid;

use tidegate_core::{job::JobId, port::Entropy, time::Timestamp};

/// The id drawn last.
#[derive(Default)]
pub(super) struct Ids(Ulid);

/// Whether `id` was drawn for a job and given its place by the store, so that nobody asked for it by name: what somebody names is used as it
/// is, and may well be a ULID.
pub(super) fn is_drawn(id: &JobId) -> bool {
    id.as_str().split_once('.').is_some_and(|(ulid, _)| Ulid::from_string(ulid).is_ok())
}

impl Ids {
    /// The next id at `now`: greater than every one before it.
    pub(super) fn draw(&mut self, now: Timestamp, entropy: &dyn Entropy) -> JobId {
        let fresh =
            Ulid::from_parts(now.millis().max(0) as u64, entropy.bits() & (u128::MAX >> 49));
        // A burst within one millisecond counts up instead of drawing anew, so that order holds.
        self.0 = if fresh.timestamp_ms() > self.0.timestamp_ms() {
            fresh
        } else {
            self.0.increment().unwrap_or(fresh)
        };
        let mut text = self.0.to_string();
        text.make_ascii_lowercase();
        text.parse().expect("a ULID is a good id")
    }
}
