//! Versions: pushed, made live, rolled back, evicted, and put into the shadow.

use bytes::Bytes;
use object_store::ObjectStoreExt;
use tidegate_core::queue::plugin::{Description, MAX_ITEM_BYTES, MAX_VERSIONS, PluginItem};
use tidegate_engine::{
    plugins::registry::{NewCode, NewVersion, Stage},
    testkit::builders::name,
};

use super::{blame, says};
use crate::cases::harness::every_store;

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
async fn a_prune_keeps_what_is_live_shadowed_or_returned_to() {
    for harness in every_store() {
        let guard = name("guard");
        for wasm in ["v1", "v2", "v3", "v4", "v5", "v6"] {
            harness.push("guard", wasm, says(), None).await.unwrap();
        }
        // Live is 4, and a rollback returns to 3.
        harness.engine.rollback_plugin(&guard, Some(4)).await.unwrap();
        harness.engine.shadow_plugin(&guard, Some(1)).await.unwrap();
        let numbers = |item: &PluginItem| -> Vec<u32> {
            item.versions.iter().map(|version| version.number).collect()
        };
        let before = harness.engine.plugin(&guard).await.unwrap();
        let (dry, removed) = harness.engine.prune_plugin(&guard, 1, false).await.unwrap();
        assert_eq!((removed.as_slice(), numbers(&dry)), (&[2, 5][..], vec![1, 3, 4, 6]));
        assert_eq!(harness.engine.plugin(&guard).await.unwrap(), before, "it was a dry run");
        assert!(harness.engine.prune_plugin(&guard, 9, true).await.unwrap().1.is_empty());
        let (item, removed) = harness.engine.prune_plugin(&guard, 1, true).await.unwrap();
        assert_eq!((removed.as_slice(), numbers(&item)), (&[2, 5][..], vec![1, 3, 4, 6]));
        assert_eq!(harness.engine.plugin(&guard).await.unwrap().versions, item.versions);
        assert_eq!((item.live, item.shadow, item.previous()), (4, Some(1), Some(3)));
        assert_eq!(item.was_live, [1, 3], "version 2 is no longer one to return to");
        // The number of the latest version is not used again.
        harness.push("guard", "v2", says(), None).await.unwrap();
        assert_eq!(harness.engine.plugin(&guard).await.unwrap().live, 7);
        assert_eq!(blame(harness.engine.prune_plugin(&guard, 0, true).await).0, "keep");
        let missing = harness.engine.prune_plugin(&name("missing"), 1, true).await;
        assert_eq!(blame(missing).0, "plugin_not_found");
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
            blame(harness.engine.rollback_plugin(&name("missing"), None).await).0,
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
