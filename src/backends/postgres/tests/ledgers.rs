//! Ledgers that name batches.

use futures_util::future::join;

use super::server::{RUNTIME, open, settings, store};
use tidegate_core::{
    job::QueueName,
    port::job_store::{Committed, CurrentRecord, Expect, JobStore, Write},
    queue::{
        GrantBatch, Ledger,
        ledger::{BatchId, BatchRef, Bits},
    },
    stored::UnknownFields,
};
use tidegate_engine::testkit::builders::{at, job, name};

/// The writes of a ledger of `version`, which starts at 1: it names a batch of this number, and the last one
/// is removed. The first write is that of the ledger.
pub(super) fn ledger_writes(queue: &QueueName, version: u64) -> [Write; 3] {
    let named = BatchRef {
        id: BatchId(version),
        count: 0,
        released: Bits::default(),
        check_at: at(77),
        sent: true,
        sends: 0,
        unknown: UnknownFields::default(),
    };
    let ledger = Ledger { version, batches: vec![named], ..Ledger::default() };
    let was = if version == 1 { Expect::Absent } else { Expect::Is(version - 1) };
    let batch = GrantBatch {
        id: BatchId(version),
        ledger_version: version,
        grants: Vec::new(),
        state: None,
        unknown: UnknownFields::default(),
    };
    [
        Write::SetLedger { queue: queue.clone(), ledger, was },
        Write::AddBatch(queue.clone(), batch),
        Write::RemoveBatch(queue.clone(), BatchId(version - 1)),
    ]
}

#[test]
fn a_ledger_is_read_with_its_batches_while_it_is_replaced() {
    const VERSIONS: u64 = 300;
    let (settings, queue) = (settings(), name("mail"));
    let (writer, reader) = (open(&settings), open(&settings));
    let first = RUNTIME.block_on(writer.commit(vec![Vec::from(ledger_writes(&queue, 1))])).unwrap();
    assert!(matches!(first[..], [Committed::All]), "{first:?}");
    let ticks = async {
        for version in 2..=VERSIONS {
            let txn = Vec::from(ledger_writes(&queue, version));
            let answers = writer.commit(vec![txn]).await.unwrap();
            assert!(matches!(answers[..], [Committed::All]), "{answers:?}");
        }
    };
    let reads = async {
        loop {
            let (ledger, batches) = reader.ledger(&queue).await.unwrap().unwrap();
            let found: Vec<u64> = batches.iter().map(|batch| batch.id.0).collect();
            assert_eq!(found, [ledger.version]);
            if ledger.version == VERSIONS {
                break;
            }
        }
    };
    RUNTIME.block_on(join(ticks, reads));
}

#[test]
fn a_ledger_is_read_without_a_batch_that_is_lost() {
    let (settings, queue) = (settings(), name("mail"));
    let store = open(&settings);
    let [ledger, ..] = ledger_writes(&queue, 1);
    RUNTIME.block_on(store.commit(vec![vec![ledger]])).unwrap();
    let (ledger, batches) = RUNTIME.block_on(store.ledger(&queue)).unwrap().unwrap();
    assert_eq!((ledger.version, batches.len()), (1, 0));
}

/// It would wait for the rival's next tick, which claims the same jobs, and that one for it.
#[test]
fn a_superseded_tick_waits_for_no_lock_of_its_jobs() {
    let (store, queue) = (store(), name("mail"));
    let waiting = job("a").queue("mail").of_type("x").build();
    let mut first = Vec::from(ledger_writes(&queue, 1));
    first.push(Write::AddJob(waiting.clone()));
    let holder = RUNTIME.block_on(async {
        for txn in [first, Vec::from(ledger_writes(&queue, 2))] {
            let answers = store.commit(vec![txn]).await.unwrap();
            assert!(matches!(answers[..], [Committed::All]), "{answers:?}");
        }
        let link = store.readers.link().await.unwrap();
        let lock =
            "SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT FROM jobs FOR UPDATE";
        link.client.batch_execute(lock).await.unwrap();
        link
    });
    let mut late = Vec::from(ledger_writes(&queue, 2));
    late.push(Write::SetJob { was: waiting.life.revision, job: waiting, all: false });
    let answers = RUNTIME.block_on(store.commit(vec![late])).unwrap();
    let expected = Committed::Conflict { step: 0, current: CurrentRecord::Version(2) };
    assert_eq!(format!("{answers:?}"), format!("{:?}", [expected]));
    drop(holder);
}
