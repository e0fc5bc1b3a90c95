//! Versions of plugins: pushed, made live, rolled back; and the queues and types that use one.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use object_store::ObjectStoreExt;
use serde_json::json;
use tidegate_core::{
    job::{retry::Retry, type_config::TypeConfig},
    port::policy::Problem,
    queue::{
        QueueConfig,
        plugin::{Description, MAX_ITEM_BYTES, MAX_VERSIONS, OnFailure, Role, Throttler},
    },
};
use tidegate_engine::{
    Error,
    plugins::registry::{NewCode, NewVersion, Stage},
    testkit::{FnPolicy, builders::name},
};

use super::harness::{Harness, every_store, queue, work};

#[allow(clippy::unnecessary_wraps, reason = "as a push takes it")]
fn says() -> Option<Description> {
    Some(Description::default())
}

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

/// The field at fault, or the error code, and the message.
fn blame<T: std::fmt::Debug>(answer: Result<T, Error>) -> (String, String) {
    match answer.unwrap_err() {
        Error::Invalid { field, message, .. } => (field, message),
        Error::Conflict { code, message, .. } => (code.to_string(), message),
        Error::NotFound { code, what } => (code.to_string(), what),
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn a_pushed_version_is_live_and_its_objects_are_there() {
    for harness in every_store() {
        let pushed = harness.push("guard", "v1", says(), None).await.unwrap();
        assert_eq!((pushed.number, pushed.new, pushed.item.live), (1, true, 1));
        let version = pushed.item.numbered(1).unwrap();
        let objects = &harness.engine.ports().objects;
        assert_eq!(
            objects.get(&version.object_key().into()).await.unwrap().bytes().await.unwrap(),
            "v1"
        );
        assert_eq!(
            objects
                .get(&version.compiled[0].object_key().into())
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap(),
            "compiled v1"
        );
        let again = harness.push("guard", "v1", says(), None).await.unwrap();
        assert_eq!((again.number, again.new, again.item.version), (1, false, 1));
        assert_eq!(harness.push("guard", "v2", says(), says()).await.unwrap().item.live, 2);
        let names: Vec<String> = harness
            .engine
            .plugins()
            .await
            .unwrap()
            .into_iter()
            .map(|(name, _)| name.to_string())
            .collect();
        assert_eq!(names, ["guard"]);
    }
}

#[tokio::test]
async fn the_same_bytes_bring_code_for_another_engine() {
    for harness in every_store() {
        harness.push("guard", "v1", says(), None).await.unwrap();
        let code = |engine: &str, code: &'static str| NewCode {
            target: "t".into(),
            engine: engine.into(),
            code: Bytes::from(code),
        };
        let version = NewVersion {
            wasm: Bytes::from("v1"),
            throttler: says(),
            retry: None,
            code: vec![code("f", "newer"), code("e", "other")],
        };
        let pushed =
            harness.engine.push_plugin(&name("guard"), version, Stage::Live).await.unwrap();
        assert_eq!((pushed.number, pushed.new), (1, false));
        let engines: Vec<String> =
            pushed.item.versions[0].compiled.iter().map(|code| code.engine.clone()).collect();
        assert_eq!(engines, ["f", "e"], "one piece of code for each");
    }
}

#[tokio::test]
async fn the_oldest_versions_go_but_not_the_live_one() {
    for harness in every_store() {
        harness.push("guard", "v1", says(), None).await.unwrap();
        for n in 2..=MAX_VERSIONS + 2 {
            let version = NewVersion {
                wasm: Bytes::from(format!("v{n}")),
                throttler: says(),
                retry: None,
                code: vec![],
            };
            harness.engine.push_plugin(&name("guard"), version, Stage::Shadow).await.unwrap();
        }
        let item = harness.engine.plugin(&name("guard")).await.unwrap();
        assert_eq!(
            (item.versions.len(), item.live, item.versions[0].number, item.versions[1].number),
            (MAX_VERSIONS, 1, 1, 4)
        );
    }
}

#[tokio::test]
async fn a_rollback_goes_back_one_or_to_a_number() {
    for harness in every_store() {
        for wasm in ["v1", "v2", "v3"] {
            harness.push("guard", wasm, says(), None).await.unwrap();
        }
        let guard = name("guard");
        assert_eq!(harness.engine.rollback_plugin(&guard, None).await.unwrap().live, 2);
        assert_eq!(harness.engine.rollback_plugin(&guard, Some(3)).await.unwrap().live, 3);
        assert_eq!(harness.engine.rollback_plugin(&guard, Some(1)).await.unwrap().live, 1);
        for to in [None, Some(9)] {
            assert_eq!(
                blame(harness.engine.rollback_plugin(&guard, to).await).0,
                "plugin_version_not_found"
            );
        }
        assert_eq!(
            blame(harness.engine.rollback_plugin(&name("nobody"), None).await).0,
            "plugin_not_found"
        );
    }
}

#[tokio::test]
async fn a_rollback_restores_the_last_live_version_not_a_shadow() {
    for harness in every_store() {
        let guard = name("guard");
        harness.push("guard", "v1", says(), None).await.unwrap();
        let shadow =
            NewVersion { wasm: Bytes::from("v2"), throttler: says(), retry: None, code: vec![] };
        harness.engine.push_plugin(&guard, shadow, Stage::Shadow).await.unwrap();
        harness.push("guard", "v3", says(), None).await.unwrap();
        assert_eq!(harness.engine.rollback_plugin(&guard, None).await.unwrap().live, 1);
        assert_eq!(
            blame(harness.engine.rollback_plugin(&guard, None).await).0,
            "plugin_version_not_found"
        );
    }
}

#[tokio::test]
async fn large_version_records_are_evicted_first_and_block_no_push() {
    let says = |schema: usize| {
        Some(Description {
            config_schema: Some("x".repeat(schema << 10)),
            ..Description::default()
        })
    };
    let version = |n: u32, schema: usize| NewVersion {
        wasm: Bytes::from(format!("v{n} {schema}")),
        throttler: says(schema),
        retry: says(schema),
        code: vec![],
    };
    for harness in every_store() {
        let guard = name("guard");
        for n in 1..=MAX_VERSIONS as u32 {
            harness.engine.push_plugin(&guard, version(n, 60), Stage::Live).await.unwrap();
        }
        let item = harness.engine.plugin(&guard).await.unwrap();
        assert_eq!(
            (item.versions.len(), item.live, item.previous()),
            (2, 50, Some(49)),
            "two of 120 KiB"
        );
        assert!(serde_json::to_vec(&*item).unwrap().len() <= MAX_ITEM_BYTES);
        assert_eq!(item.was_live, [49], "none that is forgotten");
        // A live and a shadow version that are too large together.
        harness.engine.push_plugin(&guard, version(51, 160), Stage::Live).await.unwrap();
        assert_eq!(
            blame(harness.engine.push_plugin(&guard, version(52, 60), Stage::Shadow).await).0,
            "config-schema"
        );
    }
}

#[tokio::test]
async fn a_version_may_run_in_the_shadow_first() {
    for harness in every_store() {
        harness.push("guard", "v1", says(), None).await.unwrap();
        let version =
            NewVersion { wasm: Bytes::from("v2"), throttler: says(), retry: None, code: vec![] };
        let item =
            harness.engine.push_plugin(&name("guard"), version, Stage::Shadow).await.unwrap().item;
        assert_eq!((item.live, item.shadow), (1, Some(2)));
        let guard = name("guard");
        assert_eq!(blame(harness.engine.shadow_plugin(&guard, Some(1)).await).0, "version");
        assert_eq!(
            harness.engine.rollback_plugin(&guard, Some(2)).await.unwrap().shadow,
            None,
            "live, it is no shadow"
        );
        assert_eq!(harness.engine.shadow_plugin(&guard, Some(1)).await.unwrap().shadow, Some(1));
        assert_eq!(harness.engine.shadow_plugin(&guard, None).await.unwrap().shadow, None);
    }
}

#[tokio::test]
async fn known_bytes_that_are_pushed_into_the_shadow_go_there() {
    for harness in every_store() {
        let guard = name("guard");
        harness.push("guard", "v1", says(), None).await.unwrap();
        harness.push("guard", "v2", says(), None).await.unwrap();
        let version = |wasm: &'static str| NewVersion {
            wasm: Bytes::from(wasm),
            throttler: says(),
            retry: None,
            code: vec![],
        };
        let push = async |wasm, stage| {
            harness.engine.push_plugin(&guard, version(wasm), stage).await.unwrap()
        };
        let kept = push("v1", Stage::Kept).await;
        assert_eq!((kept.number, kept.new, kept.item.live, kept.item.shadow), (1, false, 2, None));
        let shadow = push("v1", Stage::Shadow).await;
        assert_eq!(
            (shadow.number, shadow.new, shadow.item.live, shadow.item.shadow),
            (1, false, 2, Some(1))
        );
        assert_eq!(
            push("v2", Stage::Shadow).await.item.shadow,
            Some(1),
            "the live one is no shadow of itself"
        );
    }
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
