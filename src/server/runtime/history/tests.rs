//! The history of a server in memory, whose time only the tests move.

use std::sync::Arc;

use object_store::memory::InMemory;

use super::{timeline::StoredPoint, *};
use crate::runtime::testing::{builder_on, until};
use tidegate_api::WorkerHistoryPoint;
use tidegate_core::{
    error_code::ErrorCode,
    job::{
        Job, Payload,
        lifecycle::{Failure, Reason},
        type_config::TypeConfig,
    },
    port::job_store::SharedStore,
    queue::QueueConfig,
    time::Seconds,
};
use tidegate_engine::{
    memory::{FakeClock, MemoryStore},
    request::{LeaseRequest, NewJob, Report, ReportOutcome},
    testkit::builders::name,
};

fn clock() -> Arc<FakeClock> {
    Arc::new(FakeClock::new(Timestamp::from_millis(1_000_000_000_000)))
}

async fn server(clock: &Arc<FakeClock>, store: &SharedStore) -> Server {
    builder_on(clock, Arc::clone(store), Arc::new(InMemory::new())).start().await.unwrap()
}

async fn enqueue(server: &Server, jobs: usize) {
    let jobs = (0..jobs).map(|_| NewJob::new(name("work"), Payload::null())).collect();
    assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
}

/// The steps of the default queue: when they began, and the jobs that came and that are ready.
async fn steps(server: &Server) -> Vec<(i64, u64, u64)> {
    let history = server.queue_history(&name("default"), HistoryRange::Hour).await.unwrap();
    let shown = |point: &HistoryPoint| {
        (point.at.millis() / 1000, point.enqueued.unwrap_or_default(), point.ready)
    };
    history.points.iter().map(shown).collect()
}

#[tokio::test]
async fn steps_outlast_a_restart() {
    let clock = clock();
    let store: SharedStore = Arc::new(MemoryStore::new());
    let first = server(&clock, &store).await;
    let config = QueueConfig { concurrency: Some(7), ..QueueConfig::default() };
    first.put_queue(&name("default"), config, None).await.unwrap();
    first.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    enqueue(&first, 3).await;
    let start = first.now().millis() / 10_000 * 10;
    until("the step is over", async || {
        clock.advance(Duration::from_secs(1));
        !steps(&first).await.is_empty()
    })
    .await;
    let recorded = steps(&first).await;
    assert_eq!(recorded, [(start, 3, 3)]);
    let of_type = first.type_history(&name("work"), HistoryRange::Hour).await.unwrap();
    assert_eq!((of_type.points.len(), of_type.points[0].enqueued), (1, Some(3)));
    let history = first.queue_history(&name("default"), HistoryRange::Hour).await.unwrap();
    assert_eq!((history.points[0].limit, history.time_to_empty_seconds), (Some(7), None));
    // What happened in the step under way is stored at the stop.
    enqueue(&first, 2).await;
    first.stop().await;
    let second = server(&clock, &store).await;
    let restored = steps(&second).await;
    assert_eq!(restored[0], recorded[0]);
    let sum = |steps: &[(i64, u64, u64)]| steps.iter().map(|(_, jobs, _)| jobs).sum::<u64>();
    assert_eq!(sum(&restored), 5);
    // What happens in the rest of the step goes into the next one.
    enqueue(&second, 4).await;
    until("the next step is over", async || {
        clock.advance(Duration::from_secs(1));
        sum(&steps(&second).await) == 9
    })
    .await;
}

/// The steps of a queue's day: when they began, and the jobs that came and that are ready.
async fn day_of(server: &Server) -> Vec<(i64, u64, u64)> {
    let day = server.queue_history(&name("default"), HistoryRange::Day).await.unwrap();
    assert_eq!(day.step_seconds, 300);
    let shown = |point: &HistoryPoint| {
        (point.at.millis() / 1000, point.enqueued.unwrap_or_default(), point.ready)
    };
    day.points.iter().map(shown).collect()
}

/// Moves the clock until the steps of the hour have this many new jobs.
async fn until_recorded(clock: &FakeClock, server: &Server, jobs: u64) {
    until("the steps have the jobs", async || {
        clock.advance(Duration::from_secs(1));
        steps(server).await.iter().map(|(_, jobs, _)| jobs).sum::<u64>() == jobs
    })
    .await;
}

#[tokio::test]
async fn steps_of_the_day_outlast_a_restart() {
    let clock = clock();
    let store: SharedStore = Arc::new(MemoryStore::new());
    let first = server(&clock, &store).await;
    first.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let start = first.now().millis() / 300_000 * 300;
    enqueue(&first, 3).await;
    until_recorded(&clock, &first, 3).await;
    assert_eq!(day_of(&first).await, [], "the five minutes are not over");
    clock.set(Timestamp::from_millis((start + 301) * 1000));
    until("the first five minutes are a step", async || {
        clock.advance(Duration::from_secs(1));
        day_of(&first).await == [(start, 3, 3)]
    })
    .await;
    // These have ended only when the server is down.
    enqueue(&first, 4).await;
    until_recorded(&clock, &first, 7).await;
    first.stop().await;
    clock.set(Timestamp::from_millis((start + 1000) * 1000));
    let second = server(&clock, &store).await;
    let day = [(start, 3, 3), (start + 300, 4, 7)];
    assert_eq!(day_of(&second).await, day);
    second.stop().await;
    // Long after the records of the hour.
    clock.set(Timestamp::from_millis((start + 20 * 3600) * 1000));
    let third = server(&clock, &store).await;
    assert_eq!(steps(&third).await, []);
    assert_eq!(day_of(&third).await[..2], day);
    third.stop().await;
    clock.set(Timestamp::from_millis((start + 25 * 3600) * 1000));
    let left = day_of(&server(&clock, &store).await).await;
    assert!(left.iter().all(|(at, ..)| *at > start + 300), "{left:?}");
}

#[tokio::test]
async fn an_idle_server_stores_nothing() {
    let clock = clock();
    let store: SharedStore = Arc::new(MemoryStore::new());
    let server = server(&clock, &store).await;
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    enqueue(&server, 3).await;
    for _ in 0..200 {
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    until("the jobs are in a step", async || !steps(&server).await.is_empty()).await;
    let records =
        read_records::<Point>(server.engine(), HistoryRange::Hour, None).await.unwrap().len();
    for _ in 0..200 {
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    assert_eq!(
        read_records::<Point>(server.engine(), HistoryRange::Hour, None).await.unwrap().len(),
        records
    );
    assert!(records <= 2, "{records}");
}

#[tokio::test]
async fn steps_of_the_future_do_not_stop_the_history() {
    let clock = clock();
    let store: SharedStore = Arc::new(MemoryStore::new());
    let first = server(&clock, &store).await;
    first.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    enqueue(&first, 1).await;
    clock.advance(Duration::from_mins(30));
    until("a step is over", async || {
        clock.advance(Duration::from_secs(1));
        !steps(&first).await.is_empty()
    })
    .await;
    // The process ends without a stop, and its clock was wrong.
    clock.set(first.now() - Duration::from_mins(30));
    let second = server(&clock, &store).await;
    assert!(steps(&second).await.is_empty());
    enqueue(&second, 2).await;
    until("its own step is over", async || {
        clock.advance(Duration::from_secs(1));
        steps(&second).await.iter().any(|(_, enqueued, _)| *enqueued == 2)
    })
    .await;
}

#[test]
fn what_ended_follows_from_two_sweeps() {
    let series = || Series { queue: name("q"), job_type: None };
    let sweep = |live, ended, failed| {
        let depth = Depth { ready: live, ..Depth::default() };
        let swept = Some(Swept { ended, failed });
        vec![StoredPoint { series: series(), point: Point { depth, ..Point::default() }, swept }]
    };
    let at = |minute: i64| Timestamp::from_millis(minute * 60_000);
    let mut state = State::default();
    state.add_swept(at(1), sweep(42, 100, 5));
    state.add_swept(at(2), sweep(22, 130, 6));
    // Sums of buckets have expired.
    state.add_swept(at(3), sweep(12, 80, 2));
    let view = view(&state.queues.hour.steps, &series(), (at(1), at(4)), Source::Sweeps);
    let shown: Vec<_> = view.points.iter().map(|point| (point.finished, point.failed)).collect();
    assert_eq!(shown, [(0, 0), (30, 1), (0, 0)]);
    assert_eq!((view.step_seconds, view.throughput.over_seconds), (60, 180.0));
    assert!(view.points.iter().all(|point| point.started.or(point.enqueued).is_none()));
}

#[test]
fn a_queue_is_empty_when_its_due_jobs_have_fallen_to_none() {
    let series = Series { queue: name("q"), job_type: None };
    let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
    let point = |enqueued, finished, ready| Point {
        enqueued,
        finished,
        depth: Depth { ready, ..Depth::default() },
        ..Point::default()
    };
    let mut steps = Steps::new(HistoryRange::Hour);
    steps.push(at(0), vec![(series.clone(), point(120, 0, 120))]);
    for step in 1..=30 {
        steps.push(at(step * 10), vec![(series.clone(), point(10, 12, 120 - 2 * step as u32))]);
    }
    let seen =
        |steps: &Steps<Point>, now| view(steps, &series, (at(0), at(now)), Source::OneServer);
    let (rates, left) = (seen(&steps, 310).throughput, seen(&steps, 310).time_to_empty_seconds);
    assert_eq!((rates.over_seconds, rates.enqueued_per_second), (300.0, Some(1.0)));
    assert_eq!((rates.finished_per_second, left), (1.2, Some(300.0)));
    steps.push(at(310), vec![(series.clone(), point(100, 0, 160))]);
    assert_eq!(seen(&steps, 325).time_to_empty_seconds, None);
    // Only the last five minutes count, and of a new server the time since its start.
    let later = seen(&steps, 700).throughput;
    assert_eq!((later.over_seconds, later.finished_per_second), (300.0, 0.0));
    let new = view(&steps, &series, (at(312), at(331)), Source::OneServer).throughput;
    assert_eq!((new.over_seconds, new.enqueued_per_second), (20.0, Some(5.0)));
}

/// Leases jobs of type `work` as the worker `host-1`, for half an hour each.
async fn leased(server: &Server, jobs: u32) -> Vec<Job> {
    let request = LeaseRequest {
        min: 0,
        queue: None,
        types: vec![name("work")],
        max: jobs,
        wait: Duration::ZERO,
        max_pause: Duration::ZERO,
        call: None,
        worker: Some("host-1".into()),
        lease_seconds: Some(Seconds::new(1800)),
        reports: Vec::new(),
    };
    server.lease(request).await.unwrap().jobs
}

fn report(job: &Job, outcome: ReportOutcome) -> Report {
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: None,
        outcome,
        checkpoint: None,
    }
}

/// The steps of the worker: the attempts that ended, those that failed, and what ran at the end.
async fn of_worker(server: &Server, range: HistoryRange) -> Vec<(u64, u64, u64)> {
    let history = server.worker_history("host-1", range).await.unwrap();
    let shown = |point: &WorkerHistoryPoint| (point.finished, point.failed, point.running);
    history.points.iter().map(shown).collect()
}

/// Moves the clock until the history of the worker has these sums, and at its end these jobs run.
async fn until_worker(clock: &FakeClock, server: &Server, sums: (u64, u64, u64)) {
    until("the steps have the attempts", async || {
        clock.advance(Duration::from_secs(1));
        let steps = of_worker(server, HistoryRange::Hour).await;
        let sum = |count: fn(&(u64, u64, u64)) -> u64| steps.iter().map(count).sum::<u64>();
        let running = steps.last().map_or(0, |step| step.2);
        (sum(|step| step.0), sum(|step| step.1), running) == sums
    })
    .await;
}

#[tokio::test]
async fn attempts_of_a_worker_outlast_a_restart() {
    let clock = clock();
    let store: SharedStore = Arc::new(MemoryStore::new());
    let first = server(&clock, &store).await;
    let retried = TypeConfig { max_attempts: Some(3), ..TypeConfig::default() };
    first.put_type(&name("work"), retried, None).await.unwrap();
    let missing = first.worker_history("host-1", HistoryRange::Hour).await.unwrap_err();
    assert_eq!(missing.code(), ErrorCode::WorkerNotFound);
    enqueue(&first, 4).await;
    let jobs = leased(&first, 4).await;
    assert_eq!(jobs.len(), 4);
    until_worker(&clock, &first, (0, 0, 4)).await;
    let failure = Failure::new(Reason::Failed, "no");
    let failed = ReportOutcome::Failed { failure, retryable: true };
    let reports = vec![
        report(&jobs[0], ReportOutcome::Succeeded { result: None }),
        report(&jobs[1], failed.clone()),
    ];
    // A repeat counts once.
    for _ in 0..2 {
        assert!(first.report(reports.clone()).await.iter().all(Result::is_ok));
    }
    until_worker(&clock, &first, (2, 1, 2)).await;
    first.cancel(&jobs[2].id, None, true).await.unwrap();
    until_worker(&clock, &first, (3, 1, 1)).await;
    // The lease of the last one ends without a report.
    clock.advance(Duration::from_mins(30));
    until_worker(&clock, &first, (4, 2, 0)).await;
    let before = of_worker(&first, HistoryRange::Hour).await;
    // It has not called for so long that it is not listed any more.
    assert!(first.workers().await.unwrap().is_empty());
    first.stop().await;
    let second = server(&clock, &store).await;
    assert_eq!(of_worker(&second, HistoryRange::Hour).await, before);
    clock.advance(Duration::from_mins(5));
    until("the day has them", async || {
        clock.advance(Duration::from_secs(1));
        let day = of_worker(&second, HistoryRange::Day).await;
        day.iter().map(|step| step.0).sum::<u64>() == 4
    })
    .await;
    assert_eq!(of_worker(&second, HistoryRange::Day).await.last().unwrap().2, 0);
}
