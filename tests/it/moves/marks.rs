//! The marks of a move: what may begin, and what an engine refuses.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use serde_json::json;
use tidegate_backends::system::SystemEntropy;
use tidegate_core::{
    job::JobId,
    port::{
        Inbox, InboxClosing, InboxDepth, InboxPage, InboxRequest, InboxRules, StoreError,
        job_store::{ItemKind, Write},
        policy::NoPolicy,
    },
};
use tidegate_engine::{
    Engine, Ports, Rules,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue},
    moves::{Role, Side, abort},
    testkit::builders::{job, name},
};

use super::{committed, empty, filled, item, moved, of, side};

/// Why an engine does not use the store of `side`; none if it does.
async fn refusal(side: &Side) -> Option<String> {
    let movable = Arc::clone(&side.store);
    let ports = Ports {
        store: movable,
        objects: Arc::clone(&side.objects),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(FakeClock::default()),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    };
    Engine::new(ports, Rules::default()).catalog().await.err().map(|error| error.to_string())
}

#[tokio::test]
async fn no_engine_uses_a_store_that_is_part_of_a_move() {
    let (from, to) = (filled().await, empty());
    let this = of(&from, &to);
    assert_eq!(refusal(&from).await, None);
    let mut begun = this.begin("one".into()).await.unwrap();
    let of_source = refusal(&from).await.unwrap();
    assert!(of_source.contains("it is being moved to the target"), "{of_source}");
    let of_target = refusal(&to).await.unwrap();
    assert!(of_target.contains("a part of what is being moved from the source"), "{of_target}");
    this.copy(&mut begun, &|_, _| {}).await.unwrap();
    let comparison = this.compare(&|_, _| {}).await.unwrap();
    assert!(refusal(&to).await.is_some(), "the move is not finished");
    this.finish(&begun, &comparison).await.unwrap();
    assert_eq!(refusal(&to).await, None);
    let of_source = refusal(&from).await.unwrap();
    assert!(of_source.contains("it was moved to the target"), "{of_source}");
    let again = moved(&this, "two").await.unwrap_err().to_string();
    assert!(again.contains("was moved to the target already"), "{again}");

    assert_eq!(abort(&from).await.unwrap().unwrap().role, Role::Moved);
    assert_eq!(refusal(&from).await, None);
    assert_eq!(abort(&from).await.unwrap(), None);
}

#[tokio::test]
async fn a_move_that_was_given_up_leaves_the_source_as_it_was() {
    let (from, to) = (filled().await, empty());
    of(&from, &to).begin("one".into()).await.unwrap();
    let other = side(Arc::new(MemoryStore::new()), "another target");
    let elsewhere = moved(&of(&from, &other), "two").await.unwrap_err().to_string();
    assert!(elsewhere.contains("is being moved to the target"), "{elsewhere}");
    let of_target = abort(&to).await.unwrap_err().to_string();
    assert!(of_target.contains("remove this one"), "{of_target}");
    abort(&from).await.unwrap().unwrap();
    assert_eq!(refusal(&from).await, None);
    let used = moved(&of(&from, &to), "two").await.unwrap_err().to_string();
    assert!(used.contains("part of another move"), "{used}");
    assert!(moved(&of(&from, &other), "two").await.unwrap().is_equal());
}

#[tokio::test]
async fn a_move_does_not_finish_another_move_of_its_source() {
    let (from, to) = (filled().await, empty());
    let this = of(&from, &to);
    let mut begun = this.begin("one".into()).await.unwrap();
    this.copy(&mut begun, &|_, _| {}).await.unwrap();
    let comparison = this.compare(&|_, _| {}).await.unwrap();
    abort(&from).await.unwrap().unwrap();
    let other = side(Arc::new(MemoryStore::new()), "another target");
    of(&from, &other).begin("two".into()).await.unwrap();
    let refused = this.finish(&begun, &comparison).await.unwrap_err().to_string();
    assert!(refused.contains("was given up meanwhile"), "{refused}");
    assert!(refusal(&to).await.is_some(), "no server may use the first target");
    assert!(moved(&of(&from, &other), "three").await.unwrap().is_equal());
}

#[tokio::test]
async fn a_target_with_data_and_an_empty_source_are_refused() {
    let from = filled().await;
    for write in [Write::AddJob(job("j").build()), item(ItemKind::Token, "t", 0, 1)] {
        let to = empty();
        committed(&*to.store, vec![write]).await;
        let refused = moved(&of(&from, &to), "one").await.unwrap_err().to_string();
        assert!(refused.contains("is not empty"), "{refused}");
        assert_eq!(refusal(&from).await, None, "nothing has changed");
    }
    let nothing = moved(&of(&empty(), &empty()), "one").await.unwrap_err().to_string();
    assert!(nothing.contains("nothing to move"), "{nothing}");
}

#[tokio::test]
async fn a_target_on_which_a_server_only_started_is_empty() {
    let (from, to) = (filled().await, empty());
    committed(&*to.store, vec![item(ItemKind::Schema, "of-kind", 0, 3)]).await;
    assert!(moved(&of(&from, &to), "one").await.unwrap().is_equal());
}

#[tokio::test]
async fn requests_of_applications_are_added_before_a_move() {
    let (store, to) = (Arc::new(MemoryStore::new()), empty());
    committed(&*store, vec![Write::AddJob(job("j").build())]).await;
    let id: JobId = name("requested");
    let request = InboxRequest {
        id: id.clone(),
        job_type: "work".into(),
        data: "1".into(),
        options: "{}".into(),
        run_at: None,
        delay: None,
        caller: "app".into(),
    };
    let number = store.draw_request_number();
    store.add_request(number, request);
    let from = Side { inbox: Some(Arc::clone(&store) as _), ..side(Arc::clone(&store) as _, "it") };
    let refused = moved(&of(&from, &to), "one").await.unwrap_err().to_string();
    assert!(refused.contains("applications have requested jobs"), "{refused}");
    assert_eq!(refusal(&from).await, None, "a server may add them");
    committed(&*store, vec![Write::TakeRequest(id)]).await;
    assert!(moved(&of(&from, &to), "one").await.unwrap().is_equal());
}

/// An inbox that a transaction uses until so many attempts to close it.
struct UsedInbox {
    store: Arc<MemoryStore>,
    attempts_left: AtomicU32,
}

#[async_trait]
impl Inbox for UsedInbox {
    async fn set_rules(&self, rules: InboxRules) -> Result<(), StoreError> {
        self.store.set_rules(rules).await
    }

    async fn close(&self) -> Result<InboxClosing, StoreError> {
        let left = self.attempts_left.load(Ordering::Relaxed);
        self.attempts_left.store(left.saturating_sub(1), Ordering::Relaxed);
        let users = || vec!["process 7 of role shop".to_owned()];
        Ok(if left == 0 { InboxClosing::Closed } else { InboxClosing::InUse(users()) })
    }

    async fn requests(&self, after: u64, until: u64, limit: u32) -> Result<InboxPage, StoreError> {
        assert_eq!(self.attempts_left.load(Ordering::Relaxed), 0, "it is read when it is closed");
        self.store.requests(after, until, limit).await
    }

    async fn depth(&self, limit: u32) -> Result<InboxDepth, StoreError> {
        self.store.depth(limit).await
    }

    async fn newest(&self) -> Result<u64, StoreError> {
        self.store.newest().await
    }

    async fn request(&self, id: &JobId) -> Result<Option<InboxRequest>, StoreError> {
        self.store.request(id).await
    }
}

#[tokio::test]
async fn a_transaction_that_may_have_requested_jobs_stops_a_move() {
    let store = Arc::new(MemoryStore::new());
    committed(&*store, vec![Write::AddJob(job("j").build())]).await;
    let used = |attempts| {
        let attempts_left = AtomicU32::new(attempts);
        let inbox = Arc::new(UsedInbox { store: Arc::clone(&store), attempts_left });
        Side { inbox: Some(inbox), ..side(Arc::clone(&store) as _, "it") }
    };
    let for_long = used(1000);
    let refused = moved(&of(&for_long, &empty()), "one").await.unwrap_err().to_string();
    assert!(refused.contains("are still open (process 7 of role shop)"), "{refused}");
    assert_eq!(refusal(&for_long).await, None, "servers may use it");
    assert!(moved(&of(&used(3), &empty()), "two").await.unwrap().is_equal());
}

#[tokio::test]
async fn a_job_that_cannot_be_read_stops_a_move() {
    let (store, to) = (Arc::new(MemoryStore::new()), empty());
    committed(&*store, vec![Write::AddJob(job("j").build())]).await;
    store.damage_job(&name("j"));
    let from = side(Arc::clone(&store) as _, "it");
    let error = moved(&of(&from, &to), "one").await.unwrap_err();
    assert!(error.to_string().contains("repair"), "{error}");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("job j"), "{error:?}");
    store.damage_job(&name("j"));
    assert!(moved(&of(&from, &to), "one").await.unwrap().is_equal());
}

#[tokio::test]
async fn a_bulk_operation_that_is_half_done_stops_a_move() {
    let from = filled().await;
    let operations = [
        (json!({"operation": {"id": "o"}, "cursor": "1_a"}), false),
        (json!({"operation": {"id": "o", "ended_at": null}, "cursor": "1_a"}), false),
        (
            json!({"operation": {"id": "o", "ended_at": "2026-01-01T00:00:00Z"}, "cursor": "1_a"}),
            true,
        ),
        (json!({"operation": {"id": "o"}, "cursor": null}), true),
    ];
    for (version, (operation, may_move)) in (0..).zip(operations) {
        let write = Write::SetItem {
            kind: ItemKind::Operation,
            name: "o".into(),
            was: version,
            version: version + 1,
            bytes: Some(operation.to_string().into_bytes()),
        };
        committed(&*from.store, vec![write]).await;
        let begun = of(&from, &empty()).begin("one".into()).await;
        assert_eq!(begun.is_ok(), may_move, "{operation}: {begun:?}");
        abort(&from).await.unwrap();
    }
}
