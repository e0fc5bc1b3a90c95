//! The stream of changes of servers that share a store.

use super::*;
use crate::runtime::{
    changes::{ChangeFilter, ChangeReader},
    testing::{last_event_id, shown_events},
};

/// Longer than changes wait for their publication.
const PUBLISHED: Duration = Duration::from_millis(200);

impl Deployment {
    /// The next events, which come before `limit` is over.
    async fn next(&self, limit: Duration, reader: &mut ChangeReader) -> Vec<String> {
        let next = async {
            loop {
                let frames = reader.next().await.expect("the stream goes on");
                let events = shown_events(&frames);
                if !events.is_empty() {
                    return events;
                }
            }
        };
        self.within(limit, next).await
    }

    /// The owner of the queue, and the other server with a reader of the changes that `filter` matches.
    async fn with_reader(&self, filter: ChangeFilter) -> (Server, Server, ChangeReader) {
        let (owner, other) = self.two("default").await;
        owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        let mut reader = other.changes(filter, None).unwrap();
        assert_eq!(self.next(BY_NOTICE, &mut reader).await, ["ready false"]);
        (owner, other, reader)
    }
}

/// Enqueues a job. Returns the event of that.
async fn enqueue(server: &Server) -> String {
    let accepted = server.enqueue(job()).await.unwrap().job;
    format!("job {} scheduled", accepted.id)
}

/// The batches of changes that were sent.
fn batches(sent: &mut broadcast::Receiver<BTreeSet<Notice>>) -> usize {
    let mut count = 0;
    while let Ok(notices) = sent.try_recv() {
        count += notices.iter().filter(|notice| matches!(notice, Notice::Changes(_))).count();
    }
    count
}

#[tokio::test]
async fn a_reader_sees_what_all_servers_commit() {
    let deployment = Deployment::new();
    let (owner, other, mut reader) = deployment.with_reader(ChangeFilter::default()).await;
    for server in [&owner, &other, &owner] {
        let expected = enqueue(server).await;
        assert_eq!(deployment.next(PUBLISHED, &mut reader).await, [expected]);
    }
    owner.pause_queue(&name("default"), true).await.unwrap();
    assert_eq!(deployment.next(PUBLISHED, &mut reader).await, ["queue default"]);
    // No write of the store shows it.
    for _ in 0..2 {
        owner.register_worker("w", Registration::of_capacity(1)).await.unwrap();
    }
    assert_eq!(deployment.next(PUBLISHED, &mut reader).await, ["worker w registered"]);
    other.forget_worker("w", false).await.unwrap();
    assert_eq!(deployment.next(PUBLISHED, &mut reader).await, ["worker w removed"]);
}

#[tokio::test]
async fn readers_of_two_servers_see_the_same() {
    let deployment = Deployment::new();
    let (owner, other, mut one) = deployment.with_reader(ChangeFilter::default()).await;
    let mut two = owner.changes(ChangeFilter::default(), None).unwrap();
    assert_eq!(deployment.next(BY_NOTICE, &mut two).await, ["ready false"]);
    for server in [&owner, &other] {
        let expected = [enqueue(server).await];
        assert_eq!(deployment.next(PUBLISHED, &mut one).await, expected);
        assert_eq!(deployment.next(PUBLISHED, &mut two).await, expected);
    }
}

#[tokio::test]
async fn nothing_is_sent_without_a_reader() {
    let deployment = Deployment::new();
    let mut sent = deployment.sender.subscribe();
    let (owner, other, reader) = deployment.with_reader(ChangeFilter::default()).await;
    enqueue(&owner).await;
    deployment.pass(PUBLISHED).await;
    // Of the server without a reader: the beginning, and the job.
    assert_eq!(batches(&mut sent), 2);
    drop(reader);
    deployment.pass(Duration::from_secs(70)).await;
    batches(&mut sent);
    for server in [&owner, &other] {
        enqueue(server).await;
    }
    deployment.pass(2 * BEAT_INTERVAL).await;
    assert_eq!(batches(&mut sent), 0);
    // It begins again.
    let mut reader = other.changes(ChangeFilter::default(), None).unwrap();
    assert_eq!(deployment.next(BY_NOTICE, &mut reader).await, ["ready false"]);
    let expected = enqueue(&owner).await;
    assert_eq!(deployment.next(PUBLISHED, &mut reader).await, [expected]);
}

#[tokio::test]
async fn a_lost_batch_is_a_gap_for_every_reader() {
    let deployment = Deployment::new();
    let (owner, other, mut all) = deployment.with_reader(ChangeFilter::default()).await;
    let ids = [name("named")].into();
    let mut one = other.changes(ChangeFilter { ids, ..ChangeFilter::default() }, None).unwrap();
    assert_eq!(deployment.next(BY_NOTICE, &mut one).await, ["ready false"]);
    deployment.loses.store(true, Ordering::Relaxed);
    enqueue(&owner).await;
    deployment.pass(PUBLISHED).await;
    deployment.loses.store(false, Ordering::Relaxed);
    let named = NewJob { id: Some(name("named")), ..job() };
    owner.enqueue(named).await.unwrap();
    for reader in [&mut all, &mut one] {
        let events = deployment.next(PUBLISHED, reader).await;
        assert_eq!(events, ["skipped null", "job named scheduled"]);
    }
}

#[tokio::test]
async fn the_loss_of_the_last_batch_is_found_in_seconds() {
    let deployment = Deployment::new();
    let (owner, _other, mut reader) = deployment.with_reader(ChangeFilter::default()).await;
    deployment.loses.store(true, Ordering::Relaxed);
    enqueue(&owner).await;
    let events = deployment.next(4 * BEAT_INTERVAL, &mut reader).await;
    assert_eq!(events, ["skipped null"]);
    // It is reported once.
    deployment.loses.store(false, Ordering::Relaxed);
    deployment.pass(4 * BEAT_INTERVAL).await;
    let expected = enqueue(&owner).await;
    assert_eq!(deployment.next(PUBLISHED, &mut reader).await, [expected]);
}

#[tokio::test]
async fn a_reader_resumes_at_its_server_and_begins_again_elsewhere() {
    let deployment = Deployment::new();
    let (owner, other, reader) = deployment.with_reader(ChangeFilter::default()).await;
    drop(reader);
    let mut reader = other.changes(ChangeFilter::default(), None).unwrap();
    let ready = deployment.within(BY_NOTICE, reader.next()).await.unwrap();
    let id = last_event_id(&ready);
    drop(reader);
    let expected = [enqueue(&owner).await, enqueue(&other).await];
    deployment.pass(PUBLISHED).await;
    let mut resumed = other.changes(ChangeFilter::default(), Some(&id)).unwrap();
    assert_eq!(deployment.next(BY_NOTICE, &mut resumed).await, ["ready true"]);
    let mut events = deployment.next(PUBLISHED, &mut resumed).await;
    events.sort_unstable_by_key(|event| expected.iter().position(|it| it == event));
    assert_eq!(events, expected);
    let mut elsewhere = owner.changes(ChangeFilter::default(), Some(&id)).unwrap();
    let events = deployment.next(BY_NOTICE, &mut elsewhere).await;
    assert_eq!(events, ["ready false", "skipped null"]);
}

#[tokio::test]
async fn a_flood_of_another_server_is_skipped() {
    let deployment = Deployment::new();
    let (owner, _other, mut reader) = deployment.with_reader(ChangeFilter::default()).await;
    for _ in 0..2 {
        let flood: Vec<NewJob> = (0..1500).map(|_| job()).collect();
        assert!(owner.enqueue_many(flood).await.iter().all(Result::is_ok));
        let mut events = Vec::new();
        while !events.contains(&"skipped null".to_owned()) {
            events.extend(deployment.next(PUBLISHED, &mut reader).await);
        }
        let jobs = events.iter().filter(|event| event.starts_with("job ")).count();
        assert!((100..1000).contains(&jobs), "{jobs}");
        // What is left of it comes before what follows.
        deployment.pass(PUBLISHED).await;
        let last = enqueue(&owner).await;
        while events.last() != Some(&last) {
            events.extend(deployment.next(PUBLISHED, &mut reader).await);
        }
    }
}

#[tokio::test]
async fn the_changes_of_a_server_that_begins_later_are_seen() {
    let deployment = Deployment::new();
    let (_owner, _other, mut reader) = deployment.with_reader(ChangeFilter::default()).await;
    let third = deployment.start().await;
    let expected = enqueue(&third).await;
    let mut events = Vec::new();
    while !events.contains(&expected) {
        events.extend(deployment.next(BY_NOTICE, &mut reader).await);
    }
    events.retain(|event| *event != expected);
    assert!(!events.is_empty() && events.iter().all(|event| event == "skipped null"), "{events:?}");
}

#[tokio::test]
async fn a_reader_waits_for_a_dead_server_for_two_seconds() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    drop(owner);
    let mut reader = other.changes(ChangeFilter::default(), None).unwrap();
    let began = deployment.clock.now();
    let limit = Duration::from_millis(2100);
    assert_eq!(deployment.next(limit, &mut reader).await, ["ready false"]);
    assert!(deployment.clock.now().since(began) >= Duration::from_secs(2));
    // It may have committed what no server saw.
    let limit = 2 * BEAT_INTERVAL;
    assert_eq!(deployment.next(limit, &mut reader).await, ["skipped null"]);
}
