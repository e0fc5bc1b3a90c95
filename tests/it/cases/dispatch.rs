//! Jobs of a queue without a ledger are dispatched without a grant, and claimed by their recipient.

use std::{iter, pin::pin, sync::Arc, task::Poll, time::Duration};

use futures_util::poll;
use tidegate_core::{
    job::{
        Event, Job, JobId, Outcome, Payload, Version,
        type_config::{Start, TypeConfig},
    },
    queue::QueueConfig,
    target::{Push, TargetConfig},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Dispatched, Stop,
    memory::MemoryStore,
    request::{JobPatch, NewJob, Report, ReportOutcome},
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
    },
    ungranted_work,
};

use super::harness::{Harness, every_store, every_store_and_table, queue};

/// How many of `jobs` run.
async fn running(harness: &Harness, jobs: &[Job]) -> usize {
    let mut running = 0;
    for job in jobs {
        running += usize::from(harness.job(&job.id).await.life.running().is_some());
    }
    running
}

fn push() -> TypeConfig {
    TypeConfig {
        target: Some(TargetConfig::Push(Box::new(Push::to("http://worker.example/")))),
        ..TypeConfig::default()
    }
}

async fn harness(harness: &Harness) {
    harness.set_type("work", push()).await;
    harness.set_type("pull", TypeConfig::default()).await;
}

fn after(harness: &Harness, seconds: u64) -> NewJob {
    NewJob {
        run_at: Some(harness.now() + Duration::from_secs(seconds)),
        ..NewJob::new(name("work"), Payload::null())
    }
}

#[tokio::test]
async fn work_is_claimed_when_it_is_due_and_once() {
    for p in every_store() {
        harness(&p).await;
        let job = p.enqueue(after(&p, 10)).await;
        let work = ungranted_work(&job).unwrap();
        assert_eq!(
            p.engine.claim(std::slice::from_ref(&work), None).await.unwrap(),
            [None],
            "before its time"
        );
        p.wait(10);
        let claimed = p.engine.claim(&[work.clone(), work.clone()], Some("w")).await.unwrap();
        let [Some(running), None] = &claimed[..] else { panic!("{claimed:?}") };
        assert_eq!(
            (running.job.life.attempt, running.job.life.running().unwrap().granted),
            (1, false)
        );
        assert_eq!(p.engine.claim(&[work], None).await.unwrap(), [None], "it runs");
    }
}

#[tokio::test]
async fn claims_whose_outcome_is_unknown_are_written_again() {
    let mut stopped_half_way = [0, 0];
    for seed in 0..10 {
        for is_limited in [false, true] {
            let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), seed));
            let mut p = Harness::on(store.clone());
            harness(&p).await;
            if is_limited {
                let limit = QueueConfig { concurrency: Some(20), ..QueueConfig::default() };
                p.set_queue(limit).await;
                p.settle().await;
            }
            let jobs = p.enqueue_many(iter::repeat_with(|| after(&p, 0)).take(20)).await;
            let work = if is_limited {
                p.send(20).await
            } else {
                jobs.iter().filter_map(ungranted_work).collect()
            };
            store.set_faults(Faults { cut: 1.0, ..Faults::default() });
            let mut claim = pin!(p.engine.claim(&work, None));
            // No time passes, so that nothing is repeated yet.
            for _ in 0..200 {
                assert!(poll!(&mut claim).is_pending());
            }
            let running = running(&p, &jobs).await;
            stopped_half_way[usize::from(is_limited)] += usize::from((1..20).contains(&running));
            store.set_faults(Faults::default());
            let claims = loop {
                match poll!(&mut claim) {
                    Poll::Ready(claims) => break claims.unwrap(),
                    Poll::Pending => p.wait(1),
                }
            };
            assert_eq!(claims.iter().flatten().count(), 20, "seed {seed}, limited: {is_limited}");
        }
    }
    assert!(stopped_half_way.iter().all(|count| *count > 0), "{stopped_half_way:?}");
}

#[tokio::test]
async fn a_job_changed_after_its_dispatch_is_not_claimed() {
    for p in every_store() {
        harness(&p).await;
        let patched = p.enqueue(after(&p, 0)).await;
        let cancelled = p.enqueue(after(&p, 0)).await;
        let expiring = p
            .enqueue(NewJob { expires_at: Some(p.now() + Duration::from_secs(5)), ..after(&p, 0) })
            .await;
        let shut =
            serde_json::from_value(serde_json::json!({"from": "00:00", "to": "00:01"})).unwrap();
        let windowed = p
            .enqueue(after(&p, 0).with_options(|options| options.windows = Some(vec![shut])))
            .await;
        let mut work = Vec::new();
        for job in [&patched, &cancelled, &expiring, &windowed] {
            work.push(ungranted_work(job).unwrap());
        }
        p.engine
            .patch(
                &patched.id,
                None,
                JobPatch { priority: Some(Some(1)), ..JobPatch::default() },
                None,
            )
            .await
            .unwrap();
        p.engine.cancel(&cancelled.id, None, false).await.unwrap();
        p.wait(90);
        assert_eq!(p.engine.claim(&work, None).await.unwrap(), [None, None, None, None]);
        assert_eq!(p.job(&expiring.id).await.life.ended(), Some(Outcome::Expired));
        let opening = p.job(&windowed.id).await.life.run_at().unwrap();
        assert_eq!(opening.to_string(), "2026-01-02T00:00:00.000Z", "its window has closed");
        let renewed = ungranted_work(&p.job(&patched.id).await).unwrap();
        assert!(p.engine.claim(&[renewed], None).await.unwrap()[0].is_some());
    }
}

#[tokio::test]
async fn nothing_starts_without_a_grant_once_its_queue_has_a_limit() {
    for mut p in every_store() {
        harness(&p).await;
        let job = p.enqueue(after(&p, 0)).await;
        let work = ungranted_work(&job).unwrap();
        p.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        assert_eq!(p.engine.claim(std::slice::from_ref(&work), None).await.unwrap(), [None]);
        assert!(!p.engine.is_unlimited(&queue()).await.unwrap());
        // Nor after the limit is removed: a queue keeps its ledger.
        p.tick(tidegate_engine::TickInput::default()).await;
        p.set_queue(QueueConfig::default()).await;
        assert_eq!(p.engine.claim(&[work], None).await.unwrap(), [None]);
        let granted = p.send(1).await;
        assert!(granted[0].granted_at.is_some());
        assert!(p.engine.claim(&granted, None).await.unwrap()[0].is_some());
    }
}

#[tokio::test]
async fn a_stretch_of_time_is_handed_on_whole_and_no_more() {
    for p in every_store() {
        harness(&p).await;
        let start = p.now();
        let mut ids = Vec::new();
        for seconds in [10, 20, 20, 30] {
            ids.push(p.enqueue(after(&p, seconds)).await.id);
        }
        p.enqueue(after(&p, 15).with_options(|options| options.critical = true)).await;
        p.enqueue(NewJob { job_type: name("pull"), ..after(&p, 15) }).await;
        let at = |seconds| start + Duration::from_secs(seconds);
        let stop = Stop { at: at(60), jobs: 1000 };
        let done = p.engine.dispatch(&queue(), at(10), at(20), stop).await.unwrap();
        assert_eq!(done, Dispatched { sent: 3, ..Dispatched::default() });
        p.wait(60);
        let mut sent: Vec<Timestamp> = p.work().iter().map(|work| work.run_at).collect();
        sent.sort_unstable();
        assert_eq!(sent, [at(15), at(20), at(20)]);
        let stop = Stop { at: p.now(), jobs: usize::MAX };
        let done = p.engine.dispatch(&queue(), start, at(60), stop).await.unwrap();
        assert!(done.stopped_at.is_some_and(|at| at >= start), "after a page: {done:?}");
    }
}

#[tokio::test]
async fn one_lookahead_scans_each_stretch_and_again_after_a_crash() {
    for p in every_store() {
        harness(&p).await;
        let start = p.now();
        for seconds in [60, 140, 200] {
            p.enqueue(after(&p, seconds)).await;
        }
        assert_eq!(p.look_ahead().await.unwrap().sent, 2);
        assert_eq!(p.engine.horizon().await.unwrap(), start + Duration::from_secs(150));
        assert_eq!(p.look_ahead().await.unwrap().sent, 0, "it was just looked at");
        p.wait(60);
        assert_eq!(p.look_ahead().await.unwrap().sent, 1);
        // A process moves the horizon and dies before it dispatches anything.
        p.enqueue(after(&p, 180)).await;
        p.wait(60);
        let item = p
            .store
            .items(tidegate_core::port::job_store::ItemKind::Horizon)
            .await
            .unwrap()
            .pop()
            .unwrap();
        let done: serde_json::Value = item.read().unwrap();
        let until = p.now() + Duration::from_secs(150);
        let bytes =
            serde_json::to_vec(&serde_json::json!({"done": done["done"], "until": until})).unwrap();
        let (kind, was) = (tidegate_core::port::job_store::ItemKind::Horizon, item.version);
        let write = tidegate_core::port::Write::SetItem {
            kind,
            name: item.name,
            was,
            version: was + 1,
            bytes: Some(bytes),
        };
        p.store.commit(vec![vec![write]]).await.unwrap();
        assert_eq!(
            p.engine.horizon().await.unwrap(),
            until,
            "the horizon includes the pass that has begun"
        );
        assert_eq!(p.look_ahead().await.unwrap().sent, 1);
    }
}

#[tokio::test]
async fn the_first_lookahead_dispatches_what_was_left_to_it() {
    for p in every_store() {
        harness(&p).await;
        let due = p.now() + Duration::from_secs(170);
        p.enqueue(after(&p, 170)).await;
        assert!(p.engine.is_left_to_lookahead(due));
        assert!(!p.engine.is_left_to_lookahead(due - Duration::from_secs(10)));
        p.wait(50);
        // The first process that reads the horizon makes it.
        assert_eq!(p.engine.horizon().await.unwrap(), due + Duration::from_secs(30));
        p.wait(10);
        assert_eq!(p.look_ahead().await.unwrap().sent, 1);
    }
}

#[tokio::test]
async fn late_jobs_are_redispatched_unclaimed_ones_after_a_timeout() {
    for p in every_store() {
        harness(&p).await;
        let plain = TypeConfig {
            start: Start::Plain,
            response_timeout_seconds: Seconds::new(100),
            ..push()
        };
        p.set_type("plain", plain).await;
        let lost = p.enqueue(after(&p, 0)).await;
        let asked = p.enqueue(NewJob { job_type: name("plain"), ..after(&p, 0) }).await;
        p.wait(119);
        assert_eq!(p.look_ahead().await.unwrap().late, 0);
        p.wait(2);
        assert_eq!(p.look_ahead().await.unwrap().late, 1);
        assert_eq!(p.work()[0].job, lost.id);
        // Its second message waits, and the other job may still be answered.
        let mut late = Vec::new();
        for _ in 0..7 {
            p.wait(60);
            late.push(p.look_ahead().await.unwrap().late);
        }
        assert_eq!(late, [0, 2, 0, 1, 0, 1, 0], "after 4 and 8 min; 3:40, 5:40 and 9:40 min");
        assert!(p.work().iter().any(|work| work.job == asked.id));
    }
}

/// How often a job that is late by so much has been sent again: after 2 minutes, 4, 8, and then
/// every 16.
fn resends(lateness: Duration) -> usize {
    let ages = [2, 4, 8].into_iter().chain((1..1000).map(|n| 16 * n)).map(Duration::from_mins);
    ages.take_while(|age| *age <= lateness).count()
}

#[tokio::test]
async fn many_late_jobs_are_redispatched_by_the_same_rule() {
    let mut entropy = 7_u64;
    let mut draw = |below: u64| {
        entropy = entropy.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (entropy >> 33) % below
    };
    for p in every_store_and_table() {
        harness(&p).await;
        let plain = TypeConfig {
            start: Start::Plain,
            response_timeout_seconds: Seconds::new(100),
            ..push()
        };
        p.set_type("plain", plain).await;
        // They become due over an hour, and their messages are lost.
        let mut jobs = Vec::new();
        for _ in 0..4 {
            let batch = (0..200).map(|_| {
                let job_type = if draw(3) == 0 { "plain" } else { "work" };
                let millis = Duration::from_millis(draw(3_600_000));
                let critical = draw(10) == 0;
                let job = NewJob {
                    run_at: Some(p.now() + millis),
                    ..NewJob::new(name(job_type), Payload::null())
                };
                job.with_options(|options| options.critical = critical)
            });
            for enqueued in p.engine.enqueue(batch.collect()).await {
                let job = enqueued.unwrap().job;
                let is_plain = job.spec.job_type.as_str() == "plain";
                let response = Duration::from_secs(if is_plain { 105 } else { 0 });
                jobs.push((job.life.run_at().unwrap(), response, job.id));
            }
        }
        let (mut previous, mut redispatched) = (None, 0);
        for _ in 0..45 {
            p.wait(1 + draw(240));
            let now = p.now();
            let is_late = |(run_at, response, _): &&(Timestamp, Duration, _)| {
                let sends = |at: Timestamp| resends(at.since(*run_at + *response));
                sends(now) > previous.map_or(0, sends)
            };
            let mut expected: Vec<_> =
                jobs.iter().filter(is_late).map(|(.., id)| id.clone()).collect();
            let lookahead = p.look_ahead().await.unwrap();
            assert_eq!(lookahead.late, expected.len());
            // What is sent ahead is due later.
            let due = |id: &JobId| jobs.iter().find(|(.., of)| of == id).unwrap().0;
            let limit = now - Duration::from_mins(2);
            let work = p.work().into_iter().map(|work| work.job).filter(|job| due(job) <= limit);
            let mut sent: Vec<JobId> = work.collect();
            expected.sort_unstable();
            sent.sort_unstable();
            sent.retain(|job| expected.binary_search(job).is_ok());
            sent.dedup();
            assert_eq!(sent, expected);
            redispatched += expected.len();
            previous = Some(now);
        }
        assert!(redispatched > jobs.len() * 3, "{redispatched}");
    }
}

#[tokio::test]
async fn a_plain_job_is_written_when_its_result_comes() {
    for p in every_store() {
        p.set_type("work", TypeConfig { start: Start::Plain, ..push() }).await;
        let job = p.enqueue(after(&p, 0)).await;
        let work = ungranted_work(&job).unwrap();
        let claimed = p.engine.claim(&[work], None).await.unwrap().pop().flatten().unwrap().job;
        assert!(p.job(&job.id).await.life.running().is_none());
        let token = claimed.life.running().map(|run| run.token);
        let report = Report {
            id: job.id.clone(),
            job_type: None,
            attempt: 1,
            token,
            outcome: ReportOutcome::Succeeded { result: None },
            checkpoint: None,
        };
        let tick_outcome = p.engine.report(&queue(), vec![report]).await.unwrap();
        assert!(tick_outcome.reports[0].is_ok(), "{:?}", tick_outcome.reports);
        assert_eq!(p.job(&job.id).await.life.ended(), Some(Outcome::Succeeded));
    }
}

#[tokio::test]
async fn a_report_outside_a_tick_hints_and_the_next_tick_frees_slots() {
    for mut p in every_store() {
        p.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        harness(&p).await;
        p.enqueue(after(&p, 0)).await;
        p.enqueue(after(&p, 0)).await;
        let work = p.send(5).await;
        let job = p.engine.claim(&work, None).await.unwrap().pop().flatten().unwrap().job;
        let token = job.life.running().map(|run| run.token);
        let report = Report {
            id: job.id.clone(),
            job_type: None,
            attempt: 1,
            token,
            outcome: ReportOutcome::Succeeded { result: None },
            checkpoint: None,
        };
        let tick_outcome = p.engine.report(&queue(), vec![report.clone()]).await.unwrap();
        assert_eq!(tick_outcome.left, [(job.id.clone(), Version(1))]);
        assert_eq!(p.granted().await, 1, "only a tick releases a grant");
        let again = p.engine.report(&queue(), vec![report]).await.unwrap();
        assert!(again.reports[0].is_ok() && again.left.is_empty(), "a repeat leaves nothing");
        let round =
            tidegate_engine::TickInput { released: tick_outcome.left, ..Default::default() };
        p.tick(round).await;
        assert_eq!(p.granted().await, 0);
        assert_eq!(p.send(5).await.len(), 1);
        assert!(job.apply(Event::Succeed { attempt: 1, result: None }, p.now()).is_ok());
    }
}
