//! Queues, types and jobs that use a plugin: their configurations are checked, and it is not
//! deleted.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::json;
use tidegate_core::{
    job::{retry::Retry, type_config::TypeConfig},
    port::policy::Problem,
    queue::{
        QueueConfig,
        plugin::{OnFailure, Role, Throttler},
    },
};
use tidegate_engine::testkit::{FnPolicy, builders::name};

use super::{blame, says};
use crate::cases::harness::{Harness, every_store, queue, work};

/// Version 3 of any plugin requires `good` in its configuration; every version refuses `bad`.
fn picky() -> FnPolicy {
    FnPolicy::default().checking(|plugin, role, config| {
        let problem = |path: &str, message: &str| {
            Ok(vec![Problem { path: path.into(), message: message.into() }])
        };
        match role {
            _ if config.contains("bad") => problem("/shares/east", "must be less"),
            Role::Throttler if plugin.version.number == 3 && !config.contains("good") => {
                problem("", "must be good")
            }
            _ => Ok(Vec::new()),
        }
    })
}

fn throttled(config: serde_json::Value) -> QueueConfig {
    let throttler =
        Throttler { plugin: name("guard"), config: Arc::new(config), on_failure: OnFailure::Hold };
    QueueConfig { throttler: Some(throttler), ..QueueConfig::default() }
}

fn retried(config: serde_json::Value) -> Retry {
    Retry::Plugin(name("guard"), Arc::new(config))
}

#[tokio::test]
async fn a_batch_checks_each_strategy_once_and_bounds_their_number() {
    for harness in every_store() {
        let checks = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&checks);
        let harness = harness.with_policy(FnPolicy::default().checking(move |_, _, config| {
            count.fetch_add(1, Ordering::Relaxed);
            let bad = Problem { path: "/bad".into(), message: "must not be".into() };
            Ok(if config.contains("bad") { vec![bad] } else { Vec::new() })
        }));
        harness.push("guard", "v1", None, says()).await.unwrap();
        harness.set_type("work", TypeConfig::default()).await;
        let jobs = |configs: Vec<serde_json::Value>| {
            configs
                .into_iter()
                .map(|config| work().with_options(|options| options.retry = Some(retried(config))))
                .collect()
        };
        let mixed = |n: usize| {
            if n.is_multiple_of(2) { json!({"fine": 1}) } else { json!({"bad": n % 3}) }
        };
        let answers = harness.engine.enqueue(jobs((0..300).map(mixed).collect())).await;
        assert_eq!(checks.load(Ordering::Relaxed), 4, "one that is good and three that are not");
        assert_eq!(
            (answers.iter().filter(|answer| answer.is_ok()).count(), answers[0].is_ok()),
            (150, true)
        );
        assert_eq!(blame(answers.into_iter().nth(1).unwrap()).0, "retry.config/bad");
        checks.store(0, Ordering::Relaxed);
        let answers =
            harness.engine.enqueue(jobs((0..100).map(|n| json!({"n": n})).collect())).await;
        assert_eq!(
            (
                checks.load(Ordering::Relaxed),
                answers.iter().filter(|answer| answer.is_ok()).count()
            ),
            (20, 20)
        );
        let (field, words) = blame(answers.into_iter().next_back().unwrap());
        assert!(field == "retry" && words.contains("at most 20"), "{words}");
    }
}

#[tokio::test]
async fn a_push_sees_the_queue_that_takes_the_plugin_meanwhile() {
    for harness in every_store() {
        // While the new version checks the first queue's configuration, a second queue gets one
        // that it refuses.
        let other = Arc::new(Harness::on(Arc::clone(&harness.store)));
        let (taking, handle, taken) =
            (Arc::clone(&other), tokio::runtime::Handle::current(), Arc::new(AtomicUsize::new(0)));
        let times = Arc::clone(&taken);
        let harness =
            harness.with_policy(FnPolicy::default().checking(move |plugin, _, config| {
                if plugin.version.number == 2 && times.fetch_add(1, Ordering::Relaxed) == 0 {
                    let (taking, handle) = (Arc::clone(&taking), handle.clone());
                    let take = async move {
                        taking
                            .engine
                            .put_queue(&name("second"), throttled(json!({"old": 1})), None)
                            .await
                            .map(drop)
                    };
                    std::thread::spawn(move || handle.block_on(take)).join().unwrap().unwrap();
                }
                let old = Problem { path: "/old".into(), message: "is no more".into() };
                Ok(if plugin.version.number == 2 && config.contains("old") {
                    vec![old]
                } else {
                    Vec::new()
                })
            }));
        harness.push("guard", "v1", says(), says()).await.unwrap();
        harness.engine.put_queue(&queue(), throttled(json!({})), None).await.unwrap();
        let (code, words) = blame(harness.push("guard", "v2", says(), says()).await);
        assert!(code == "config_refused" && words.contains("queue second"), "{words}");
        assert_eq!(harness.engine.plugin(&name("guard")).await.unwrap().live, 1);
        // A type that starts to use the plugin is noticed in the same way.
        let before = harness.engine.plugin(&name("guard")).await.unwrap().version;
        harness
            .set_type("work", TypeConfig { retry: retried(json!({})), ..TypeConfig::default() })
            .await;
        assert_eq!(harness.engine.plugin(&name("guard")).await.unwrap().version, before + 1);
        harness
            .set_type(
                "work",
                TypeConfig { retry: retried(json!({})), weight: 2, ..TypeConfig::default() },
            )
            .await;
        assert_eq!(
            harness.engine.plugin(&name("guard")).await.unwrap().version,
            before + 1,
            "it had it already"
        );
    }
}

#[tokio::test]
async fn a_throttler_is_checked_when_a_queue_is_given_it() {
    for harness in every_store() {
        let harness = harness.with_policy(picky());
        let put = async |config| harness.engine.put_queue(&queue(), throttled(config), None).await;
        assert_eq!(blame(put(json!({})).await).0, "throttler.plugin", "there is none");
        harness.push("guard", "v1", None, says()).await.unwrap();
        let (field, words) = blame(put(json!({})).await);
        assert!(field == "throttler.plugin" && words.contains("must be a throttler"), "{words}");
        harness.push("guard", "v2", says(), says()).await.unwrap();
        assert_eq!(blame(put(json!([])).await).0, "throttler.config");
        assert_eq!(blame(put(json!({"a": "x".repeat(70_000)})).await).0, "throttler.config");
        assert_eq!(
            blame(put(json!({"bad": 1})).await),
            ("throttler.config/shares/east".into(), "must be less".into())
        );
        put(json!({"fine": 1})).await.unwrap();
    }
}

#[tokio::test]
async fn a_retry_strategy_is_checked_for_types_and_for_jobs() {
    for harness in every_store() {
        let harness = harness.with_policy(picky());
        let put = async |retry| {
            harness
                .engine
                .put_type(&name("work"), TypeConfig { retry, ..TypeConfig::default() }, None)
                .await
        };
        assert_eq!(blame(put(retried(json!({}))).await).0, "retry.plugin");
        harness.push("guard", "v1", None, says()).await.unwrap();
        assert_eq!(blame(put(retried(json!({"bad": 1}))).await).0, "retry.config/shares/east");
        put(retried(json!({"fine": 1}))).await.unwrap();
        let enqueue = async |retry| {
            harness
                .engine
                .enqueue(vec![work().with_options(|options| options.retry = retry)])
                .await
                .remove(0)
        };
        assert_eq!(enqueue(None).await.unwrap().job.spec.retry, retried(json!({"fine": 1})));
        assert_eq!(
            blame(enqueue(Some(retried(json!({"bad": 1})))).await).0,
            "retry.config/shares/east"
        );
        assert_eq!(
            blame(enqueue(Some(Retry::Plugin(name("none"), Arc::new(json!({}))))).await).0,
            "retry.plugin"
        );
        assert!(enqueue(Some(retried(json!({"other": 1})))).await.is_ok());
    }
}

#[tokio::test]
async fn a_push_refusing_a_used_configuration_fails_with_its_name() {
    for harness in every_store() {
        let harness = harness.with_policy(picky());
        harness.push("guard", "v1", says(), says()).await.unwrap();
        harness.push("guard", "v2", says(), says()).await.unwrap();
        harness.engine.put_queue(&queue(), throttled(json!({"fine": 1})), None).await.unwrap();
        let (code, words) = blame(harness.push("guard", "v3", says(), None).await);
        assert!(
            code == "config_refused"
                && words.contains("queue default")
                && words.contains("must be good"),
            "{words}"
        );
        let (code, words) = blame(harness.push("guard", "v4", None, says()).await);
        assert!(code == "plugin_in_use" && words.contains("queue default"), "{words}");
        assert_eq!(harness.engine.plugin(&name("guard")).await.unwrap().live, 2);
        harness.engine.put_queue(&queue(), throttled(json!({"good": 1})), None).await.unwrap();
        assert_eq!(harness.push("guard", "v3", says(), says()).await.unwrap().item.live, 3);
        harness
            .set_type("work", TypeConfig { retry: retried(json!({})), ..TypeConfig::default() })
            .await;
        let (code, words) = blame(harness.push("guard", "v5", says(), None).await);
        assert!(code == "plugin_in_use" && words.contains("type work"), "{words}");
    }
}

#[tokio::test]
async fn a_plugin_in_use_is_not_deleted() {
    for harness in every_store() {
        let harness: Harness = harness.with_policy(picky());
        let guard = name("guard");
        harness.push("guard", "v1", says(), says()).await.unwrap();
        harness.engine.put_queue(&queue(), throttled(json!({})), None).await.unwrap();
        assert_eq!(blame(harness.engine.delete_plugin(&guard).await).0, "plugin_in_use");
        harness.set_queue(QueueConfig::default()).await;
        harness
            .set_type("work", TypeConfig { retry: retried(json!({})), ..TypeConfig::default() })
            .await;
        assert_eq!(blame(harness.engine.delete_plugin(&guard).await).0, "plugin_in_use");
        harness.set_type("work", TypeConfig::default()).await;
        harness.engine.delete_plugin(&guard).await.unwrap();
        assert_eq!(blame(harness.engine.delete_plugin(&guard).await).0, "plugin_not_found");
        assert_eq!(harness.push("guard", "v1", says(), says()).await.unwrap().number, 1);
    }
}

#[tokio::test]
async fn the_name_of_the_built_in_strategy_is_taken() {
    for harness in every_store() {
        assert_eq!(blame(harness.push("exponential", "v1", None, says()).await).0, "name");
        assert_eq!(blame(harness.push("guard", "v1", None, None).await).0, "wasm");
    }
}
