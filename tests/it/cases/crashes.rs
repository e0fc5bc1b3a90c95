//! The process dies between any two writes of an operation, on atomic stores and on stores that
//! write one by one. The caller repeats the operation on another process, and the result is the
//! same as without a crash.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::{
        Job, JobId, Outcome,
        spec::{Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    port::job_store::{JobFilter, ListQuery, SharedStore, StateFilter},
    queue::QueueConfig,
    time::Seconds,
};
use tidegate_engine::{
    Dispatch, Error, TickInput,
    memory::MemoryStore,
    request::{JobPatch, NewJob, ReplayWith, ReportOutcome},
    testkit::{builders::name, faults::FaultyStore},
};

use super::harness::{Harness, demand, failed, queue, report, work};

/// Lets `verb` die after 0, 1, 2, ... writes until it completes. After each death it is repeated,
/// and `check` examines the result.
async fn cut<T>(
    before: impl AsyncFn(&mut Harness) -> T,
    verb: impl AsyncFn(&mut Harness, &T) -> Result<(), Error>,
    check: impl AsyncFn(&mut Harness, &T),
) {
    let stores: [fn() -> SharedStore; 2] =
        [|| Arc::new(MemoryStore::new()), || Arc::new(SqliteStore::open_temporary().unwrap())];
    for (flight, store) in [Duration::ZERO, Duration::from_secs(5)]
        .into_iter()
        .flat_map(|flight| stores.map(|store| (flight, store)))
    {
        let mut writes = 0;
        loop {
            let store = Arc::new(FaultyStore::new(store(), 1).with_flight(flight));
            let mut harness = Harness::on(Arc::clone(&store) as SharedStore);
            let scene = before(&mut harness).await;
            store.crash_after(writes);
            let died = verb(&mut harness, &scene).await;
            store.revive();
            harness.restart();
            let again = verb(&mut harness, &scene).await;
            assert!(
                matches!(again, Ok(()) | Err(Error::Conflict { .. })),
                "after {writes} writes: {again:?}"
            );
            check(&mut harness, &scene).await;
            if died.is_ok() {
                break;
            }
            writes += 1;
            assert!(writes < 50, "it never goes through: {died:?}");
        }
        assert!(writes > 0, "it writes something");
    }
}

/// Every job of type `work`.
async fn jobs(harness: &Harness) -> Vec<Job> {
    let query = ListQuery {
        filter: JobFilter { job_type: Some(name("work")), ..JobFilter::default() },
        limit: 100,
        ..ListQuery::default()
    };
    harness.store.list(&query).await.unwrap().jobs
}

/// Leases jobs, claims what was sent, and reports success, a minute at a time, until every job has
/// ended. At most `limit` are granted at once, and no slot stays taken.
async fn drain(harness: &mut Harness, limit: u64) {
    for _ in 0..20 {
        let mut run = harness.lease(5).await;
        let sent = harness.work();
        let claimed = harness.engine.claim(&sent, None).await.unwrap();
        run.extend(claimed.into_iter().flatten().map(|claimed| claimed.job));
        assert!(harness.granted().await <= limit, "{} are granted", harness.granted().await);
        harness.succeed(&run).await;
        harness.wait(61);
        if jobs(harness).await.iter().all(|job| job.life.ended().is_some()) {
            harness.lease(5).await;
            assert_eq!(harness.granted().await, 0);
            return;
        }
    }
    panic!("some never end: {:?}", jobs(harness).await);
}

async fn limited(harness: &mut Harness, limit: u32) {
    harness.with_limit(limit).await;
    // A dead worker costs an attempt, which these cases do not test.
    harness.set_type("work", TypeConfig { max_attempts: Some(9), ..TypeConfig::default() }).await;
    harness.settle().await;
}

fn with_callback() -> NewJob {
    work().with_options(|options| {
        options.callback_url = Some("http://127.0.0.1:9/callback".parse().unwrap());
    })
}

#[tokio::test]
async fn an_enqueue_that_dies_half_way_makes_one_job_in_the_end() {
    let asked = || {
        let unique = Some(Unique::new("u", UniqueWhile::Live));
        let expires_at = Some(tidegate_core::time::Timestamp::from_millis(4_000_000_000_000));
        NewJob {
            idempotency_key: Some("i".into()),
            correlation_key: Some("c".into()),
            expires_at,
            ..work().with_options(|options| options.unique = unique)
        }
    };
    let before = async |harness: &mut Harness| limited(harness, 2).await;
    let verb = async |harness: &mut Harness, (): &()| {
        harness.engine.enqueue(vec![asked()]).await.pop().unwrap().map(|_| ())
    };
    let check = async |harness: &mut Harness, (): &()| {
        assert_eq!(jobs(harness).await.len(), 1);
        drain(harness, 2).await;
        assert_eq!(jobs(harness).await[0].life.ended(), Some(Outcome::Succeeded));
    };
    cut(before, verb, check).await;
}

#[tokio::test]
async fn a_crash_during_a_tick_keeps_the_limit_and_every_job() {
    for dispatch in [Dispatch::Claim, Dispatch::Queue] {
        let before = async |harness: &mut Harness| {
            limited(harness, 2).await;
            harness.enqueue_many((0..3).map(|_| work())).await;
        };
        let verb = async |harness: &mut Harness, (): &()| {
            let input =
                TickInput { demands: vec![demand(&["work"], 2, dispatch)], ..TickInput::default() };
            harness.engine.tick(&queue(), &mut harness.cache, input).await.map(|_| ())
        };
        let check = async |harness: &mut Harness, (): &()| {
            assert!(harness.granted().await <= 2);
            drain(harness, 2).await;
            assert!(
                jobs(harness).await.iter().all(|job| job.life.ended() == Some(Outcome::Succeeded))
            );
        };
        cut(before, verb, check).await;
    }
}

async fn one_runs(harness: &mut Harness) -> Job {
    limited(harness, 1).await;
    harness.enqueue(with_callback()).await;
    harness.lease(1).await.remove(0)
}

async fn reported(harness: &mut Harness, run: &Job, outcome: ReportOutcome) -> Result<(), Error> {
    let input = TickInput { reports: vec![report(run, outcome)], ..TickInput::default() };
    harness.engine.tick(&queue(), &mut harness.cache, input).await?.reports.remove(0).map(|_| ())
}

#[tokio::test]
async fn a_crash_during_a_report_counts_it_and_its_callback_once() {
    let verb = async |harness: &mut Harness, run: &Job| {
        reported(harness, run, ReportOutcome::Succeeded { result: None }).await
    };
    let check = async |harness: &mut Harness, run: &Job| {
        let job = harness.job(&run.id).await;
        assert_eq!((job.life.ended(), job.life.attempt), (Some(Outcome::Succeeded), 1));
        let callbacks = ListQuery {
            filter: JobFilter { job_type: Some(name("tidegate.callback")), ..JobFilter::default() },
            limit: 10,
            ..ListQuery::default()
        };
        assert_eq!(harness.store.list(&callbacks).await.unwrap().jobs.len(), 1);
        drain(harness, 1).await;
    };
    cut(one_runs, verb, check).await;
}

#[tokio::test]
async fn a_failure_whose_report_dies_half_way_is_retried_once() {
    let verb = async |harness: &mut Harness, run: &Job| reported(harness, run, failed()).await;
    let check = async |harness: &mut Harness, run: &Job| {
        assert_eq!(harness.job(&run.id).await.life.history.len(), 1);
        harness.wait(61);
        drain(harness, 1).await;
        let job = harness.job(&run.id).await;
        assert_eq!((job.life.ended(), job.life.attempt), (Some(Outcome::Succeeded), 2));
    };
    cut(one_runs, verb, check).await;
}

/// A job that is granted and not claimed, while another waits.
async fn one_is_granted(harness: &mut Harness) -> JobId {
    limited(harness, 1).await;
    let job = harness.enqueue(with_callback()).await;
    harness.enqueue(work()).await;
    assert_eq!(harness.send(1).await.len(), 1);
    job.id
}

#[tokio::test]
async fn a_cancel_that_crashes_half_way_ends_the_job_and_frees_slots() {
    let verb = async |harness: &mut Harness, id: &JobId| {
        harness.engine.cancel(id, None, false).await.map(|_| ())
    };
    let check = async |harness: &mut Harness, id: &JobId| {
        drain(harness, 1).await;
        let job = harness.job(id).await;
        assert_eq!((job.life.ended(), job.life.attempt), (Some(Outcome::Cancelled), 0));
    };
    cut(one_is_granted, verb, check).await;
}

#[tokio::test]
async fn a_patch_that_dies_half_way_is_made_and_the_job_runs_once() {
    let patch = JobPatch { priority: Some(Some(7)), ..JobPatch::default() };
    let verb = async |harness: &mut Harness, id: &JobId| {
        harness.engine.patch(id, None, patch.clone(), None).await.map(|_| ())
    };
    let check = async |harness: &mut Harness, id: &JobId| {
        drain(harness, 1).await;
        let job = harness.job(id).await;
        assert_eq!(
            (job.life.ended(), job.life.attempt, job.spec.priority),
            (Some(Outcome::Succeeded), 1, 7)
        );
    };
    cut(one_is_granted, verb, check).await;
}

#[tokio::test]
async fn a_replay_that_dies_half_way_makes_one_job_in_the_end() {
    let before = async |harness: &mut Harness| {
        limited(harness, 1).await;
        let keyed = NewJob { correlation_key: Some("order".into()), ..work() };
        harness.enqueue(keyed).await;
        let run = harness.lease(1).await;
        harness.succeed(&run).await;
        run[0].id.clone()
    };
    let verb = async |harness: &mut Harness, id: &JobId| {
        harness.engine.replay(id, None, ReplayWith::default(), None).await.map(|_| ())
    };
    let check = async |harness: &mut Harness, id: &JobId| {
        let all = jobs(harness).await;
        let replay = all.iter().find(|job| job.spec.replay_of.as_ref() == Some(id)).unwrap();
        assert_eq!((all.len(), replay.spec.correlation_key.as_deref()), (2, Some("order")));
        assert_eq!(harness.job(id).await.life.replayed_by.as_ref(), Some(&replay.id));
        drain(harness, 1).await;
    };
    cut(before, verb, check).await;
}

#[tokio::test]
async fn an_end_that_dies_half_way_makes_one_event() {
    let before = async |harness: &mut Harness| {
        let rule = serde_json::json!({"job_types": ["work"], "enqueue": {"type": "other"}});
        let rule = serde_json::from_value(rule).unwrap();
        harness.engine.put_trigger(&name("ends"), rule, None).await.unwrap();
        one_runs(harness).await
    };
    let verb = async |harness: &mut Harness, run: &Job| {
        let reports = vec![report(run, ReportOutcome::Succeeded { result: None })];
        let input = TickInput { reports, ..TickInput::default() };
        harness.engine.tick(&queue(), &mut harness.cache, input).await.map(|_| ())
    };
    let check = async |harness: &mut Harness, run: &Job| {
        let queue = Some(name(tidegate_engine::END_EVENT_QUEUE));
        let query = ListQuery {
            filter: JobFilter { queue, ..JobFilter::default() },
            limit: 100,
            ..ListQuery::default()
        };
        let events = harness.store.list(&query).await.unwrap().jobs.len();
        let ended = harness.job(&run.id).await.life.ended();
        assert_eq!((events, ended), (1, Some(Outcome::Succeeded)));
    };
    cut(before, verb, check).await;
}

#[tokio::test]
async fn a_sweep_that_dies_half_way_ends_what_is_over() {
    let before = async |harness: &mut Harness| {
        limited(harness, 1).await;
        let expires_at = Some(harness.now() + Duration::from_secs(10));
        harness.enqueue_many((0..2).map(|_| NewJob { expires_at, ..with_callback() })).await;
        harness.wait(11);
    };
    let verb = async |harness: &mut Harness, (): &()| harness.engine.sweep().await.map(|_| ());
    let check = async |harness: &mut Harness, (): &()| {
        assert!(
            jobs(harness).await.iter().all(|job| job.life.ended() == Some(Outcome::Expired)),
            "{:?}",
            jobs(harness).await
        );
    };
    cut(before, verb, check).await;
}

#[tokio::test]
async fn a_first_limit_that_is_put_half_way_counts_what_runs_already() {
    let before = async |harness: &mut Harness| {
        harness
            .set_type(
                "work",
                TypeConfig {
                    max_attempts: Some(9),
                    lease_seconds: Seconds::new(3600),
                    ..TypeConfig::default()
                },
            )
            .await;
        harness.enqueue_many((0..3).map(|_| work())).await;
        harness.lease(2).await
    };
    let limit = || QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
    let verb = async |harness: &mut Harness, _: &Vec<Job>| {
        harness.engine.put_queue(&queue(), limit(), None).await.map(|_| ())
    };
    let check = async |harness: &mut Harness, run: &Vec<Job>| {
        for _ in 0..3 {
            assert!(harness.lease(2).await.is_empty(), "two run, which is one too many");
            harness.wait(20);
        }
        harness.succeed(run).await;
        drain(harness, 1).await;
    };
    cut(before, verb, check).await;
}

/// Two requests under one key; the first crashes half way. Both responses name the same job.
#[tokio::test]
async fn a_crashed_enqueue_and_its_repeat_by_key_make_one_job() {
    let unique = || Some(Unique::new("u", UniqueWhile::Live));
    let asked = [
        NewJob { idempotency_key: Some("i".into()), ..work() },
        NewJob { correlation_key: Some("c".into()), ..work() },
        work().with_options(|options| options.unique = unique()),
    ];
    for (flight, asked) in [Duration::ZERO, Duration::from_secs(5)]
        .into_iter()
        .flat_map(|flight| asked.clone().map(|asked| (flight, asked)))
    {
        for writes in 0..6 {
            let store =
                Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(flight));
            let mut harness = Harness::on(Arc::clone(&store) as SharedStore);
            limited(&mut harness, 1).await;
            let enqueue = async |engine: &tidegate_engine::Engine| {
                engine.enqueue(vec![asked.clone()]).await.pop().unwrap()
            };
            let second = harness.another();
            store.crash_after(writes);
            let first = enqueue(&harness.engine).await;
            store.revive();
            let mut named = BTreeSet::new();
            for answer in [first, enqueue(&second).await, enqueue(&second).await] {
                named.extend(match answer {
                    Ok(enqueued) => Some(enqueued.job.id),
                    Err(Error::Conflict { holder, .. }) => holder,
                    Err(Error::Unavailable { .. }) => None,
                    Err(error) => panic!("{error:?}"),
                });
            }
            let there: BTreeSet<JobId> =
                jobs(&harness).await.into_iter().map(|job| job.id).collect();
            assert_eq!((there.len(), &there), (1, &named), "after {writes} writes");
            harness.restart();
            drain(&mut harness, 1).await;
        }
    }
}

/// Enough jobs to represent a million: a tick reads at most its bound, however many are due.
#[tokio::test]
async fn a_midnight_peak_of_due_jobs_is_taken_tick_by_tick() {
    const JOBS: usize = 10_000;
    for mut harness in super::harness::every_store() {
        limited(&mut harness, 1000).await;
        let midnight = harness.now() + Duration::from_hours(8);
        for _ in 0..JOBS / 1000 {
            harness
                .enqueue_many((0..1000).map(|_| NewJob { run_at: Some(midnight), ..work() }))
                .await;
        }
        let early = harness
            .tick(TickInput {
                demands: vec![demand(&["work"], 1000, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert!(
            early.claimed.is_empty() && early.next_at.is_some_and(|at| at <= midnight),
            "it looks again in time: {:?}",
            early.next_at
        );
        harness.clock.set(midnight);
        let mut started = BTreeSet::new();
        for tick in 0..JOBS / 1000 {
            let run = harness.lease(5000).await;
            assert_eq!((run.len(), harness.granted().await), (1000, 1000), "tick {tick}");
            started.extend(run.iter().map(|job| job.id.clone()));
            harness.succeed(&run).await;
        }
        assert_eq!(started.len(), JOBS, "each once");
        let depth = harness.store.depth(None).await.unwrap().counts;
        let ended: u64 = depth
            .iter()
            .filter(|depth| depth.state == StateFilter::Ended(Outcome::Succeeded))
            .map(|depth| depth.jobs)
            .sum();
        assert_eq!(ended, JOBS as u64);
    }
}
