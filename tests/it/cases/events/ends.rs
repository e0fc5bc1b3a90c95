//! Ends of jobs are events for the triggers that name their types.

use serde_json::{Value, json};
use tidegate_core::{
    job::{Job, Outcome, type_config::TypeConfig},
    port::job_store::{JobFilter, ListQuery},
    time::Seconds,
};
use tidegate_engine::{
    Dispatch, END_EVENT_QUEUE, END_EVENT_TYPE, TickCache, TickInput,
    events::ingest::{HOPS_HEADER, TriggerAction},
    request::{NewJob, ReplayWith},
    testkit::builders::name,
};

use super::{done, event, put};
use crate::cases::harness::{
    Harness, demand, every_store_and_table as every_store, failed, report, work,
};

/// The jobs that carry events.
async fn carriers(harness: &Harness) -> Vec<Job> {
    let query = ListQuery {
        filter: JobFilter { queue: Some(name(END_EVENT_QUEUE)), ..JobFilter::default() },
        limit: 100,
        ..ListQuery::default()
    };
    harness.store.list(&query).await.unwrap().jobs
}

/// The events that the carriers carry, by type.
async fn events(harness: &Harness) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    for job in carriers(harness).await {
        let data = harness.engine.data(&job).await.unwrap();
        let event: Value = serde_json::from_slice(&data.bytes).unwrap();
        events.push((event["type"].as_str().unwrap().to_owned(), event));
    }
    events.sort_by(|(a, _), (b, _)| a.cmp(b));
    events
}

/// Claims the carriers that are due.
async fn claimed(harness: &Harness) -> Vec<Job> {
    let demands = vec![demand(&[END_EVENT_TYPE], 10, Dispatch::Claim)];
    let input = TickInput { demands, ..TickInput::default() };
    let mut cache = TickCache::default();
    let ticked = harness.engine.tick(&name(END_EVENT_QUEUE), &mut cache, input).await.unwrap();
    ticked.claimed.into_iter().map(|claimed| claimed.job).collect()
}

async fn applied(harness: &Harness, carrier: &Job) -> Vec<TriggerAction> {
    let answer = harness.engine.ingest_end(carrier).await.answers.remove(0).unwrap();
    answer.outcomes.into_iter().map(|applied| applied.action).collect()
}

async fn fail(harness: &mut Harness, job: &Job) {
    let reports = vec![report(job, failed())];
    harness.tick(TickInput { reports, ..TickInput::default() }).await;
}

fn once() -> TypeConfig {
    TypeConfig { max_attempts: Some(1), ..TypeConfig::default() }
}

#[tokio::test]
async fn the_end_of_a_named_type_triggers_once() {
    for mut harness in every_store() {
        harness.set_type("work", once()).await;
        harness.set_type("alert", TypeConfig::default()).await;
        let rule = json!({
            "job_types": ["work"], "filter": {"type": "job.failed"},
            "enqueue": {"type": "alert", "attributes": {"tenant": {"$expr": "data.attributes.tenant"}}},
        });
        put(&harness, "alerts", rule).await;
        let mut job = work();
        job.options.attributes.insert("tenant".into(), serde_json::from_value("a".into()).unwrap());
        let jobs = harness.enqueue_many([job.clone(), job]).await;
        let run = harness.lease(2).await;
        harness.succeed(&run[..1]).await;
        assert!(carriers(&harness).await.is_empty(), "no trigger matches a success");
        fail(&mut harness, &run[1]).await;
        fail(&mut harness, &run[1]).await;
        let [(_, event)] = &events(&harness).await[..] else { panic!("one event") };
        let id = &run[1].id;
        assert!(jobs.iter().any(|job| job.id == *id));
        assert_eq!(event["id"], format!("{id}.failed"));
        assert_eq!((&event["source"], &event["subject"]), (&json!("/v1/jobs/work"), &json!(id)));
        assert_eq!(event["data"]["error"]["message"], "no");

        let carrier = claimed(&harness).await.remove(0);
        let [TriggerAction::Enqueued { job, .. }] = &applied(&harness, &carrier).await[..] else {
            panic!("a job is enqueued")
        };
        let again = [TriggerAction::AlreadyEnqueued { job: job.clone() }];
        assert_eq!(applied(&harness, &carrier).await, again);
        let alert = harness.job(job).await;
        assert_eq!(alert.spec.attributes["tenant"].text(), "a");
        let data = harness.engine.data(&alert).await.unwrap();
        let data: Value = serde_json::from_slice(&data.bytes).unwrap();
        assert_eq!((&data["id"], &data["state"]), (&json!(id), &json!("failed")));
    }
}

#[tokio::test]
async fn every_way_to_end_is_an_event() {
    for mut harness in every_store() {
        harness.set_type("work", once()).await;
        put(&harness, "all", json!({"job_types": ["work"], "enqueue": {"type": "other"}})).await;
        let expires_at = Some(harness.now() + std::time::Duration::from_secs(50));
        let expiring = NewJob { expires_at, ..work() };
        let deadline = work().with_options(|options| {
            options.deadline_seconds = Some(Seconds::new(50));
        });
        let jobs = harness.enqueue_many([work(), work(), work(), expiring, deadline]).await;
        harness.engine.cancel(&jobs[0].id, None, false).await.unwrap();
        let read = harness.engine.job(&jobs[1].id, None).await.unwrap();
        harness.engine.drop_each(vec![read], "purged", &|_, _| true).await.pop().unwrap().unwrap();
        let run = harness.lease(1).await;
        assert_eq!(run[0].id, jobs[2].id);
        harness.succeed(&run).await;
        harness.wait(100);
        harness.engine.sweep().await.unwrap();
        harness.engine.sweep().await.unwrap();
        let types: Vec<String> =
            events(&harness).await.into_iter().map(|(event_type, _)| event_type).collect();
        let expected = ["cancelled", "dropped", "expired", "failed", "succeeded"];
        assert_eq!(types, expected.map(|state| format!("job.{state}")));
        // The ends of the carriers, and changes after the end, are no events.
        let run = claimed(&harness).await;
        for carrier in &run {
            applied(&harness, carrier).await;
        }
        let replayed = harness.engine.replay(&jobs[0].id, None, ReplayWith::default(), None).await;
        assert!(replayed.unwrap().new);
        assert_eq!((run.len(), events(&harness).await.len()), (5, 5));
    }
}

#[tokio::test]
async fn a_job_that_is_not_kept_leaves_its_event() {
    for mut harness in every_store() {
        let retention_seconds = Seconds::new(0);
        harness.set_type("work", TypeConfig { retention_seconds, ..once() }).await;
        put(&harness, "all", json!({"job_types": ["work"], "enqueue": {"type": "other"}})).await;
        harness.enqueue(work()).await;
        let run = harness.lease(1).await;
        harness.succeed(&run).await;
        assert!(harness.engine.job(&run[0].id, None).await.is_err());
        assert_eq!(events(&harness).await[0].1["id"], format!("{}.succeeded", run[0].id));
    }
}

#[tokio::test]
async fn an_end_of_a_job_is_no_event_from_elsewhere() {
    for mut harness in every_store() {
        harness.set_type("work", once()).await;
        put(&harness, "any", json!({"enqueue": {"type": "work"}})).await;
        put(&harness, "ends", json!({"job_types": ["work"], "enqueue": {"type": "work"}})).await;
        // A client cannot pretend that a job has ended.
        let forged = json!({"type": "job.failed", "source": "/v1/jobs/work"});
        assert_eq!(done(&harness, &event("j1.failed", forged)).await.len(), 1, "the other one");
        let run = harness.lease(1).await;
        harness.succeed(&run).await;
        let carrier = claimed(&harness).await.remove(0);
        assert_eq!(applied(&harness, &carrier).await.len(), 1, "and not the other one");
    }
}

#[tokio::test]
async fn triggers_of_ends_that_loop_are_stopped() {
    for mut harness in every_store() {
        harness.set_type("work", once()).await;
        put(&harness, "loop", json!({"job_types": ["work"], "enqueue": {"type": "work"}})).await;
        harness.enqueue(work()).await;
        let most = harness.engine.rules().events.max_hops;
        for hops in 0..=most {
            let run = harness.lease(1).await;
            let header = run[0].spec.headers.get(HOPS_HEADER).cloned().unwrap_or("0".into());
            assert_eq!(header, hops.to_string());
            harness.succeed(&run).await;
            let carrier = claimed(&harness).await.remove(0);
            let actions = applied(&harness, &carrier).await;
            let is_dropped = matches!(&actions[..], [TriggerAction::Dropped { .. }]);
            assert_eq!(is_dropped, hops == most, "{hops}: {actions:?}");
        }
        assert!(harness.lease(1).await.is_empty());
    }
}

#[tokio::test]
async fn a_trigger_applies_to_ends_after_its_answer() {
    for mut harness in every_store() {
        harness.set_type("work", once()).await;
        let jobs = harness.enqueue_many([work(), work()]).await;
        let run = harness.lease(1).await;
        let another = harness.another();
        let rule = json!({"job_types": ["work"], "enqueue": {"type": "work"}});
        another
            .put_trigger(&name("ends"), serde_json::from_value(rule).unwrap(), None)
            .await
            .unwrap();
        harness.succeed(&run).await;
        let other = jobs.iter().find(|job| job.id != run[0].id).unwrap();
        harness.engine.cancel(&other.id, None, false).await.unwrap();
        assert_eq!(events(&harness).await.len(), 2);
        let ended = harness.job(&run[0].id).await;
        assert_eq!(ended.life.ended(), Some(Outcome::Succeeded));
    }
}
