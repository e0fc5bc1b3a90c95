//! A store in memory, moved to Postgres and back.

use std::{sync::Arc, time::Duration};

use object_store::memory::InMemory;

use super::server::{NOW, RUNTIME, clock, open, rows, settings};
use tidegate_core::{
    job::{Encoding, Event},
    port::{
        Movable,
        job_store::{
            Committed, Expect, ItemKind, JobStore as _, Key, Record, RecordKind, Txn, Write,
        },
    },
    queue::Ledger,
};
use tidegate_engine::{
    memory::MemoryStore,
    moves::{Comparison, Move, Side},
    testkit::builders::{job, name},
};

fn side(store: Arc<dyn Movable>, place: &str) -> Side {
    Side { store, objects: Arc::new(InMemory::new()), inbox: None, place: place.to_owned() }
}

/// Jobs in each state with bodies of each size, keys of each kind, a ledger and an item.
async fn fill(store: &MemoryStore) {
    let live = |n: usize| {
        let bytes = vec![b'1'; n * 40];
        Write::AddJob(job(&format!("live-{n:03}")).data(Encoding::Json, bytes).build())
    };
    let mut txns: Vec<Txn> = (1..250).map(|n| vec![live(n)]).collect();
    for n in 0..250 {
        let job = job(&format!("ended-{n:03}")).of_type("e").build();
        let ended = job.apply(Event::Cancel { force: false }, NOW).unwrap();
        txns.push(vec![
            Write::SetKey {
                key: Key::Correlation(name("keyed"), format!("\0{n}")),
                job: ended.id.clone(),
                was: Expect::Absent,
            },
            Write::SetKey {
                key: Key::Idempotency(format!("i{n}")),
                job: ended.id.clone(),
                was: Expect::Absent,
            },
            Write::AddJob(ended),
        ]);
    }
    let ledger = Ledger { version: 40, ..Ledger::default() };
    let queue = name("q");
    txns.push(vec![Write::SetLedger { queue, ledger, was: Expect::Absent }]);
    let (kind, bytes) = (ItemKind::Queue, Some(b"{}".to_vec()));
    txns.push(vec![Write::SetItem { kind, name: "q".into(), was: 0, version: 900, bytes }]);
    for answer in store.commit(txns).await.unwrap() {
        assert!(matches!(answer, Committed::All), "{answer:?}");
    }
}

async fn moved(this: &Move) -> Comparison {
    let mut begun = this.begin("one".into()).await.unwrap();
    this.copy(&mut begun, &|_, _| {}).await.unwrap();
    let comparison = this.compare(&|_, _| {}).await.unwrap();
    this.finish(&begun, &comparison).await.unwrap();
    comparison
}

#[test]
fn everything_goes_to_postgres_and_back() {
    let postgres = open(&settings());
    RUNTIME.block_on(async {
        let memory = MemoryStore::new();
        fill(&memory).await;
        let (from, to) = (side(Arc::new(memory), "memory"), side(Arc::new(postgres), "Postgres"));
        let back = side(Arc::new(MemoryStore::new()), "back");
        for (from, to) in [(&from, &to), (&to, &back)] {
            let this = Move { from: from.clone(), to: to.clone(), clock: clock() };
            let comparison = moved(&this).await;
            assert!(comparison.is_equal(), "{comparison:?}");
            let counted: Vec<u64> =
                comparison.parts.iter().map(|part| part.to).filter(|count| *count > 0).collect();
            assert_eq!(counted, [499, 1, 1], "jobs, ledgers, queues");
            assert!(to.store.items_version().await.unwrap() >= 900);
        }
        let counts = to.store.depth(None).await.unwrap().counts;
        assert_eq!(counts.iter().map(|depth| depth.jobs).sum::<u64>(), 499);
    });
}

#[test]
fn a_page_of_all_records_names_the_damaged_ones() {
    let (store, kind) = (open(&settings()), RecordKind::Audit);
    let put = |name: &str| {
        let (until, bytes) = (NOW + Duration::from_mins(1), b"{}".to_vec());
        vec![Write::PutRecord(Record { kind, name: name.to_owned(), until, bytes })]
    };
    RUNTIME.block_on(store.commit(["a", "b", "c"].map(put).into())).unwrap();
    rows(&store, "UPDATE records SET bytes = 'x' WHERE name = 'b'");
    let page = |after| {
        let page = RUNTIME.block_on(store.all_records(kind, after, 2)).unwrap();
        let names: Vec<String> = page.records.into_iter().map(|record| record.name).collect();
        (names, page.damaged, page.next)
    };
    assert_eq!(page(None), (vec!["a".into()], vec!["b".into()], Some("b".into())));
    assert_eq!(page(Some("b")), (vec!["c".into()], Vec::new(), None));
}
