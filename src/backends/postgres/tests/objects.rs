//! Objects and notices in the database, and checks of it.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, poll, stream};
use object_store::{Error, ObjectStore, ObjectStoreExt as _, path::Path};

use ulid::Ulid;

use super::server::{RUNTIME, clock, open, settings, store};
use crate::postgres::PostgresNotices;
use tidegate_core::port::{
    ChangeBatch, HealthCheck as _, JobStore as _, Notice, Notices as _, Write,
    health_check::CheckLevel, notices::MAX_NOTICE_BYTES,
};
use tidegate_engine::testkit::builders::job;

async fn names(objects: &impl ObjectStore, prefix: &str, after: Option<&str>) -> Vec<String> {
    let prefix = Path::from(prefix);
    let found = match after {
        Some(after) => objects.list_with_offset(Some(&prefix), &Path::from(after)),
        None => objects.list(Some(&prefix)),
    };
    found.map_ok(|object| object.location.to_string()).try_collect().await.unwrap()
}

#[test]
fn objects_are_replaced_read_and_deleted_as_a_whole() {
    let objects = store().objects();
    RUNTIME.block_on(async {
        let path = Path::from("bodies/a");
        for bytes in [Bytes::from_static(b"short"), Bytes::from(vec![7; 3 << 20])] {
            objects.put(&path, bytes.clone().into()).await.unwrap();
            assert_eq!(objects.get(&path).await.unwrap().bytes().await.unwrap(), bytes);
            assert_eq!(objects.head(&path).await.unwrap().size, bytes.len() as u64);
            assert_eq!(objects.get_range(&path, 1..4).await.unwrap(), bytes.slice(1..4));
        }
        objects.delete(&path).await.unwrap();
        assert!(matches!(objects.get(&path).await, Err(Error::NotFound { .. })));
        assert!(matches!(objects.head(&path).await, Err(Error::NotFound { .. })));
        objects.delete(&path).await.unwrap();
    });
}

#[test]
fn a_list_of_objects_has_every_page_of_its_prefix() {
    let objects = store().objects();
    RUNTIME.block_on(async {
        let name = |number: usize| format!("many/{number:04}");
        for number in 0..1005 {
            objects.put(&Path::from(name(number)), Bytes::new().into()).await.unwrap();
        }
        for other in ["many0/x", "many-/x", "manya", "few/x"] {
            objects.put(&Path::from(other), Bytes::new().into()).await.unwrap();
        }
        let all: Vec<String> = (0..1005).map(name).collect();
        assert_eq!(names(&objects, "many", None).await, all);
        assert_eq!(names(&objects, "many", Some("many/0003")).await, all[4..]);
        assert_eq!(names(&objects, "many", Some("a")).await, all);
        assert_eq!(names(&objects, "", None).await.len(), 1009);
        let gone = all.iter().map(|name| Ok(Path::from(name.as_str())));
        let gone = objects.delete_stream(stream::iter(gone.collect::<Vec<_>>()).boxed());
        assert_eq!(gone.try_collect::<Vec<_>>().await.unwrap().len(), 1005);
        assert_eq!(names(&objects, "", None).await, ["few/x", "many-/x", "many0/x", "manya"]);
    });
}

#[test]
fn notices_reach_the_servers_of_a_store_and_no_others() {
    let settings = settings();
    let (one, other, foreign) = (open(&settings), open(&settings), store());
    let (one, other, foreign) =
        (one.notices(), Arc::new(other.notices()), Arc::new(foreign.notices()));
    RUNTIME.block_on(async {
        let receives = |notices: &Arc<PostgresNotices>| {
            let notices = Arc::clone(notices);
            tokio::spawn(async move { notices.receive().await.unwrap() })
        };
        let (other, foreign) = (receives(&other), receives(&foreign));
        let sent: BTreeSet<Notice> =
            [Notice::Queue("mail".parse().unwrap()), Notice::Tokens].into_iter().collect();
        // It may not listen yet.
        while !other.is_finished() {
            one.send(&sent).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert!(other.await.unwrap().is_subset(&sent));
        assert!(!foreign.is_finished());
        foreign.abort();
    });
}

#[test]
fn a_server_that_does_not_listen_finds_new_jobs_once() {
    let settings = settings();
    let (one, clock) = (open(&settings), clock());
    let other = open(&settings.without_notifications());
    let polling = other.notices();
    let add = |id: &str, queue: &str| {
        let job = job(id).queue(queue).build();
        RUNTIME.block_on(one.commit(vec![vec![Write::AddJob(job)]])).unwrap();
    };
    let id = |millis: u64, n: u128| {
        Ulid::from_parts(clock.now().millis() as u64 + millis, n).to_string().to_lowercase()
    };
    let queue = |name: &str| BTreeSet::from([Notice::Queue(name.parse().unwrap())]);
    // More than one read has. Ids that callers choose are after those that servers draw.
    for n in 0..=200 {
        add(&format!("order-{n}"), "orders");
    }
    add(&id(0, 5), "mail");
    assert_eq!(RUNTIME.block_on(polling.receive()).unwrap(), queue("mail"));
    // It was drawn before the one above, and committed later.
    add(&id(0, 3), "print");
    assert_eq!(RUNTIME.block_on(polling.receive()).unwrap(), queue("print"));
    add(&id(1, 0), "mail");
    assert_eq!(RUNTIME.block_on(polling.receive()).unwrap(), queue("mail"));
}

#[test]
fn the_largest_batches_of_changes_arrive_whole() {
    let settings = settings();
    let (one, other) = (open(&settings), open(&settings));
    let (one, other) = (one.notices(), other.notices());
    RUNTIME.block_on(async {
        // It may not listen yet.
        let mut first = other.receive();
        while poll!(&mut first).is_pending() {
            one.send(&[Notice::Tokens].into()).await.unwrap();
        }
        drop(first);
        let batch = |first| {
            let (server, json) = ("f".repeat(32), String::new());
            let mut batch = ChangeBatch { server, run: 1, first, count: 1, json };
            let room = MAX_NOTICE_BYTES - Notice::Changes(batch.clone()).to_string().len();
            batch.json = "\u{fc}".repeat(room / 2) + &"x".repeat(room % 2);
            Notice::Changes(batch)
        };
        let sent: BTreeSet<Notice> = (5..100).map(batch).collect();
        one.send(&sent).await.unwrap();
        let mut received = BTreeSet::new();
        while received.len() < sent.len() {
            let more = other.receive().await.unwrap();
            received.extend(more.into_iter().filter(|notice| *notice != Notice::Tokens));
        }
        assert_eq!(received, sent);
    });
}

#[test]
fn a_database_that_may_lose_jobs_is_found() {
    let checks = RUNTIME.block_on(store().health().checks());
    let levels: Vec<CheckLevel> = checks.iter().map(|check| check.level).collect();
    // That of the tests writes nothing to the disk, and has no standby.
    assert_eq!(levels, [CheckLevel::Error, CheckLevel::Note], "{checks:?}");
}
