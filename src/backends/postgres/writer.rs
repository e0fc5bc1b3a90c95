//! Group commit: the transactions of all callers that wait share one round trip and one fsync.
//!
//! Two groups are under way at once, on two connections: one waits for the disk while the other
//! works. A transaction that names a record of one that is under way, or that waits before it, waits
//! itself. So the answers are those of the order in which the transactions came.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};

use super::{
    Shared,
    connect::{Connector, Link, in_order},
    due::DuePlace,
    group::{self, Answer},
    item_lock::ItemLock,
    single, statements,
    step::{Refs, Step},
    wal::{self, Wal},
};
use tidegate_core::{
    job::JobId,
    port::{Clock, StoreError, job_store::Committed},
    time::Timestamp,
};

/// Groups that are under way at once, each on its own connection.
pub(super) const MAX_GROUPS: usize = 2;
/// Transactions, writes and bytes at which a group is full, so that no caller waits long for the
/// others.
const MAX_GROUP_TXNS: usize = 1000;
const MAX_GROUP_WRITES: usize = 4096;
const MAX_GROUP_BYTES: usize = 8 << 20;
/// Waiting transactions that are looked at for a group.
const MAX_LOOKED_AT: usize = 8 * MAX_GROUP_TXNS;
/// Maximum requests in the channel; further callers wait to send theirs.
const MAX_WAITING_REQUESTS: usize = 4096;

type Reply = oneshot::Sender<Result<Vec<Committed>, StoreError>>;

struct Request {
    txns: Vec<Vec<Step>>,
    reply: Reply,
}

/// Ids that were drawn for new jobs and not added yet.
pub(super) type Drawn = Arc<Mutex<HashSet<JobId>>>;

/// The handle of the task that writes. Requests that were sent are written after it is dropped,
/// while its runtime lasts.
pub(super) struct Writer {
    requests: mpsc::Sender<Request>,
}

impl Writer {
    /// Starts the task on the current runtime.
    pub(super) fn start(connector: Connector, clock: Arc<dyn Clock>, shared: Shared) -> Self {
        let (requests, waiting) = mpsc::channel(MAX_WAITING_REQUESTS);
        let state = State {
            connector,
            clock,
            shared,
            idle: Vec::new(),
            groups: JoinSet::new(),
            pending: VecDeque::new(),
            under_way: Refs::default(),
            open: HashMap::new(),
            next_request: 0,
        };
        tokio::spawn(state.run(waiting));
        Self { requests }
    }

    /// Commits `txns`.
    pub(super) async fn commit(&self, txns: Vec<Vec<Step>>) -> Result<Vec<Committed>, StoreError> {
        if txns.is_empty() {
            return Ok(Vec::new());
        }
        let stopped = || StoreError::unavailable("the writer has stopped");
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request { txns, reply }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

/// A transaction that waits, and whose it is.
struct Pending {
    request: u64,
    index: usize,
    txn: Vec<Step>,
    refs: Refs,
}

/// A request whose transactions are not all answered.
struct Open {
    answers: Vec<Option<Answer>>,
    missing: usize,
    reply: Reply,
}

/// The end of a group: its connection, if that is still good, and its answers.
struct Written {
    link: Option<Link>,
    group: Vec<Pending>,
    answers: Vec<Answer>,
}

struct State {
    connector: Connector,
    clock: Arc<dyn Clock>,
    shared: Shared,
    idle: Vec<Link>,
    groups: JoinSet<Written>,
    pending: VecDeque<Pending>,
    /// What the transactions under way name.
    under_way: Refs,
    open: HashMap<u64, Open>,
    next_request: u64,
}

impl State {
    async fn run(mut self, mut waiting: mpsc::Receiver<Request>) {
        let mut is_open = true;
        while is_open || !self.groups.is_empty() || !self.pending.is_empty() {
            tokio::select! {
                request = waiting.recv(), if is_open && self.pending.len() < MAX_LOOKED_AT => {
                    match request {
                        Some(request) => self.accept(request),
                        None => is_open = false,
                    }
                    // Whatever waits joins the group.
                    while let Ok(request) = waiting.try_recv() {
                        self.accept(request);
                    }
                }
                Some(written) = self.groups.join_next(), if !self.groups.is_empty() => {
                    match written {
                        Ok(written) => self.finish(written),
                        Err(panic) => return self.stop(&panic.to_string()),
                    }
                }
            }
            while self.groups.len() < MAX_GROUPS && self.begin() {}
        }
    }

    fn accept(&mut self, request: Request) {
        let number = self.next_request;
        self.next_request += 1;
        let answers: Vec<Option<Answer>> = request.txns.iter().map(|_| None).collect();
        let missing = answers.len();
        self.open.insert(number, Open { answers, missing, reply: request.reply });
        for (index, txn) in request.txns.into_iter().enumerate() {
            let refs = Refs::of(&txn);
            self.pending.push_back(Pending { request: number, index, txn, refs });
        }
    }

    /// Starts a group of what may be written now. Returns whether there was something.
    fn begin(&mut self) -> bool {
        let (mut group, mut left) = (Vec::new(), VecDeque::new());
        let (mut skipped, mut writes, mut bytes) = (Refs::default(), 0, 0);
        while let Some(pending) = self.pending.pop_front() {
            let is_full = group.len() >= MAX_GROUP_TXNS
                || writes >= MAX_GROUP_WRITES
                || bytes >= MAX_GROUP_BYTES
                || left.len() >= MAX_LOOKED_AT;
            if is_full {
                self.pending.push_front(pending);
                break;
            }
            if self.under_way.conflict(&pending.refs) || skipped.conflict(&pending.refs) {
                skipped.add(&pending.refs);
                left.push_back(pending);
                continue;
            }
            self.under_way.add(&pending.refs);
            writes += pending.txn.len();
            bytes += pending.txn.iter().map(Step::bytes).sum::<usize>();
            group.push(pending);
        }
        while let Some(pending) = left.pop_back() {
            self.pending.push_front(pending);
        }
        if group.is_empty() {
            return false;
        }
        let drawn = self.drawn_of(&group);
        let (link, connector, now) = (self.idle.pop(), self.connector.clone(), self.clock.now());
        let (wal, item_lock) = (Arc::clone(&self.shared.wal), self.shared.item_lock);
        self.groups.spawn(async move {
            let link = match link.filter(|link| !link.is_closed()) {
                Some(link) => Ok(link),
                None => open(&connector, &wal, item_lock, now).await,
            };
            match link {
                Ok(link) => {
                    let txns: Vec<&[Step]> = group.iter().map(|pending| &pending.txn[..]).collect();
                    let answers = group::commit(&link, &txns, &drawn, now).await;
                    // After an error the state of the session is not known.
                    let is_good = answers.iter().all(Result::is_ok);
                    Written { link: is_good.then_some(link), group, answers }
                }
                Err(error) => {
                    let answers = group.iter().map(|_| Err(error.clone())).collect();
                    Written { link: None, group, answers }
                }
            }
        });
        true
    }

    /// The ids that `group` adds for the first time since they were drawn. A repeat must look for
    /// an ended job of that id: the first attempt may have been committed.
    fn drawn_of(&self, group: &[Pending]) -> HashSet<JobId> {
        let mut drawn = self.shared.drawn.lock();
        let added = group.iter().flat_map(|pending| &pending.txn).filter_map(|step| match step {
            Step::Add(whole) => Some(&whole.id),
            _ => None,
        });
        added.filter_map(|id| drawn.take(id)).collect()
    }

    fn finish(&mut self, written: Written) {
        self.idle.extend(written.link);
        // Before the answers, so that later pages find the jobs. A commit without an answer may
        // have happened.
        let may_be_written = |answer: &Answer| matches!(answer, Ok(Committed::All) | Err(_));
        let txns = written.group.iter().zip(&written.answers);
        let steps =
            txns.filter(|(_, answer)| may_be_written(answer)).flat_map(|(pending, _)| &pending.txn);
        let due: Vec<DuePlace> = steps.flat_map(Step::places).collect();
        let now = Instant::now();
        self.shared.positions.scheduled(&due, now);
        self.shared.unsent.add(&due, now);
        for (pending, answer) in written.group.into_iter().zip(written.answers) {
            self.under_way.remove(&pending.refs);
            let Some(open) = self.open.get_mut(&pending.request) else { continue };
            open.answers[pending.index] = Some(answer);
            open.missing -= 1;
            if open.missing == 0
                && let Some(open) = self.open.remove(&pending.request)
            {
                // The caller may have stopped waiting. What was written is durable in any case.
                let _ = open.reply.send(whole_answer(open.answers));
            }
        }
    }

    /// Answers every request after a panic.
    fn stop(self, panic: &str) {
        tracing::error!(panic, "the task that writes to the database has stopped");
        for open in self.open.into_values() {
            let _ = open.reply.send(Err(StoreError::unavailable("the writer has stopped")));
        }
    }
}

/// The answer to a request. One whose transactions were written in part was not refused as a whole.
fn whole_answer(answers: Vec<Option<Answer>>) -> Result<Vec<Committed>, StoreError> {
    let is_partial = answers.iter().flatten().any(Result::is_ok);
    let answers: Result<Vec<Committed>, StoreError> = answers.into_iter().flatten().collect();
    answers.map_err(|error| match error {
        StoreError::Throttled { .. } if is_partial => {
            StoreError::unavailable_in("a part of the transactions was written", error)
        }
        error => error,
    })
}

/// A new connection with every statement of a group prepared, whose commits are watched.
async fn open(
    connector: &Connector,
    wal: &Arc<Wal>,
    item_lock: ItemLock,
    now: Timestamp,
) -> Result<Link, StoreError> {
    let mut link = connector.open().await?;
    link.item_lock = item_lock;
    wal::watch(&mut link, wal, now).await?;
    let watched = if link.watched.is_some() { &single::ALL[..] } else { &[] };
    let all = statements::ALL.iter().chain(watched).copied();
    let prepared = in_order(all.map(|sql| link.prepared(sql)).collect()).await;
    for statement in prepared {
        statement.map_err(super::error::Fault::into_error)?;
    }
    Ok(link)
}
