//! The latest changes, in their order, and what a reader takes of them.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::OnceLock,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_api::{
    JobChange, JobTypeChange, QueueChange, RemovedJob, SkippedChanges, WorkerChange,
};
use tidegate_core::job::{JobId, QueueName, TypeName};

use crate::auth::Bounds;

/// Most changes that are kept: about 1 MB.
pub(super) const MAX_CHANGES: usize = 4096;

/// A change. Servers send it to each other as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    Job(Box<JobChange<'static>>),
    Removed(RemovedJob),
    Queue(QueueChange),
    JobType(JobTypeChange),
    Worker(WorkerChange),
}

/// Which changes a reader gets.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeFilter {
    pub(crate) queue: Option<QueueName>,
    pub(crate) job_type: Option<TypeName>,
    /// Only these jobs; empty for all.
    pub(crate) ids: BTreeSet<JobId>,
    /// What the reader may see.
    pub(crate) bounds: Bounds,
}

impl ChangeFilter {
    /// Whether the reader gets `change`. The server's own jobs are left out, unless their type, their
    /// queue or their id is named.
    fn matches(&self, change: &Change) -> bool {
        let names_jobs = self.queue.is_some() || self.job_type.is_some() || !self.ids.is_empty();
        match change {
            Change::Job(job) => {
                (names_jobs || !job.r#type.is_internal())
                    && self.queue.as_ref().is_none_or(|queue| *queue == job.queue)
                    && self.job_type.as_ref().is_none_or(|name| *name == job.r#type)
                    && (self.ids.is_empty() || self.ids.contains(&job.id))
                    && self.bounds.allow_queue(&job.queue)
                    && self.bounds.allow_type(&job.r#type)
            }
            // Its queue and its type are not known.
            Change::Removed(RemovedJob { id }) => {
                self.bounds.is_everything() && (!names_jobs || self.ids.contains(id))
            }
            Change::Queue(QueueChange { queue, .. }) => {
                let of = queue.parse();
                self.ids.is_empty()
                    && self.job_type.is_none()
                    && self.queue.as_ref().is_none_or(|name| name.as_str() == queue)
                    && of.is_ok_and(|queue| self.bounds.allow_whole_queue(&queue))
            }
            Change::JobType(JobTypeChange { r#type: job_type, .. }) => {
                let of = job_type.parse();
                self.ids.is_empty()
                    && self.queue.is_none()
                    && self.job_type.as_ref().is_none_or(|name| name.as_str() == job_type)
                    && self.bounds.queues.is_none()
                    && of.is_ok_and(|job_type| self.bounds.allow_type(&job_type))
            }
            // Names of workers concern all queues.
            Change::Worker(_) => !names_jobs && self.bounds.is_everything(),
        }
    }
}

/// A change with its number.
struct Numbered {
    number: u64,
    change: Change,
    /// The event, rendered for its first reader.
    frame: OnceLock<Bytes>,
}

/// The event `name` with this id and value.
pub(super) fn frame(name: &str, id: &str, value: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".into());
    format!("event: {name}\nid: {id}\ndata: {json}\n\n").into()
}

/// The id of an event: the number of a change in a run of the log.
pub(super) fn id(run: u64, number: u64) -> String {
    format!("{run:016x}-{number}")
}

/// The latest changes.
pub(super) struct Log {
    /// Names this run of numbers. A run ends with the process, and when there are no readers.
    pub run: u64,
    changes: VecDeque<Numbered>,
    /// The number of the next change. The first is 1.
    next: u64,
    /// Kept changes before this number were dropped, because others came.
    dropped: u64,
    /// Changes of other servers are missing before this number, an unknown number of any jobs.
    lost: u64,
}

impl Log {
    pub fn new(run: u64) -> Self {
        Self { run, changes: VecDeque::new(), next: 1, dropped: 0, lost: 0 }
    }

    /// The number of the next change.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Adds a change after `skipped` others that are not kept.
    pub fn push(&mut self, skipped: u64, change: Change) {
        self.next += skipped;
        if self.changes.len() == MAX_CHANGES {
            let oldest = self.changes.pop_front();
            self.dropped = oldest.map_or(self.dropped, |oldest| oldest.number + 1);
        }
        self.changes.push_back(Numbered { number: self.next, change, frame: OnceLock::new() });
        self.next += 1;
    }

    /// Counts changes that are not kept.
    pub fn skip(&mut self, skipped: u64) {
        self.next += skipped;
    }

    /// Adds a gap that concerns every reader, with an unknown number of changes. It counts as one.
    pub fn lose(&mut self) {
        self.next += 1;
        self.lost = self.next;
    }

    /// The events of at most `most` changes that `filter` matches, from number `from` on, and where
    /// the reader continues. If changes before that are not kept, the first event says how many, if
    /// that is known. With `ignores_gaps` it comes only if changes of other servers are missing, or the
    /// log no longer has what was kept. In the latter case the reader continues at the end.
    pub fn read(
        &self,
        from: u64,
        filter: &ChangeFilter,
        most: usize,
        ignores_gaps: bool,
    ) -> (Vec<Bytes>, u64) {
        let (mut frames, mut at, mut skipped) = (Vec::new(), from, 0);
        let is_behind = self.dropped > from;
        if is_behind {
            (skipped, at) = (self.next - from, self.next);
        }
        let start = self.changes.partition_point(|change| change.number < at);
        let mut is_full = false;
        for change in self.changes.range(start..) {
            if filter.matches(&change.change) {
                if frames.len() == most {
                    is_full = true;
                    break;
                }
                frames.push(change.frame.get_or_init(|| self.render(change)).clone());
            }
            skipped += change.number - at;
            at = change.number + 1;
        }
        if !is_full {
            skipped += self.next - at;
            at = self.next;
        }
        let has_lost = self.lost > from;
        if skipped > 0 && (is_behind || has_lost || !ignores_gaps) {
            let value = SkippedChanges { changes: (!has_lost).then_some(skipped) };
            // A reader that resumes at it gets the events after it again.
            frames.insert(0, frame("skipped", &id(self.run, from - 1), &value));
        }
        (frames, at)
    }

    fn render(&self, change: &Numbered) -> Bytes {
        let id = id(self.run, change.number);
        match &change.change {
            Change::Job(job) => frame("job", &id, job),
            Change::Removed(job) => frame("removed", &id, job),
            Change::Queue(queue) => frame("queue", &id, queue),
            Change::JobType(job_type) => frame("job_type", &id, job_type),
            Change::Worker(worker) => frame("worker", &id, worker),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::time::Timestamp;

    fn job(id: &str, queue: &str) -> Change {
        Change::Job(Box::new(JobChange {
            id: id.parse().unwrap(),
            r#type: "t".parse().unwrap(),
            queue: queue.parse().unwrap(),
            state: "scheduled".into(),
            phase: "ready".into(),
            attempt: 0,
            revision: 1,
            at: Timestamp::EPOCH,
            run_at: None,
            worker: None,
            progress: None,
            error_reason: None,
        }))
    }

    /// The names and ids of events, and where the reader continues.
    fn read(log: &Log, from: u64, filter: &ChangeFilter, most: usize) -> (Vec<String>, u64) {
        let (frames, next) = log.read(from, filter, most, false);
        let shown = |frame: &Bytes| {
            let text = String::from_utf8(frame.to_vec()).unwrap();
            let mut lines = text.lines();
            let name = lines.next().unwrap().trim_start_matches("event: ").to_owned();
            let id = lines.next().unwrap().rsplit('-').next().unwrap().to_owned();
            let data = lines.next().unwrap();
            assert!(data.starts_with("data: {") && text.ends_with("}\n\n"), "{text}");
            format!("{name} {id}")
        };
        (frames.iter().map(shown).collect(), next)
    }

    #[test]
    fn a_reader_gets_what_its_filter_matches_in_order() {
        let mut log = Log::new(1);
        for n in 0..6 {
            log.push(0, job(&format!("j{n}"), if n % 2 == 0 { "a" } else { "b" }));
        }
        let all = ChangeFilter::default();
        assert_eq!(read(&log, 1, &all, 2), (vec!["job 1".into(), "job 2".into()], 3));
        assert_eq!(read(&log, 3, &all, 9).0.len(), 4);
        let of_b = ChangeFilter { queue: Some("b".parse().unwrap()), ..ChangeFilter::default() };
        let expected = vec!["job 2".to_owned(), "job 4".into(), "job 6".into()];
        assert_eq!(read(&log, 1, &of_b, 9), (expected, 7));
        assert_eq!(read(&log, 7, &of_b, 9), (vec![], 7));
        let one = ChangeFilter { ids: ["j4".parse().unwrap()].into(), ..ChangeFilter::default() };
        assert_eq!(read(&log, 1, &one, 9), (vec!["job 5".into()], 7));
    }

    #[test]
    fn a_reader_learns_of_changes_that_are_not_kept() {
        let mut log = Log::new(1);
        log.push(0, job("j", "a"));
        log.push(3, job("k", "a"));
        log.skip(2);
        let all = ChangeFilter::default();
        let expected = vec!["skipped 0".to_owned(), "job 1".into(), "job 5".into()];
        assert_eq!(read(&log, 1, &all, 9), (expected, 8));
        let text = String::from_utf8(log.read(1, &all, 9, false).0[0].to_vec()).unwrap();
        assert!(text.contains(r#"data: {"changes":5}"#), "{text}");
        assert_eq!(log.read(1, &all, 9, true).0.len(), 2, "gaps are ignored");
        for n in 0..MAX_CHANGES + 10 {
            log.push(0, job(&format!("x{n}"), "a"));
        }
        assert_eq!(log.changes.len(), MAX_CHANGES);
        let end = log.next();
        assert_eq!(read(&log, 8, &all, 9), (vec!["skipped 7".into()], end), "a slow reader");
        assert_eq!(log.read(8, &all, 9, true).0.len(), 1, "the log has moved on");
        assert_eq!(read(&log, end - 2, &all, 9).0.len(), 2);
    }

    #[test]
    fn a_gap_of_another_server_concerns_every_reader() {
        let mut log = Log::new(1);
        log.push(0, job("j", "a"));
        log.lose();
        log.push(0, job("k", "a"));
        let one = ChangeFilter { ids: ["k".parse().unwrap()].into(), ..ChangeFilter::default() };
        for filter in [ChangeFilter::default(), one] {
            let (frames, next) = log.read(1, &filter, 9, true);
            let text = String::from_utf8(frames.concat()).unwrap();
            assert!(text.starts_with("event: skipped\nid: 0000000000000001-0\n"), "{text}");
            assert!(text.contains(r#"data: {"changes":null}"#), "{text}");
            assert!(text.contains(r#""id":"k""#) && next == 4, "{text}");
            assert_eq!(log.read(3, &filter, 9, true).0.len(), 1, "the gap is before it");
        }
    }

    #[test]
    fn a_change_is_read_from_its_json() {
        let all = [
            job("j", "a"),
            Change::Removed(RemovedJob { id: "j".parse().unwrap() }),
            Change::Queue(QueueChange { queue: "q".into(), version: Some(1) }),
            Change::JobType(JobTypeChange { r#type: "t".into(), version: None }),
            Change::Worker(WorkerChange { worker: "w".into(), change: "registered".into() }),
        ];
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Change>>(&json).unwrap(), all);
    }

    #[test]
    fn bounds_hide_other_queues_types_and_workers() {
        let bounds = Bounds { queues: Some(["a".parse().unwrap()].into()), types: None };
        let bounded = ChangeFilter { bounds, ..ChangeFilter::default() };
        let queue =
            |name: &str| Change::Queue(QueueChange { queue: name.into(), version: Some(1) });
        let worker =
            Change::Worker(WorkerChange { worker: "w".into(), change: "registered".into() });
        let of_type = Change::JobType(JobTypeChange { r#type: "t".into(), version: None });
        assert!(bounded.matches(&job("j", "a")) && bounded.matches(&queue("a")));
        for hidden in [job("j", "b"), queue("b"), worker.clone(), of_type.clone()] {
            assert!(!bounded.matches(&hidden), "{hidden:?}");
            assert!(ChangeFilter::default().matches(&hidden), "{hidden:?}");
        }
        let of_b = ChangeFilter { queue: Some("b".parse().unwrap()), ..ChangeFilter::default() };
        assert!(of_b.matches(&queue("b")) && !of_b.matches(&queue("a")));
        assert!(!of_b.matches(&worker) && !of_b.matches(&of_type));
    }
}
