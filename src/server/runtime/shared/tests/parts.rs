//! Parts of what servers count: each is stored once, and added once.

use super::*;
use crate::runtime::testing::RefusingStore;
use tidegate_core::port::JobStore as _;

const SUBJECT: Subject = Subject::Triggers;

async fn contents(server: &Server) -> Vec<String> {
    server.inner.parts(SUBJECT).await.unwrap().contents()
}

async fn store(server: &Server, content: &str) -> Result<bool, Error> {
    server.inner.store_part(SUBJECT, || Some(content.to_owned())).await
}

#[tokio::test]
async fn two_servers_add_a_part_once() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two(SWEEP).await;
    assert!(store(&other, "first").await.unwrap());
    // Each has read the part before one of them adds it.
    let of_owner = owner.inner.parts(SUBJECT).await.unwrap();
    let of_other = other.inner.parts(SUBJECT).await.unwrap();
    assert_eq!(of_owner.contents::<String>(), ["first"]);
    assert!(owner.inner.add_parts(of_owner, Vec::new()).await.unwrap());
    assert!(!other.inner.add_parts(of_other, Vec::new()).await.unwrap());
    assert_eq!(contents(&other).await, [""; 0]);
    // Each of them may add the next one.
    for adds in [&other, &owner, &owner] {
        assert!(store(&owner, "next").await.unwrap());
        let parts = adds.inner.parts(SUBJECT).await.unwrap();
        assert_eq!(parts.contents::<String>(), ["next"]);
        let is_added = adds.inner.add_parts(parts, Vec::new()).await.unwrap();
        if !is_added {
            // It knew the turn before that of the other server, and reads it again.
            let parts = adds.inner.parts(SUBJECT).await.unwrap();
            assert!(adds.inner.add_parts(parts, Vec::new()).await.unwrap());
        }
        assert_eq!(contents(adds).await, [""; 0]);
    }
}

#[tokio::test]
async fn subjects_are_added_apart() {
    let deployment = Deployment::new();
    let server = deployment.start().await;
    assert!(store(&server, "of triggers").await.unwrap());
    let of_plugins = server.inner.parts(Subject::Plugins).await.unwrap();
    assert!(of_plugins.is_empty());
    assert!(server.inner.add_parts(of_plugins, Vec::new()).await.unwrap());
    assert_eq!(contents(&server).await, ["of triggers"]);
}

#[tokio::test]
async fn parts_that_no_server_adds_are_dropped() {
    let deployment = Deployment::new();
    let server = deployment.start().await;
    // None adds this one: its subject has no such content.
    let record = Record {
        kind: RecordKind::Part,
        name: "other-0".into(),
        until: server.now() + Duration::from_mins(10),
        bytes: b"{}".to_vec(),
    };
    deployment.memory.commit(vec![vec![Write::PutRecord(record)]]).await.unwrap();
    let is_there = async || {
        let prefix = "other-".to_owned();
        let query = RecordQuery { kind: RecordKind::Part, prefix, after: None, limit: 1 };
        !deployment.memory.records(&[query]).await.unwrap()[0].is_empty()
    };
    deployment.clock.advance(Duration::from_secs(590));
    server.inner.drop_old_parts().await.unwrap();
    assert!(is_there().await);
    deployment.clock.advance(Duration::from_secs(11));
    server.inner.drop_old_parts().await.unwrap();
    assert!(!is_there().await);
}

#[tokio::test]
async fn a_part_that_was_not_stored_is_stored_before_others() {
    let deployment = Deployment::new();
    let refusing = RefusingStore::new(Arc::clone(&deployment.memory) as _);
    let server = deployment.builder(Arc::clone(&refusing) as _, None, None).start().await.unwrap();
    refusing.refuse(true);
    assert!(store(&server, "first").await.is_err());
    refusing.refuse(false);
    let take = || -> Option<String> { panic!("the first one is not stored yet") };
    assert!(server.inner.store_part(SUBJECT, take).await.unwrap());
    assert_eq!(contents(&server).await, ["first"]);
    // In the same millisecond.
    assert!(store(&server, "second").await.unwrap());
    assert_eq!(contents(&server).await, ["first", "second"]);
    assert!(!server.inner.store_part(SUBJECT, || None::<String>).await.unwrap());
}
