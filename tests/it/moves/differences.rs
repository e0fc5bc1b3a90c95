//! Every difference between the two sides is found, in each part.

use object_store::{ObjectStoreExt as _, path::Path};
use tidegate_core::{
    job::{Encoding, Job, JobId},
    port::job_store::{Expect, ItemKind, Key, Txn, Write},
    queue::Ledger,
};
use tidegate_engine::{
    moves::{Part, Side, abort},
    testkit::builders::{job, name},
};

use super::{committed, empty, filled, item, of, record};

/// Changes the target of a move in `part`. There are three ways.
async fn plant(target: &Side, part: Part, way: usize) {
    let store = &*target.store;
    let txns: Vec<Txn> = match (part, way) {
        (Part::Objects, way) => {
            let (path, objects) = (Path::from("bodies/a"), &target.objects);
            match way {
                0 => objects.delete(&path).await.unwrap(),
                1 => drop(objects.put(&path, "bodY".into()).await.unwrap()),
                _ => drop(objects.put(&Path::from("bodies/b"), "b".into()).await.unwrap()),
            }
            return;
        }
        (Part::Jobs, 0) => vec![vec![remove(target, "small").await]],
        (Part::Jobs, 1) => {
            let large = store.get(&[name("large")]).await.unwrap().remove(0).unwrap().unwrap();
            let other = job("large").data(Encoding::Json, vec![b'2'; 3000]).build();
            let (was, all) = (large.life.revision, true);
            let changed = Job { data: other.data, ..large };
            vec![vec![Write::SetJob { job: changed, was, all }]]
        }
        (Part::Jobs, _) => vec![vec![Write::AddJob(job("extra").build())]],
        (Part::Ledgers, way) => {
            let queue = name("mail");
            let (ledger, _) = store.ledger(&queue).await.unwrap().unwrap();
            match way {
                0 => {
                    let was = Expect::Is(ledger.version);
                    let ledger = Ledger { version: ledger.version + 1, ..ledger };
                    vec![vec![Write::SetLedger { queue, ledger, was }]]
                }
                1 => vec![vec![Write::RemoveBatch(queue, ledger.batches[0].id)]],
                _ => {
                    let queue = name("extra");
                    vec![vec![Write::SetLedger { queue, ledger, was: Expect::Absent }]]
                }
            }
        }
        (Part::Records(kind), 0) => {
            vec![vec![Write::RemoveRecord { kind, name: "of-kind".into(), until: None }]]
        }
        (Part::Records(kind), 1) => {
            let mut changed = record(kind, "of-kind");
            changed.bytes.push(b'!');
            vec![vec![Write::PutRecord(changed)]]
        }
        (Part::Records(kind), _) => vec![vec![Write::PutRecord(record(kind, "a-extra"))]],
        (Part::Items(kind), 0) => vec![vec![Write::SetItem {
            kind,
            name: "of-kind".into(),
            was: 7,
            version: 8,
            bytes: None,
        }]],
        (Part::Items(kind), 1) => vec![vec![item(kind, "of-kind", 7, 8)]],
        (Part::Items(kind), _) => vec![vec![item(kind, "extra", 0, 1)]],
    };
    for txn in txns {
        committed(store, txn).await;
    }
}

async fn remove(side: &Side, id: &str) -> Write {
    let id: JobId = name(id);
    let job = side.store.get(std::slice::from_ref(&id)).await.unwrap().remove(0).unwrap().unwrap();
    Write::RemoveJob { id, was: job.life.revision }
}

#[tokio::test]
async fn a_difference_of_every_part_is_found_and_named() {
    let from = filled().await;
    for part in Part::all() {
        for way in 0..3 {
            let to = empty();
            let this = of(&from, &to);
            let mut begun = this.begin("one".into()).await.unwrap();
            this.copy(&mut begun, &|_, _| {}).await.unwrap();
            plant(&to, part, way).await;
            let comparison = this.compare(&|_, _| {}).await.unwrap();
            let differ = comparison.parts.iter().filter(|part| part.differences > 0);
            let differ: Vec<_> = differ.map(|it| (it.part, it.differences, &it.named)).collect();
            assert!(
                matches!(&differ[..], [(found, 1, named)] if *found == part && named.len() == 1),
                "{part} {way}: {differ:?}"
            );
            let refused = this.finish(&begun, &comparison).await.unwrap_err().to_string();
            assert!(refused.contains("differs"), "{refused}");
            abort(&from).await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_key_that_is_missing_or_leads_elsewhere_is_found() {
    let from = filled().await;
    let key = Key::Idempotency("i".into());
    let elsewhere = |id: &str| {
        let (job, was) = (name(id), Expect::Is(name("ended")));
        Write::SetKey { key: key.clone(), job, was }
    };
    // It is missing at one job then, and another one has it.
    for (change, differences) in [
        (elsewhere("small"), 2),
        (
            Write::SetKey {
                key: Key::Unique(name("x"), "more".into()),
                job: name("small"),
                was: Expect::Absent,
            },
            1,
        ),
    ] {
        let to = empty();
        let this = of(&from, &to);
        let mut begun = this.begin("one".into()).await.unwrap();
        this.copy(&mut begun, &|_, _| {}).await.unwrap();
        committed(&*to.store, vec![change]).await;
        let comparison = this.compare(&|_, _| {}).await.unwrap();
        let jobs = comparison.parts.iter().find(|it| it.part == Part::Jobs).unwrap();
        assert_eq!(jobs.differences, differences, "{:?}", jobs.named);
        abort(&from).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_check_compares_two_stores_without_marks() {
    let (from, to) = (filled().await, empty());
    super::moved(&of(&from, &to), "one").await.unwrap();
    let this = of(&from, &to);
    assert!(this.check(&|_, _| {}).await.unwrap().is_equal());
    committed(&*to.store, vec![item(ItemKind::Token, "extra", 0, 1)]).await;
    let comparison = this.check(&|_, _| {}).await.unwrap();
    let named: Vec<&String> = comparison.parts.iter().flat_map(|part| &part.named).collect();
    assert_eq!(named, ["extra is in the target alone"]);
}
