//! Where due jobs begin: what this server knows about the streams of each queue.
//!
//! While an old transaction is open, the index keeps an entry of every job that was claimed since.
//! A page that starts at the front of a stream walks over all of them. So this server remembers the
//! streams of a queue, and for each the place before which it found nothing scheduled. Pages start
//! there.
//!
//! **No job is only behind a place.** A commit of this server that schedules a job moves the place
//! back before it is answered. Other servers schedule jobs too. Where those are due comes before
//! their notices, or is read by polling, and moves the place back before the notice is received. A
//! place may be lost. So every five seconds one page, which has claimed it, looks for streams from
//! the very front, and then each stream is read from its front once. If that takes longer than a
//! statement may, the places stay, and the next look comes later.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Stream;
use crate::postgres::pause::pause_after;

/// How long a look from the front holds if it was short, and how long another one waits for its end.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How long after the time of its next look a queue is remembered that no page reads.
const MAX_UNREAD: Duration = Duration::from_mins(1);
/// Most streams of a queue that are remembered.
const MAX_STREAMS: usize = 10_000;
/// Most streams that stay known after a look has found none.
const MAX_IDLE_STREAMS: usize = 16;

/// Most jobs of a stream that are remembered for the pages that may not have seen them.
const MAX_LATEST: usize = 1000;

/// A due time and an id. The jobs of a stream from there on are read.
pub(in crate::postgres) type Place = (i64, String);

/// The place before every job.
pub(in crate::postgres) const FRONT: Place = (i64::MIN, String::new());

/// The number of a queue, and whether its critical jobs are meant.
pub(in crate::postgres) type ViewOf = (i32, bool);

/// The jobs of all queues by the time at which they must be checked: one stream of no queue.
pub(in crate::postgres) const WAKES: ViewOf = (0, false);

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
    /// Where the streams begin. All of them if `is_known`, else those of the jobs that were
    /// scheduled since `recorded_from`, for the look under way.
    streams: BTreeMap<Stream, Known>,
    is_known: bool,
    /// The number of the last job before the recorded ones; none if none are recorded.
    recorded_from: Option<u64>,
    /// When the next look is due; none if there was none.
    look_at: Option<Instant>,
    /// Counts the looks, so that a page from before one does not move a place after it.
    looks: u64,
    /// Counts the jobs that this server has scheduled, and those of others that it was notified of.
    commits: u64,
}

/// What is known about a stream.
#[derive(Clone)]
struct Known {
    /// Nothing is scheduled before it, except jobs of other servers whose places have not arrived.
    place: Place,
    /// Whether a look has found it since it was read from the front.
    is_unread: bool,
    /// The latest jobs that were scheduled, each with its number in the view.
    latest: VecDeque<(u64, Place)>,
    /// The number of the last job that is not among them any more.
    dropped: u64,
}

impl Known {
    fn at(place: Place) -> Self {
        Self { place, is_unread: false, latest: VecDeque::new(), dropped: 0 }
    }

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

    /// Where a page starts.
    fn start(&self) -> Place {
        if self.is_unread { FRONT } else { self.place.clone() }
    }
}

impl View {
    fn forget_streams(&mut self) {
        self.streams.clear();
        self.is_known = false;
        self.recorded_from = None;
    }

    /// Moves the next look, after one from `began` until `now`.
    fn looked(&mut self, began: Instant, now: Instant) {
        self.look_at = Some(now + pause_after(now - began, LOOK_INTERVAL));
    }
}

/// What a page starts with.
#[derive(Debug)]
pub(in crate::postgres) struct Start {
    /// The streams with the places from which they are read; none if they are not known.
    pub streams: Option<Vec<(Stream, Place)>>,
    /// Whether this page looks for all streams. No other one does until it has ended.
    pub is_look: bool,
    /// The state of the view, for [`Positions::learn`].
    commits: u64,
    looks: u64,
}

impl Start {
    /// Whether the page reads a known stream from the front, or looks.
    pub(in crate::postgres) fn is_from_front(&self) -> bool {
        let mut places = self.streams.iter().flatten().map(|(_, place)| place);
        self.is_look || places.any(|place| *place == FRONT)
    }
}

/// The streams of all queues.
#[derive(Default)]
pub(in crate::postgres) struct Positions(Mutex<HashMap<ViewOf, View>>);

impl Positions {
    /// Where a page of a queue that reads some streams starts at `now`.
    pub(in crate::postgres) fn start(
        &self,
        of: ViewOf,
        now: Instant,
        is_read: impl Fn(&Stream) -> bool,
    ) -> Start {
        let mut views = self.0.lock();
        let view = views.entry(of).or_default();
        let is_look = view.look_at.is_none_or(|look_at| look_at <= now);
        if is_look {
            view.look_at = Some(now + LOOK_INTERVAL);
            if !view.is_known {
                view.streams.clear();
                view.recorded_from = Some(view.commits);
            }
        }
        let read = || {
            let read = view.streams.iter().filter(|(stream, _)| is_read(stream));
            read.map(|(stream, known)| (stream.clone(), known.start())).collect()
        };
        let streams = view.is_known.then(read);
        Start { streams, is_look, commits: view.commits, looks: view.looks }
    }

    /// Replaces the streams of a queue by those that a look found, which began at `began` with
    /// `start`. Each is read from the front next. If it found none, a few streams stay: the queue is
    /// idle, and if the place of another server's next job is lost, the next page still finds the job.
    pub(in crate::postgres) fn look(
        &self,
        of: ViewOf,
        start: &mut Start,
        streams: &[Stream],
        (began, now): (Instant, Instant),
    ) {
        let mut views = self.0.lock();
        let view = views.entry(of).or_default();
        view.looked(began, now);
        if streams.len() > MAX_STREAMS {
            view.forget_streams();
            return;
        }
        let is_recorded = view.recorded_from.is_some_and(|from| from <= start.commits);
        if !view.is_known && !is_recorded {
            return;
        }
        let found: BTreeSet<&Stream> = streams.iter().collect();
        let is_idle = found.is_empty() && view.streams.len() <= MAX_IDLE_STREAMS;
        // The look did not see what was committed since it began.
        view.streams.retain(|stream, known| {
            is_idle || found.contains(stream) || known.first_since(start.commits).is_some()
        });
        for stream in streams {
            let known = view.streams.entry(stream.clone());
            known.or_insert_with(|| Known::at(FRONT)).is_unread = true;
        }
        for known in view.streams.values_mut() {
            known.forget(start.commits);
        }
        (view.is_known, view.recorded_from) = (true, None);
        view.looks += 1;
        start.looks = view.looks;
    }

    /// Keeps the places, after a page from the front that began at `began` took too long.
    pub(in crate::postgres) fn keep(&self, of: ViewOf, (began, now): (Instant, Instant)) {
        let mut views = self.0.lock();
        let Some(view) = views.get_mut(&of) else { return };
        view.looked(began, now);
        for known in view.streams.values_mut() {
            known.is_unread = false;
        }
    }

    /// Notes that nothing is scheduled before `places`, as read by a page that began with `start`.
    pub(in crate::postgres) fn learn(
        &self,
        of: ViewOf,
        start: &Start,
        places: impl IntoIterator<Item = (Stream, Place)>,
    ) {
        let mut views = self.0.lock();
        let Some(view) = views.get_mut(&of).filter(|view| view.looks == start.looks) else {
            return;
        };
        for (stream, place) in places {
            let Some(known) = view.streams.get_mut(&stream) else { continue };
            // The page did not see what was committed since it began.
            let place = known.first_since(start.commits).into_iter().chain([place]).min();
            let place = place.unwrap_or(FRONT);
            if known.is_unread || known.place < place {
                (known.place, known.is_unread) = (place, false);
            }
        }
    }

    /// Notes jobs that were scheduled, at `now`: by a commit of this server, or by those of others.
    /// Of a queue that no page reads, only their number is noted.
    pub(in crate::postgres) fn scheduled<'a>(
        &self,
        jobs: impl IntoIterator<Item = &'a DuePlace>,
        now: Instant,
    ) {
        let mut views = self.0.lock();
        for job in jobs {
            let view = views.entry((job.queue, job.critical)).or_default();
            view.commits += 1;
            if !view.is_known && view.recorded_from.is_none() {
                continue;
            }
            let is_read = view.look_at.is_some_and(|look_at| now < look_at + MAX_UNREAD);
            if !is_read || view.streams.len() >= 2 * MAX_STREAMS {
                view.forget_streams();
                view.look_at = None;
                continue;
            }
            let number = view.commits;
            let known = view.streams.entry(job.stream.clone());
            known.or_insert_with(|| Known::at(job.place.clone())).add(number, &job.place);
        }
    }

    /// Sets when the next look of every queue is due.
    #[cfg(any(test, feature = "testkit"))]
    pub(in crate::postgres) fn look_at(&self, at: Instant) {
        for view in self.0.lock().values_mut() {
            view.look_at = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: ViewOf = (1, false);

    fn stream(priority: i32) -> Stream {
        Stream { partition: String::new(), job_type: 1, priority }
    }

    fn start(all: &Positions, now: Instant) -> Start {
        all.start(OF, now, |_| true)
    }

    fn places(start: &Start) -> Vec<(i32, i64)> {
        let streams = start.streams.as_ref().expect("it is known");
        streams.iter().map(|(stream, place)| (stream.priority, place.0)).collect()
    }

    fn scheduled(priority: i32, run_at: i64) -> DuePlace {
        let place = (run_at, "id".into());
        DuePlace { queue: 1, critical: false, stream: stream(priority), place }
    }

    fn at(run_at: i64) -> Place {
        (run_at, String::new())
    }

    /// Places after a look that found the stream of priority 5, whose first job is due at 100.
    fn known(now: Instant) -> Positions {
        let all = Positions::default();
        let mut first = start(&all, now);
        assert!(first.is_look && first.streams.is_none(), "the first page looks");
        all.look(OF, &mut first, &[stream(5)], (now, now));
        assert_eq!(places(&start(&all, now)), [(5, i64::MIN)]);
        all.learn(OF, &first, [(stream(5), at(100))]);
        assert_eq!(places(&start(&all, now)), [(5, 100)]);
        all
    }

    #[tokio::test]
    async fn a_place_moves_back_for_a_commit_and_by_a_look() {
        let now = Instant::now();
        let all = known(now);
        all.scheduled(&[scheduled(5, 40), scheduled(7, 200)], now);
        assert_eq!(places(&start(&all, now)), [(5, 40), (7, 200)]);
        let later = now + LOOK_INTERVAL;
        let mut look = start(&all, later);
        assert!(look.is_look);
        // It is claimed, and others go on meanwhile.
        let other = start(&all, later);
        assert!(!other.is_look);
        assert_eq!(places(&other), [(5, 40), (7, 200)]);
        all.look(OF, &mut look, &[stream(5), stream(7)], (later, later));
        assert_eq!(places(&start(&all, later)), [(5, i64::MIN), (7, i64::MIN)]);
        // A page from before the look does not hide what it finds.
        all.learn(OF, &other, [(stream(5), at(90))]);
        all.learn(OF, &look, [(stream(5), at(3))]);
        assert_eq!(places(&start(&all, later)), [(5, 3), (7, i64::MIN)]);
    }

    #[tokio::test]
    async fn a_page_does_not_hide_what_was_committed_meanwhile() {
        let now = Instant::now();
        let all = known(now);
        let page = start(&all, now);
        all.scheduled(&[scheduled(5, 40), scheduled(5, 70)], now);
        all.learn(OF, &page, [(stream(5), at(100))]);
        assert_eq!(places(&start(&all, now)), [(5, 40)]);
        let page = start(&all, now);
        all.learn(OF, &page, [(stream(5), at(100))]);
        assert_eq!(places(&start(&all, now)), [(5, 100)]);
        // A look from before a commit lacks its stream.
        let mut look = start(&all, now);
        all.scheduled(&[scheduled(9, 40)], now);
        all.look(OF, &mut look, &[stream(5)], (now, now));
        assert_eq!(places(&start(&all, now)), [(5, i64::MIN), (9, 40)]);
        // More commits than are remembered may be anywhere.
        let page = start(&all, now);
        let many = vec![scheduled(9, 500); MAX_LATEST + 1];
        all.scheduled(&many, now);
        all.learn(OF, &page, [(stream(9), at(300))]);
        assert_eq!(places(&start(&all, now)), [(5, i64::MIN), (9, 40)]);
    }

    #[tokio::test]
    async fn a_look_at_an_idle_queue_keeps_its_few_streams() {
        let now = Instant::now();
        let look = |all: &Positions, found: &[Stream]| {
            all.look(OF, &mut start(all, now), found, (now, now));
            places(&start(all, now))
        };
        let all = known(now);
        assert_eq!(look(&all, &[]), [(5, 100)]);
        assert_eq!(look(&all, &[stream(7)]), [(7, i64::MIN)], "it is not idle");
        let many: Vec<Stream> = (0..=MAX_IDLE_STREAMS as i32).map(stream).collect();
        assert_eq!(look(&all, &many[1..]).len(), MAX_IDLE_STREAMS);
        assert_eq!(look(&all, &[]).len(), MAX_IDLE_STREAMS);
        assert_eq!(look(&all, &many).len(), MAX_IDLE_STREAMS + 1);
        assert!(look(&all, &[]).is_empty());
    }

    #[tokio::test]
    async fn a_look_that_fails_keeps_the_places() {
        let now = Instant::now();
        let all = known(now);
        let (began, ended) = (now + LOOK_INTERVAL, now + 2 * LOOK_INTERVAL);
        let mut look = start(&all, began);
        assert!(look.is_look && look.is_from_front());
        all.keep(OF, (began, ended));
        let page = start(&all, ended + LOOK_INTERVAL);
        assert!(!page.is_look && !page.is_from_front(), "the next look waits longer");
        assert_eq!(places(&page), [(5, 100)]);
        // Its page may fail after the look.
        all.look(OF, &mut look, &[stream(5)], (began, ended));
        assert!(start(&all, ended).is_from_front());
        all.keep(OF, (began, ended));
        assert_eq!(places(&start(&all, ended)), [(5, 100)]);
    }

    #[tokio::test]
    async fn only_the_jobs_of_queues_that_are_read_are_remembered() {
        let streams = |all: &Positions| all.0.lock()[&OF].streams.len();
        let now = Instant::now();
        let all = Positions::default();
        all.scheduled(&[scheduled(1, 1), scheduled(2, 1)], now);
        assert_eq!(streams(&all), 0, "no page has read it");
        let mut look = start(&all, now);
        all.scheduled(&[scheduled(3, 30)], now);
        assert_eq!(streams(&all), 1, "the look may not see it");
        all.look(OF, &mut look, &[stream(1), stream(2)], (now, now));
        assert_eq!(places(&start(&all, now)), [(1, i64::MIN), (2, i64::MIN), (3, 30)]);
        all.scheduled(&[scheduled(4, 40)], now + 2 * MAX_UNREAD);
        assert_eq!(streams(&all), 0, "no page has read it for long");
        assert!(start(&all, now + 2 * MAX_UNREAD).streams.is_none());
        // More streams than are remembered.
        let many: Vec<Stream> = (0..=MAX_STREAMS as i32).map(stream).collect();
        all.look(OF, &mut start(&all, now), &many, (now, now));
        all.scheduled(&[scheduled(1, 1)], now);
        assert_eq!(streams(&all), 0);
    }
}
