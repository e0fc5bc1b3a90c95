//! Records of every kind for a store, and everything that reads of them return.

use tidegate_core::{
    job::{Encoding, Event, QueueName, Token, Version},
    port::job_store::{
        DueQuery, Expect, ItemKind, JobStore, Key, ListQuery, Record, RecordKind, RecordQuery, Txn,
        Write,
    },
    queue::{
        Grant, GrantBatch, Ledger,
        ledger::{BatchId, BatchRef, Bits},
        order::Order,
    },
    stored::UnknownFields,
    time::{Seconds, Timestamp},
};
use tidegate_engine::testkit::builders::{at, job, name};

fn batch() -> GrantBatch {
    let grant = Grant {
        waits_until: None,
        job: name("runs"),
        version: Version(1),
        job_type: name("x"),
        priority: 0,
        weight: 1,
        critical: false,
        attributes: std::collections::BTreeMap::new(),
        granted_at: at(1),
        unknown: UnknownFields::default(),
    };
    let (id, unknown) = (BatchId(7), UnknownFields::default());
    GrantBatch { id, ledger_version: 1, grants: vec![grant], state: None, unknown }
}

fn ledger() -> Ledger {
    let named = BatchRef {
        id: BatchId(7),
        count: 1,
        released: Bits::default(),
        check_at: at(60_000),
        sent: true,
        sends: 0,
        unknown: UnknownFields::default(),
    };
    Ledger { version: 1, batches: vec![named], ..Ledger::default() }
}

/// Transactions for an empty store: the jobs `small`, `large`, `keyed` and `runs`, a ledger with a
/// batch, a queue and a record.
pub fn every_record() -> Vec<Txn> {
    let of = |id: &str| job(id).queue("mail").of_type("x");
    let runs = of("runs").build();
    let claim = Event::Claim {
        version: runs.life.version,
        token: Token::new(5),
        worker: None,
        lease: Seconds::new(30).duration(),
        granted: true,
        decided_at: at(1),
    };
    let claimed = runs.apply(claim, at(1)).unwrap();
    let keyed = of("keyed").with(|spec| spec.correlation_key = Some("order".into())).build();
    let key = Key::Correlation(name("x"), "order".into());
    let record =
        Record { kind: RecordKind::Reply, name: "r-1".into(), until: at(9), bytes: b"{}".to_vec() };
    let queue = serde_json::json!({"config": {"concurrency": 100}, "paused": false, "version": 1});
    let item = Write::SetItem {
        kind: ItemKind::Queue,
        name: "mail".into(),
        was: 0,
        version: 1,
        bytes: Some(queue.to_string().into_bytes()),
    };
    vec![
        vec![
            Write::AddJob(of("small").data(Encoding::Json, "[100]").build()),
            item,
            Write::PutRecord(record),
        ],
        vec![Write::AddJob(of("large").data(Encoding::Json, vec![b'1'; 3000]).build())],
        vec![
            Write::SetKey { key, job: keyed.id.clone(), was: Expect::Absent },
            Write::AddJob(keyed),
        ],
        vec![Write::AddJob(runs.clone())],
        vec![
            Write::SetJob { job: claimed, was: runs.life.revision, all: false },
            Write::AddBatch(name("mail"), batch()),
            Write::SetLedger { queue: name("mail"), ledger: ledger(), was: Expect::Absent },
        ],
    ]
}

/// Everything that reads of [`every_record`] return.
pub async fn every_answer(store: &dyn JobStore) -> String {
    let ids = ["small", "large", "keyed", "runs", "none"].map(name);
    let queue: &QueueName = &name("mail");
    let due = DueQuery {
        queue: queue.clone(),
        critical: false,
        types: vec![name("x")],
        partition: None,
        order: Order::Time { step_millis: 0 },
        until: Timestamp::MAX,
        after: None,
        limit: 100,
        granted: None,
    };
    let critical = DueQuery { critical: true, ..due.clone() };
    let keys = [Key::Correlation(name("x"), "order".into())];
    let list = ListQuery { limit: 100, ..ListQuery::default() };
    let records =
        RecordQuery { kind: RecordKind::Reply, prefix: String::new(), after: None, limit: 100 };
    store.keep_counts(Timestamp::MAX).await.unwrap();
    let mut depth = store.depth(None).await.unwrap().counts;
    depth.sort_by_key(|depth| depth.state);
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {depth:?}",
        store.get(&ids).await,
        store.bodies(&ids).await,
        store.due(&[due, critical]).await,
        store
            .partitions(
                queue,
                &[name("x")],
                Timestamp::MAX,
                None,
                9,
                &std::collections::BTreeSet::default()
            )
            .await,
        store.overdue(Timestamp::MAX, None, 100).await,
        store.running(queue, None, 100).await,
        store.ledger(queue).await,
        store.batches(queue).await,
        store.keys(&keys).await,
        store.list(&list).await.map(|page| page.jobs),
        store.items(ItemKind::Queue).await,
        store.records(&[records]).await,
    )
}
