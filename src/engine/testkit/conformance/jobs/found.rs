//! Jobs are found by their state and by their `wake_at`.

use super::super::{add, claim, done, get, step};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{Event, Job},
    port::job_store::{JobStore, Write},
    time::Timestamp,
};

/// The running jobs of a queue are read in pages by id.
pub async fn running_jobs_are_read_by_id(store: &dyn JobStore) {
    let mut expected = Vec::new();
    for (n, id) in ["c", "a", "e", "B", "d", "0"].iter().enumerate() {
        let waiting = job(id).queue(if n == 4 { "other" } else { "mail" }).build();
        let (write, running) = step(&waiting, claim(&waiting, n % 2 == 0), at(1));
        done(store, vec![Write::AddJob(waiting)]).await;
        done(store, vec![write]).await;
        if *id == "e" {
            let (write, _) = step(&running, Event::Succeed { attempt: 1, result: None }, at(2));
            done(store, vec![write]).await;
        } else if n != 4 {
            expected.push(running);
        }
    }
    add(store, [job("waiting").queue("mail").build()]).await;
    expected.sort_by(|a, b| a.id.cmp(&b.id));
    let mut found: Vec<Job> = Vec::new();
    loop {
        let page = store
            .running(&name("mail"), found.last().map(|job| &job.id), 3)
            .await
            .expect("the store answers");
        assert!(page.len() <= 3);
        if page.is_empty() {
            break;
        }
        found.extend(page.into_iter().map(|job| job.expect("it can be read")));
    }
    assert_eq!(found, expected);
    assert!(store.running(&name("unknown"), None, 3).await.expect("the store answers").is_empty());
}

/// A job is overdue from its `wake_at` on, in every state; the earliest come first.
pub async fn overdue_jobs_come_earliest_first(store: &dyn JobStore) {
    let until = async |millis, limit| {
        let page = store.overdue(at(millis), None, limit).await.expect("the store answers");
        let ids: Vec<String> = page.jobs.iter().map(|job| job.id.to_string()).collect();
        for job in &page.jobs {
            assert_eq!(*job, get(store, job).await);
        }
        assert_eq!(page.next, None, "no job is unreadable");
        (ids, page.next_at.map(Timestamp::millis))
    };
    assert_eq!(until(10, 10).await, (vec![], None));
    add(
        store,
        [
            job("never").build(),
            job("third").expires(300).build(),
            job("first").expires(100).build(),
        ],
    )
    .await;
    let leased = job("second").build();
    add(store, [leased.clone()]).await;
    let (write, running) = step(&leased, claim(&leased, false), at(0));
    done(store, vec![write]).await;
    // Its lease ends at 30 s. The grant of a granted job watches it instead.
    let granted = job("granted").build();
    add(store, [granted.clone()]).await;
    done(store, vec![step(&granted, claim(&granted, true), at(0)).0]).await;
    assert_eq!(until(99, 10).await, (vec![], Some(100)));
    assert_eq!(until(100, 10).await, (vec!["first".into()], Some(300)));
    assert_eq!(until(300, 10).await, (vec!["first".into(), "third".into()], Some(30_000)));
    assert_eq!(until(30_000, 2).await, (vec!["first".into(), "third".into()], None));
    assert_eq!(
        until(30_000, 10).await,
        (vec!["first".into(), "third".into(), "second".into()], None)
    );
    // When a job ends, its `wake_at` becomes the end of its retention. A store that expires records
    // itself needs none.
    let (write, ended) = step(&running, Event::Cancel { force: true }, at(40));
    done(store, vec![write]).await;
    let dropped_at = (!store.capabilities().expires_natively).then_some(40 + 30 * 86_400_000);
    assert_eq!(until(30_000, 10).await, (vec!["first".into(), "third".into()], dropped_at));
    done(store, vec![Write::RemoveJob { id: ended.id.clone(), was: ended.life.revision }]).await;
    assert_eq!(until(30_000, 10).await, (vec!["first".into(), "third".into()], None));
}
