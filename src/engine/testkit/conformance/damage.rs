//! A job that cannot be read holds itself alone.

use super::{add, claim, commit, done, step};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{Encoding, Event, JobId},
    port::job_store::{
        Committed, CurrentRecord, DueQuery, Expect, JobStore, Key, ListQuery, Txn, Write,
    },
    queue::order::Order,
    time::Timestamp,
};

/// Every read goes on with the other jobs. A read by id and a list name the job.
pub async fn an_unreadable_job_is_missing_alone<S: JobStore>(
    store: &S,
    damage: impl AsyncFn(&S, &JobId),
) {
    let ids: Vec<JobId> = ["a", "b", "c"].map(name).into();
    let large = vec![b'1'; 5000];
    add(
        store,
        ids.iter().map(|id| {
            let job = job(id.as_str()).queue("mail").of_type("x").due(100).expires(200);
            job.data(Encoding::Json, large.clone()).build()
        }),
    )
    .await;
    damage(store, &ids[1]).await;
    let found = store.get(&ids).await.expect("the store answers");
    let readable: Vec<bool> = found.iter().map(Result::is_ok).collect();
    assert_eq!(readable, [true, false, true]);
    let unreadable = found[1].as_ref().expect_err("it was damaged");
    assert_eq!(unreadable.id, "b");
    assert!(!unreadable.reason.is_empty());
    let bodies = store.bodies(&ids).await.expect("the store answers");
    for index in [0, 2] {
        let body = bodies[index].as_ref().expect("it can be read").as_ref();
        assert_eq!(body.expect("it is there").bytes, large);
    }
    let query = DueQuery {
        queue: name("mail"),
        critical: false,
        types: vec![name("x")],
        partition: None,
        order: Order::Time { step_millis: 0 },
        until: at(150),
        after: None,
        limit: 2,
        granted: None,
    };
    let due = store.due(&[query]).await.expect("the store answers").remove(0);
    assert_eq!(due.jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    let overdue = store.overdue(at(250), None, 2).await.expect("the store answers").jobs;
    let mut overdue: Vec<&str> = overdue.iter().map(|job| job.id.as_str()).collect();
    overdue.sort_unstable();
    assert_eq!(overdue, ["a", "c"]);
    let query = ListQuery { limit: 2, ..ListQuery::default() };
    let page = store.list(&query).await.expect("the store answers");
    assert_eq!(page.jobs.len(), 2);
    let named: Vec<&str> = page.unreadable.iter().map(|job| job.id.as_str()).collect();
    assert!(named.iter().all(|id| *id == "b"), "{named:?}");
    let mut all = page.unreadable;
    let mut cursor = page.next_cursor;
    while cursor.is_some() {
        let next = store.list(&ListQuery { cursor, ..query.clone() }).await;
        let next = next.expect("the store answers");
        assert!(next.jobs.is_empty());
        all.extend(next.unreadable);
        cursor = next.next_cursor;
    }
    assert!(!all.is_empty(), "a list names what it leaves out");
}

/// A transaction that meets the job is refused with it. The others of its commit are not affected.
pub async fn a_write_at_an_unreadable_job_is_refused_alone<S: JobStore>(
    store: &S,
    damage: impl AsyncFn(&S, &JobId),
) {
    let holder = job("holder").of_type("x").build();
    let key = Key::Correlation(name("x"), "k".into());
    let set = |job: &str, was| Write::SetKey { key: key.clone(), job: name(job), was };
    done(store, vec![set("holder", Expect::Absent), Write::AddJob(holder.clone())]).await;
    let (revised, _) = step(&holder, claim(&holder, false), at(1));
    let (stale, _) = step(&holder, Event::Cancel { force: false }, at(1));
    done(store, vec![revised]).await;
    damage(store, &holder.id).await;
    let txns: Vec<Txn> = vec![
        vec![Write::AddJob(job("first").build())],
        vec![Write::AddJob(holder.clone())],
        vec![stale],
        vec![Write::AddJob(job("last").build())],
    ];
    let answers = store.commit(txns).await.expect("the store answers");
    for index in [0, 3] {
        assert!(matches!(answers[index], Committed::All), "{:?}", answers[index]);
    }
    for index in [1, 2] {
        let Committed::Conflict { current: CurrentRecord::Unreadable(job), .. } = &answers[index]
        else {
            panic!("{:?}", answers[index]);
        };
        assert_eq!(job.id, "holder");
    }
    let refused = commit(store, vec![set("other", Expect::Absent)]).await;
    let Committed::Conflict { current: CurrentRecord::Key { job, .. }, .. } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(job, holder.id);
}

/// A queue's first limit must know of every job that may run.
pub async fn an_unreadable_job_counts_as_running<S: JobStore>(
    store: &S,
    damage: impl AsyncFn(&S, &JobId),
) {
    for id in ["a", "b", "c"] {
        let waiting = job(id).queue("mail").build();
        let (write, _) = step(&waiting, claim(&waiting, false), at(1));
        done(store, vec![Write::AddJob(waiting)]).await;
        done(store, vec![write]).await;
    }
    damage(store, &name("b")).await;
    let running = store.running(&name("mail"), None, 10).await.expect("the store answers");
    let ids: Vec<String> = running
        .iter()
        .map(|job| match job {
            Ok(job) => job.id.to_string(),
            Err(job) => format!("unreadable {}", job.id),
        })
        .collect();
    assert_eq!(ids, ["a", "unreadable b", "c"]);
    store.keep_counts(Timestamp::MAX).await.expect("the store answers");
    let depth = store.depth(None).await.expect("the store answers").counts;
    let live: u64 = depth.iter().filter(|depth| depth.queue == name("mail")).map(|d| d.jobs).sum();
    assert_eq!(live, 3, "{depth:?}");
}
