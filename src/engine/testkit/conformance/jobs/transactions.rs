//! Transactions: how far each one goes, and what it changes.

use super::{
    super::{add, claim, done, get, refused, step},
    is_all,
};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{Event, Revision},
    port::job_store::{Committed, CurrentRecord, Expect, JobStore, Key, Write},
};

/// A transaction stops at its first refused write and returns its index. An atomic store writes
/// nothing of it, another store writes what precedes it, and neither writes what follows.
pub async fn a_refused_write_stops_its_transaction(store: &dyn JobStore) {
    let taken = job("taken").build();
    add(store, [taken.clone()]).await;
    let key = |text: &str| Key::Idempotency(text.into());
    let set =
        |text: &str| Write::SetKey { key: key(text), job: taken.id.clone(), was: Expect::Absent };
    let bad = || Write::AddJob(job("taken").priority(1).build());
    let fresh = |id: &str| Write::AddJob(job(id).build());
    let txns = [
        (0, vec![bad(), fresh("a0"), set("k0")]),
        (1, vec![fresh("a1"), bad(), set("k1")]),
        (2, vec![set("k2"), fresh("a2"), bad()]),
        (0, vec![bad(), bad(), set("k3")]),
        (
            1,
            vec![
                fresh("a4"),
                Write::RemoveJob { id: name("absent"), was: Revision(1) },
                bad(),
                set("k4"),
            ],
        ),
    ];
    for (n, (first_bad, txn)) in txns.into_iter().enumerate() {
        let where_job = txn.iter().position(
            |write| matches!(write, Write::AddJob(job) if job.id.as_str().starts_with('a')),
        );
        let where_key = txn.iter().position(|write| matches!(write, Write::SetKey { .. }));
        let (step, current) = refused(store, txn).await;
        assert_eq!(step, first_bad, "transaction {n}");
        if n != 4 {
            assert!(matches!(&current, CurrentRecord::Job(job) if **job == taken), "{current:?}");
        }
        let atomic = store.capabilities().atomicity.is_atomic();
        let expected =
            |index: Option<usize>| !atomic && index.is_some_and(|index| index < first_bad);
        let added =
            store.get(&[name(&format!("a{n}"))]).await.expect("the store answers").remove(0);
        let added = added.expect("it can be read");
        let keyed =
            store.keys(&[key(&format!("k{n}"))]).await.expect("the store answers").remove(0);
        let keyed = keyed.expect("it can be read");
        assert_eq!(added.is_some(), expected(where_job), "the job of transaction {n}");
        assert_eq!(keyed.is_some(), expected(where_key), "the key of transaction {n}");
    }
}

/// `Write::Together` is atomic in every store, and is one step of its transaction.
pub async fn what_is_written_together_is_read_together(store: &dyn JobStore) {
    let (one, gone) = (job("one").build(), job("gone").build());
    add(store, [one.clone(), gone.clone()]).await;
    let (end, ended) = step(&one, Event::Cancel { force: false }, at(1));
    let sent = job("sent").build();
    let together =
        |id: &str, write: Write| Write::Together(vec![Write::AddJob(job(id).build()), write]);
    done(store, vec![Write::AddJob(job("before").build()), together("sent", end.clone())]).await;
    assert_eq!((get(store, &one).await, get(store, &sent).await), (ended.clone(), sent));
    let (step, current) =
        refused(store, vec![Write::AddJob(job("before-2").build()), together("unsent", end)]).await;
    assert_eq!(step, 1);
    assert!(matches!(&current, CurrentRecord::Job(job) if **job == ended), "{current:?}");
    assert_eq!(store.get(&[name("unsent")]).await.expect("the store answers"), [Ok(None)]);
    done(
        store,
        vec![together("sent-2", Write::RemoveJob { id: gone.id.clone(), was: Revision(1) })],
    )
    .await;
    assert_eq!(
        store
            .get(&[gone.id, name("sent-2")])
            .await
            .expect("the store answers")
            .iter()
            .flatten()
            .flatten()
            .count(),
        1
    );
}

/// Each transaction of a commit has its own answer, and sees the writes of those before it.
pub async fn each_transaction_of_a_commit_has_its_own_answer(store: &dyn JobStore) {
    let one = job("one").build();
    let (claimed, running) = step(&one, claim(&one, true), at(1));
    let txns = vec![
        vec![Write::AddJob(one.clone())],
        vec![Write::AddJob(job("one").priority(3).build())],
        vec![claimed.clone()],
        vec![claimed],
        vec![],
        vec![Write::AddJob(job("two").build())],
    ];
    let answers = store.commit(txns).await.expect("the store answers");
    let through: Vec<bool> = answers.iter().map(is_all).collect();
    assert_eq!(through, [true, false, true, false, true, true]);
    assert!(matches!(
        &answers[3],
        Committed::Conflict { step: 0, current: CurrentRecord::Job(job) } if **job == running
    ));
    assert_eq!(get(store, &one).await, running);
    assert!(store.commit(vec![]).await.expect("the store answers").is_empty());
}
