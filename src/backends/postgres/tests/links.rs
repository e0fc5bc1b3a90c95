//! Connections that are many, cut off, silent, or without a standby.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    time::Instant,
};

use super::server::{RUNTIME, clock, open, rows, settings_at, settings_of_a_database, store};
use crate::postgres::{
    PostgresStore, Settings,
    test_server::{OwnServer, address_in, socket},
};
use tidegate_core::{
    job::{Job, JobId},
    port::{
        StoreError,
        job_store::{Committed, Expect, JobStore, Txn, Write},
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    stored::UnknownFields,
};
use tidegate_engine::testkit::builders::{job, name};

/// The change of `job` to its next revision.
fn next(job: &Job) -> (Job, Write) {
    let (was, mut job) = (job.life.revision, job.clone());
    job.life.revision.0 += 1;
    (job.clone(), Write::SetJob { job, was, all: false })
}

/// The tick that changes `job` to its next revision. The ledger of its queue has the version of its
/// revision.
fn next_tick(job: &Job) -> (Job, Txn) {
    let (version, queue) = (job.life.revision.0, &job.spec.queue);
    let (changed, write) = next(job);
    let ledger = Ledger { version: version + 1, ..Ledger::default() };
    let batch = GrantBatch {
        id: BatchId(version + 1),
        ledger_version: version + 1,
        grants: Vec::new(),
        state: None,
        unknown: UnknownFields::default(),
    };
    let txn = vec![
        write,
        Write::AddBatch(queue.clone(), batch),
        Write::SetLedger { queue: queue.clone(), ledger, was: Expect::Is(version) },
        Write::RemoveBatch(queue.clone(), BatchId(version)),
    ];
    (changed, txn)
}

/// Adds a job of revision 1, and the first ledger of its queue.
fn first(job: &Job) -> Txn {
    let (queue, ledger) = (job.spec.queue.clone(), Ledger { version: 1, ..Ledger::default() });
    vec![Write::AddJob(job.clone()), Write::SetLedger { queue, ledger, was: Expect::Absent }]
}

#[test]
fn many_readers_open_few_connections() {
    let store = open(&settings_of_a_database());
    RUNTIME.block_on(async {
        // None is open.
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE application_name = current_setting('application_name')";
        let _ = store.readers.link().await.unwrap().client.batch_execute(cut).await;
        let ids: Vec<JobId> = (0..200).map(|n| name(&format!("job-{n}"))).collect();
        let found = join_all(ids.iter().map(|id| store.get(std::slice::from_ref(id)))).await;
        for found in found {
            assert_eq!(found.unwrap(), [Ok(None)]);
        }
    });
    let sessions = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()";
    let sessions: i64 = rows(&store, sessions)[0].get(0);
    assert!(sessions < 20, "{sessions} connections were opened");
}

/// While a statement runs, Postgres checks whether its client is there, since release 14.
#[test]
fn a_session_checks_whether_its_client_is_there() {
    let store = store();
    let settings = "SELECT current_setting('server_version_num')::int, \
         current_setting('client_connection_check_interval', true)";
    let found = rows(&store, settings);
    let expected = (found[0].get::<_, i32>(0) >= 140_000).then_some("3s");
    assert_eq!(found[0].get::<_, Option<&str>>(1), expected);
}

/// A transaction that failed on a connection stops no reader that gets the connection next.
#[test]
fn a_reader_leaves_a_connection_in_a_failed_transaction() {
    let store = store();
    RUNTIME.block_on(async {
        let link = store.readers.link().await.unwrap();
        assert!(link.client.batch_execute("BEGIN; SELECT 1/0").await.is_err());
        drop(link);
        assert_eq!(store.get(&[name("one")]).await.unwrap(), [Ok(None)]);
    });
}

/// A folder for a socket that a test serves.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("tidegate-pg-proxy-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn listen(&self) -> UnixListener {
        let _context = RUNTIME.enter();
        UnixListener::bind(self.0.join(".s.PGSQL.5432")).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A proxy may accept a connection whose other end is gone.
#[test]
fn a_server_that_stays_silent_is_given_up() {
    let folder = Folder::new();
    let listener = folder.listen();
    let settings: Settings = address_in(&folder.0, "postgres").parse().unwrap();
    RUNTIME.block_on(async {
        let accepting = tokio::spawn(async move { listener.accept().await.unwrap() });
        let began = Instant::now();
        let opened = PostgresStore::open(settings, clock());
        let opened = tokio::time::timeout(Duration::from_secs(30), opened).await;
        assert!(opened.expect("it is given up").is_err());
        assert!(began.elapsed() >= Duration::from_secs(5), "its answer is awaited");
        accepting.await.unwrap();
    });
}

/// The message that a group ends with.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";
/// The messages that a group of one statement ends with. It is committed at the end of the last one.
const EXECUTE: &[u8] = b"E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04";
/// What a server sends when a transaction is over.
const IDLE: &[u8] = b"Z\0\0\0\x05I";

/// Where a connection is cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// After some bytes of the message that commits.
    Request(usize),
    /// After some bytes of the answers, when the server has committed.
    Answer(usize),
}

fn contains(bytes: &[u8], message: &[u8]) -> bool {
    bytes.windows(message.len()).any(|it| it == message)
}

/// Passes on what comes, until the cut of a group that ends with `end`.
async fn pass_on(
    client: UnixStream,
    server: UnixStream,
    end: &'static [u8],
    cut: Arc<Mutex<Option<Cut>>>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut requests, mut answers) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = from_client.read(&mut requests) => {
                let sent = &requests[..read.unwrap_or(0)];
                let begin = sent.windows(end.len()).position(|it| it == end);
                let place = (*cut.lock()).filter(|_| begin.is_some());
                match place {
                    _ if sent.is_empty() => return,
                    Some(Cut::Request(bytes)) => {
                        *cut.lock() = None;
                        let _ = to_server.write_all(&sent[..begin.unwrap() + bytes]).await;
                        return;
                    }
                    Some(Cut::Answer(bytes)) => {
                        let _ = to_server.write_all(sent).await;
                        let mut answered = Vec::new();
                        while !contains(&answered, IDLE) {
                            if !matches!(from_server.read_buf(&mut answered).await, Ok(1..)) {
                                return;
                            }
                        }
                        if bytes < answered.len() {
                            *cut.lock() = None;
                            let _ = to_client.write_all(&answered[..bytes]).await;
                            return;
                        }
                        let _ = to_client.write_all(&answered).await;
                    }
                    None => drop(to_server.write_all(sent).await),
                }
            }
            read = from_server.read(&mut answers) => {
                let sent = &answers[..read.unwrap_or(0)];
                if sent.is_empty() {
                    return;
                }
                let _ = to_client.write_all(sent).await;
            }
        }
    }
}

#[test]
fn a_commit_is_cut_at_every_byte() {
    cut_at_every_byte(COMMIT, |one| {
        let (changed, write) = next(one);
        (changed, vec![write])
    });
}

#[test]
fn a_tick_is_cut_at_every_byte() {
    cut_at_every_byte(EXECUTE, next_tick);
}

/// A commit whose connection is cut is written once or not at all, and is no success for its caller if
/// it was not written. `change` makes the next change of a job, whose group ends with `end`.
fn cut_at_every_byte(end: &'static [u8], change: impl Fn(&Job) -> (Job, Txn)) {
    let folder = Folder::new();
    let listener = folder.listen();
    let cut: Arc<Mutex<Option<Cut>>> = Arc::default();
    let place = Arc::clone(&cut);
    RUNTIME.spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = UnixStream::connect(socket()).await.unwrap();
            tokio::spawn(pass_on(client, server, end, Arc::clone(&place)));
        }
    });
    let store = open(&settings_at(&address_in(&folder.0, "postgres")));
    RUNTIME.block_on(async {
        let mut one = job("one").build();
        store.commit(vec![first(&one)]).await.unwrap();
        let requests = (0..end.len()).map(Cut::Request);
        let mut unknown = 0;
        for place in requests.chain((0..).map(Cut::Answer)) {
            *cut.lock() = Some(place);
            let (changed, txn) = change(&one);
            one = changed;
            let first = store.commit(vec![txn.clone()]).await;
            let was_cut = cut.lock().take().is_none();
            let again = loop {
                if let Ok(mut answers) = store.commit(vec![txn.clone()]).await {
                    break answers.remove(0);
                }
            };
            let is_first = matches!(again, Committed::Conflict { .. });
            match (first, place) {
                (Ok(answers), _) => assert!(matches!(answers[0], Committed::All) && is_first),
                (Err(_), Cut::Request(_)) => assert!(!is_first, "{place:?}"),
                (Err(_), Cut::Answer(_)) => {
                    assert!(is_first, "{place:?}");
                    unknown += 1;
                }
            }
            let found = store.get(std::slice::from_ref(&one.id)).await.unwrap();
            assert_eq!(found, [Ok(Some(one.clone()))], "{place:?}");
            if !was_cut {
                break;
            }
        }
        assert!(unknown > 0, "no commit happened without an answer");
        let depths = store.depth(None).await.unwrap();
        assert_eq!(depths.counts.iter().map(|depth| depth.jobs).sum::<u64>(), 1);
    });
}

/// The wait for a standby was cancelled: the commit is only on this machine.
#[test]
fn a_commit_that_no_standby_confirms_is_no_success() {
    let store = Arc::new(open(&settings_at(&OwnServer::start().address())));
    let commit = |txn: Txn| {
        let store = Arc::clone(&store);
        RUNTIME.spawn(async move { store.commit(vec![txn]).await })
    };
    let one = job("one").build();
    RUNTIME.block_on(commit(first(&one))).unwrap().unwrap();
    rows(&store, "ALTER SYSTEM SET synchronous_standby_names = 'absent'");
    rows(&store, "SELECT pg_reload_conf()");
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    // Commits do not wait before another process of the server has read the setting too.
    let waits = (0..1000).find_map(|n| {
        let job = job(&format!("two-{n}")).build();
        let committing = commit(vec![Write::AddJob(job.clone())]);
        while rows(&store, cancel).is_empty() {
            if committing.is_finished() {
                return None;
            }
            std::thread::yield_now();
        }
        Some((job, committing))
    });
    let (two, committing) = waits.expect("a commit waits for the standby");
    let is_no_success = |answer: Result<Vec<Committed>, StoreError>, written: Job| {
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        let found = RUNTIME.block_on(store.get(std::slice::from_ref(&written.id))).unwrap();
        assert_eq!(found, [Ok(Some(written))]);
    };
    is_no_success(RUNTIME.block_on(committing).unwrap(), two);
    // A tick, which is one statement.
    let (changed, txn) = next_tick(&one);
    let committing = commit(txn);
    while rows(&store, cancel).is_empty() {
        assert!(!committing.is_finished(), "a tick waits for the standby");
        std::thread::yield_now();
    }
    is_no_success(RUNTIME.block_on(committing).unwrap(), changed);
}
