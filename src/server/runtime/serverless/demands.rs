//! Demands of lease calls that wait, and the answers of other processes.
//!
//! ```text
//!   a lease call ──posts──▶ record ◀──reads── a tick of the queue: grants, and writes its offers
//!        ▲                    │               an enqueue: writes a wake-up
//!        └────────reads───────┘
//! ```
//!
//! Each call has a place, whose record the place's next call replaces: one write a call. Nothing
//! depends on these records but how soon a job starts. An offer that is lost is revoked by its
//! check, and a wake-up that is lost is made up for by the next look at the queue.
//!
//! The records of a queue are a group: a table keeps each group in a partition of its own. Those of
//! calls of an older release have no group. Ticks look for them now and then, and answer them where
//! they are.

use std::{
    collections::{BTreeSet, HashMap},
    sync::OnceLock,
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::super::Server;
use tidegate_core::{
    event::trigger::{digest, hex},
    job::{JobId, QueueName, TypeName, Version},
    port::{
        Entropy, Work, Write,
        job_store::{Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
};
use tidegate_engine::{Demand, Dispatch, Error};

/// A demand that ends sooner is not answered: its call would not read the answer.
const ANSWER_MARGIN: Duration = Duration::from_millis(300);
/// How long a record is kept after its use.
const RETENTION: Duration = Duration::from_mins(1);
/// Waiting demands of a queue that one tick reads at most.
pub(super) const MAX_WAITING: u32 = 1000;
/// Records that a process reads to wake some of the calls.
pub(super) const MAX_WOKEN: u32 = 100;
/// Releases that a demand carries at most. Of others the queue gets hints.
pub(super) const MAX_RELEASES: usize = 32;
/// How often a process looks for demands of an older release, unless there are some.
const OLDER_INTERVAL: Duration = Duration::from_secs(10);
/// Queues for which a process remembers when it looked.
const MAX_REMEMBERED: usize = 10_000;
/// Follows the name of a demand in the name of its wake-up.
const WAKE_UP: &str = "-wake";

/// What a call wants, and what it was given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredDemand {
    /// Tells this call from earlier ones of its place.
    pub call: String,
    types: Vec<TypeName>,
    capacity: u32,
    worker: Option<String>,
    /// How many bytes the jobs may have together; none for any.
    bytes: Option<usize>,
    until: Timestamp,
    /// Jobs that left the version at which they were granted.
    pub released: Vec<(JobId, Version)>,
    /// The jobs that were granted to it; none if it is not answered.
    #[serde(default)]
    offers: Vec<Offer>,
}

/// A granted job.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Offer {
    job: JobId,
    version: Version,
    granted_at: Timestamp,
    #[serde(default)]
    data_bytes: u64,
}

/// Has a call look at its queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct WakeUp {
    /// Of the demand that it is for.
    call: String,
    at: Timestamp,
}

/// A demand that waits, with the name of its record.
#[derive(Clone, Debug)]
pub(super) struct WaitingDemand {
    name: String,
    pub stored: StoredDemand,
}

/// The records of a queue, as a tick reads them.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub waiting: Vec<WaitingDemand>,
    /// Until when a tick serves the demands of the queue, and reads new ones by itself.
    pub served_until: Option<Timestamp>,
}

/// A demand of a call of this process.
#[derive(Debug)]
pub(super) struct Posted {
    pub queue: QueueName,
    name: String,
    demand: StoredDemand,
    /// The instant of the last wake-up.
    woken_for: Option<Timestamp>,
}

/// The answer to a posted demand.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub offers: Vec<Work>,
    /// Jobs that were offered to an earlier call of the place, which may have wanted other types.
    pub stale: Vec<Work>,
    /// When the call must look at its queue.
    pub look_at: Option<Timestamp>,
    /// Whether the demand is no longer there, so that it must be posted again.
    pub is_lost: bool,
}

/// The places of the calls of this process.
#[derive(Default)]
pub(super) struct Places {
    process: OnceLock<String>,
    taken: Mutex<BTreeSet<u16>>,
    /// When this process looks again for demands of an older release, by queue.
    older_at: Mutex<HashMap<QueueName, Timestamp>>,
}

/// The place of a call, free again when it is dropped: a call may be cancelled.
pub(super) struct Place<'a> {
    places: &'a Places,
    pub number: u16,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.places.taken.lock().remove(&self.number);
    }
}

impl Places {
    /// A place that no other call has.
    pub(super) fn take(&self) -> Place<'_> {
        let mut taken = self.taken.lock();
        let number = (0..u16::MAX).find(|number| !taken.contains(number)).unwrap_or(u16::MAX);
        taken.insert(number);
        Place { places: self, number }
    }

    /// Whether to look for demands of an older release in `queue`.
    fn looks_for_older(&self, queue: &QueueName, now: Timestamp) -> bool {
        self.older_at.lock().get(queue).is_none_or(|at| *at <= now)
    }

    /// Records that a look for demands of an older release `found` some.
    fn note_older(&self, queue: &QueueName, now: Timestamp, found: bool) {
        let at = if found { now } else { now + OLDER_INTERVAL };
        let mut older_at = self.older_at.lock();
        if older_at.len() >= MAX_REMEMBERED {
            older_at.clear();
        }
        older_at.insert(queue.clone(), at);
    }

    /// The record of the call at `place` for `queue`.
    fn record(&self, queue: &QueueName, place: u16, entropy: &dyn Entropy) -> String {
        let process = self.process.get_or_init(|| hex(&(entropy.bits() as u64).to_be_bytes()));
        format!("{}{process}-{place:05}", prefix(queue))
    }
}

/// What the names of a queue's records start with: their group.
fn prefix(queue: &QueueName) -> String {
    format!("{}.", hex(&digest(&[queue.as_str()])[..16]))
}

/// The same for records of an older release.
fn older_prefix(queue: &QueueName) -> String {
    format!("{}-", hex(&digest(&[queue.as_str()])[..16]))
}

/// The record that shows that a tick serves the demands of `queue`. It sorts before these.
fn server_record(queue: &QueueName) -> String {
    format!("{}-", prefix(queue))
}

fn query(prefix: String, limit: u32) -> RecordQuery {
    RecordQuery { kind: RecordKind::Demand, prefix, after: None, limit }
}

fn put(name: String, until: Timestamp, content: &impl Serialize) -> Vec<Write> {
    let bytes = serde_json::to_vec(content).unwrap_or_default();
    vec![Write::PutRecord(Record { kind: RecordKind::Demand, name, until, bytes })]
}

impl WaitingDemand {
    /// The demand in a tick that offers it jobs.
    pub(super) fn demand(&self) -> Demand {
        Demand {
            min: 0,
            types: self.stored.types.clone(),
            capacity: self.stored.capacity,
            worker: self.stored.worker.clone(),
            lease: None,
            dispatch: Dispatch::Offer,
            call: None,
        }
    }

    /// How many bytes its jobs may have together.
    pub(super) fn budget(&self) -> usize {
        self.stored.bytes.unwrap_or(usize::MAX)
    }
}

impl Server {
    /// Posts a demand for jobs of `queue` until `until`.
    pub(super) async fn post_demand(
        &self,
        queue: &QueueName,
        place: u16,
        demand: &Demand,
        bytes: Option<usize>,
        released: Vec<(JobId, Version)>,
        until: Timestamp,
    ) -> Result<Posted, Error> {
        let serverless = self.inner.serverless.as_ref().expect("only a serverless server waits");
        let entropy = &*self.engine().ports().entropy;
        let posted = Posted {
            queue: queue.clone(),
            name: serverless.places.record(queue, place, entropy),
            demand: StoredDemand {
                call: hex(&(entropy.bits() as u64).to_be_bytes()),
                types: demand.types.clone(),
                capacity: demand.capacity,
                worker: demand.worker.clone(),
                bytes,
                until,
                released,
                offers: Vec::new(),
            },
            woken_for: None,
        };
        self.post_again(&posted).await?;
        Ok(posted)
    }

    /// Posts a demand again, whose record another process has replaced.
    pub(super) async fn post_again(&self, posted: &Posted) -> Result<(), Error> {
        let until = posted.demand.until + RETENTION;
        let write = put(posted.name.clone(), until, &posted.demand);
        self.engine().ports().store.commit(vec![write]).await?;
        Ok(())
    }

    /// Removes demands that need no answer any more.
    pub(super) async fn withdraw(&self, posted: &[&Posted]) -> Result<(), Error> {
        let remove = |posted: &&Posted| {
            let (kind, name) = (RecordKind::Demand, posted.name.clone());
            vec![Write::RemoveRecord { kind, name, until: None }]
        };
        if !posted.is_empty() {
            let writes = posted.iter().map(remove).collect();
            self.engine().ports().store.commit(writes).await?;
        }
        Ok(())
    }

    /// The answers to `posted`, in order.
    pub(super) async fn answers(&self, posted: &mut [&mut Posted]) -> Result<Vec<Answer>, Error> {
        // A demand, and its wake-up.
        let queries: Vec<RecordQuery> =
            posted.iter().map(|posted| query(posted.name.clone(), 2)).collect();
        let pages = self.engine().ports().store.records(&queries).await?;
        Ok(posted.iter_mut().zip(pages).map(|(posted, page)| posted.read(&page)).collect())
    }

    /// Whether a tick serves the demands of `queue`.
    pub(super) async fn is_served(&self, queue: &QueueName) -> Result<bool, Error> {
        let queries = [query(server_record(queue), 1)];
        let pages = self.engine().ports().store.records(&queries).await?;
        let now = self.now();
        Ok(pages.into_iter().flatten().any(|record| record.until > now))
    }

    /// Shows that a tick serves the demands of `queue` until `until`; none: that it ends.
    pub(super) async fn show_service(
        &self,
        queue: &QueueName,
        until: Option<Timestamp>,
    ) -> Result<(), Error> {
        let name = server_record(queue);
        let write = match until {
            Some(until) => put(name, until, &()),
            None => vec![Write::RemoveRecord { kind: RecordKind::Demand, name, until: None }],
        };
        self.engine().ports().store.commit(vec![write]).await?;
        Ok(())
    }

    /// The demands that wait for jobs of `queue`, those that end first before the others. Reads at
    /// most `most` records, and as many of calls of an older release, and removes old ones.
    pub(super) async fn board(&self, queue: &QueueName, most: u32) -> Result<Board, Error> {
        let store = &self.engine().ports().store;
        let serverless = self.inner.serverless.as_ref().expect("only a serverless server waits");
        let looks_for_older = serverless.places.looks_for_older(queue, self.now());
        let older = looks_for_older.then(|| query(older_prefix(queue), most));
        let queries: Vec<RecordQuery> =
            [query(prefix(queue), most)].into_iter().chain(older).collect();
        let records = store.records(&queries).await?;
        let (now, service) = (self.now(), server_record(queue));
        if let Some(older) = records.get(1) {
            serverless.places.note_older(queue, now, !older.is_empty());
        }
        let mut board = Board::default();
        let mut old = Vec::new();
        for record in records.into_iter().flatten() {
            if record.until + RETENTION < now {
                let (kind, name, until) = (record.kind, record.name, Some(record.until));
                old.push(vec![Write::RemoveRecord { kind, name, until }]);
            } else if record.name == service {
                board.served_until = Some(record.until).filter(|until| *until > now);
            } else if !record.name.ends_with(WAKE_UP)
                && let Ok(stored) = serde_json::from_slice::<StoredDemand>(&record.bytes)
                && stored.offers.is_empty()
                && stored.until > now + ANSWER_MARGIN
            {
                board.waiting.push(WaitingDemand { name: record.name, stored });
            }
        }
        board.waiting.sort_by_key(|waiting| waiting.stored.until);
        if !old.is_empty()
            && let Err(error) = store.commit(old).await
        {
            tracing::debug!(%queue, %error, "old demands were not removed");
        }
        Ok(board)
    }

    /// Writes the offers of a tick, each with the index of its demand in `waiting`. Returns the
    /// indices of the demands that were answered.
    pub(super) async fn answer(
        &self,
        waiting: &[WaitingDemand],
        offers: Vec<(usize, Work)>,
    ) -> Result<BTreeSet<usize>, Error> {
        let answered: BTreeSet<usize> = offers.iter().map(|(index, _)| *index).collect();
        let mut writes = Vec::with_capacity(answered.len());
        for index in &answered {
            let WaitingDemand { name, mut stored } = waiting[*index].clone();
            let own = offers.iter().filter(|(of, _)| of == index).map(|(_, work)| Offer {
                job: work.job.clone(),
                version: work.version,
                granted_at: work.granted_at.unwrap_or(work.run_at),
                data_bytes: work.data_bytes,
            });
            stored.offers = own.collect();
            stored.released.clear();
            writes.push(put(name, stored.until + RETENTION, &stored));
        }
        if !writes.is_empty() {
            self.engine().ports().store.commit(writes).await?;
        }
        Ok(answered)
    }

    /// Has `count` of the waiting calls look at their queue at `at`.
    pub(super) async fn wake_up(
        &self,
        board: &Board,
        count: usize,
        at: Timestamp,
    ) -> Result<(), Error> {
        let open: Vec<&WaitingDemand> =
            board.waiting.iter().filter(|waiting| at < waiting.stored.until).collect();
        // Two processes that wake one call each wake different ones, if they can.
        let first = (self.engine().ports().entropy.fraction() * open.len() as f64) as usize;
        let chosen = open.iter().cycle().skip(first).take(count.min(open.len()));
        let writes: Vec<_> = chosen
            .map(|waiting| {
                let wake_up = WakeUp { call: waiting.stored.call.clone(), at };
                let name = format!("{}{WAKE_UP}", waiting.name);
                put(name, waiting.stored.until + RETENTION, &wake_up)
            })
            .collect();
        if !writes.is_empty() {
            self.engine().ports().store.commit(writes).await?;
        }
        Ok(())
    }
}

impl Posted {
    /// What the records of the demand say.
    fn read(&mut self, records: &[Record]) -> Answer {
        let mut answer = Answer { is_lost: true, ..Answer::default() };
        for record in records {
            if record.name == self.name {
                let stored = serde_json::from_slice::<StoredDemand>(&record.bytes);
                if let Ok(stored) = stored {
                    answer.is_lost = stored.call != self.demand.call;
                    let offers = stored.offers.into_iter().map(|offer| offer.work(&self.queue));
                    let is_own = !answer.is_lost;
                    let list = if is_own { &mut answer.offers } else { &mut answer.stale };
                    list.extend(offers);
                }
            } else if let Ok(wake_up) = serde_json::from_slice::<WakeUp>(&record.bytes)
                && wake_up.call == self.demand.call
                && self.woken_for != Some(wake_up.at)
            {
                self.woken_for = Some(wake_up.at);
                answer.look_at = Some(wake_up.at);
            }
        }
        answer
    }
}

impl Offer {
    /// The work that claims it.
    fn work(self, queue: &QueueName) -> Work {
        Work {
            queue: queue.clone(),
            job: self.job,
            version: self.version,
            run_at: self.granted_at,
            granted_at: Some(self.granted_at),
            data_bytes: self.data_bytes,
        }
    }
}
