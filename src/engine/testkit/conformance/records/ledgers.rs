//! Ledgers and their batches of grants.

use std::{collections::BTreeMap, sync::Arc};

use super::super::{commit, done, refused, run};
use crate::testkit::builders::{at, name};
use tidegate_core::{
    job::{Value, Version},
    port::{
        job_store::{Committed, CurrentRecord, Expect, JobStore, Write},
        policy::{StatePage, StateValue},
    },
    queue::{
        Grant, GrantBatch, Ledger, Rule,
        ledger::{BatchId, BatchRef, Bits, KeptPolicyState, StateLocation},
        order::Position,
        rate::{Bucket, RecentStarts},
    },
    stored::UnknownFields,
};

fn batch(id: u64, ledger_version: u64) -> GrantBatch {
    let grant = Grant {
        waits_until: None,
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
        unknown: UnknownFields::default(),
    };
    GrantBatch {
        id: BatchId(id),
        ledger_version,
        grants: vec![grant; 3],
        state: None,
        unknown: UnknownFields::default(),
    }
}

fn ledger(version: u64, batches: &[u64]) -> Ledger {
    let mut released = Bits::default();
    released.set(9);
    let named = |id: &u64| BatchRef {
        id: BatchId(*id),
        count: 3,
        released: released.clone(),
        check_at: at(77),
        sent: true,
        sends: 2,
        unknown: UnknownFields::default(),
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
            unknown: UnknownFields::default(),
        }),
        starts: BTreeMap::from([(("d".into(), "v".into()), RecentStarts::first(at(5)))]),
        unknown: UnknownFields::default(),
    }
}

fn state(value: &str) -> StatePage {
    BTreeMap::from([("key".to_owned(), value.into())])
}

/// A ledger is read with the batches that it names and no others. Other batches are listed until
/// they are removed.
pub async fn a_ledger_comes_with_the_batches_that_it_names(store: &dyn JobStore) {
    let queue = || name("mail");
    assert_eq!(store.ledger(&queue()).await.expect("the store answers"), None);
    assert_eq!(store.batches(&queue()).await.expect("the store answers"), []);
    let first =
        Write::SetLedger { queue: queue(), ledger: ledger(1, &[3, 1]), was: Expect::Absent };
    let added = [1, 2, 3].map(|id| Write::AddBatch(queue(), batch(id, 1)));
    done(
        store,
        added.into_iter().chain([Write::AddBatch(name("other"), batch(1, 8)), first]).collect(),
    )
    .await;
    let found = store.ledger(&queue()).await.expect("the store answers");
    assert_eq!(found, Some((ledger(1, &[3, 1]), vec![batch(3, 1), batch(1, 1)])));
    assert_eq!(store.newer_ledger(&queue(), 7).await.expect("the store answers"), found);
    assert_eq!(store.newer_ledger(&queue(), 1).await.expect("the store answers"), None);
    let all = store.batches(&queue()).await.expect("the store answers");
    assert_eq!(all, [(BatchId(1), 1), (BatchId(2), 1), (BatchId(3), 1)]);
    // A batch of a commit that never completed is overwritten by the next one.
    done(
        store,
        vec![Write::AddBatch(queue(), batch(2, 2)), Write::RemoveBatch(queue(), BatchId(9))],
    )
    .await;
    done(store, vec![Write::RemoveBatch(queue(), BatchId(1))]).await;
    assert_eq!(
        store.batches(&queue()).await.expect("the store answers"),
        [(BatchId(2), 2), (BatchId(3), 1)]
    );
    assert_eq!(store.batches(&name("other")).await.expect("the store answers"), [(BatchId(1), 8)]);
}

/// The pages of a throttler state that is too large for the ledger are batches, which the ledger
/// names separately. At most 64 of them come with it.
pub async fn a_ledger_comes_with_its_throttlers_state(store: &dyn JobStore) {
    let mut ledger = ledger(1, &[3]);
    ledger.policy = Some(KeptPolicyState {
        plugin: name("t"),
        state_version: 1,
        state: StateLocation::Pages((8..72).map(BatchId).collect()),
        unknown: UnknownFields::default(),
    });
    let page = |id| GrantBatch {
        id: BatchId(id),
        ledger_version: 1,
        grants: Vec::new(),
        state: Some(Arc::new(StatePage::from([
            ("stays".to_owned(), "é".repeat(2000).as_str().into()),
            ("ends".to_owned(), StateValue { text: "v".into(), expires_at: Some(at(9)) }),
        ]))),
        unknown: UnknownFields::default(),
    };
    let pages: Vec<GrantBatch> = (8..72).map(page).collect();
    let batches = [batch(3, 1), batch(5, 1)].into_iter().chain(pages.clone());
    let batches = batches.map(|batch| Write::AddBatch(name("mail"), batch));
    let set = Write::SetLedger { queue: name("mail"), ledger: ledger.clone(), was: Expect::Absent };
    done(store, batches.chain([set]).collect()).await;
    let found = store.ledger(&name("mail")).await.expect("the store answers");
    let named = [batch(3, 1)].into_iter().chain(pages).collect();
    assert_eq!(found, Some((ledger, named)));
}

/// Of two writers that read the same ledger, one commits.
pub async fn a_ledger_is_replaced_only_at_its_version(store: &dyn JobStore) {
    let set =
        |version, was| Write::SetLedger { queue: name("mail"), ledger: ledger(version, &[]), was };
    assert!(matches!(
        refused(store, vec![set(2, Expect::Is(1))]).await,
        (0, CurrentRecord::Nothing)
    ));
    done(store, vec![set(1, Expect::Absent)]).await;
    done(store, vec![set(2, Expect::Is(1))]).await;
    for was in [Expect::Absent, Expect::Is(1), Expect::Is(3)] {
        assert!(matches!(refused(store, vec![set(9, was)]).await, (0, CurrentRecord::Version(2))));
    }
    let found = store.ledger(&name("mail")).await.expect("the store answers");
    assert_eq!(found, Some((ledger(2, &[]), vec![])));
}

/// Eight writers increment one ledger by compare-and-set; no increment is lost.
pub async fn of_many_writers_each_increment_counts_once(store: &dyn JobStore) {
    const WRITERS: u64 = 8;
    const STEPS: u64 = 25;
    std::thread::scope(|threads| {
        for _ in 0..WRITERS {
            threads.spawn(|| run(count_up(store, STEPS)));
        }
    });
    let (ledger, _) =
        store.ledger(&name("mail")).await.expect("the store answers").expect("it was set");
    assert_eq!((ledger.version, ledger.nonce), (WRITERS * STEPS, WRITERS * STEPS));
}

async fn count_up(store: &dyn JobStore, mut steps: u64) {
    while steps > 0 {
        let (was, mut ledger) = match store.ledger(&name("mail")).await.expect("the store answers")
        {
            Some((ledger, _)) => (Expect::Is(ledger.version), ledger),
            None => (Expect::Absent, Ledger::default()),
        };
        ledger.version += 1;
        ledger.nonce += 1;
        if matches!(
            commit(store, vec![Write::SetLedger { queue: name("mail"), ledger, was }]).await,
            Committed::All
        ) {
            steps -= 1;
        }
    }
}
