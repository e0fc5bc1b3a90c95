//! New ids: lower-case ULIDs that ascend within one engine, so that ids sort by creation.

use ulid::{ULID_LEN, Ulid};

use tidegate_core::{job::JobId, port::Entropy, time::Timestamp};

/// The last id that was drawn.
#[derive(Default)]
pub(super) struct Ids(Ulid);

/// Whether `id` was drawn by an engine and completed by the store, so that no caller chose it. An
/// id that a caller chose is kept as it is, and may be a ULID too.
pub(super) fn is_drawn(id: &JobId) -> bool {
    id.as_str().split_once('.').is_some_and(|(ulid, _)| Ulid::from_string(ulid).is_ok())
}

impl Ids {
    /// Draws an id at `now` that is greater than every one before.
    pub(super) fn draw(&mut self, now: Timestamp, entropy: &dyn Entropy) -> JobId {
        let fresh =
            Ulid::from_parts(now.millis().max(0) as u64, entropy.bits() & (u128::MAX >> 49));
        // Within one millisecond the last id is incremented, so that ids keep their order.
        self.0 = if fresh.timestamp_ms() > self.0.timestamp_ms() {
            fresh
        } else {
            self.0.increment().unwrap_or(fresh)
        };
        let mut text = [0; ULID_LEN];
        let text = self.0.array_to_str(&mut text);
        text.make_ascii_lowercase();
        text.parse().expect("a ULID is a valid id")
    }
}
