//! The moved jobs are found again on the table, in whichever state they are.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tidegate_backends::dynamodb::{DynamoStore, memory::MemoryTable};
use tidegate_core::{
    job::{Event, Job, JobId, Payload, Token, type_config::TypeConfig},
    port::{
        Clock as _,
        job_store::{
            DueQuery, Expect, JobStore as _, Key, ListQuery, SharedStore, StateFilter, Txn, Write,
        },
    },
    queue::{QueueConfig, order::Order},
    target::{Push, TargetConfig},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    memory::{FakeClock, MemoryStore},
    request::NewJob,
    testkit::builders::{JobBuilder, job, name},
};

use super::{of, process};
use crate::{
    cases::harness::{Harness, work},
    moves::{committed, moved, side},
};

const HOUR: i64 = 3_600_000;

/// A job that was accepted two years before `now`.
fn old(id: &str, now: Timestamp) -> JobBuilder {
    job(id).queue("mail").of_type("x").created(now.millis() - 2 * 365 * 24 * HOUR)
}

/// `job`, claimed at `now` for a minute without a grant.
fn claimed(job: &Job, now: Timestamp) -> Job {
    let claim = Event::Claim {
        version: job.life.version,
        token: Token::new(5),
        worker: None,
        lease: Duration::from_mins(1),
        granted: false,
        decided_at: now,
    };
    job.apply(claim, now).unwrap()
}

/// Moves what `txns` write into a new table, and returns another process on it.
async fn on_a_table(
    txns: Vec<Txn>,
    clock: &Arc<FakeClock>,
) -> (Arc<DynamoStore>, Arc<MemoryTable>) {
    let (memory, table) = (Arc::new(MemoryStore::new()), Arc::new(MemoryTable::new()));
    for txn in txns {
        committed(&*memory, txn).await;
    }
    let from = side(memory, "the source");
    let to = side(process(Arc::clone(&table) as _, clock, 1), "the table");
    moved(&of(&from, &to, clock), "one").await.unwrap();
    (process(Arc::clone(&table) as _, clock, 2), table)
}

/// The ids of the due jobs.
async fn due(store: &DynamoStore, until: Timestamp) -> Vec<String> {
    let query = DueQuery {
        queue: name("mail"),
        critical: false,
        types: vec![name("x")],
        partition: None,
        order: Order::Time { step_millis: 0 },
        until,
        after: None,
        limit: 100,
        granted: None,
    };
    let page = store.due(&[query]).await.unwrap().remove(0);
    page.jobs.iter().map(|job| job.id.to_string()).collect()
}

#[tokio::test]
async fn a_job_in_every_state_is_found_again() {
    let clock = Arc::new(FakeClock::default());
    let now = clock.now();
    let runs = old("runs", now).due(now.millis() - HOUR).build();
    let ended = old("ended", now).with(|spec| spec.retention = Seconds::new(86_400)).build();
    let ended = ended.apply(Event::Cancel { force: false }, now).unwrap();
    let expires = old("expires", now).due(now.millis() + 90 * HOUR).expires(now.millis() + HOUR);
    let jobs = [
        old("overdue", now).due(now.millis() - 1000 * HOUR).build(),
        old("soon", now).due(now.millis() + HOUR).build(),
        old("later", now).due(now.millis() + 100 * HOUR).build(),
        expires.build(),
        claimed(&runs, now),
        ended,
    ];
    let txns = jobs.map(|job| vec![Write::AddJob(job)]).into();
    let (store, _) = on_a_table(txns, &clock).await;
    let queue = name("mail");

    assert_eq!(due(&store, clock.now()).await, ["overdue"]);
    assert_eq!(due(&store, now + Duration::from_hours(2)).await, ["overdue", "soon"]);
    assert_eq!(due(&store, Timestamp::MAX).await, ["overdue", "soon", "expires", "later"]);
    let running = store.running(&queue, None, 10).await.unwrap();
    let running: Vec<_> = running.into_iter().map(|job| job.unwrap().id).collect();
    assert_eq!(running, [name::<JobId>("runs")]);
    assert_eq!(store.active_queues(clock.now()).await.unwrap(), [queue.clone()].into());
    let list = ListQuery { limit: 100, ..ListQuery::default() };
    assert_eq!(store.list(&list).await.unwrap().jobs.len(), 6, "each is listed");
    store.keep_counts(Timestamp::MAX).await.unwrap();
    let counts = store.depth(Some(&queue)).await.unwrap().counts;
    let sum = |is_ended: bool| {
        let of = counts.iter().filter(|it| matches!(it.state, StateFilter::Ended(_)) == is_ended);
        of.map(|it| it.jobs).sum::<u64>()
    };
    assert_eq!((sum(false), sum(true)), (5, 1), "{counts:?}");

    let overdue = async |after: Duration| -> Vec<String> {
        clock.set(now + after);
        let page = store.overdue(clock.now(), None, 10).await.unwrap();
        page.jobs.into_iter().map(|job| job.id.to_string()).collect()
    };
    assert!(overdue(Duration::from_secs(59)).await.is_empty());
    assert_eq!(overdue(Duration::from_mins(5)).await, ["runs"], "its lease is over");
    assert_eq!(overdue(Duration::from_mins(61)).await, ["runs", "expires"]);
}

#[tokio::test]
async fn a_running_job_alone_keeps_its_queue_active() {
    let clock = Arc::new(FakeClock::default());
    let runs = claimed(&old("runs", clock.now()).build(), clock.now());
    let (store, _) = on_a_table(vec![vec![Write::AddJob(runs)]], &clock).await;
    // A sweep once the hour of the move is over, which closes buckets that lead to nothing.
    clock.advance(Duration::from_hours(8));
    due(&store, clock.now()).await;
    assert_eq!(store.active_queues(clock.now()).await.unwrap(), [name("mail")].into());
    let live = store.live_job(Some(&name("x")), None).await.unwrap();
    assert_eq!(live.unwrap().unwrap().id, name("runs"));
    assert_eq!(store.running(&name("mail"), None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn ended_jobs_alone_are_counted_and_leave_nothing() {
    let clock = Arc::new(FakeClock::default());
    let now = clock.now();
    let ended = old("ended", now).with(|spec| {
        spec.retention = Seconds::new(86_400);
        spec.correlation_key = Some("order".into());
    });
    let ended = ended.build().apply(Event::Cancel { force: false }, now).unwrap();
    let keys = [Key::Correlation(name("x"), "order".into()), Key::Idempotency("i".into())];
    let key = |key| Write::SetKey { key, job: ended.id.clone(), was: Expect::Absent };
    let mut txn: Txn = keys.into_iter().map(key).collect();
    txn.push(Write::AddJob(ended));
    let (store, table) = on_a_table(vec![txn], &clock).await;
    let left = || {
        let items = table.items();
        let names = ["I#", "K#"];
        items.iter().filter(|item| names.iter().any(|name| item.key.p.starts_with(name))).count()
    };
    assert_eq!(left(), 3, "the location of the id, and two keys");

    // The functions start again some hours after the move.
    clock.advance(Duration::from_hours(5));
    store.active_queues(clock.now()).await.unwrap();
    store.keep_counts(Timestamp::MAX).await.unwrap();
    let counts = store.depth(None).await.unwrap().counts;
    assert_eq!(counts.iter().map(|it| it.jobs).sum::<u64>(), 1, "{counts:?}");

    clock.set(now + Duration::from_hours(25));
    store.overdue(clock.now(), None, 10).await.unwrap();
    assert_eq!(left(), 0, "the sweep has removed all of it");
}

/// The store of another process on a table with everything of `memory`.
async fn moved_from(memory: Arc<MemoryStore>, clock: &Arc<FakeClock>) -> SharedStore {
    let table = Arc::new(MemoryTable::new());
    let to = side(process(Arc::clone(&table) as _, clock, 1), "the table");
    moved(&of(&side(memory, "the source"), &to, clock), "one").await.unwrap();
    process(table, clock, 2)
}

#[tokio::test]
async fn a_limit_holds_for_moved_attempts_and_their_reports_count() {
    let (memory, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::default()));
    let mut before = Harness::at(Arc::clone(&memory) as _, Arc::clone(&clock));
    before.with_limit(1).await;
    // Longer than the move takes.
    let lease_seconds = Seconds::new(600);
    before.set_type("work", TypeConfig { lease_seconds, ..TypeConfig::default() }).await;
    before.settle().await;
    before.enqueue_many([work(), work()]).await;
    let runs = before.lease(1).await;
    assert_eq!(runs.len(), 1);

    let mut after = Harness::at(moved_from(memory, &clock).await, Arc::clone(&clock));
    assert!(after.lease(1).await.is_empty(), "the moved attempt has the slot");
    let done = after.succeed(&runs).await;
    assert_eq!(done.iter().map(|job| &job.id).collect::<Vec<_>>(), [&runs[0].id]);
    assert_eq!(after.lease(1).await.len(), 1, "its slot is free");
}

#[tokio::test]
async fn the_first_sweep_sends_every_late_job() {
    let (memory, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::default()));
    let before = Harness::at(Arc::clone(&memory) as _, Arc::clone(&clock));
    before.set_queue(QueueConfig::default()).await;
    let target = TargetConfig::Push(Box::new(Push::to("http://worker.example/")));
    before.set_type("work", TypeConfig { target: Some(target), ..TypeConfig::default() }).await;
    // Some are due long before the move, and some during it.
    let jobs = (0..20).map(|number| NewJob {
        run_at: Some(clock.now() + Duration::from_secs(number)),
        ..NewJob::new(name("work"), Payload::null())
    });
    before.enqueue_many(jobs).await;
    clock.advance(Duration::from_hours(1000));
    let soon = before.enqueue(work()).await;

    let after = Harness::at(moved_from(memory, &clock).await, Arc::clone(&clock));
    let mut sent: BTreeMap<JobId, usize> = BTreeMap::new();
    for _ in 0..4 {
        after.look_ahead().await.unwrap();
        for work in after.work() {
            *sent.entry(work.job).or_default() += 1;
        }
        clock.advance(Duration::from_mins(1));
    }
    assert_eq!(sent.len(), 21, "{sent:?}");
    assert!(sent.contains_key(&soon.id));
}

#[tokio::test]
async fn an_expired_lease_of_a_moved_attempt_is_retried() {
    let (memory, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::default()));
    let mut before = Harness::at(Arc::clone(&memory) as _, Arc::clone(&clock));
    before.set_queue(QueueConfig::default()).await;
    before.set_type("work", TypeConfig::default()).await;
    before.enqueue(work()).await;
    let runs = before.lease(1).await;
    let until = runs[0].life.running().unwrap().lease_until;

    let mut after = Harness::at(moved_from(memory, &clock).await, Arc::clone(&clock));
    clock.set(until + Duration::from_secs(1));
    after.engine.sweep().await.unwrap();
    let job = after.job(&runs[0].id).await;
    let run_at = job.life.run_at().expect("it is scheduled again");
    clock.set(run_at.max(clock.now()) + Duration::from_secs(1));
    assert_eq!(after.lease(1).await.len(), 1);
}
