//! Lease calls that are repeated, and leases that no worker received.

use std::time::Duration;

use futures_util::{FutureExt as _, future::FusedFuture as _, poll};
use tidegate_core::{
    job::{Job, JobId},
    port::{
        Clock as _,
        job_store::{RecordKind, RecordQuery},
    },
    queue::QueueConfig,
};
use tidegate_engine::{
    request::{LeaseRequest, Report, ReportOutcome},
    testkit::builders::name,
};
use tidegate_server::Server;

use super::{Harness, enqueue, harness, repeatable, start};

async fn succeed(server: &Server, jobs: &[Job]) {
    let report = |job: &Job| Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: job.life.running().map(|run| run.token),
        outcome: ReportOutcome::Succeeded { result: None },
        checkpoint: None,
    };
    for answer in server.report(jobs.iter().map(report).collect()).await {
        answer.unwrap();
    }
}

/// What a worker knows of its leases, in the order of their ids.
fn shown(jobs: &[Job]) -> Vec<(JobId, u16, String)> {
    let lease = |job: &Job| {
        let token = job.life.running().unwrap().token.secret().unwrap();
        (job.id.clone(), job.life.attempt, token)
    };
    let mut shown: Vec<_> = jobs.iter().map(lease).collect();
    shown.sort_unstable();
    shown
}

#[tokio::test]
async fn a_lease_call_that_is_repeated_gets_the_same_leases() {
    for limit in [None, Some(3)] {
        let Harness { server, clock, objects, store } = harness().await;
        let config = QueueConfig { concurrency: limit, ..QueueConfig::default() };
        server.put_queue(&name("a"), config, None).await.unwrap();
        for letter in ["a", "a", "b", "a", "b"] {
            enqueue(&server, letter).await;
        }
        for types in [&["a"][..], &["a", "b"]] {
            let id = types.concat();
            let request = |server: &Server| repeatable(server, &id, types, 2);
            let first = server.lease(request(&server)).await.unwrap().jobs;
            assert_eq!(first.len(), 2);
            let until = first[0].life.running().unwrap().lease_until;
            clock.advance(Duration::from_mins(30));
            let again = server.lease(request(&server)).await.unwrap().jobs;
            assert_eq!(shown(&again), shown(&first));
            assert!(again[0].life.running().unwrap().lease_until > until, "it is renewed");
            clock.advance(until.since(clock.now()));
            server.engine().drop_lease_records().await.unwrap();
            let again = server.lease(request(&server)).await.unwrap().jobs;
            assert_eq!(shown(&again), shown(&first), "its record lasts as long");
            succeed(&server, &again[..1]).await;
            let rest = server.lease(request(&server)).await.unwrap().jobs;
            assert_eq!(shown(&rest), shown(&again[1..]), "one has ended");
        }
        server.stop().await;
        // In another process, too.
        let server = start(&store, &clock, &objects).await;
        let repeat = || repeatable(&server, "ab", &["a", "b"], 2);
        let kept = server.lease(repeat()).await.unwrap().jobs;
        assert_eq!(kept.len(), 1);
        let other = repeatable(&server, "c", &["a"], 2);
        assert!(
            shown(&server.lease(other).await.unwrap().jobs).iter().all(|one| one.0 != kept[0].id)
        );
        succeed(&server, &kept).await;
        assert!(
            shown(&server.lease(repeat()).await.unwrap().jobs)
                .iter()
                .all(|one| one.0 != kept[0].id)
        );
        let (kind, after) = (RecordKind::Lease, None);
        let query = RecordQuery { kind, prefix: String::new(), after, limit: 100 };
        let records = async || store.records(std::slice::from_ref(&query)).await.unwrap()[0].len();
        assert!(records().await > 0);
        clock.advance(Duration::from_hours(2));
        server.engine().drop_lease_records().await.unwrap();
        assert_eq!(records().await, 0, "records go with their leases");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_lease_call_that_is_repeated_while_it_waits_ends() {
    for types in [&["a"][..], &["a", "b"]] {
        let Harness { server, .. } = harness().await;
        let wait = Duration::from_secs(20);
        let request = || LeaseRequest { wait, ..repeatable(&server, "x", types, 1) };
        let mut first = Box::pin(server.lease(request()));
        for _ in 0..50 {
            assert!(poll!(&mut first).is_pending());
            tokio::task::yield_now().await;
        }
        let mut second = Box::pin(server.lease(request()));
        let mut ended = None;
        for _ in 0..100_000 {
            assert!(poll!(&mut second).is_pending());
            if let std::task::Poll::Ready(leased) = poll!(&mut first) {
                ended = Some(leased);
                break;
            }
            tokio::task::yield_now().await;
        }
        assert!(ended.expect("it ends").unwrap().jobs.is_empty());
        let job = enqueue(&server, "a").await;
        assert_eq!(second.await.unwrap().jobs[0].id, job.id);
        server.stop().await;
    }
}

/// The answer of the first call is lost, whenever the repeat comes.
#[tokio::test]
async fn a_repeat_gets_what_the_call_before_claims_meanwhile() {
    let mut both = 0;
    for types in [&["a"][..], &["a", "b"]] {
        for (before, between) in (0..40).flat_map(|one| [0, 3, 9].map(|two| (one, two))) {
            let Harness { server, .. } = harness().await;
            let lease = || {
                let wait = Duration::from_secs(20);
                let request = LeaseRequest { wait, ..repeatable(&server, "x", types, 2) };
                let server = server.clone();
                tokio::spawn(async move { server.lease(request).await.unwrap().jobs })
            };
            let first = lease();
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let mut jobs = Vec::new();
            let mut add = Box::pin(
                async {
                    for letter in ["a", "a"] {
                        jobs.push(enqueue(&server, letter).await.id);
                        for _ in 0..between {
                            tokio::task::yield_now().await;
                        }
                    }
                }
                .fuse(),
            );
            for _ in 0..before {
                let _ = poll!(&mut add);
                tokio::task::yield_now().await;
            }
            let second = lease();
            if !add.is_terminated() {
                (&mut add).await;
            }
            drop(add);
            first.await.unwrap();
            let got = shown(&second.await.unwrap());
            both += usize::from(got.len() == 2);
            for id in &jobs {
                let life = server.job(id, None).await.unwrap().life;
                let has = got.iter().any(|lease| lease.0 == *id);
                assert!(life.running().is_none() || has, "{id} runs nowhere: {before} {between}");
            }
            server.stop().await;
        }
    }
    assert!(both > 0, "some repeats get a job of each call");
}

#[tokio::test]
async fn a_lease_that_a_repeat_has_got_is_not_handed_back() {
    let Harness { server, .. } = harness().await;
    let job = enqueue(&server, "a").await;
    let first = server.lease(repeatable(&server, "x", &["a"], 1)).await.unwrap().jobs;
    let repeat = server.lease(repeatable(&server, "x", &["a"], 1)).await.unwrap().jobs;
    let not_received = |job: &Job| Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: job.life.running().map(|run| run.token),
        outcome: ReportOutcome::NotReceived {
            revision: job.life.revision,
            message: "it was gone".into(),
        },
        checkpoint: None,
    };
    // The server notices the end of the first connection late.
    let answers = server.report(vec![not_received(&first[0])]).await;
    assert!(answers[0].is_err());
    assert!(server.job(&job.id, None).await.unwrap().life.running().is_some());
    let answers = server.report(vec![not_received(&repeat[0])]).await;
    let life = &answers[0].as_ref().unwrap().life;
    assert_eq!((life.run_at().is_some(), life.counted_attempts()), (true, 0));
    server.stop().await;
}

#[tokio::test]
async fn a_repeated_call_takes_no_lease_of_its_repeat() {
    let Harness { server, .. } = harness().await;
    let wait = Duration::from_secs(20);
    let request = || LeaseRequest { wait, ..repeatable(&server, "x", &["a"], 1) };
    let mut first = Box::pin(server.lease(request()));
    for _ in 0..50 {
        assert!(poll!(&mut first).is_pending());
        tokio::task::yield_now().await;
    }
    let second = tokio::spawn({
        let (server, request) = (server.clone(), request());
        async move { server.lease(request).await.unwrap().jobs }
    });
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    let job = enqueue(&server, "a").await;
    let leased = second.await.unwrap();
    assert_eq!(leased[0].id, job.id);
    let life = server.job(&job.id, None).await.unwrap().life;
    // The first call is read late: it finds the lease, and leaves it alone.
    assert!(first.await.unwrap().jobs.is_empty());
    assert_eq!(server.job(&job.id, None).await.unwrap().life, life, "it is not renewed");
    server.stop().await;
}
