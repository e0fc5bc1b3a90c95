//! Keys and items of the configuration, which are compared before they are set.

use super::super::{add, done, refused};
use crate::testkit::builders::{job, name};
use tidegate_core::port::job_store::{CurrentRecord, Expect, ItemKind, JobStore, Key, Write};

/// A key points to one job. A writer can move it only if it knows the current job.
pub async fn keys_are_compared_before_they_are_set(store: &dyn JobStore) {
    let text = || "the same text".to_owned();
    let keys = [
        Key::Correlation(name("x"), text()),
        Key::Correlation(name("y"), text()),
        Key::Unique(name("x"), text()),
        Key::Idempotency(text()),
    ];
    for (n, key) in keys.iter().enumerate() {
        let set = |job: &str, was| Write::SetKey { key: key.clone(), job: name(job), was };
        let (mine, other) = (format!("job-{n}"), format!("other-{n}"));
        assert!(matches!(
            refused(store, vec![set(&mine, Expect::Is(name(&other)))]).await,
            (0, CurrentRecord::Nothing)
        ));
        done(store, vec![set(&mine, Expect::Absent)]).await;
        for was in [Expect::Absent, Expect::Is(name(&other))] {
            let (_, current) = refused(store, vec![set(&other, was)]).await;
            assert!(
                matches!(&current, CurrentRecord::Key { job, .. } if job.as_str() == mine),
                "{current:?}"
            );
        }
        done(store, vec![set(&other, Expect::Is(name(&mine)))]).await;
    }
    let mut queried = keys.to_vec();
    queried.insert(1, Key::Unique(name("unknown"), text()));
    let found = store.keys(&queried).await.expect("the store answers");
    let expected = ["other-0", "", "other-1", "other-2", "other-3"].map(|id| Ok(id.parse().ok()));
    assert_eq!(found, expected);
}

fn set(kind: ItemKind, was: u64, version: u64, bytes: Option<&str>) -> Write {
    let bytes = bytes.map(|text| text.as_bytes().to_vec());
    Write::SetItem { kind, name: "mail".into(), was, version, bytes }
}

fn require(kind: ItemKind, version: u64) -> Write {
    Write::RequireItem { kind, name: "mail".into(), version }
}

/// Sets, requires and replaces one item of `kind`. `other` makes the names of this clause unique.
async fn compare_item(store: &dyn JobStore, kind: ItemKind, other: usize) {
    done(store, vec![require(kind, 0)]).await;
    assert!(matches!(refused(store, vec![require(kind, 1)]).await, (0, CurrentRecord::Nothing)));
    assert!(matches!(
        refused(store, vec![set(kind, 1, 2, Some("{}"))]).await,
        (0, CurrentRecord::Nothing)
    ));
    done(store, vec![set(kind, 0, 4, Some("{}"))]).await;
    for was in [0, 3, 5] {
        assert!(matches!(
            refused(store, vec![set(kind, was, 6, None)]).await,
            (0, CurrentRecord::Version(4))
        ));
        assert!(matches!(
            refused(store, vec![require(kind, was)]).await,
            (0, CurrentRecord::Version(4))
        ));
    }
    done(store, vec![require(kind, 4), Write::AddJob(job(&format!("under-{other}")).build())])
        .await;
    done(store, vec![set(kind, 4, 5, Some("{\"é\": 1}"))]).await;
    let item = store.items(kind).await.expect("the store answers").remove(0);
    assert_eq!(
        (item.name.as_str(), item.version, item.bytes.as_deref().unwrap_or_default()),
        ("mail", 5, "{\"é\": 1}".as_bytes())
    );
}

/// Items are set, required and removed by version. Each kind has its own names.
pub async fn items_are_compared_before_they_are_set(store: &dyn JobStore) {
    for (n, kind) in ItemKind::ALL.into_iter().enumerate() {
        compare_item(store, kind, n).await;
    }
    done(store, vec![set(ItemKind::Token, 5, 6, None)]).await;
    assert_eq!(store.items(ItemKind::Token).await.expect("the store answers"), []);
    done(store, vec![require(ItemKind::Token, 0)]).await;
    for letter in ["b", "a", "B"] {
        let item = Write::SetItem {
            kind: ItemKind::Token,
            name: letter.into(),
            was: 0,
            version: 1,
            bytes: Some(b"1".to_vec()),
        };
        done(store, vec![item]).await;
    }
    let names: Vec<_> = store
        .items(ItemKind::Token)
        .await
        .expect("the store answers")
        .into_iter()
        .map(|item| item.name)
        .collect();
    assert_eq!(names, ["B", "a", "b"], "by name");
    assert_eq!(store.items(ItemKind::Queue).await.expect("the store answers").len(), 1);
}

/// The items version shows that a cached configuration is outdated.
pub async fn the_items_version_covers_queues_types_plugins_triggers(store: &dyn JobStore) {
    let version = async || store.items_version().await.expect("the store answers");
    let set = |kind, was, version| Write::SetItem {
        kind,
        name: "one".into(),
        was,
        version,
        bytes: Some(b"{}".to_vec()),
    };
    let start = version().await;
    add(store, [job("a").build()]).await;
    done(store, vec![set(ItemKind::Operation, 0, 1)]).await;
    done(store, vec![set(ItemKind::ScheduleState, 0, 1)]).await;
    assert_eq!(version().await, start, "not part of a cached configuration");
    done(store, vec![set(ItemKind::Queue, 0, 1)]).await;
    let queue = version().await;
    assert_ne!(queue, start);
    done(store, vec![set(ItemKind::Type, 0, 1)]).await;
    let both = version().await;
    assert!(both != queue && both != start);
    refused(store, vec![set(ItemKind::Type, 0, 1)]).await;
    assert_eq!(version().await, both, "a refused write changes nothing");
    done(store, vec![set(ItemKind::Plugin, 0, 1)]).await;
    assert_ne!(version().await, both, "a change of a plugin counts");
    let both = version().await;
    done(store, vec![set(ItemKind::Schedule, 0, 1)]).await;
    assert_ne!(version().await, both, "a change of a schedule counts");
    let both = version().await;
    done(store, vec![set(ItemKind::Trigger, 0, 1)]).await;
    assert_ne!(version().await, both, "a trigger applies from the next event on");
    let both = version().await;
    done(store, vec![set(ItemKind::Drain, 0, 1)]).await;
    assert_ne!(version().await, both, "a drained worker gets nothing from the next tick on");
    let both = version().await;
    done(store, vec![set(ItemKind::Schema, 0, 1)]).await;
    assert_ne!(version().await, both, "an older release stops at once");
    let both = version().await;
    let gone = Write::SetItem {
        kind: ItemKind::Type,
        name: "one".into(),
        was: 1,
        version: 2,
        bytes: None,
    };
    done(store, vec![gone]).await;
    assert_ne!(version().await, both);
}
