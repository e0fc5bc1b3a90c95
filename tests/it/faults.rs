//! The faulty store fails where its faults say, and nowhere else.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::sync::Arc;

use tidegate_core::{
    job::JobId,
    port::job_store::{JobStore, SharedStore, StoreError, Txn, Write},
};
use tidegate_engine::{
    memory::MemoryStore,
    testkit::{
        builders::{job, name},
        conformance::run,
        faults::{Faults, FaultyStore},
    },
};

fn adds(ids: std::ops::Range<usize>) -> Txn {
    ids.map(|n| Write::AddJob(job(&format!("job-{n}")).build())).collect()
}

/// How many of the jobs 0, 1, 2... are there, in a row from the first.
async fn there(store: &SharedStore) -> usize {
    let ids: Vec<JobId> = (0..100).map(|n| name(&format!("job-{n}"))).collect();
    let found: Vec<bool> =
        store.get(&ids).await.unwrap().iter().map(|job| matches!(job, Ok(Some(_)))).collect();
    let prefix = found.iter().take_while(|there| **there).count();
    assert!(!found[prefix..].contains(&true), "what is written is a prefix");
    prefix
}

fn faulty(seed: u64) -> FaultyStore {
    FaultyStore::new(Arc::new(MemoryStore::new()), seed)
}

#[test]
fn a_process_dies_after_every_prefix_of_its_writes() {
    run(async {
        let writes = {
            let store = faulty(1);
            store.commit(vec![adds(0..3), adds(3..7)]).await.unwrap();
            store.writes()
        };
        assert_eq!(writes, 7);
        for n in 0..writes {
            let store = faulty(1);
            store.crash_after(n);
            let answer = store.commit(vec![adds(0..3), adds(3..7)]).await;
            assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
            assert_eq!(there(store.inner()).await as u64, n);
            assert!(store.depth(None).await.is_err(), "the dead do not read");
            assert!(store.commit(vec![adds(50..51)]).await.is_err(), "nor write");
            store.revive();
            assert_eq!(
                store.depth(None).await.unwrap().counts.iter().map(|depth| depth.jobs).sum::<u64>(),
                n
            );
        }
    });
}

#[test]
fn each_fault_does_what_it_says() {
    let once = async |faults| {
        let store = faulty(3);
        store.set_faults(faults);
        let answer = store.commit(vec![adds(0..10)]).await;
        (answer, there(store.inner()).await)
    };
    run(async {
        let (answer, written) = once(Faults { lose_answer: 1.0, ..Faults::default() }).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))) && written == 10);
        let (answer, written) = once(Faults { unavailable: 1.0, ..Faults::default() }).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))) && written == 0);
        let (answer, written) = once(Faults { throttled: 1.0, ..Faults::default() }).await;
        assert!(matches!(answer, Err(StoreError::Throttled { .. })) && written == 0);
        let (answer, written) = once(Faults { reads: 1.0, ..Faults::default() }).await;
        assert!(answer.is_ok() && written == 10);
        let mut cuts = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let store = faulty(seed);
            store.set_faults(Faults { cut: 1.0, ..Faults::default() });
            assert!(store.commit(vec![adds(0..3)]).await.is_err());
            cuts.insert(there(store.inner()).await);
        }
        assert_eq!(cuts.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3], "every prefix comes up");
    });
}

#[test]
fn the_same_seed_makes_the_same_faults() {
    let history = async |seed| {
        let store = faulty(seed);
        store.set_faults(Faults {
            cut: 0.2,
            lose_answer: 0.2,
            unavailable: 0.2,
            throttled: 0.1,
            reads: 0.3,
        });
        let mut happened = Vec::new();
        for n in 0..50 {
            happened.push(format!("{:?}", store.commit(vec![adds(n..n + 2)]).await));
            happened.push(format!("{:?}", store.depth(None).await));
        }
        happened
    };
    run(async {
        assert_eq!(history(5).await, history(5).await);
        assert_ne!(history(5).await, history(6).await);
    });
}
