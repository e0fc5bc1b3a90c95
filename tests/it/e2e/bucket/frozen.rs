//! Servers that are frozen while others lead one after the other, and remove records: what is thawed changes
//! nothing, and believes no old state.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use reqwest::Method;
use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};

use super::{
    super::{
        api::{Api, ApiAnswer},
        wait::eventually,
    },
    Bucket,
    clouds::CloudLog,
    contents::files,
    faults::replaced_twice,
    jobs_by_key, leads, lose,
    stand_in::{Conditions, StandIn},
};

/// Requests that are under way at a leader when it is frozen.
const REQUESTS: usize = 50;

/// A request for a job with this key.
fn request(server: &Api, key: &str) -> JoinHandle<Option<ApiAnswer>> {
    let (server, key) = (server.unchecked().patient(), key.to_owned());
    tokio::spawn(async move {
        let headers = [("content-type", "application/json")];
        let job = json!({"type": "t", "data": null, "correlation_key": key}).to_string();
        server.try_send(Method::POST, "/v1/jobs", &headers, job).await
    })
}

/// With several takeovers and a truncation, its own records are gone when it goes on.
#[tokio::test]
async fn a_leader_frozen_during_takeovers_acknowledges_nothing() {
    let bucket = Bucket::new();
    let mut frozen = bucket.server().start().await;
    frozen.job_type("t", json!({})).await;
    let early = request(&frozen.api, "early").await.unwrap().unwrap().is(201);
    let mut requests = Vec::new();
    for number in 0..REQUESTS {
        let key = format!("before-{number}");
        requests.push((request(&frozen.api, &key), key));
    }
    let is_answered =
        || async { requests.iter().any(|(request, _)| request.is_finished()).then_some(()) };
    eventually("the first one is answered", is_answered).await;
    kill(frozen.pid(), Signal::SIGSTOP).unwrap();
    let stopped_at = Instant::now();
    // They arrive while it is frozen.
    let late = request(&frozen.api, "late");
    let reader = frozen.api.unchecked().patient();
    let read = tokio::spawn(async move { reader.try_send(Method::GET, "/v1/jobs", &[], "").await });

    let root = bucket.0.path().join("log");
    // Names with `#` are of PUTs that have not ended.
    let count = |prefix: &str, end: &str| {
        let is_counted = |name: &&String| name.ends_with(end) && !name.contains('#');
        files(&root, prefix).iter().filter(is_counted).count()
    };
    let mut leader = bucket.server().start().await;
    for snapshots in 1..=2 {
        eventually("there is a snapshot", || async {
            (count("snap", "/manifest") >= snapshots).then_some(())
        })
        .await;
        lose(leader);
        leader = bucket.server().start().await;
    }
    // The seal is never removed.
    let is_truncated = || async { (count("log/0000000001", "") == 1).then_some(()) };
    eventually("its records are removed", is_truncated).await;
    // Until then it may answer reads: its last record is a proof of its leadership for a second.
    let is_unproved = || async { (stopped_at.elapsed() > Duration::from_secs(1)).then_some(()) };
    eventually("its last record is no proof any more", is_unproved).await;

    kill(frozen.pid(), Signal::SIGCONT).unwrap();
    let status = frozen.ended().await;
    assert_eq!(status.code(), Some(6), "{}", frozen.log());
    let stored = jobs_by_key(&leader.api).await;
    assert_eq!(early["id"].as_str(), stored.get("early").map(String::as_str));
    for (request, key) in requests {
        let Some(answer) = request.await.unwrap() else { continue };
        match answer.status {
            // Its record was in the log before the seal.
            ..300 => {
                let id = answer.value()["id"].as_str().map(str::to_owned);
                assert_eq!(id.as_ref(), stored.get(&key), "{key}");
            }
            503 if answer.value()["code"] == "not_leader" => assert_eq!(stored.get(&key), None),
            status => assert_eq!(status, 503, "{answer:?}"),
        }
    }
    for (what, answer) in [("late", late.await.unwrap()), ("read", read.await.unwrap())] {
        assert!(answer.as_ref().is_none_or(|answer| answer.status == 503), "{what}: {answer:?}");
    }
    assert!(!stored.contains_key("late"), "{stored:?}");
}

/// Its seal arrives in a slot that had a record and is empty again. A candidate that believed it would lead
/// without what the leader has acknowledged meanwhile.
#[tokio::test]
#[ignore = "takes half a minute; cargo xtask check --full runs it"]
async fn a_candidate_frozen_over_a_truncation_restores_the_log() {
    let store = StandIn::start(Conditions::Obeyed);
    let of_candidate = store.another_address();
    let log = CloudLog::google(&store);
    let leader = log.server().start().await;
    leader.job_type("t", json!({})).await;
    let mut acknowledged = vec![leader.enqueue_a("t").await];
    let standby = CloudLog::google(&of_candidate).server().switch("--standby");
    let candidate = standby.follow().await;
    let followed = candidate.api.unchecked();
    let shows = async |id: &str| {
        let path = format!("/v1/jobs/t/{id}");
        eventually("the standby shows the job", || async {
            (followed.get(&path).await.status == 200).then_some(())
        })
        .await;
    };
    shows(&acknowledged[0]).await;

    of_candidate.hold_puts("/log/log/0000000001/", 1);
    kill(leader.pid(), Signal::SIGSTOP).unwrap();
    let seals = || async { of_candidate.held_puts().pop() };
    let slot = eventually("the candidate seals the epoch", seals).await;
    kill(candidate.pid(), Signal::SIGSTOP).unwrap();
    kill(leader.pid(), Signal::SIGCONT).unwrap();
    acknowledged.push(leader.enqueue_a("t").await);
    let is_filled = || !store.names(&slot).is_empty();
    assert!(is_filled(), "the leader has gone on in the slot");
    lose(leader);

    let last = replaced_twice(&log, &store).await;
    eventually("the record is removed", || async { (!is_filled()).then_some(()) }).await;
    of_candidate.release_puts().await;
    assert!(is_filled(), "the seal is in the slot");
    acknowledged.push(last.enqueue_a("t").await);
    kill(candidate.pid(), Signal::SIGCONT).unwrap();
    shows(&acknowledged[2]).await;
    assert_eq!(followed.get("/readyz").await.status, 503, "it follows");

    lose(last);
    leads(&candidate).await;
    for id in acknowledged {
        assert_eq!(candidate.job(&id).await["id"], json!(id));
    }
    log.is_intact();
}
