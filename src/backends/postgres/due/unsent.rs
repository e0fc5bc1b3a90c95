//! Where jobs are due that this server has scheduled since it last sent notices.
//!
//! A page of another server starts at the places of that server, and reads no stream that it does not know.
//! So a send of notices begins with texts that have the places of these jobs, the first of each
//! stream. Servers that get them move their places back, and find the jobs at once:
//!
//! ```text
//!   due
//!   [QUEUE,CRITICAL,PARTITION,TYPE,PRIORITY,RUN_AT,ID]
//!   ...
//! ```
//!
//! A text may be lost, and a release before this format ignores it. Then the next look from the front
//! finds the jobs.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{DuePlace, Place, Stream, ViewOf, WAKES};
use tidegate_core::port::notices::MAX_NOTICE_BYTES;

/// The start of each text. No notice begins like that.
const START: &str = "due";
/// Most streams whose places wait to be sent. The jobs of more are found by looks.
const MAX_UNSENT: usize = 500;
/// How long places wait to be sent. Then looks have found the jobs, and old places would have pages read
/// what was claimed since. A server that is alone sends nothing.
const MAX_AGE: Duration = Duration::from_secs(5);

/// A place as it is sent: queue, whether it is critical, partition, type, priority, due time and id.
type Row<T> = (i32, bool, T, i32, i32, i64, T);

/// The places that other servers have not got.
#[derive(Default)]
pub(in crate::postgres) struct Unsent(Mutex<Places>);

/// Places that were recorded since an instant.
#[derive(Default)]
struct Places {
    since: Option<Instant>,
    /// The first place of each stream.
    first: BTreeMap<(ViewOf, Stream), Place>,
}

impl Places {
    fn is_old(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) > MAX_AGE)
    }
}

impl Unsent {
    /// Records jobs that a commit of this server has scheduled, at `now`.
    pub(in crate::postgres) fn add<'a>(
        &self,
        jobs: impl IntoIterator<Item = &'a DuePlace>,
        now: Instant,
    ) {
        let mut places = self.0.lock();
        if places.is_old(now) {
            *places = Places::default();
        }
        for job in jobs {
            let of = (job.queue, job.critical);
            if of == WAKES {
                continue;
            }
            places.since.get_or_insert(now);
            let is_full = places.first.len() >= MAX_UNSENT;
            match places.first.entry((of, job.stream.clone())) {
                Entry::Occupied(mut first) if job.place < *first.get() => {
                    first.insert(job.place.clone());
                }
                Entry::Vacant(first) if !is_full => {
                    first.insert(job.place.clone());
                }
                _ => {}
            }
        }
    }

    /// Takes the places at `now`, as texts of at most [`MAX_NOTICE_BYTES`] each.
    pub(in crate::postgres) fn take(&self, now: Instant) -> Vec<String> {
        let places = std::mem::take(&mut *self.0.lock());
        let mut texts: Vec<String> = Vec::new();
        if places.is_old(now) {
            return texts;
        }
        for ((of, stream), place) in &places.first {
            let Some(row) = row(*of, stream, place) else { continue };
            let last = texts.last_mut();
            if let Some(text) = last.filter(|text| text.len() + 1 + row.len() <= MAX_NOTICE_BYTES) {
                text.push('\n');
                text.push_str(&row);
            } else {
                texts.push(format!("{START}\n{row}"));
            }
        }
        texts
    }
}

/// A place as it is sent; none if it is too long.
fn row((queue, critical): ViewOf, stream: &Stream, (run_at, id): &Place) -> Option<String> {
    let Stream { partition, job_type, priority } = stream;
    let row: Row<&str> = (queue, critical, partition, *job_type, *priority, *run_at, id);
    // It has no line break: JSON escapes those of texts.
    let text = serde_json::to_string(&row).ok()?;
    (START.len() + 1 + text.len() <= MAX_NOTICE_BYTES).then_some(text)
}

/// The places of a text of another server; none if it is another text.
pub(in crate::postgres) fn sent_places(text: &str) -> Option<Vec<DuePlace>> {
    let rows = text.strip_prefix(START)?.strip_prefix('\n')?;
    let place = |row: &str| {
        let row: Row<String> = serde_json::from_str(row).ok()?;
        let (queue, critical, partition, job_type, priority, run_at, id) = row;
        let stream = Stream { partition, job_type, priority };
        Some(DuePlace { queue, critical, stream, place: (run_at, id) })
    };
    Some(rows.split('\n').filter_map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::port::Notice;

    fn due(partition: &str, run_at: i64) -> DuePlace {
        let stream = Stream { partition: partition.to_owned(), job_type: 3, priority: -1 };
        DuePlace { queue: 7, critical: true, stream, place: (run_at, "id".to_owned()) }
    }

    fn places(texts: &[String]) -> Vec<(String, i64)> {
        let read = texts.iter().flat_map(|text| sent_places(text).expect("it has places"));
        read.map(|job| (job.stream.partition, job.place.0)).collect()
    }

    #[tokio::test]
    async fn the_first_place_of_each_stream_is_sent_once() {
        let (unsent, now) = (Unsent::default(), Instant::now());
        let wake = DuePlace { queue: WAKES.0, critical: WAKES.1, ..due("", 1) };
        unsent.add(&[due("a\n\"b", 5), due("c", 9), due("a\n\"b", 4), wake], now);
        unsent.add(&[due("a\n\"b", 6)], now + MAX_AGE);
        let texts = unsent.take(now + MAX_AGE);
        assert_eq!(places(&texts), [("a\n\"b".to_owned(), 4), ("c".to_owned(), 9)]);
        let read = sent_places(&texts[0]).unwrap().remove(0);
        assert_eq!((read.queue, read.critical), (7, true));
        assert_eq!((read.stream.job_type, read.stream.priority), (3, -1));
        assert!(texts[0].parse::<Notice>().is_err(), "no release takes it for a notice");
        assert!(unsent.take(now + MAX_AGE).is_empty());
    }

    #[tokio::test]
    async fn places_that_were_not_sent_in_time_are_dropped() {
        let (unsent, now) = (Unsent::default(), Instant::now());
        let late = now + 2 * MAX_AGE;
        unsent.add(&[due("a", 5)], now);
        assert!(unsent.take(late).is_empty());
        unsent.add(&[due("a", 5)], now);
        unsent.add(&[due("a", 8)], late);
        assert_eq!(places(&unsent.take(late)), [("a".to_owned(), 8)]);
    }

    #[tokio::test]
    async fn places_of_many_streams_are_sent_in_short_texts() {
        let (unsent, now) = (Unsent::default(), Instant::now());
        let long = "x".repeat(MAX_NOTICE_BYTES);
        let many: Vec<DuePlace> =
            (0..2 * MAX_UNSENT).map(|n| due(&format!("partition-{n:05}"), 1)).collect();
        unsent.add(&[due(&long, 1)], now);
        unsent.add(&many, now);
        let texts = unsent.take(now);
        assert!(texts.len() > 1 && texts.iter().all(|text| text.len() <= MAX_NOTICE_BYTES));
        assert_eq!(places(&texts).len(), MAX_UNSENT - 1, "one is too long");
    }

    #[test]
    fn other_texts_have_no_places() {
        for text in ["", "due", "due [1]", "queue due", "tokens"] {
            assert!(sent_places(text).is_none(), "{text:?}");
        }
        // A later release may have other rows.
        assert_eq!(sent_places("due\n[1]\n").map(|places| places.len()), Some(0));
    }
}
