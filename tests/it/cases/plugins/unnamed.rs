//! Objects of plugins that no version names are deleted after a day, and no others.

use std::sync::Arc;

use futures_util::StreamExt;
use object_store::ObjectStoreExt;
use tidegate_core::queue::plugin::PluginVersion;
use tidegate_engine::{
    Error,
    memory::MemoryStore,
    testkit::{
        builders::name,
        objects::{FaultyObjects, ObjectRequest},
    },
};

use super::says;
use crate::cases::harness::{Harness, Yielding, every_store_and_table};

const HOUR: u64 = 3600;

/// How many objects a sweep deletes now.
async fn deleted(harness: &Harness) -> usize {
    harness.engine.sweep_objects(harness.now()).await.unwrap().deleted
}

async fn object_count(harness: &Harness) -> usize {
    harness.engine.ports().objects.list(None).count().await
}

/// Pushes these components as versions of the plugin `guard`, and removes the first one.
async fn pruned<const N: usize>(harness: &Harness, components: [&str; N]) {
    for component in components {
        harness.push("guard", component, says(), None).await.unwrap();
    }
    let (_, removed) = harness.engine.prune_plugin(&name("guard"), 1, true).await.unwrap();
    assert_eq!(removed[0], 1);
}

/// Whether all objects of `version` exist.
async fn has_objects(harness: &Harness, version: &PluginVersion) -> bool {
    for key in version.object_keys() {
        if harness.engine.ports().objects.head(&key.into()).await.is_err() {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn objects_without_a_version_go_after_a_day() {
    for harness in every_store_and_table() {
        harness.push("other", "v1", says(), None).await.unwrap();
        pruned(&harness, ["v1", "v2", "v3", "v4"]).await;
        assert_eq!(deleted(&harness).await, 0);
        harness.wait(18 * HOUR);
        assert_eq!(deleted(&harness).await, 0, "they are without a version for 18 h");
        assert_eq!(object_count(&harness).await, 8);
        harness.wait(6 * HOUR);
        assert_eq!(deleted(&harness).await, 2, "the component v2 and its code");
        let left = harness.engine.plugin(&name("guard")).await.unwrap();
        for version in &left.versions {
            assert!(has_objects(&harness, version).await, "{}", version.number);
        }
        // The other plugin was the last one with the component v1.
        harness.engine.delete_plugin(&name("other")).await.unwrap();
        harness.wait(6 * HOUR);
        assert_eq!(deleted(&harness).await, 0);
        harness.wait(24 * HOUR);
        assert_eq!(deleted(&harness).await, 2);
        assert_eq!(object_count(&harness).await, 4);
    }
}

#[tokio::test]
async fn a_push_of_old_bytes_keeps_their_objects() {
    for harness in every_store_and_table() {
        pruned(&harness, ["v1", "v2", "v3"]).await;
        assert_eq!(deleted(&harness).await, 0);
        harness.wait(24 * HOUR);
        let pushed = harness.push("guard", "v1", says(), None).await.unwrap();
        assert_eq!((pushed.number, pushed.new), (4, true));
        for _ in 0..5 {
            assert_eq!(deleted(&harness).await, 0);
            harness.wait(6 * HOUR);
        }
        assert!(has_objects(&harness, pushed.item.numbered(4).unwrap()).await);
    }
}

#[tokio::test]
async fn a_push_of_bytes_that_are_being_deleted_is_refused() {
    for mut harness in every_store_and_table() {
        let objects = Arc::new(FaultyObjects::default());
        harness.objects(Arc::clone(&objects) as _);
        pruned(&harness, ["v1", "v2", "v3"]).await;
        assert_eq!(deleted(&harness).await, 0);
        harness.wait(24 * HOUR);
        objects.fail([ObjectRequest::Delete]);
        let swept = harness.engine.sweep_objects(harness.now()).await.unwrap();
        assert_eq!((swept.deleted, swept.failed), (0, 2));
        // Its requests may still reach the object store.
        let refused = harness.push("guard", "v1", says(), None).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        harness.push("guard", "v4", says(), None).await.unwrap();
        objects.fail([]);
        harness.wait(HOUR / 4);
        let pushed = harness.push("guard", "v1", says(), None).await.unwrap();
        harness.wait(6 * HOUR);
        assert_eq!(deleted(&harness).await, 0);
        assert!(has_objects(&harness, pushed.item.numbered(pushed.number).unwrap()).await);
    }
}

/// Lets other tasks run this often.
async fn yield_times(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_push_during_a_sweep_has_its_objects_or_is_refused() {
    let mut refusals = 0;
    for (push_after, sweep_after) in (0..80).map(|number| (number / 2, number % 2)) {
        let harness = Harness::on(Arc::new(Yielding(Arc::new(MemoryStore::new()))));
        pruned(&harness, ["v1", "v2", "v3"]).await;
        assert_eq!(deleted(&harness).await, 0);
        harness.wait(24 * HOUR);
        let push = async {
            yield_times(push_after).await;
            harness.push("guard", "v1", says(), None).await
        };
        let sweep = async {
            yield_times(sweep_after).await;
            harness.engine.sweep_objects(harness.now()).await
        };
        let (pushed, swept) = tokio::join!(push, sweep);
        swept.unwrap();
        let Ok(pushed) = pushed else {
            refusals += 1;
            continue;
        };
        for _ in 0..2 {
            let version = pushed.item.numbered(pushed.number).unwrap();
            assert!(has_objects(&harness, version).await, "after {push_after} and {sweep_after}");
            harness.wait(30 * HOUR);
            harness.engine.sweep_objects(harness.now()).await.unwrap();
        }
    }
    assert!((1..40).contains(&refusals), "{refusals} pushes met the deletion");
}
