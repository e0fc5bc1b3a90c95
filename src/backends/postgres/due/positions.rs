//! Where due jobs begin: what this server knows about the streams of each queue.
//!
//! While an old transaction is open, the index keeps an entry of every job that was claimed since.
//! A page that starts at the front of a stream walks over all of them. So this server remembers the
//! streams of a queue, and for each the place before which it found nothing scheduled. Pages start
//! there.
//!
//! **No job is only behind a place.** A commit of this server that schedules a job moves the place
//! back before it is answered, and every five seconds a page looks from the very front: other
//! servers schedule jobs too.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Stream;

/// How long a look from the front holds.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How many times as long as a look took the next one waits at least.
const LOOK_PAUSE: u32 = 20;
/// Most streams of a queue that are remembered.
const MAX_STREAMS: usize = 10_000;

/// Most jobs of a stream that are remembered for the pages that may not have seen them.
const MAX_LATEST: usize = 1000;

/// A due time and an id. The jobs of a stream from there on are read.
pub(in crate::postgres) type Place = (i64, String);

/// The place before every job.
pub(super) const FRONT: Place = (i64::MIN, String::new());

/// Where a job is due: its queue, whether it is critical, its stream and its place in it.
#[derive(Clone, Debug)]
pub(in crate::postgres) struct DuePlace {
    pub queue: i32,
    pub critical: bool,
    pub stream: Stream,
    pub place: Place,
}

/// The streams of a queue, as far as they are known.
#[derive(Default)]
struct View {
    streams: BTreeMap<Stream, Known>,
    /// When the next look is due; none if there was none.
    look_at: Option<Instant>,
    /// Whether the latest look found more streams than are remembered.
    is_large: bool,
    /// Counts the jobs that this server has scheduled.
    commits: u64,
}

/// What is known about a stream.
#[derive(Clone, Default)]
struct Known {
    /// Nothing is scheduled before it.
    place: Place,
    /// The latest jobs that this server has scheduled, each with its number in the view.
    latest: VecDeque<(u64, Place)>,
    /// The number of the last job that is not among them any more.
    dropped: u64,
}

impl Known {
    /// The earliest place of the jobs after number `commits`; the front if they are not all known.
    fn first_since(&self, commits: u64) -> Option<Place> {
        if commits < self.dropped {
            return Some(FRONT);
        }
        let since = self.latest.iter().filter(|(number, _)| *number > commits);
        since.map(|(_, place)| place).min().cloned()
    }

    /// Forgets the jobs up to number `commits`.
    fn forget(&mut self, commits: u64) {
        while self.latest.pop_front_if(|(number, _)| *number <= commits).is_some() {}
        self.dropped = self.dropped.max(commits);
    }

    fn add(&mut self, number: u64, place: &Place) {
        if self.latest.len() == MAX_LATEST
            && let Some((dropped, _)) = self.latest.pop_front()
        {
            self.dropped = dropped;
        }
        self.latest.push_back((number, place.clone()));
        if *place < self.place {
            self.place.clone_from(place);
        }
    }
}

/// What a page starts with.
#[derive(Debug)]
pub(super) struct Start {
    /// The streams with the places from which they are read; none if they are not known.
    pub streams: Option<Vec<(Stream, Place)>>,
    /// Whether a look is due.
    pub is_look_due: bool,
    /// The state of the view, for [`Positions::learn`].
    pub commits: u64,
}

/// The streams of all queues, by number and whether their jobs are critical.
#[derive(Default)]
pub(in crate::postgres) struct Positions(Mutex<HashMap<(i32, bool), View>>);

impl Positions {
    /// Where a page of a queue starts at `now`.
    pub(super) fn start(&self, queue: i32, critical: bool, now: Instant) -> Start {
        let mut views = self.0.lock();
        let view = views.entry((queue, critical)).or_default();
        let is_known = view.look_at.is_some_and(|look_at| now < look_at);
        let known =
            || view.streams.iter().map(|(it, known)| (it.clone(), known.place.clone())).collect();
        let streams = (is_known && !view.is_large).then(known);
        Start { streams, is_look_due: !is_known, commits: view.commits }
    }

    /// Replaces the streams of a queue by those that a look found, which began at `began` with
    /// `start`. Places stay until a page has read from the front.
    pub(super) fn look(
        &self,
        (queue, critical): (i32, bool),
        start: &Start,
        streams: &[Stream],
        began: Instant,
        now: Instant,
    ) {
        let mut views = self.0.lock();
        let view = views.entry((queue, critical)).or_default();
        view.look_at = Some(now + LOOK_INTERVAL.max((now - began) * LOOK_PAUSE));
        view.is_large = streams.len() > MAX_STREAMS;
        if view.is_large {
            view.streams.clear();
            return;
        }
        // The look did not see what was committed since it began.
        view.streams.retain(|_, known| known.first_since(start.commits).is_some());
        for stream in streams {
            view.streams.entry(stream.clone()).or_default().place = FRONT;
        }
        for known in view.streams.values_mut() {
            known.forget(start.commits);
        }
    }

    /// Notes that nothing is scheduled before `places`, as read by a page that began with `start`.
    pub(super) fn learn(
        &self,
        (queue, critical): (i32, bool),
        start: &Start,
        places: impl IntoIterator<Item = (Stream, Place)>,
    ) {
        let mut views = self.0.lock();
        let Some(view) = views.get_mut(&(queue, critical)) else { return };
        for (stream, place) in places {
            let Some(known) = view.streams.get_mut(&stream) else { continue };
            // The page did not see what was committed since it began.
            let place = known.first_since(start.commits).into_iter().chain([place]).min();
            known.place = place.unwrap_or(FRONT).max(std::mem::take(&mut known.place));
        }
    }

    /// Notes jobs that a commit of this server has scheduled.
    pub(in crate::postgres) fn scheduled<'a>(&self, jobs: impl IntoIterator<Item = &'a DuePlace>) {
        let mut views = self.0.lock();
        for job in jobs {
            let view = views.entry((job.queue, job.critical)).or_default();
            view.commits += 1;
            let number = view.commits;
            let fresh = Known { place: job.place.clone(), ..Known::default() };
            view.streams.entry(job.stream.clone()).or_insert(fresh).add(number, &job.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(priority: i32) -> Stream {
        Stream { partition: String::new(), job_type: 1, priority }
    }

    fn places(start: &Start) -> Vec<(i32, i64)> {
        let streams = start.streams.as_ref().expect("it is known");
        streams.iter().map(|(stream, place)| (stream.priority, place.0)).collect()
    }

    fn scheduled(priority: i32, run_at: i64) -> DuePlace {
        let place = (run_at, "id".into());
        DuePlace { queue: 1, critical: false, stream: stream(priority), place }
    }

    #[tokio::test]
    async fn a_place_moves_back_for_a_commit_and_by_a_look() {
        let (all, now) = (Positions::default(), Instant::now());
        let start = all.start(1, false, now);
        assert!(start.streams.is_none(), "the first page looks");
        all.look((1, false), &start, &[stream(5)], now, now);
        let start = all.start(1, false, now);
        assert_eq!(places(&start), [(5, i64::MIN)]);
        all.learn((1, false), &start, [(stream(5), (100, String::new()))]);
        assert_eq!(places(&all.start(1, false, now)), [(5, 100)]);
        all.scheduled(&[scheduled(5, 40), scheduled(7, 200)]);
        assert_eq!(places(&all.start(1, false, now)), [(5, 40), (7, 200)]);
        assert!(all.start(1, false, now + LOOK_INTERVAL).streams.is_none(), "a look is due");
    }

    #[tokio::test]
    async fn a_page_does_not_hide_what_was_committed_meanwhile() {
        let (all, now) = (Positions::default(), Instant::now());
        let start = all.start(1, false, now);
        all.look((1, false), &start, &[stream(5)], now, now);
        let start = all.start(1, false, now);
        all.scheduled(&[scheduled(5, 40), scheduled(5, 70)]);
        all.learn((1, false), &start, [(stream(5), (100, String::new()))]);
        assert_eq!(places(&all.start(1, false, now)), [(5, 40)]);
        let start = all.start(1, false, now);
        all.learn((1, false), &start, [(stream(5), (100, String::new()))]);
        assert_eq!(places(&all.start(1, false, now)), [(5, 100)]);
        // A look from before a commit lacks its stream.
        all.scheduled(&[scheduled(9, 40)]);
        all.look((1, false), &start, &[stream(5)], now, now);
        assert_eq!(places(&all.start(1, false, now)), [(5, i64::MIN), (9, 40)]);
        // More commits than are remembered may be anywhere.
        let start = all.start(1, false, now);
        let many = vec![scheduled(9, 500); MAX_LATEST + 1];
        all.scheduled(&many);
        all.learn((1, false), &start, [(stream(9), (300, String::new()))]);
        assert_eq!(places(&all.start(1, false, now)), [(5, i64::MIN), (9, 40)]);
    }
}
