//! The transaction of a whole tick, cut between any two of its steps.

use super::{add, claim, done, get, refused, step};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{Event, Job, QueueName},
    port::job_store::{CurrentRecord, Expect, ItemKind, JobStore, Txn, Write},
    queue::{
        GrantBatch, Ledger,
        ledger::{BatchId, BatchRef, Bits},
    },
    stored::UnknownFields,
};

/// A queue in which one job runs and another waits, with the transaction of the tick that settles
/// the first and starts the second.
struct Tick {
    queue: QueueName,
    settled: Job,
    claimed: Job,
    txn: Txn,
}

fn ledger(version: u64, batch: u64) -> Ledger {
    let named = BatchRef {
        id: BatchId(batch),
        count: 0,
        released: Bits::default(),
        check_at: at(77),
        sent: true,
        sends: 0,
        unknown: UnknownFields::default(),
    };
    Ledger { version, batches: vec![named], ..Ledger::default() }
}

fn batch(id: u64) -> GrantBatch {
    GrantBatch {
        id: BatchId(id),
        ledger_version: id,
        grants: Vec::new(),
        state: None,
        unknown: UnknownFields::default(),
    }
}

async fn tick(store: &dyn JobStore, n: usize) -> Tick {
    let queue: QueueName = name(&format!("q-{n}"));
    let (runs, waits) = (
        job(&format!("runs-{n}")).queue(queue.as_str()).build(),
        job(&format!("waits-{n}")).queue(queue.as_str()).build(),
    );
    add(store, [runs.clone(), waits.clone()]).await;
    let (write, running) = step(&runs, claim(&runs, true), at(1));
    let item = |was, version| Write::SetItem {
        kind: ItemKind::Queue,
        name: queue.to_string(),
        was,
        version,
        bytes: Some(b"{}".to_vec()),
    };
    let first =
        Write::SetLedger { queue: queue.clone(), ledger: ledger(1, 1), was: Expect::Absent };
    done(store, vec![item(0, 1), write, Write::AddBatch(queue.clone(), batch(1)), first]).await;
    let attempt = running.life.attempt;
    let (settle, settled) = step(&running, Event::Succeed { attempt, result: None }, at(2));
    let (start, claimed) = step(&waits, claim(&waits, true), at(2));
    let txn = vec![
        settle,
        Write::RequireItem { kind: ItemKind::Queue, name: queue.clone().into(), version: 1 },
        Write::AddBatch(queue.clone(), batch(2)),
        Write::SetLedger { queue: queue.clone(), ledger: ledger(2, 2), was: Expect::Is(1) },
        start,
        Write::RemoveBatch(queue.clone(), BatchId(1)),
    ];
    Tick { queue, settled, claimed, txn }
}

/// Which parts of a tick are stored: the settled job, the new batch, the ledger, the claim, and the
/// removal of the old batch.
async fn stored(store: &dyn JobStore, tick: &Tick) -> [bool; 5] {
    let batches: Vec<u64> = store
        .batches(&tick.queue)
        .await
        .expect("the store answers")
        .into_iter()
        .map(|(id, _)| id.0)
        .collect();
    let (ledger, named) =
        store.ledger(&tick.queue).await.expect("the store answers").expect("there is a ledger");
    assert!(
        named == [batch(ledger.version)],
        "a ledger never names a missing batch: {ledger:?} {named:?}"
    );
    let (settled, claimed) = (
        get(store, &tick.settled).await == tick.settled,
        get(store, &tick.claimed).await == tick.claimed,
    );
    [settled, batches.contains(&2), ledger.version == 2, claimed, !batches.contains(&1)]
}

/// A transaction that is cut after some steps leaves the steps before the cut, or nothing in an
/// atomic store. Readers see a consistent state, and the remaining steps can be committed on their
/// own.
pub async fn a_ticks_transaction_is_cut_between_any_two_of_its_steps(store: &dyn JobStore) {
    for cut in 0..=6 {
        let tick = tick(store, cut).await;
        let never =
            Write::RequireItem { kind: ItemKind::Queue, name: "missing".into(), version: 1 };
        let (before, after) = tick.txn.split_at(cut);
        let (at, _) = refused(
            store,
            before.iter().cloned().chain([never]).chain(after.iter().cloned()).collect(),
        )
        .await;
        assert_eq!(at, cut);
        let (steps, rest) = if store.capabilities().atomicity.is_atomic() {
            (0, &tick.txn[..])
        } else {
            (cut, after)
        };
        let of = |steps| [0, 2, 3, 4, 5].map(|step| steps > step);
        assert_eq!(stored(store, &tick).await, of(steps), "cut after {cut} steps");
        done(store, rest.to_vec()).await;
        assert_eq!(stored(store, &tick).await, of(6), "cut after {cut} steps, and continued");
    }
}

/// A candidate that has changed since it was read refuses the transaction of the tick that claims it, at
/// the claim and with what is stored. A tick may claim what an earlier one has read.
pub async fn a_changed_candidate_refuses_the_tick_that_claims_it(store: &dyn JobStore) {
    let tick = tick(store, 0).await;
    let waits = job("waits-0").queue(tick.queue.as_str()).build();
    let (cancel, cancelled) = step(&waits, Event::Cancel { force: false }, at(2));
    done(store, vec![cancel]).await;
    let (index, current) = refused(store, tick.txn.clone()).await;
    assert_eq!(index, 4, "the claim is refused");
    assert!(matches!(&current, CurrentRecord::Job(job) if **job == cancelled), "{current:?}");
    let steps = if store.capabilities().atomicity.is_atomic() { 0 } else { 4 };
    assert_eq!(stored(store, &tick).await, [0, 2, 3, 4, 5].map(|step| steps > step));
}
