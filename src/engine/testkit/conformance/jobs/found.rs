//! Jobs are found by their state and by their `wake_at`.

use super::super::{add, claim, done, get, step};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{Body, Encoding, Event, Job, lifecycle::ResultBody, spec::KeepResult},
    port::job_store::{JobStore, Write},
    time::{Seconds, Timestamp},
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
        assert!(page.next_at.is_none_or(|next| next > at(millis)), "{page:?}");
        (ids, page.next_at.map(Timestamp::millis))
    };
    // A store that expires records itself may give an earlier instant.
    let expires = store.capabilities().expires_natively;
    let check = |(ids, found): (Vec<String>, Option<i64>), expected: &[&str], next: Option<i64>| {
        assert_eq!(ids, expected);
        if !expires {
            assert_eq!(found, next);
        } else if let Some(next) = next {
            assert!(found.is_some_and(|found| found <= next), "{found:?}, and {next}");
        }
    };
    check(until(10, 10).await, &[], None);
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
    check(until(99, 10).await, &[], Some(100));
    check(until(100, 10).await, &["first"], Some(300));
    check(until(300, 10).await, &["first", "third"], Some(30_000));
    check(until(30_000, 2).await, &["first", "third"], None);
    check(until(30_000, 10).await, &["first", "third", "second"], None);
    // When a job ends, its `wake_at` becomes the end of its retention. A store that expires records
    // itself returns no such job, but may have to look at what it leaves behind.
    let (write, ended) = step(&running, Event::Cancel { force: true }, at(40));
    done(store, vec![write]).await;
    let dropped_at = 40 + 30 * 86_400_000;
    check(until(30_000, 10).await, &["first", "third"], Some(dropped_at).filter(|_| !expires));
    done(store, vec![Write::RemoveJob { id: ended.id.clone(), was: ended.life.revision }]).await;
    check(until(30_000, 10).await, &["first", "third"], None);
}

/// An ended job is overdue when the time of a result that is an object is over, and again at the end
/// of its retention: a sweep then deletes its objects.
pub async fn ended_jobs_are_overdue_while_they_name_objects(store: &dyn JobStore) {
    let object = |key: &str, len| Body::Object { encoding: Encoding::Json, key: key.into(), len };
    let waiting = job("object").with(|spec| {
        spec.keep_result = KeepResult::For(Seconds::new(60));
        spec.retention = Seconds::new(600);
    });
    let waiting = Job { data: object("bodies/a", 9000), ..waiting.build() };
    add(store, [waiting.clone()]).await;
    let (write, running) = step(&waiting, claim(&waiting, true), at(0));
    done(store, vec![write]).await;
    let result = ResultBody::of(&object("bodies/b", 20_000));
    let (write, ended) = step(&running, Event::Succeed { attempt: 1, result }, at(1000));
    done(store, vec![write]).await;
    let until = async |millis| {
        let page = store.overdue(at(millis), None, 10).await.expect("the store answers");
        assert!(page.jobs.len() < 2, "it is one job");
        page.jobs.into_iter().next()
    };
    assert_eq!(until(60_999).await, None);
    // With the result, although reads may hide it from now on.
    assert_eq!(until(61_000).await.as_ref(), Some(&ended));
    let (write, forgotten) = step(&ended, Event::ForgetResult, at(61_000));
    done(store, vec![write]).await;
    assert_eq!(until(600_999).await, None);
    // A store may wait for requests that are under way.
    assert_eq!(until(661_000).await.as_ref(), Some(&forgotten));
    done(store, vec![Write::RemoveJob { id: ended.id, was: forgotten.life.revision }]).await;
    assert_eq!(until(661_000).await, None);
}
