//! What this server forwards of its changes to others that have readers: in batches, with numbers.
//!
//! The changes of a batch follow each other. A change that is not forwarded, because there are too many
//! of them, uses up its number. So a receiver sees what it lacks, lost batches included. The numbers
//! begin again in each run, and a run begins when a server needs the changes of this one.

use std::mem;

use serde::{Deserialize, Serialize};

use super::Change;
use tidegate_core::port::{ChangeBatch, notices::MAX_NOTICE_BYTES};

/// Most bytes of changes that wait to be sent, at most ten times a second: about 250 changes. Each
/// server of the database receives them.
pub(super) const MAX_WAITING_BYTES: usize = 64 << 10;
/// Most bytes of the changes of a batch. Its names and numbers take the rest of the notice.
const MAX_BATCH_BYTES: usize = MAX_NOTICE_BYTES - 199;

/// How far a server has forwarded its changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) struct Forwarded {
    /// The latest run; 0 if there was none.
    pub run: u64,
    /// The number of the next change.
    pub next: u64,
    /// Whether the run goes on.
    pub goes_on: bool,
}

/// The changes that are to be forwarded.
#[derive(Debug, Default)]
pub(super) struct Forward {
    at: Forwarded,
    /// The number of the next change when the last batch was taken; none before the first batch of
    /// a run.
    taken: Option<u64>,
    waiting: Vec<Batch>,
    /// The size of all that waits. At the bound, nothing is added until it was taken.
    bytes: usize,
}

#[derive(Debug)]
struct Batch {
    first: u64,
    count: u64,
    /// A JSON array without its end.
    json: String,
}

impl Forward {
    /// How far it is.
    pub fn forwarded(&self) -> Forwarded {
        self.at
    }

    /// Begins a run, whose first batch is empty.
    pub fn begin(&mut self) {
        let run = self.at.run + 1;
        *self = Self { at: Forwarded { run, next: 0, goes_on: true }, ..Self::default() };
    }

    /// Ends the run.
    pub fn stop(&mut self) {
        *self = Self { at: Forwarded { goes_on: false, ..self.at }, ..Self::default() };
    }

    /// Adds changes, each with the number of others before it that are not kept, and a number of
    /// others after them.
    pub fn add(&mut self, changes: &[(u64, Change)], skipped: u64) {
        for (before, change) in changes {
            self.at.next += before;
            self.push(change);
            self.at.next += 1;
        }
        self.at.next += skipped;
    }

    /// Adds the next change to a batch, if there is room.
    fn push(&mut self, change: &Change) {
        let Ok(json) = serde_json::to_string(change) else { return };
        if json.len() + 2 > MAX_BATCH_BYTES {
            return;
        }
        if self.bytes + json.len() > MAX_WAITING_BYTES {
            self.bytes = MAX_WAITING_BYTES;
            return;
        }
        self.bytes += json.len();
        let next = self.at.next;
        match self.waiting.last_mut() {
            Some(batch)
                if batch.first + batch.count == next
                    && batch.json.len() + json.len() + 2 <= MAX_BATCH_BYTES =>
            {
                batch.json.push(',');
                batch.json.push_str(&json);
                batch.count += 1;
            }
            _ => self.waiting.push(Batch { first: next, count: 1, json: format!("[{json}") }),
        }
    }

    /// Takes the batches of the server of this name. An empty one is last if a receiver would not learn
    /// otherwise that it lacks the latest changes, or that a run began.
    pub fn take(&mut self, server: &str) -> Vec<ChangeBatch> {
        if !self.at.goes_on {
            return Vec::new();
        }
        let next = self.at.next;
        let end = self.waiting.last().map(|batch| batch.first + batch.count).or(self.taken);
        if end != Some(next) {
            self.waiting.push(Batch { first: next, count: 0, json: "[".to_owned() });
        }
        self.taken = Some(next);
        self.bytes = 0;
        let run = self.at.run;
        let batches = mem::take(&mut self.waiting).into_iter();
        let batch = |Batch { first, count, json }| ChangeBatch {
            server: server.to_owned(),
            run,
            first,
            count,
            json: json + "]",
        };
        batches.map(batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::{QueueChange, RemovedJob};
    use tidegate_core::port::Notice;

    fn removed(id: &str) -> Change {
        Change::Removed(RemovedJob { id: id.parse().unwrap() })
    }

    /// The numbers of batches: the first change and how many.
    fn numbers(forward: &mut Forward) -> Vec<(u64, u64)> {
        forward.take("s").iter().map(|batch| (batch.first, batch.count)).collect()
    }

    #[test]
    fn a_run_begins_with_an_empty_batch() {
        let mut forward = Forward::default();
        forward.add(&[(0, removed("a"))], 0);
        assert_eq!(numbers(&mut forward), [], "no server needs it");
        for run in 1..3 {
            forward.begin();
            let batches = forward.take("s");
            let (server, json) = ("s".to_owned(), "[]".to_owned());
            assert_eq!(batches, [ChangeBatch { server, run, first: 0, count: 0, json }]);
            assert_eq!(numbers(&mut forward), [], "nothing happens");
            forward.add(&[(0, removed("a"))], 0);
            assert_eq!(forward.forwarded(), Forwarded { run, next: 1, goes_on: true });
            forward.stop();
            assert_eq!(forward.forwarded(), Forwarded { run, next: 1, goes_on: false });
            assert_eq!(numbers(&mut forward), []);
        }
    }

    #[test]
    fn skipped_changes_use_up_their_numbers() {
        let mut forward = Forward::default();
        forward.begin();
        forward.add(&[(0, removed("a")), (0, removed("b")), (3, removed("c"))], 0);
        assert_eq!(numbers(&mut forward), [(0, 2), (5, 1)]);
        forward.add(&[(0, removed("d"))], 4);
        assert_eq!(numbers(&mut forward), [(6, 1), (11, 0)], "the last ones are missing");
        forward.add(&[], 2);
        assert_eq!(numbers(&mut forward), [(13, 0)]);
    }

    #[test]
    fn batches_are_bounded() {
        let mut forward = Forward::default();
        forward.begin();
        let flood: Vec<_> = (0..10_000).map(|number| (0, removed(&format!("j{number}")))).collect();
        for _ in 0..3 {
            forward.add(&flood, 0);
            let batches = forward.take(&"f".repeat(32));
            let bytes: usize = batches.iter().map(|batch| batch.json.len()).sum();
            assert!(bytes < MAX_WAITING_BYTES + 10_000 && bytes > MAX_WAITING_BYTES / 2, "{bytes}");
            let mut next = batches[0].first;
            for batch in &batches {
                let is_last = batch.count == 0;
                assert!(batch.first == next || is_last, "{batch:?}");
                let text = Notice::Changes(batch.clone()).to_string();
                assert!(text.len() <= MAX_NOTICE_BYTES, "{}", text.len());
                let changes: Vec<Change> = serde_json::from_str(&batch.json).unwrap();
                assert_eq!(changes.len() as u64, batch.count);
                next = batch.first + batch.count;
            }
            assert_eq!(next, forward.forwarded().next);
        }
        let large = Change::Queue(QueueChange { queue: "q".repeat(8000), version: None });
        forward.add(&[(0, large)], 0);
        assert_eq!(numbers(&mut forward), [(30_001, 0)]);
    }
}
