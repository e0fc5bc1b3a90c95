//! What a call of a throttler contains: ended attempts, data within its bound, and only what is
//! declared.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use tidegate_core::{
    job::{
        Encoding, Payload,
        lifecycle::{Failure, HandBack, Reason},
        type_config::TypeConfig,
    },
    port::policy::{Action, Decision, Ended, ThrottleCall},
    queue::plugin::{Description, OnFailure},
    time::Seconds,
};
use tidegate_engine::{
    ByteBudget, CountedBytes, Dispatch, OBJECT_BYTES, TickInput,
    request::{NewJob, ReportOutcome},
    testkit::{
        builders::name,
        objects::FaultyObjects,
        policies::{each, hold, run},
    },
};

use super::{limit, region, says, watched};
use crate::{
    cases::harness::{demand, every_store, of_type, queue, report, with, work},
    outage::OUTAGE,
};

#[tokio::test]
async fn a_throttler_hears_of_attempts_that_ended_once_each() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(Description { needs_ended: true, ..says() }, limit(9)).await;
        harness
            .set_type("once", TypeConfig { max_attempts: Some(1), ..TypeConfig::default() })
            .await;
        harness
            .enqueue_many(
                (0..2).map(|_| with("region", "east")).chain((0..3).map(|_| of_type("once"))),
            )
            .await;
        let running = harness.lease_of(&["work", "once"], 5).await;
        assert_eq!(running.len(), 5);
        calls.lock().clear();
        // Two reports, and no demand for jobs.
        let failure = Failure {
            status: Some(429),
            retry_after: Some(Seconds::new(3600)),
            details: Some("[7]".into()),
            ..Failure::new(Reason::NotDelivered, "busy")
        };
        let busy = ReportOutcome::Failed { failure, retryable: true };
        let reports = vec![
            report(&running[0], ReportOutcome::Succeeded { result: None }),
            report(&running[1], busy),
        ];
        harness.tick(TickInput { reports, ..TickInput::default() }).await;
        let ended = |calls: &Mutex<Vec<ThrottleCall>>| -> Vec<Ended> {
            calls.lock().drain(..).flat_map(|call| call.ended.to_vec()).collect()
        };
        let heard = ended(&calls);
        let short =
            |ended: &Ended| (ended.succeeded, ended.reason.clone(), ended.status, ended.attempt);
        assert_eq!(
            heard.iter().map(short).collect::<Vec<_>>(),
            [(true, None, None, 1), (false, Some("not_delivered".into()), Some(429), 1)]
        );
        assert!(heard.iter().all(|ended| ended.attributes["region"].text() == "east"));
        let busy = &heard[1];
        assert_eq!(
            (busy.priority, busy.weight, busy.message.as_deref(), busy.details.as_deref()),
            (100, 1, Some("busy"), Some("[7]"))
        );
        assert!(busy.started_at <= busy.ended_at && busy.ended_at <= harness.now());
        assert_eq!(busy.not_before, Some(busy.ended_at + Duration::from_hours(1)));
        // An attempt that another process ended, known from its hint; then leases that expire.
        let (before, _) = harness.engine.cancel(&running[2].id, None, true).await.unwrap();
        harness
            .tick(TickInput {
                released: vec![(before.id.clone(), before.life.version)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(ended(&calls).iter().map(short).collect::<Vec<_>>(), [(false, None, None, 1)]);
        harness.wait(31);
        harness.tick(TickInput::default()).await;
        assert_eq!(
            ended(&calls).iter().map(short).collect::<Vec<_>>(),
            [
                (false, Some("lease_expired".into()), None, 1),
                (false, Some("lease_expired".into()), None, 1)
            ]
        );
        harness.wait(120);
        harness.tick(TickInput::default()).await;
        assert_eq!(ended(&calls).len(), 0);
        assert_eq!(calls.lock().len(), 0, "without changes and candidates it is not called");
    }
}

#[tokio::test]
async fn the_number_of_an_ended_attempt_skips_hand_backs() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(Description { needs_ended: true, ..says() }, limit(9)).await;
        let config = TypeConfig { max_attempts: Some(9), ..TypeConfig::default() };
        harness.set_type("work", config).await;
        harness.enqueue(work()).await;
        let failure = Failure::new(Reason::Failed, "no");
        let failed = ReportOutcome::Failed { failure, retryable: true };
        let back = ReportOutcome::HandedBack(HandBack::default());
        for outcome in [back.clone(), failed.clone(), back, failed] {
            let leased = harness.lease(1).await;
            let reports = vec![report(&leased[0], outcome)];
            harness.tick(TickInput { reports, ..TickInput::default() }).await;
            harness.wait(60);
        }
        let calls = calls.lock();
        let ended = calls.iter().flat_map(|call| call.ended.iter());
        let ended: Vec<_> = ended.map(|one| (one.reason.as_deref(), one.attempt)).collect();
        let (back, failed) = (Some("released"), Some("failed"));
        assert_eq!(ended, [(back, 1), (failed, 1), (back, 2), (failed, 2)]);
    }
}

#[tokio::test]
async fn the_details_of_one_call_are_bounded() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(Description { needs_ended: true, ..says() }, limit(99)).await;
        harness.enqueue_many((0..80).map(|_| work())).await;
        let running = harness.lease(80).await;
        calls.lock().clear();
        let failure = Failure {
            details: Some(format!("\"{}\"", "x".repeat(16_000))),
            ..Failure::new(Reason::Failed, "busy")
        };
        let failed = ReportOutcome::Failed { failure, retryable: true };
        let reports = running.iter().map(|job| report(job, failed.clone())).collect();
        harness.tick(TickInput { reports, ..TickInput::default() }).await;
        let calls = calls.lock();
        let ended: Vec<&Ended> = calls.iter().flat_map(|call| call.ended.iter()).collect();
        assert_eq!(ended.len(), 80);
        let with_details = ended.iter().filter(|ended| ended.details.is_some()).count();
        assert_eq!(with_details, (1 << 20) / 16_002);
    }
}

#[tokio::test]
async fn a_throttler_knows_the_hosts_of_targets() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| hold("not now")));
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(9)).await;
        let config = json!({
            "target": {"url": "https://API.example.com:8443/{type}"},
            "retry_targets": {"eu": "https://eu.example.com/"},
        });
        harness.set_type("push", serde_json::from_value(config).unwrap()).await;
        harness.enqueue_many([of_type("push"), work()]).await;
        harness.lease_of(&["push", "work"], 2).await;
        let hosts = calls.lock().last().unwrap().hosts.clone();
        let push = name("push");
        let own = Some("api.example.com");
        assert_eq!((hosts.of(&push, None), hosts.of(&push, Some("removed"))), (own, own));
        assert_eq!(hosts.of(&push, Some("eu")), Some("eu.example.com"));
        assert_eq!(hosts.of(&name("work"), None), None);
    }
}

#[tokio::test]
async fn a_throttler_gets_data_as_json_wherever_it_is_stored() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(Description { needs_data: true, ..says() }, limit(9)).await;
        let large = format!("[\"{}\"]", "x".repeat(5000));
        let huge = format!("[\"{}\"]", "y".repeat(100_000));
        let packed = Payload {
            encoding: Encoding::MessagePack,
            bytes: vec![0x81, 0xa1, b'a', 0xc4, 0x01, 0x00].into(),
        };
        for data in [
            Payload::json("{\"n\": 1}"),
            Payload::json(large.clone()),
            Payload::json(huge.clone()),
            packed,
        ] {
            harness.enqueue(NewJob::new(name("work"), data)).await;
        }
        assert_eq!(harness.lease(9).await.len(), 4);
        let calls = calls.lock();
        let mut data: Vec<&str> = calls[0].data.values().map(String::as_str).collect();
        data.sort_by_key(|text| text.len());
        assert_eq!(data, ["{\"n\": 1}", "{\"a\":{\"$binary\":\"AA==\"}}", &large, &huge]);
    }
}

#[tokio::test]
async fn a_throttler_is_not_called_while_the_data_is_unreadable() {
    for (harness, on_failure) in every_store().into_iter().zip([OnFailure::Hold, OnFailure::Run]) {
        let (policy, calls) = watched(|call| {
            each(call, |job| {
                if call.data.contains_key(&job.id) {
                    run()
                } else {
                    Decision { action: Action::Drop, reason: None }
                }
            })
        });
        let mut harness = harness.with_policy(policy);
        let objects = Arc::new(FaultyObjects::default());
        harness.objects(Arc::clone(&objects) as _);
        harness.throttled(Description { needs_data: true, ..says() }, limit(9)).await;
        let mut config = harness.engine.queue(&queue()).await.unwrap().config;
        config.throttler.as_mut().unwrap().on_failure = on_failure;
        harness.set_queue(config).await;
        let job = harness
            .enqueue(NewJob {
                data: Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES))),
                ..work()
            })
            .await;
        harness.enqueue(work().with_options(|options| options.critical = true)).await;
        objects.fail(OUTAGE);
        let outcome = harness
            .tick(TickInput {
                demands: vec![demand(&["work"], 5, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        assert_eq!(
            (calls.lock().len(), outcome.faults.len(), harness.policy.faults().len()),
            (0, 1, 1)
        );
        assert_eq!(
            outcome.claimed.len(),
            if on_failure == OnFailure::Hold { 1 } else { 2 },
            "the critical one in any case"
        );
        objects.fail([]);
        harness.wait(1);
        harness.lease(5).await;
        assert!(
            harness.job(&job.id).await.life.running().is_some(),
            "its data is not treated as missing"
        );
    }
}

#[tokio::test]
async fn one_call_has_no_more_data_than_its_bound() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| {
            each(call, |job| if region(job) == "west" { run() } else { hold("not the west") })
        });
        let mut harness = harness.with_policy(policy);
        harness.throttled(Description { needs_data: true, ..says() }, limit(9)).await;
        let large = Payload::json(format!("\"{}\"", "x".repeat((3 << 20) - 2)));
        for region in ["east"; 12].into_iter().chain(["west"]) {
            harness.enqueue(NewJob { data: large.clone(), ..with("region", region) }).await;
        }
        assert_eq!(harness.lease(9).await.len(), 1, "in one round");
        let sizes: Vec<(usize, usize)> =
            calls.lock().drain(..).map(|call| (call.candidates.len(), call.data.len())).collect();
        assert_eq!(sizes, [(5, 5), (5, 5), (3, 3)], "at most 16 MiB at once");
        let last = harness.enqueue(NewJob { data: large, ..with("region", "east") }).await;
        harness.explain(&last.id).await;
        let call = calls.lock().pop().unwrap();
        assert_eq!(
            (call.candidates.len(), &call.candidates[4].id, call.data.len()),
            (5, &last.id, 5)
        );
    }
}

#[tokio::test]
async fn a_large_job_held_by_a_throttler_leaves_its_bytes_to_others() {
    for runs in [false, true] {
        for harness in every_store() {
            let (policy, _) =
                watched(move |call| {
                    each(call, |job| {
                        if runs || region(job) == "west" { run() } else { hold("not the west") }
                    })
                });
            let mut harness = harness.with_policy(policy);
            harness.throttled(says(), limit(9)).await;
            let large = NewJob {
                data: Payload::json(format!("\"{}\"", "x".repeat(100_000))),
                ..with("region", "east")
            };
            harness.enqueue(with("region", "west")).await;
            for job in [large, with("region", "west"), with("region", "west")] {
                harness.clock.advance(Duration::from_millis(1));
                harness.enqueue(job).await;
            }
            let round = |space| TickInput {
                demands: vec![demand(&["work"], 9, Dispatch::Claim)],
                byte_budget: Some(ByteBudget {
                    left: space,
                    most: space,
                    counts: CountedBytes::Shown,
                }),
                ..TickInput::default()
            };
            let sizes = [
                harness.tick(round(90_000)).await.claimed.len(),
                harness.tick(round(90_000)).await.claimed.len(),
            ];
            assert_eq!(
                sizes,
                if runs { [1, 1] } else { [3, 0] },
                "no job passes an admitted large one, and its tick starts no other job"
            );
        }
    }
}

#[tokio::test]
async fn a_throttler_gets_only_the_inputs_that_it_declares() {
    for harness in every_store() {
        let (policy, calls) = watched(|call| each(call, |_| run()));
        let mut harness = harness.with_policy(policy);
        harness.throttled(says(), limit(9)).await;
        harness.enqueue(work()).await;
        let running = harness.lease(1).await;
        harness.succeed(&running).await;
        let calls = calls.lock();
        assert_eq!(calls.len(), 1, "it did not ask to hear of attempts that ended");
        assert!(calls[0].data.is_empty());
    }
}
