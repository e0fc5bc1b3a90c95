//! The single writer thread: it commits all waiting requests in one transaction, and then answers
//! them.
//!
//! A commit costs a wait for the disk, independent of its size, so a larger group is cheaper for
//! each request. No request waits for a group to fill: an idle writer starts at once.

use std::{sync::Arc, thread::JoinHandle};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::error::Failure;
use super::{
    Shared,
    names::Names,
    step::Steps,
    txn::{Effects, Group},
};
use tidegate_core::port::{StoreError, Txn, job_store::Committed};

/// Number of writes at which a group is full, so that no caller waits long for the others.
const MAX_GROUP_WRITES: usize = 4096;
/// Maximum requests in the channel; further callers wait to send theirs.
const MAX_WAITING_REQUESTS: usize = 4096;

type Answer = Result<Vec<Committed>, StoreError>;

/// What the writer thread does next.
enum Work {
    Commit(Request),
    /// Something else, alone.
    #[cfg(feature = "bucket")]
    Run(Box<dyn FnOnce(&mut State) + Send>),
}

struct Request {
    steps: Steps,
    reply: oneshot::Sender<Answer>,
}

/// The handle of the writer thread. Dropping it waits until all sent requests are written.
pub(super) struct Writer {
    requests: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread with its connection.
    pub(super) fn start(
        db: Connection,
        names: Names,
        shared: Arc<Shared>,
    ) -> std::io::Result<Self> {
        let (requests, waiting) = mpsc::channel(MAX_WAITING_REQUESTS);
        let state = State { db, names, shared };
        let thread = std::thread::Builder::new()
            .name("sqlite-writer".into())
            .spawn(move || state.run(waiting))?;
        Ok(Self { requests: Some(requests), thread: Some(thread) })
    }

    /// Commits `txns`.
    pub(super) async fn commit(&self, txns: Vec<Txn>) -> Answer {
        let stopped = || StoreError::unavailable("the writer has stopped");
        let steps = Steps::of(txns)?;
        let (reply, answer) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(stopped)?;
        requests.send(Work::Commit(Request { steps, reply })).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Runs `job` on the writer thread, between two groups.
    #[cfg(feature = "bucket")]
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let stopped = || StoreError::unavailable("the writer has stopped");
        let (reply, answer) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(stopped)?;
        let work = Work::Run(Box::new(|state| {
            // The caller may have stopped waiting.
            let _ = reply.send(job(state));
        }));
        requests.send(work).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            // The thread has reported its own panic.
            let _ = thread.join();
        }
    }
}

/// What the writer thread owns.
pub(super) struct State {
    pub(super) db: Connection,
    pub(super) names: Names,
    pub(super) shared: Arc<Shared>,
}

impl State {
    fn run(mut self, mut waiting: mpsc::Receiver<Work>) {
        let mut next = waiting.blocking_recv();
        while let Some(work) = next.take() {
            match work {
                Work::Commit(first) => {
                    let mut writes = first.steps.len();
                    let mut group = vec![first];
                    while writes < MAX_GROUP_WRITES && next.is_none() {
                        match waiting.try_recv() {
                            Ok(Work::Commit(more)) => {
                                writes += more.steps.len();
                                group.push(more);
                            }
                            #[cfg(feature = "bucket")]
                            Ok(run @ Work::Run(_)) => next = Some(run),
                            Err(_) => break,
                        }
                    }
                    self.serve(group);
                }
                #[cfg(feature = "bucket")]
                Work::Run(job) => job(&mut self),
            }
            next = next.or_else(|| waiting.blocking_recv());
        }
    }

    fn serve(&mut self, group: Vec<Request>) {
        let (requests, replies): (Vec<_>, Vec<_>) =
            group.into_iter().map(|request| (request.steps, request.reply)).unzip();
        let answers: Vec<Answer> = match self.commit(&requests) {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            // Nothing of the group was written, perhaps because of a single request: others may not
            // touch the damaged page, and a removal succeeds on a full disk. So each request is
            // committed alone. After any other error, such as an I/O error, that would not help.
            Err(Failure(StoreError::Corrupt(_) | StoreError::Throttled { .. }))
                if requests.len() > 1 =>
            {
                requests
                    .chunks(1)
                    .map(|one| {
                        self.commit(one)
                            .map(|mut answers| answers.remove(0))
                            .map_err(StoreError::from)
                    })
                    .collect()
            }
            Err(Failure(error)) => requests.iter().map(|_| Err(error.clone())).collect(),
        };
        for (reply, answer) in replies.into_iter().zip(answers) {
            // The caller may have stopped waiting. The write is durable in any case.
            let _ = reply.send(answer);
        }
    }

    /// Commits all `requests` in one SQLite transaction: one answer each, or nothing is written.
    fn commit(&mut self, requests: &[Steps]) -> Result<Vec<Vec<Committed>>, Failure> {
        self.transaction(|group| requests.iter().map(|steps| group.execute_all(steps)).collect())
    }

    /// Does `work` in one SQLite transaction: all of it, or nothing.
    pub(super) fn transaction<T>(
        &mut self,
        work: impl FnOnce(&mut Group<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match self.execute(work) {
            Ok((done, effects)) => {
                self.shared.publish(&self.names, effects);
                Ok(done)
            }
            Err(error) => {
                // After some errors SQLite has already rolled back.
                if !self.db.is_autocommit()
                    && let Err(fault) = self.db.execute_batch("ROLLBACK")
                {
                    tracing::error!(%fault, "cannot roll back a transaction");
                }
                self.names = self.shared.names();
                Err(error)
            }
        }
    }

    fn execute<T>(
        &mut self,
        work: impl FnOnce(&mut Group<'_>) -> Result<T, Failure>,
    ) -> Result<(T, Effects), Failure> {
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut group = Group::new(&self.db, &mut self.names);
        let done = work(&mut group)?;
        let effects = group.finish()?;
        self.db.prepare_cached("COMMIT")?.execute([])?;
        Ok((done, effects))
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::{Mutex, RwLock};

    use super::*;
    use tidegate_core::port::{StoreError, Write, job_store::CurrentRecord};
    use tidegate_engine::testkit::builders::job;

    fn state(db: Connection) -> State {
        db.execute_batch(include_str!("migrations/0001_start.sql")).unwrap();
        let names = RwLock::new(Arc::new(Names::default()));
        let shared = Shared { names, counts: Mutex::default(), items: 0.into(), tokens: 0.into() };
        State { db, names: Names::default(), shared: Arc::new(shared) }
    }

    fn request(txns: Vec<Txn>) -> (Request, oneshot::Receiver<Answer>) {
        let (reply, answer) = oneshot::channel();
        (Request { steps: Steps::of(txns).unwrap(), reply }, answer)
    }

    fn add(id: &str) -> Txn {
        vec![Write::AddJob(job(id).queue(id).build())]
    }

    /// Serves requests as one group.
    fn serve(state: &mut State, requests: Vec<Vec<Txn>>) -> Vec<Answer> {
        let (requests, answers): (Vec<_>, Vec<_>) = requests.into_iter().map(request).unzip();
        state.serve(requests);
        answers
            .into_iter()
            .map(|mut answer| answer.try_recv().expect("every request is answered"))
            .collect()
    }

    fn jobs(state: &State) -> i64 {
        state.db.query_row("SELECT count(*) FROM jobs", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_damaged_record_refuses_only_the_transaction_that_meets_it() {
        let mut state = state(Connection::open_in_memory().unwrap());
        serve(&mut state, vec![vec![add("damaged")]]).remove(0).unwrap();
        state.db.execute_batch("UPDATE jobs SET life = x'01'").unwrap();
        let answers =
            serve(&mut state, vec![vec![add("a")], vec![add("b"), add("damaged")], vec![add("c")]]);
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let meets = answers[1].as_ref().unwrap();
        assert!(matches!(&meets[0], Committed::All), "{meets:?}");
        let Committed::Conflict { current: CurrentRecord::Unreadable(job), .. } = &meets[1] else {
            panic!("{meets:?}");
        };
        assert_eq!((job.id.as_str(), jobs(&state)), ("damaged", 4));
    }

    #[test]
    fn only_transactions_that_do_not_fit_on_the_disk_fail() {
        let mut state = state(Connection::open_in_memory().unwrap());
        let pages: i64 = state.db.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        state.db.pragma_update(None, "max_page_count", pages + 8).unwrap();
        let large = |id: &str| {
            vec![Write::AddJob(
                job(id).data(tidegate_core::job::Encoding::Json, vec![b'1'; 100_000]).build(),
            )]
        };
        let answers = serve(&mut state, vec![vec![add("a")], vec![large("b")], vec![add("c")]]);
        assert!(
            matches!(&answers[..], [Ok(_), Err(StoreError::Throttled { .. }), Ok(_)]),
            "{answers:?}"
        );
        assert_eq!(jobs(&state), 2);
        assert_eq!(state.shared.counts().values().sum::<u64>(), 2);
    }
}
