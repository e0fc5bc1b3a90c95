//! Configuration that a newer release wrote: its unknown fields stay, and what cannot be read holds
//! what depends on it alone.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_core::{
    event::read,
    job::{Outcome, Payload, retry::Retry, type_config::TypeConfig},
    port::{
        Committed, Write,
        job_store::ItemKind,
        policy::{RetryAnswer, RetryPlan},
    },
    queue::{
        QueueConfig,
        config::{Constraint, Rate},
        matcher::Matcher,
    },
    schedule::ScheduleConfig,
    time::Seconds,
};
use tidegate_engine::{
    Dispatch, Engine, Error, TickInput,
    request::{NewJob, ReportOutcome},
    schema,
    testkit::{
        FnPolicy,
        builders::name,
        policies::{each, run},
    },
};

use super::harness::{
    Harness, demand, every_store, every_store_and_table, failed, of_type, queue, report, work,
};

/// Changes a stored item, as a newer release does.
async fn change(harness: &Harness, kind: ItemKind, item: &str, change: impl Fn(&mut Value)) {
    let items = harness.store.items(kind).await.unwrap();
    let stored = items.into_iter().find(|stored| stored.name == item).unwrap();
    let mut value: Value = stored.read().unwrap();
    change(&mut value);
    let write = Write::SetItem {
        kind,
        name: item.to_owned(),
        was: stored.version,
        version: stored.version + 1,
        bytes: Some(value.to_string().into_bytes()),
    };
    let committed = harness.store.commit(vec![vec![write]]).await.unwrap();
    assert!(matches!(committed[0], Committed::All));
}

async fn stored(harness: &Harness, kind: ItemKind, item: &str) -> Value {
    let items = harness.store.items(kind).await.unwrap();
    let stored = items.into_iter().find(|stored| stored.name == item).unwrap();
    stored.read().unwrap()
}

fn limit(concurrency: u32) -> QueueConfig {
    QueueConfig { concurrency: Some(concurrency), ..QueueConfig::default() }
}

#[tokio::test]
async fn fields_of_a_newer_release_survive_every_change() {
    for harness in every_store() {
        harness.with_limit(1).await;
        let engine = &harness.engine;
        let add = |value: &mut Value| {
            value["added"] = json!(1);
            value["config"]["added"] = json!({"deep": [2]});
        };
        change(&harness, ItemKind::Queue, "default", add).await;
        change(&harness, ItemKind::Type, "work", add).await;
        engine.pause_queue(&queue(), true).await.unwrap();
        engine.pause_queue(&queue(), false).await.unwrap();
        engine.put_queue(&queue(), limit(3), None).await.unwrap();
        // A limit of a type also writes its queue, and a move writes the type twice.
        let config = TypeConfig { concurrency: Some(2), ..TypeConfig::default() };
        engine.put_type(&name("work"), config.clone(), None).await.unwrap();
        engine.put_queue(&name("other"), limit(1), None).await.unwrap();
        let moved = TypeConfig { queue: name("other"), ..config };
        engine.put_type(&name("work"), moved, None).await.unwrap();
        for (kind, item) in [(ItemKind::Queue, "default"), (ItemKind::Type, "work")] {
            let value = stored(&harness, kind, item).await;
            assert_eq!(value["added"], 1, "{value}");
            assert_eq!(value["config"]["added"], json!({"deep": [2]}), "{value}");
        }
        let queue = engine.queue(&queue()).await.unwrap();
        assert_eq!((queue.config.concurrency, queue.paused), (Some(3), false));
    }
}

#[tokio::test]
async fn a_plugin_keeps_the_fields_of_a_newer_release() {
    for harness in every_store() {
        let policy = FnPolicy::default().throttling(|_, call| Ok(each(call, |_| run())));
        let harness = harness.with_policy(policy);
        let says = tidegate_core::queue::plugin::Description::default();
        harness.push("guard", "v1", Some(says.clone()), None).await.unwrap();
        change(&harness, ItemKind::Plugin, "guard", |value| {
            value["versions"][0]["signed_by"] = json!("someone");
        })
        .await;
        harness.push("guard", "v2", Some(says), None).await.unwrap();
        let value = stored(&harness, ItemKind::Plugin, "guard").await;
        assert_eq!(value["versions"][0]["signed_by"], "someone", "{value}");
        assert_eq!(value["versions"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_holds_its_jobs_alone() {
    for mut harness in every_store() {
        harness.with_limit(5).await;
        harness.engine.put_queue(&name("other"), limit(1), None).await.unwrap();
        let other = TypeConfig { queue: name("other"), ..TypeConfig::default() };
        harness.set_type("elsewhere", other).await;
        harness.enqueue(work()).await;
        let order =
            |word: &'static str| move |value: &mut Value| value["config"]["order"] = json!(word);
        change(&harness, ItemKind::Queue, "default", order("by_the_moon")).await;
        let job = harness.enqueue(work()).await;
        assert!(harness.lease(10).await.is_empty());
        let explained = harness.explain(&job.id).await;
        assert!(explained.reason.contains("cannot be read"), "{}", explained.reason);
        let elsewhere = harness.enqueue(of_type("elsewhere")).await;
        assert_eq!(elsewhere.spec.queue, name("other"));
        let catalog = harness.engine.catalog().await.unwrap();
        let unreadable: Vec<_> = catalog.unreadable().map(|(kind, name, _)| (kind, name)).collect();
        assert_eq!(unreadable, [(ItemKind::Queue, "default")]);
        for refused in [
            harness.engine.queue(&queue()).await.map(drop),
            harness.engine.put_queue(&queue(), limit(1), None).await.map(drop),
            harness.engine.delete_queue(&queue(), None).await,
        ] {
            assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        }
        change(&harness, ItemKind::Queue, "default", order("priority")).await;
        assert_eq!(harness.lease(10).await.len(), 2);
    }
}

#[tokio::test]
async fn a_type_that_cannot_be_read_holds_its_jobs_alone() {
    for mut harness in every_store() {
        harness.with_limit(5).await;
        harness.rules(|rules| rules.create_unknown_types = true);
        harness.set_type("odd", TypeConfig::default()).await;
        harness.enqueue(of_type("odd")).await;
        let delivery =
            |word: &'static str| move |value: &mut Value| value["config"]["delivery"] = json!(word);
        change(&harness, ItemKind::Type, "odd", delivery("twice")).await;
        let refused = harness.engine.enqueue(vec![of_type("odd")]).await.pop().unwrap();
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        let refused = harness.engine.put_type(&name("odd"), TypeConfig::default(), None).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        let refused = harness.engine.delete_queue(&queue(), None).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        harness.enqueue(work()).await;
        let leased = harness.lease_of(&["odd", "work"], 10).await;
        assert_eq!(
            leased.iter().map(|job| job.spec.job_type.as_str()).collect::<Vec<_>>(),
            ["work"]
        );
        change(&harness, ItemKind::Type, "odd", delivery("at_most_once")).await;
        assert_eq!(harness.lease_of(&["odd"], 10).await.len(), 1);
        harness.enqueue(NewJob { run_at: None, ..of_type("odd") }).await;
    }
}

#[tokio::test]
async fn a_schedule_whose_state_cannot_be_read_holds_itself_alone() {
    for harness in every_store() {
        let engine = &harness.engine;
        harness.with_limit(5).await;
        for schedule in ["good", "odd"] {
            let every = ScheduleConfig::every(name("work"), Seconds::new(10));
            engine.put_schedule(&name(schedule), every, Payload::null(), None).await.unwrap();
        }
        harness.wait(10);
        assert_eq!(engine.materialize(Duration::ZERO).await.unwrap().made.len(), 2);
        let kind = ItemKind::ScheduleState;
        change(&harness, kind, "good", |state| state["added"] = json!([1])).await;
        let upto = stored(&harness, kind, "odd").await["upto"].clone();
        change(&harness, kind, "odd", |state| state["upto"] = json!("at dawn")).await;
        harness.wait(10);
        let other = harness.another();
        let made = other.materialize(Duration::ZERO).await.unwrap().made;
        assert_eq!(made.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["good"]);
        assert_eq!(stored(&harness, kind, "good").await["added"], json!([1]));
        assert!(other.schedule(&name("odd")).await.is_err());
        assert_eq!(other.schedules().await.unwrap().len(), 2);
        change(&harness, kind, "odd", |state| state["upto"] = upto.clone()).await;
        let made = harness.another().materialize(Duration::ZERO).await.unwrap().made;
        assert_eq!(made.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["odd"]);
    }
}

/// A configuration without a field that it must have, which no release can read.
fn unreadable(value: &mut Value) {
    *value = json!({"config": 1});
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_is_replaced_and_paused() {
    for mut harness in every_store() {
        harness.with_limit(3).await;
        harness.enqueue(work()).await;
        change(&harness, ItemKind::Queue, "default", unreadable).await;
        let refused = harness.engine.put_queue(&queue(), limit(1), None).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        let stale = harness.engine.replace_queue(&queue(), limit(1), Some(77)).await;
        assert!(matches!(stale, Err(Error::Stale { .. })), "{stale:?}");
        let (item, new) = harness.engine.replace_queue(&queue(), limit(1), None).await.unwrap();
        assert!(item.paused && !new, "whether it was paused is not known");
        assert!(harness.lease(5).await.is_empty());
        harness.engine.pause_queue(&queue(), false).await.unwrap();
        assert_eq!(harness.lease(5).await.len(), 1);
        // One that can be read is set as without force.
        let (item, _) = harness.engine.replace_queue(&queue(), limit(2), None).await.unwrap();
        assert!(!item.paused);
        assert!(harness.engine.replace_queue(&name("other"), limit(2), None).await.unwrap().1);
    }
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_is_replaced() {
    for harness in every_store_and_table() {
        let engine = &harness.engine;
        harness.with_limit(5).await;
        let every = || ScheduleConfig::every(name("work"), Seconds::new(10));
        let odd = name("odd");
        for damaged in [ItemKind::Schedule, ItemKind::ScheduleState] {
            engine.replace_schedule(&odd, every(), Payload::null(), None).await.unwrap();
            harness.wait(10);
            assert_eq!(engine.materialize(Duration::ZERO).await.unwrap().made.len(), 1);
            change(&harness, damaged, "odd", unreadable).await;
            harness.wait(10);
            assert_eq!(harness.another().materialize(Duration::ZERO).await.unwrap().made.len(), 0);
            let shown = engine.schedule(&odd).await.unwrap_err();
            assert!(shown.to_string().contains("cannot be read"), "{damaged:?}: {shown}");
            let put = engine.put_schedule(&odd, every(), Payload::null(), None).await;
            assert!(put.is_err(), "{damaged:?}");
            let replaced = engine.replace_schedule(&odd, every(), Payload::null(), None).await;
            let (_, new) = replaced.unwrap();
            assert!(!new, "{damaged:?}");
            harness.wait(10);
            let made = harness.another().materialize(Duration::ZERO).await.unwrap().made;
            assert_eq!(made.len(), 1, "{damaged:?}: from now on, each occurrence once");
        }
    }
}

#[tokio::test]
async fn a_trigger_that_cannot_be_read_is_replaced() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let engine = &harness.engine;
        let config = || serde_json::from_value(json!({"enqueue": {"type": "work"}})).unwrap();
        engine.put_trigger(&name("odd"), config(), None).await.unwrap();
        change(&harness, ItemKind::Trigger, "odd", unreadable).await;
        let refused = engine.put_trigger(&name("odd"), config(), None).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        let (item, new) = engine.replace_trigger(&name("odd"), config(), None).await.unwrap();
        assert_eq!((item.version, new), (3, false));
        let event = json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"});
        let event = read::structured(&Bytes::from(event.to_string())).unwrap();
        assert_eq!(engine.ingest(&[event]).await.enqueued.len(), 1);
    }
}

#[tokio::test]
async fn the_lookahead_keeps_the_fields_of_a_newer_release() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        harness.engine.horizon().await.unwrap();
        change(&harness, ItemKind::Horizon, "free", |horizon| horizon["added"] = json!(1)).await;
        harness.wait(60);
        let lookahead = harness.look_ahead().await.unwrap();
        harness.engine.record_sweep(lookahead, 1).await.unwrap();
        let horizon = stored(&harness, ItemKind::Horizon, "free").await;
        assert_eq!((&horizon["added"], &horizon["last"]["failed"]), (&json!(1), &json!(1)));
    }
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_keeps_its_rates() {
    for mut harness in every_store() {
        let rate = Rate { count: 1, per_seconds: Seconds::new(3600), burst: None };
        let constraint = Constraint {
            name: "hourly".into(),
            matcher: Matcher::default(),
            per: None,
            concurrency: None,
            rate: Some(rate),
        };
        let config = QueueConfig { constraints: vec![constraint], ..limit(5) };
        harness.engine.put_queue(&queue(), config, None).await.unwrap();
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue_many([work(), work()]).await;
        let running = harness.lease(5).await;
        assert_eq!(running.len(), 1);
        let order = |word| move |value: &mut Value| value["config"]["order"] = json!(word);
        change(&harness, ItemKind::Queue, "default", order("by_the_moon")).await;
        harness.succeed(&running).await;
        assert!(harness.lease(5).await.is_empty());
        change(&harness, ItemKind::Queue, "default", order("time")).await;
        assert!(harness.lease(5).await.is_empty(), "its only start of the hour is used up");
    }
}

#[tokio::test]
async fn events_wait_for_a_trigger_that_cannot_be_read() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let config = serde_json::from_value(json!({"enqueue": {"type": "work"}})).unwrap();
        harness.engine.put_trigger(&name("odd"), config, None).await.unwrap();
        let filter =
            |filter: Value| move |value: &mut Value| value["config"]["filter"] = filter.clone();
        change(&harness, ItemKind::Trigger, "odd", filter(json!({"subject_like": "a%"}))).await;
        let event = json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"});
        let event = read::structured(&Bytes::from(event.to_string())).unwrap();
        let answers = harness.engine.ingest(std::slice::from_ref(&event)).await.answers;
        assert!(matches!(answers[0], Err(Error::Unavailable { .. })));
        change(&harness, ItemKind::Trigger, "odd", filter(json!({}))).await;
        assert_eq!(harness.engine.ingest(&[event]).await.enqueued.len(), 1);
    }
}

#[tokio::test]
async fn a_retry_config_that_is_not_known_holds_its_type() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        change(&harness, ItemKind::Type, "work", |value| {
            value["config"]["retry"]["config"]["after_the_last"] = json!("wait");
        })
        .await;
        let refused = harness.engine.enqueue(vec![work()]).await.pop().unwrap();
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    }
}

/// Records that a release has written `form`.
async fn written(harness: &Harness, form: u32) {
    let item = harness.store.items(ItemKind::Schema).await.unwrap().pop();
    let was = item.map_or(0, |item| item.version);
    let write = Write::SetItem {
        kind: ItemKind::Schema,
        name: "schema".into(),
        was,
        version: was + 1,
        bytes: Some(json!({"writes": form, "release": "9.9.9"}).to_string().into_bytes()),
    };
    let committed = harness.store.commit(vec![vec![write]]).await.unwrap();
    assert!(matches!(committed[0], Committed::All));
}

async fn record_schema(engine: &Engine) -> Result<(), Error> {
    engine.record_schema(engine.catalog().await?).await
}

#[tokio::test]
async fn an_engine_records_its_form_and_never_lowers_it() {
    for harness in every_store_and_table() {
        record_schema(&harness.engine).await.unwrap();
        record_schema(&harness.another()).await.unwrap();
        let (version, schema) = harness.engine.catalog().await.unwrap().schema.clone();
        assert_eq!((version, schema.writes), (1, schema::WRITES));
        written(&harness, schema::READS).await;
        record_schema(&harness.engine).await.unwrap();
        let (_, schema) = harness.engine.catalog().await.unwrap().schema.clone();
        assert_eq!((schema.writes, schema.release.as_str()), (schema::READS, "9.9.9"));
    }
}

#[tokio::test]
async fn an_engine_stops_when_a_release_writes_what_it_cannot_read() {
    for mut harness in every_store() {
        harness.with_limit(5).await;
        harness.enqueue(work()).await;
        written(&harness, schema::READS + 1).await;
        let started = harness.another();
        for engine in [&harness.engine, &started] {
            let refused = engine.enqueue(vec![work()]).await.pop().unwrap();
            let Err(Error::Unavailable { message, .. }) = refused else {
                panic!("{refused:?}");
            };
            assert!(message.contains("run 9.9.9 or a later release"), "{message}");
            assert!(record_schema(engine).await.is_err());
        }
        let input = TickInput {
            demands: vec![demand(&["work"], 1, Dispatch::Claim)],
            ..TickInput::default()
        };
        let ticked = harness.engine.tick(&queue(), &mut harness.cache, input).await;
        assert!(matches!(ticked, Err(Error::Unavailable { .. })));
        written(&harness, schema::READS).await;
        assert_eq!(harness.lease(1).await.len(), 1);
    }
}

#[tokio::test]
async fn a_running_job_of_an_unreadable_type_keeps_its_slot() {
    for mut harness in every_store_and_table() {
        harness.with_limit(2).await;
        harness.settle().await;
        harness.enqueue_many([work(), work()]).await;
        let run = harness.lease(2).await;
        let delivery =
            |word: &'static str| move |value: &mut Value| value["config"]["delivery"] = json!(word);
        change(&harness, ItemKind::Type, "work", delivery("twice")).await;
        harness.restart();
        let reports = vec![
            report(&run[0], failed()),
            report(&run[1], ReportOutcome::Succeeded { result: None }),
        ];
        let outcome = harness.tick(TickInput { reports, ..TickInput::default() }).await;
        // Whether it may run again depends on its type; that the other is done does not.
        let refused = &outcome.reports[0];
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        assert!(outcome.reports[1].is_ok());
        harness.wait(61);
        harness.tick(TickInput::default()).await;
        harness.engine.sweep().await.unwrap();
        let kept = harness.job(&run[0].id).await;
        assert!(kept.life.running().is_some(), "its lease is over, and nothing was decided");
        assert_eq!(harness.granted().await, 1);
        change(&harness, ItemKind::Type, "work", delivery("at_most_once")).await;
        harness.wait(61);
        harness.tick(TickInput::default()).await;
        let ended = harness.job(&run[0].id).await;
        assert_eq!(ended.life.ended(), Some(Outcome::Failed));
    }
}

#[tokio::test]
async fn a_retry_waits_for_a_plugin_that_cannot_be_read() {
    for harness in every_store() {
        let policy = FnPolicy::default().retrying(|_, call| {
            let at = call.now + Duration::from_secs(100);
            Ok(RetryAnswer::Retry(RetryPlan::new(at)))
        });
        let mut harness = harness.with_policy(policy);
        let says = tidegate_core::queue::plugin::Description::default();
        harness.push("planner", "v1", None, Some(says)).await.unwrap();
        let retry = Retry::Plugin(name("planner"), Arc::new(json!({})));
        harness.set_type("work", TypeConfig { retry, ..TypeConfig::default() }).await;
        let job = harness.enqueue(work()).await;
        let run = harness.lease(1).await;
        let live = |number: Value| move |value: &mut Value| value["live"] = number.clone();
        change(&harness, ItemKind::Plugin, "planner", live(json!("the newest"))).await;
        let reports = vec![report(&run[0], failed())];
        harness.tick(TickInput { reports, ..TickInput::default() }).await;
        for _ in 0..2 {
            let pending = harness.engine.sweep().await.unwrap().pending;
            assert_eq!(pending.len(), 1);
            let decided = harness.engine.decide_retries(pending).await.unwrap();
            assert!(decided.changed.is_empty(), "no other strategy decides in its place");
        }
        change(&harness, ItemKind::Plugin, "planner", live(json!(1))).await;
        let pending = harness.engine.sweep().await.unwrap().pending;
        harness.engine.decide_retries(pending).await.unwrap();
        let decided = harness.job(&job.id).await;
        assert_eq!(decided.life.run_at(), Some(harness.now() + Duration::from_secs(100)));
    }
}
