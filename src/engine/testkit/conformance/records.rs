//! The small records: keys, heads and their batches, items.

use std::collections::BTreeMap;

use super::{add, commit, done, refused};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{Value, Version},
    port::job_store::{
        Committed, CurrentRecord, Expect, ItemKind, JobStore, Key, Purged, Record, RecordKind,
        RecordQuery, Write,
    },
    queue::{
        Grant, GrantBatch, Ledger, Rule,
        ledger::{BatchId, BatchRef, Bits, Bucket, KeptPolicyState, StateLocation},
        order::Position,
    },
};

/// A key points at one job, and is moved only by who knows at which.
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
            let (_, standing) = refused(store, vec![set(&other, was)]).await;
            assert!(
                matches!(&standing, CurrentRecord::Key { job, .. } if job.as_str() == mine),
                "{standing:?}"
            );
        }
        done(store, vec![set(&other, Expect::Is(name(&mine)))]).await;
    }
    let mut asked = keys.to_vec();
    asked.insert(1, Key::Unique(name("unheard-of"), text()));
    let found = store.keys(&asked).await.expect("the store is well");
    let expected = ["other-0", "", "other-1", "other-2", "other-3"].map(|id| id.parse().ok());
    assert_eq!(found, expected);
}

fn batch(id: u64, for_head: u64) -> GrantBatch {
    let grant = Grant {
        job: name("a:job"),
        version: Version(u64::MAX),
        job_type: name("invoice"),
        priority: -1,
        weight: 7,
        critical: true,
        attributes: BTreeMap::from([
            ("region".into(), Value::Text("east".into())),
            ("size".into(), Value::Number(5.into())),
        ]),
        granted_at: at(9),
    };
    GrantBatch { id: BatchId(id), for_head, grants: vec![grant; 3], state: None }
}

fn head(version: u64, batches: &[u64]) -> Ledger {
    let mut released = Bits::default();
    released.set(9);
    let named = |id: &u64| BatchRef {
        id: BatchId(*id),
        count: 3,
        released: released.clone(),
        check_at: at(77),
        sent: true,
        sends: 2,
    };
    Ledger {
        version,
        nonce: u64::MAX,
        config_version: 5,
        time: at(1_700_000_000_001),
        settling_until: Some(at(3)),
        scan_cursor: Some(Position {
            partition: "p".into(),
            priority: -9,
            run_at: at(-1),
            id: name("x"),
        }),
        last_partition: Some(String::new()),
        lap_start: Some("a".into()),
        buckets: BTreeMap::from([(("c".into(), "v".into()), Bucket { tokens: 0.125, at: at(4) })]),
        batches: batches.iter().map(named).collect(),
        held: BTreeMap::from([
            (Rule::Paused, at(1)),
            (Rule::TypeConcurrency(name("t")), at(2)),
            (Rule::Constraint("c".into(), Some("v".into())), at(3)),
            (Rule::Throttler(name("t")), at(4)),
        ]),
        policy: Some(KeptPolicyState {
            plugin: name("t"),
            state_version: 7,
            state: StateLocation::Inline(state("small")),
        }),
    }
}

fn state(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("key".to_owned(), value.to_owned())])
}

/// A head is read with the batches that it names and no others; unnamed ones are listed until they are removed.
pub async fn a_head_comes_with_the_batches_that_it_names(store: &dyn JobStore) {
    let queue = || name("mail");
    assert_eq!(store.ledger(&queue()).await.expect("the store is well"), None);
    assert_eq!(store.batches(&queue()).await.expect("the store is well"), []);
    let first = Write::SetLedger { queue: queue(), head: head(1, &[3, 1]), was: Expect::Absent };
    let added = [1, 2, 3].map(|id| Write::AddBatch(queue(), batch(id, 1)));
    done(
        store,
        added.into_iter().chain([Write::AddBatch(name("other"), batch(1, 8)), first]).collect(),
    )
    .await;
    let found = store.ledger(&queue()).await.expect("the store is well");
    assert_eq!(found, Some((head(1, &[3, 1]), vec![batch(3, 1), batch(1, 1)])));
    let all = store.batches(&queue()).await.expect("the store is well");
    assert_eq!(all, [(BatchId(1), 1), (BatchId(2), 1), (BatchId(3), 1)]);
    // A batch that was written for a commit that never came is written over by the next one.
    done(
        store,
        vec![Write::AddBatch(queue(), batch(2, 2)), Write::RemoveBatch(queue(), BatchId(9))],
    )
    .await;
    done(store, vec![Write::RemoveBatch(queue(), BatchId(1))]).await;
    assert_eq!(
        store.batches(&queue()).await.expect("the store is well"),
        [(BatchId(2), 2), (BatchId(3), 1)]
    );
    assert_eq!(store.batches(&name("other")).await.expect("the store is well"), [(BatchId(1), 8)]);
}

/// A throttler's state that is too large for the head is a batch that the head names apart from the others.
pub async fn a_head_comes_with_the_record_of_its_throttlers_state(store: &dyn JobStore) {
    let mut head = head(1, &[3]);
    head.policy = Some(KeptPolicyState {
        plugin: name("t"),
        state_version: 1,
        state: StateLocation::Batch(BatchId(8)),
    });
    let large = GrantBatch {
        id: BatchId(8),
        for_head: 1,
        grants: Vec::new(),
        state: Some(state(&"é".repeat(8000))),
    };
    let batches =
        [batch(3, 1), batch(5, 1), large.clone()].map(|batch| Write::AddBatch(name("mail"), batch));
    let set = Write::SetLedger { queue: name("mail"), head: head.clone(), was: Expect::Absent };
    done(store, batches.into_iter().chain([set]).collect()).await;
    let found = store.ledger(&name("mail")).await.expect("the store is well");
    assert_eq!(found, Some((head, vec![batch(3, 1), large])));
}

/// Of two who read the same head, one commits.
pub async fn a_head_is_replaced_only_at_its_version(store: &dyn JobStore) {
    let set =
        |version, was| Write::SetLedger { queue: name("mail"), head: head(version, &[]), was };
    assert!(matches!(
        refused(store, vec![set(2, Expect::Is(1))]).await,
        (0, CurrentRecord::Nothing)
    ));
    done(store, vec![set(1, Expect::Absent)]).await;
    done(store, vec![set(2, Expect::Is(1))]).await;
    for was in [Expect::Absent, Expect::Is(1), Expect::Is(3)] {
        assert!(matches!(refused(store, vec![set(9, was)]).await, (0, CurrentRecord::Version(2))));
    }
    let found = store.ledger(&name("mail")).await.expect("the store is well");
    assert_eq!(found, Some((head(2, &[]), vec![])));
}

/// Items are put, required and removed by version; each kind has names of its own.
pub async fn items_are_compared_before_they_are_set(store: &dyn JobStore) {
    let set = |kind, was, version, bytes: Option<&str>| {
        let bytes = bytes.map(|text| text.as_bytes().to_vec());
        Write::SetItem { kind, name: "mail".into(), was, version, bytes }
    };
    let require = |kind, version| Write::RequireItem { kind, name: "mail".into(), version };
    let kinds = [
        ItemKind::Queue,
        ItemKind::Type,
        ItemKind::Token,
        ItemKind::Operation,
        ItemKind::Plugin,
        ItemKind::Horizon,
        ItemKind::Schedule,
        ItemKind::ScheduleState,
        ItemKind::Trigger,
        ItemKind::Drain,
    ];
    for (n, kind) in kinds.into_iter().enumerate() {
        done(store, vec![require(kind, 0)]).await;
        assert!(matches!(
            refused(store, vec![require(kind, 1)]).await,
            (0, CurrentRecord::Nothing)
        ));
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
        done(store, vec![require(kind, 4), Write::AddJob(job(&format!("under-{n}")).build())])
            .await;
        done(store, vec![set(kind, 4, 5, Some("{\"é\": 1}"))]).await;
        let item = store.items(kind).await.expect("the store is well").remove(0);
        assert_eq!(
            (item.name.as_str(), item.version, item.bytes.as_slice()),
            ("mail", 5, "{\"é\": 1}".as_bytes())
        );
    }
    done(store, vec![set(ItemKind::Token, 5, 6, None)]).await;
    assert_eq!(store.items(ItemKind::Token).await.expect("the store is well"), []);
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
        .expect("the store is well")
        .into_iter()
        .map(|item| item.name)
        .collect();
    assert_eq!(names, ["B", "a", "b"], "by name");
    assert_eq!(store.items(ItemKind::Queue).await.expect("the store is well").len(), 1);
}

/// One number shows that a cached copy of the configuration is outdated.
pub async fn the_items_version_tells_of_queues_types_plugins_and_triggers(store: &dyn JobStore) {
    let version = async || store.items_version().await.expect("the store is well");
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
    assert_eq!(version().await, start, "nothing that somebody keeps a copy of");
    done(store, vec![set(ItemKind::Queue, 0, 1)]).await;
    let queue = version().await;
    assert_ne!(queue, start);
    done(store, vec![set(ItemKind::Type, 0, 1)]).await;
    let both = version().await;
    assert!(both != queue && both != start);
    refused(store, vec![set(ItemKind::Type, 0, 1)]).await;
    assert_eq!(version().await, both, "a refused one changes nothing");
    done(store, vec![set(ItemKind::Plugin, 0, 1)]).await;
    assert_ne!(version().await, both, "a swap of a plugin shows");
    let both = version().await;
    done(store, vec![set(ItemKind::Schedule, 0, 1)]).await;
    assert_ne!(version().await, both, "a schedule shows");
    let both = version().await;
    done(store, vec![set(ItemKind::Trigger, 0, 1)]).await;
    assert_ne!(version().await, both, "a trigger counts from the next event on");
    let both = version().await;
    done(store, vec![set(ItemKind::Drain, 0, 1)]).await;
    assert_ne!(version().await, both, "a drained worker gets nothing from the next round on");
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

fn record(kind: RecordKind, name: &str, until: i64) -> Record {
    Record {
        kind,
        name: name.into(),
        until: at(until),
        bytes: format!("{{\"of\": \"{name} é\"}}").into_bytes(),
    }
}

async fn names(
    store: &dyn JobStore,
    kind: RecordKind,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Vec<String> {
    let query = RecordQuery { kind, prefix: prefix.into(), after: after.map(str::to_owned), limit };
    let page = store.records(&[query]).await.expect("the store is well").remove(0);
    page.into_iter().map(|record| record.name).collect()
}

/// Records are read in pages by name, each kind on its own, and come back as they were.
pub async fn records_are_found_by_the_beginning_of_their_names(store: &dyn JobStore) {
    use RecordKind::{DeadLetter, Reply};
    let puts = [
        (Reply, "b-2"),
        (Reply, "a-1"),
        (DeadLetter, "b-9"),
        (Reply, "b-1"),
        (Reply, "b-10"),
        (Reply, "bb-1"),
        (Reply, "c"),
    ];
    done(store, puts.map(|(kind, name)| Write::PutRecord(record(kind, name, 5))).to_vec()).await;
    assert_eq!(names(store, Reply, "b-", None, 1000).await, ["b-1", "b-10", "b-2"]);
    assert_eq!(names(store, Reply, "b-", None, 2).await, ["b-1", "b-10"]);
    assert_eq!(names(store, Reply, "b-", Some("b-10"), 2).await, ["b-2"]);
    assert_eq!(names(store, Reply, "b-", Some("a"), 1).await, ["b-1"]);
    assert_eq!(names(store, Reply, "", Some("b-2"), 1000).await, ["bb-1", "c"]);
    assert_eq!(names(store, DeadLetter, "", None, 1000).await, ["b-9"]);
    let query =
        |kind, prefix: &str| RecordQuery { kind, prefix: prefix.into(), after: None, limit: 1 };
    let pages = store
        .records(&[query(DeadLetter, "b"), query(Reply, "x"), query(Reply, "c")])
        .await
        .expect("the store is well");
    assert_eq!(pages, [vec![record(DeadLetter, "b-9", 5)], vec![], vec![record(Reply, "c", 5)]]);
}

/// A record is written over by the next one of its name, removed whoever asks, and left alone by who means another.
pub async fn a_record_takes_the_place_of_one_of_its_name(store: &dyn JobStore) {
    let kind = RecordKind::Reply;
    let all = async || {
        let query = RecordQuery { kind, prefix: String::new(), after: None, limit: 10 };
        store.records(&[query]).await.expect("the store is well").remove(0)
    };
    done(store, vec![Write::PutRecord(record(kind, "a", 5))]).await;
    let large = Record { bytes: vec![b'x'; 300_000], ..record(kind, "a", 9) };
    done(store, vec![Write::PutRecord(large.clone())]).await;
    assert_eq!(all().await, [large]);
    let remove = |name: &str, until: Option<i64>| Write::RemoveRecord {
        kind,
        name: name.into(),
        until: until.map(at),
    };
    done(store, vec![remove("a", Some(5)), remove("b", None)]).await;
    assert_eq!(all().await.len(), 1, "it has another time by now");
    done(store, vec![Write::AddJob(job("with").build()), remove("a", Some(9))]).await;
    assert_eq!(all().await, []);
    done(store, vec![remove("a", None)]).await;
    // Within a refused transaction nothing is kept, where transactions are atomic.
    if store.capabilities().atomicity.is_atomic() {
        refused(
            store,
            vec![Write::PutRecord(record(kind, "a", 5)), Write::AddJob(job("with").build())],
        )
        .await;
        assert_eq!(all().await, []);
    }
}

/// What is over goes first, then what has the least time left, no more than asked for at once, and no other kind.
pub async fn a_purge_drops_what_is_over_and_what_is_too_much(store: &dyn JobStore) {
    let kind = RecordKind::DeadLetter;
    let puts = (0..10).map(|n| Write::PutRecord(record(kind, &format!("n{n}"), 100 - n)));
    done(store, puts.chain([Write::PutRecord(record(RecordKind::Reply, "r", 1))]).collect()).await;
    let purge = async |now: i64, keep: u64, limit: u32| {
        store.purge(kind, at(now), keep, limit).await.expect("the store is well")
    };
    assert_eq!(purge(90, 10, 100).await, Purged { expired: 0, over: 0, left: 10 });
    assert_eq!(purge(92, 10, 1).await, Purged { expired: 1, over: 0, left: 9 });
    assert_eq!(
        names(store, kind, "", None, 20).await.last().map(String::as_str),
        Some("n8"),
        "the oldest went"
    );
    assert_eq!(purge(92, 5, 100).await, Purged { expired: 1, over: 3, left: 5 });
    assert_eq!(names(store, kind, "", None, 20).await, ["n0", "n1", "n2", "n3", "n4"]);
    assert_eq!(purge(1000, 5, 100).await, Purged { expired: 5, over: 0, left: 0 });
    assert_eq!(names(store, RecordKind::Reply, "", None, 20).await, ["r"]);
}

/// Eight writers count up one head by compare and set; none of their steps is lost.
pub async fn of_many_writers_each_increment_counts_once(store: &dyn JobStore) {
    const WRITERS: u64 = 8;
    const STEPS: u64 = 25;
    std::thread::scope(|threads| {
        for _ in 0..WRITERS {
            threads.spawn(|| super::run(count_up(store, STEPS)));
        }
    });
    let (head, _) =
        store.ledger(&name("mail")).await.expect("the store is well").expect("it was set");
    assert_eq!((head.version, head.nonce), (WRITERS * STEPS, WRITERS * STEPS));
}

async fn count_up(store: &dyn JobStore, mut steps: u64) {
    while steps > 0 {
        let (was, mut head) = match store.ledger(&name("mail")).await.expect("the store is well") {
            Some((head, _)) => (Expect::Is(head.version), head),
            None => (Expect::Absent, Ledger::default()),
        };
        head.version += 1;
        head.nonce += 1;
        if matches!(
            commit(store, vec![Write::SetLedger { queue: name("mail"), head, was }]).await,
            Committed::All
        ) {
            steps -= 1;
        }
    }
}
