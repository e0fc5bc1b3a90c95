//! The bucket of a server is out for a while, or PUTs arrive late. The server goes on by itself, and no
//! acknowledged job is lost.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{
    super::{crash::load, serve::Tidegate, wait::eventually},
    Client,
    clouds::CloudLog,
    jobs_by_key, leads, lose,
    stand_in::{Conditions, StandIn},
};

/// Jobs that are requested while the bucket is out.
const JOBS: usize = 20;
/// The time between two repeats of a request for such a job, in milliseconds.
const PAUSE: u64 = 100;

/// The key of a job and its id, once a request is acknowledged.
async fn enqueue(client: Arc<Client>, key: String) -> (String, String) {
    loop {
        if let Ok(id) = client.try_enqueue(&key).await {
            return (key, id);
        }
        load::work(PAUSE).await;
    }
}

/// Disturbs the bucket of a server for `span` milliseconds, and at least until the server notices it.
async fn loses_nothing(span: u64, disturb: impl Fn(&StandIn), repair: impl AsyncFn(&StandIn)) {
    let store = StandIn::start(Conditions::Obeyed);
    let log = CloudLog::google(&store);
    let leader = log.server().start().await;
    leader.job_type("t", json!({})).await;
    let client = Client::of(&leader.api.patient());
    let mut acknowledged = vec![enqueue(Arc::clone(&client), "before".to_owned()).await];

    disturb(&store);
    let waiting = (0..JOBS).map(|number| enqueue(Arc::clone(&client), format!("during-{number}")));
    let waiting = tokio::spawn(join_all(waiting));
    let api = leader.api.unchecked();
    let refused = eventually("the server is not ready", || async {
        let ready = api.get("/readyz").await;
        (ready.status == 503).then_some(ready)
    });
    let problem: Value = refused.await.is(503);
    assert!(problem["detail"].as_str().unwrap().contains("bucket of the log"), "{problem}");
    load::work(span).await;
    assert_eq!(api.get("/readyz").await.status, 503);
    assert_eq!(api.get("/healthz").await.status, 200, "no supervisor starts it again");
    assert!(!waiting.is_finished(), "nothing is acknowledged that is not in the bucket");

    repair(&store).await;
    leads(&leader).await;
    acknowledged.extend(waiting.await.unwrap());
    has_all(&leader, &acknowledged).await;
    assert_eq!(store.names("/epoch/").len(), 1, "the server has led all the time");

    lose(leader);
    let next = log.server().start().await;
    has_all(&next, &acknowledged).await;
    log.is_intact();
}

/// The server has these jobs, each once.
async fn has_all(server: &Tidegate, acknowledged: &[(String, String)]) {
    let stored = jobs_by_key(&server.api).await;
    for (key, id) in acknowledged {
        assert_eq!(stored.get(key), Some(id), "{key}");
    }
}

async fn loses_nothing_in_an_outage(span: u64) {
    let disturb = |store: &StandIn| store.set_out(true);
    loses_nothing(span, disturb, async |store: &StandIn| store.set_out(false)).await;
}

#[tokio::test]
async fn a_log_whose_bucket_is_out_loses_nothing() {
    loses_nothing_in_an_outage(0).await;
}

#[tokio::test]
#[ignore = "takes a minute; cargo xtask check --full runs it"]
async fn a_log_whose_bucket_is_out_for_a_minute_loses_nothing() {
    loses_nothing_in_an_outage(60_000).await;
}

/// All of them arrive at the end, and each record is in its slot once.
#[tokio::test]
#[ignore = "takes ten minutes; cargo xtask check --full runs it"]
async fn puts_held_for_ten_minutes_lose_nothing_of_a_log() {
    let disturb = |store: &StandIn| store.hold_puts("/log/log/", usize::MAX);
    loses_nothing(600_000, disturb, async |store: &StandIn| store.release_puts().await).await;
}

/// The leader sends the record again, and goes on. The first PUT of it arrives after the record was
/// removed, and puts it back into its slot.
#[tokio::test]
async fn a_put_that_arrives_after_a_truncation_does_no_harm() {
    let store = StandIn::start(Conditions::Obeyed);
    let log = CloudLog::google(&store);
    let first = log.server().start().await;
    first.job_type("t", json!({})).await;
    store.hold_puts("/log/log/0000000001/", 1);
    let mut acknowledged = vec![first.enqueue_a("t").await];
    let held = store.held_puts();
    let [slot] = held.as_slice() else { panic!("{held:?} are held back") };
    let is_filled = || !store.names(slot).is_empty();
    assert!(is_filled(), "the record is in the bucket");
    lose(first);

    let last = replaced_twice(&log, &store).await;
    eventually("the record is removed", || async { (!is_filled()).then_some(()) }).await;
    store.release_puts().await;
    assert!(is_filled(), "the slot was empty");
    acknowledged.push(last.enqueue_a("t").await);

    lose(last);
    let next = log.server().start().await;
    for id in acknowledged {
        assert_eq!(next.job(&id).await["id"], json!(id));
    }
    log.is_intact();
}

/// Two servers lead one after the other, each on an empty disk: the second one. Each makes a snapshot, and
/// the second one removes the records that the first snapshot replaces.
pub(super) async fn replaced_twice(log: &CloudLog, store: &StandIn) -> Tidegate {
    let server = log.server().start().await;
    let has_snapshot = || async { (!store.names("/manifest").is_empty()).then_some(()) };
    eventually("there is a snapshot", has_snapshot).await;
    lose(server);
    log.server().start().await
}
