//! Purges of records: which have expired, and which are too many.
//!
//! While an old transaction is open, the index keeps an entry of each record that was dropped since, and
//! these come first. So this server remembers, for each kind, the time up to which a purge has dropped
//! all, and the next one starts there.
//!
//! **No record is hidden for good.** One may be added with an earlier time, as that of a short lease after
//! longer ones were too many. So each half minute a purge starts at the front. If it drops as many as it may,
//! the next one goes on where it ended. If it takes longer than a statement may, the next one from the front
//! comes later, and what expires meanwhile is dropped.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{PostgresStore, error::is_slow, pause::pause_after, row};
use tidegate_core::{
    port::{
        StoreError,
        job_store::{JobStore as _, Purged, RecordKind, Txn, Write},
    },
    time::Timestamp,
};

/// How often a purge of a kind starts at the front.
const FRONT_INTERVAL: Duration = Duration::from_secs(30);
/// The time before every record.
const FRONT: Timestamp = Timestamp::from_millis(i64::MIN);

const RECORD_COUNT: &str = "SELECT count(*) FROM records WHERE kind = $1 AND until >= $2";
const FIRST_RECORDS: &str = "SELECT name, until FROM records WHERE kind = $1 AND until >= $2 \
     ORDER BY until, name LIMIT $3";

/// The statements above, whose plans are tested.
#[cfg(test)]
pub(super) const ALL: [&str; 2] = [RECORD_COUNT, FIRST_RECORDS];

/// What is known about the records of a kind.
struct Known {
    /// No record is before it, except those that were added since the last purge from the front.
    place: Timestamp,
    /// When the next purge from the front is due.
    front_at: Instant,
}

/// Where the next purge of each kind starts.
#[derive(Default)]
pub(super) struct Purges(Mutex<BTreeMap<RecordKind, Known>>);

impl Purges {
    /// Where a purge starts at `now`. No other one starts at the front until this one has ended, or for
    /// half a minute.
    fn start(&self, kind: RecordKind, now: Instant) -> Timestamp {
        let mut kinds = self.0.lock();
        let known = kinds.entry(kind).or_insert(Known { place: FRONT, front_at: now });
        if known.front_at > now {
            return known.place;
        }
        known.front_at = now + FRONT_INTERVAL;
        FRONT
    }

    /// Notes that a purge from the front began at `began` and has ended `now`.
    fn ended(&self, kind: RecordKind, (began, now): (Instant, Instant)) {
        if let Some(known) = self.0.lock().get_mut(&kind) {
            known.front_at = now + pause_after(now - began, FRONT_INTERVAL);
        }
    }

    /// Notes that no purge needs to read what is before `place`.
    fn learn(&self, kind: RecordKind, place: Timestamp) {
        if let Some(known) = self.0.lock().get_mut(&kind) {
            known.place = known.place.max(place);
        }
    }

    /// Lets the next purge start at `place`, also if an earlier one has dropped all up to a later time.
    fn restart(&self, kind: RecordKind, place: Timestamp) {
        if let Some(known) = self.0.lock().get_mut(&kind) {
            known.place = place;
        }
    }

    /// Sets when the next purge of each kind from the front is due.
    #[cfg(test)]
    pub(super) fn front_at(&self, at: Instant) {
        for known in self.0.lock().values_mut() {
            known.front_at = at;
        }
    }
}

/// What a purge drops.
struct Found {
    drop: Vec<(String, Timestamp)>,
    purged: Purged,
    /// When these are dropped, no record is before it that the purge could read.
    place: Option<Timestamp>,
    /// Whether the purge drops as many as it may, so that there may be more.
    is_full: bool,
}

impl PostgresStore {
    /// Drops the records of a kind that have expired at `now`, and as many as exceed `keep`, at most
    /// `limit`.
    pub(super) async fn purge_records(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        let purges = &self.shared.purges;
        let began = Instant::now();
        let from = purges.start(kind, began);
        let found = self.droppable(kind, from, (now, keep), limit).await;
        if from == FRONT {
            purges.ended(kind, (began, Instant::now()));
        }
        let found = match found {
            Err(error) if from == FRONT && is_slow(&error) => {
                // What has expired so far waits for a purge from the front that takes less time.
                purges.restart(kind, now);
                return Err(error);
            }
            found => found?,
        };
        if !found.drop.is_empty() {
            // A record that was replaced meanwhile has another time, so it is kept.
            let remove = |(name, until)| Write::RemoveRecord { kind, name, until: Some(until) };
            let txn: Txn = found.drop.into_iter().map(remove).collect();
            self.commit(vec![txn]).await?;
        }
        match found.place {
            // There may be more that were added with an earlier time than the last place.
            Some(place) if from == FRONT && found.is_full => purges.restart(kind, place),
            Some(place) => purges.learn(kind, place),
            None => {}
        }
        Ok(found.purged)
    }

    /// What a purge drops that starts at `from`.
    async fn droppable(
        &self,
        kind: RecordKind,
        from: Timestamp,
        (now, keep): (Timestamp, u64),
        limit: u32,
    ) -> Result<Found, StoreError> {
        let (kind, from) = (kind.as_str(), from.millis());
        let all = self.readers.query(RECORD_COUNT, &[&kind, &from]).await?;
        let all: i64 = all.first().map_or(Ok(0), |row| row::column(row, 0))?;
        let mut purged = Purged { left: all.unsigned_abs(), ..Purged::default() };
        let mut drop: Vec<(String, Timestamp)> = Vec::new();
        let first = self.readers.query(FIRST_RECORDS, &[&kind, &from, &i64::from(limit)]).await?;
        for row in &first {
            let until = Timestamp::from_millis(row::column(row, 1)?);
            match until <= now {
                true => purged.expired += 1,
                false if purged.left > keep => purged.over += 1,
                false => break,
            }
            purged.left = purged.left.saturating_sub(1);
            drop.push((row::column(row, 0)?, until));
        }
        // All that have expired are among these, unless there are more than `limit`.
        let is_full = drop.len() >= limit as usize;
        let expired = (!is_full).then_some(now);
        let place = drop.last().map(|(_, until)| *until).max(expired);
        Ok(Found { drop, purged, place, is_full })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: RecordKind = RecordKind::Lease;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[tokio::test]
    async fn a_purge_starts_at_the_front_each_half_minute() {
        let (purges, now) = (Purges::default(), Instant::now());
        assert_eq!(purges.start(KIND, now), FRONT);
        assert_eq!(purges.start(KIND, now), FRONT, "nothing is known yet");
        purges.learn(KIND, at(7));
        purges.learn(KIND, at(5));
        assert_eq!(purges.start(KIND, now), at(7));
        assert_eq!(purges.start(RecordKind::Log, now), FRONT, "each kind has its own place");
        let later = now + FRONT_INTERVAL;
        assert_eq!(purges.start(KIND, later), FRONT);
        assert_eq!(purges.start(KIND, later), at(7), "one at a time");
        purges.restart(KIND, at(6));
        assert_eq!(purges.start(KIND, later), at(6), "there were more before the place");
    }

    #[tokio::test]
    async fn a_slow_purge_from_the_front_is_repeated_later() {
        let (purges, began) = (Purges::default(), Instant::now());
        assert_eq!(purges.start(KIND, began), FRONT);
        purges.learn(KIND, at(7));
        let ended = began + Duration::from_secs(2);
        purges.ended(KIND, (began, ended));
        let pause = Duration::from_secs(40);
        assert_eq!(purges.start(KIND, ended + pause - Duration::from_millis(1)), at(7));
        assert_eq!(purges.start(KIND, ended + pause), FRONT);
    }
}
