//! Two releases on one log: the tables change where the later one begins to lead.

use std::{sync::Arc, time::Duration};

use object_store::memory::InMemory;
use rusqlite::Connection;
use tempfile::TempDir;

use super::{
    super::file::{MIGRATIONS, before_log},
    SqliteReplica,
};
use crate::{
    bucket_log::{
        Edge, Ended, Handle, LogError, Node, NodeSettings, Pace, Replica as _, StoreBucket,
    },
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::port::{JobStore as _, Write, job_store::Committed};
use tidegate_engine::testkit::builders::job;
use tokio::task::{JoinHandle, yield_now};

/// The migrations of a release with one more. Its rows depend on the position at which it is made.
const LATER: [&str; MIGRATIONS.len() + 1] = {
    let mut later = ["CREATE TABLE notes AS SELECT id FROM jobs;"; MIGRATIONS.len() + 1];
    let mut at = 0;
    while at < MIGRATIONS.len() {
        later[at] = MIGRATIONS[at];
        at += 1;
    }
    later
};
/// A bound of the turns of the runtime in which something must happen.
const MANY: u32 = 20_000_000;

/// A node that runs.
struct Machine {
    replica: Arc<SqliteReplica>,
    handle: Handle<Committed>,
    running: JoinHandle<Result<Ended, LogError>>,
    _dir: TempDir,
}

impl Machine {
    /// Starts a node of a release with these migrations, on an empty disk.
    async fn start(
        bucket: &Arc<InMemory>,
        migrations: &'static [&'static str],
        leads_at_start: bool,
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let replica = SqliteReplica::open(dir.path()).unwrap().of_release(migrations);
        let replica = Arc::new(replica);
        let edge = Edge {
            bucket: Arc::new(StoreBucket::new(Arc::clone(bucket) as _, "log".into())),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        };
        let settings = NodeSettings {
            pace: Pace::Latency { interval: Duration::from_millis(1) },
            poll_interval: Duration::from_millis(1),
            patience: (Duration::from_hours(1), Duration::from_hours(1)),
            leads_at_start,
            ..NodeSettings::default()
        };
        let (node, handle) = Node::open(edge, Arc::clone(&replica), settings).await.unwrap();
        replica.connect(handle.clone());
        let running = tokio::spawn(async move { node.run_once().await });
        let machine = Self { replica, handle, running, _dir: dir };
        if leads_at_start {
            machine.handle.leadership().wait_for(Option::is_some).await.unwrap();
        }
        machine
    }

    async fn add(&self, id: &str) {
        let txn = vec![Write::AddJob(job(id).build())];
        let answers = self.replica.store().commit(vec![txn]).await.unwrap();
        assert!(matches!(answers[..], [Committed::All]), "{answers:?}");
    }

    /// Waits until this machine has applied what `leader` has.
    async fn follow(&self, leader: &Self) {
        let aim = leader.replica.tail().next;
        for _ in 0..MANY {
            if self.replica.tail().next >= aim {
                return;
            }
            assert!(!self.running.is_finished(), "the node has ended");
            yield_now().await;
        }
        panic!("the node does not follow")
    }

    fn number(&self, query: &str) -> i64 {
        let db = Connection::open(self.replica.store().file()).unwrap();
        db.query_row(query, [], |row| row.get(0)).unwrap()
    }

    /// How many migrations the database has.
    fn schema(&self) -> usize {
        let first = before_log().unwrap();
        let first: i64 = first.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        (self.number("SELECT user_version FROM pragma_user_version") - first) as usize + 1
    }

    /// The number of jobs, and of those that the later release has found when it began to lead.
    fn jobs_and_notes(&self) -> (i64, i64) {
        (self.number("SELECT count(*) FROM jobs"), self.number("SELECT count(*) FROM notes"))
    }
}

#[tokio::test]
async fn a_later_release_changes_tables_where_it_begins_to_lead() {
    let bucket = Arc::new(InMemory::new());
    let earlier = Machine::start(&bucket, &MIGRATIONS, true).await;
    let earlier_standby = Machine::start(&bucket, &MIGRATIONS, false).await;
    let later_standby = Machine::start(&bucket, &LATER, false).await;
    earlier.add("a").await;
    for standby in [&earlier_standby, &later_standby] {
        standby.follow(&earlier).await;
        assert_eq!(
            standby.schema(),
            MIGRATIONS.len(),
            "the log has no record of the later release"
        );
    }

    let later = Machine::start(&bucket, &LATER, true).await;
    later.add("b").await;
    later_standby.follow(&later).await;
    for machine in [&later, &later_standby] {
        assert_eq!(machine.schema(), LATER.len());
        assert_eq!(machine.jobs_and_notes(), (2, 1));
    }
    // An empty machine of that release begins before the change, or with a snapshot of then.
    let new = Machine::start(&bucket, &LATER, false).await;
    new.follow(&later).await;
    assert_eq!(new.jobs_and_notes(), (2, 1));

    let stopped = earlier_standby.running.await.unwrap().unwrap_err().to_string();
    let known = MIGRATIONS.len();
    let [has, knows] = [format!("tables {}", known + 1), format!("up to {known}")];
    assert!(stopped.contains(&has) && stopped.contains(&knows), "{stopped}");
    let earlier_file = earlier_standby.replica.store();
    let db = Connection::open(earlier_file.file()).unwrap();
    let jobs: i64 = db.query_row("SELECT count(*) FROM jobs", [], |row| row.get(0)).unwrap();
    assert_eq!(jobs, 1, "it has applied nothing of the later release");
    for machine in [earlier, later_standby, later, new] {
        machine.running.abort();
    }
}
