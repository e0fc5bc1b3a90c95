//! The bucket of a log, and the way of each node to it: requests and answers are lost, late or
//! repeated, and a condition is sometimes refused although it holds.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tidegate_backends::bucket_log::{
    Hint, Hints, LogBucket, Removable,
    create::{GetAnswer, PutAnswer},
    key::ObjectKey,
};
use tokio::sync::oneshot;

use super::{LogBug, executor::Executor};

/// How long a node waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How many seconds after it was sent a request may arrive at most.
const MAX_LATE: f64 = 90.0;
/// The probability that a write arrives a second time.
const DUPLICATED: f64 = 0.03;
/// How many seconds after it was sent a write arrives a second time, at least and at most.
const DUPLICATE_AFTER: [f64; 2] = [3.0, 200.0];

/// The objects.
#[derive(Default)]
pub struct Bucket {
    objects: Mutex<BTreeMap<ObjectKey, Bytes>>,
    /// The hint of the leader, and that of a standby.
    hints: Mutex<[Option<Bytes>; 2]>,
    has_faults: AtomicBool,
}

impl Bucket {
    /// Sets whether requests are disturbed from now on.
    pub fn set_faults(&self, on: bool) {
        self.has_faults.store(on, Ordering::Relaxed);
    }

    /// Whether requests are disturbed.
    pub fn has_faults(&self) -> bool {
        self.has_faults.load(Ordering::Relaxed)
    }

    fn serve(&self, request: &Request) -> Answer {
        let mut objects = self.objects.lock();
        match request {
            Request::Create(key, _) if objects.contains_key(key) => Answer::Put(PutAnswer::Exists),
            Request::Create(key, bytes) => {
                objects.insert(*key, bytes.clone());
                Answer::Put(PutAnswer::Created)
            }
            Request::Read(key) => {
                Answer::Get(objects.get(key).cloned().map_or(GetAnswer::Absent, GetAnswer::Found))
            }
            Request::Remove(key) => {
                objects.remove(key);
                Answer::Removed(true)
            }
            Request::WriteHint(hint, bytes) => {
                self.hints.lock()[index(*hint)] = Some(bytes.clone());
                Answer::Put(PutAnswer::Created)
            }
            Request::ReadHint(hint) => {
                let found = self.hints.lock()[index(*hint)].clone();
                Answer::Get(found.map_or(GetAnswer::Absent, GetAnswer::Found))
            }
        }
    }
}

fn index(hint: Hint) -> usize {
    match hint {
        Hint::Leader => 0,
        Hint::Standby => 1,
    }
}

#[derive(Clone)]
enum Request {
    Create(ObjectKey, Bytes),
    Read(ObjectKey),
    Remove(ObjectKey),
    WriteHint(Hint, Bytes),
    ReadHint(Hint),
}

#[derive(Clone)]
enum Answer {
    Put(PutAnswer),
    Get(GetAnswer),
    Removed(bool),
}

type Reply = Arc<Mutex<Option<oneshot::Sender<Answer>>>>;

/// The way of a node to the bucket.
pub struct Connection {
    pub bucket: Arc<Bucket>,
    pub executor: Arc<Executor>,
    pub bug: Option<LogBug>,
}

impl Connection {
    /// Sends a request: its answer, or `unknown` after the timeout.
    async fn send(&self, request: Request, unknown: Answer) -> Answer {
        let (reply, answer) = oneshot::channel();
        let reply: Reply = Arc::new(Mutex::new(Some(reply)));
        let scheduler = &self.executor.scheduler;
        let fast = Duration::from_millis(20 + scheduler.draw(60) as u64);
        let drawn =
            if self.bucket.has_faults() { scheduler.draw(1_000) as f64 / 1_000.0 } else { 0.0 };
        let is_write = !matches!(request, Request::Read(_) | Request::ReadHint(_));
        if is_write && self.bucket.has_faults() && scheduler.happens(DUPLICATED) {
            // It arrives once more, long after its answer. A slot may have been emptied since.
            let [least, most] = DUPLICATE_AFTER;
            let delay = Duration::from_secs_f64(least) + scheduler.span(most - least);
            self.arrive(&request, delay, None);
        }
        match drawn {
            ..0.85 => self.arrive(&request, fast, Some(&reply)),
            // It is slow.
            ..0.89 => self.arrive(&request, fast + scheduler.span(1.5), Some(&reply)),
            // It is lost.
            ..0.915 => self.answer(&reply, TIMEOUT, unknown.clone()),
            // Its answer is lost.
            ..0.94 => {
                self.arrive(&request, fast, None);
                self.answer(&reply, TIMEOUT, unknown.clone());
            }
            // It arrives long after the node has given up.
            ..0.955 => {
                self.arrive(&request, TIMEOUT + scheduler.span(MAX_LATE), None);
                self.answer(&reply, TIMEOUT, unknown.clone());
            }
            // The client repeats it, so that one's own object exists.
            ..0.98 => {
                self.arrive(&request, fast, None);
                self.arrive(&request, fast * 2, Some(&reply));
            }
            // The condition is refused, and nothing was written.
            ..0.99 if matches!(request, Request::Create(..)) => {
                self.answer(&reply, fast, Answer::Put(PutAnswer::Exists));
            }
            // The store answers with an error, before or after the write.
            _ => {
                if scheduler.happens(0.5) {
                    self.arrive(&request, fast, None);
                }
                self.answer(&reply, fast, unknown.clone());
            }
        }
        answer.await.unwrap_or(unknown)
    }

    /// Lets a request arrive after `delay`. It is answered if there is a `reply`.
    fn arrive(&self, request: &Request, delay: Duration, reply: Option<&Reply>) {
        let (bucket, executor) = (Arc::clone(&self.bucket), Arc::clone(&self.executor));
        let (request, reply) = (request.clone(), reply.cloned());
        self.executor.after(delay, move || {
            let answer = bucket.serve(&request);
            if let Some(reply) = reply {
                executor.after(delay.min(TIMEOUT) / 2, move || respond(&reply, answer));
            }
        });
    }

    fn answer(&self, reply: &Reply, delay: Duration, answer: Answer) {
        let reply = Arc::clone(reply);
        self.executor.after(delay, move || respond(&reply, answer));
    }
}

/// Answers a request once. A node that was killed gets no answer.
fn respond(reply: &Reply, answer: Answer) {
    if let Some(reply) = reply.lock().take() {
        let _ = reply.send(answer);
    }
}

#[async_trait]
impl LogBucket for Connection {
    async fn create(&self, key: &ObjectKey, bytes: Bytes) -> PutAnswer {
        let request = Request::Create(*key, bytes);
        let is_record = matches!(key, ObjectKey::Slot(slot) if slot.seq > 0);
        if is_record && self.bug == Some(LogBug::PutsUnconfirmed) {
            self.arrive(&request, Duration::from_secs(30), None);
            return PutAnswer::Created;
        }
        match self.send(request, Answer::Put(PutAnswer::Unknown)).await {
            Answer::Put(answer) => answer,
            _ => PutAnswer::Unknown,
        }
    }

    async fn read(&self, key: &ObjectKey) -> GetAnswer {
        match self.send(Request::Read(*key), Answer::Get(GetAnswer::Unknown)).await {
            Answer::Get(answer) => answer,
            _ => GetAnswer::Unknown,
        }
    }

    async fn remove(&self, object: &Removable) -> bool {
        let removed = self.send(Request::Remove(object.key()), Answer::Removed(false)).await;
        matches!(removed, Answer::Removed(true))
    }
}

/// A late request may replace a newer hint by an older one.
#[async_trait]
impl Hints for Connection {
    async fn write(&self, hint: Hint, bytes: Bytes) -> bool {
        let request = Request::WriteHint(hint, bytes);
        let written = self.send(request, Answer::Put(PutAnswer::Unknown)).await;
        matches!(written, Answer::Put(PutAnswer::Created))
    }

    async fn read(&self, hint: Hint) -> Option<Bytes> {
        match self.send(Request::ReadHint(hint), Answer::Get(GetAnswer::Unknown)).await {
            Answer::Get(GetAnswer::Found(bytes)) => Some(bytes),
            _ => None,
        }
    }
}
