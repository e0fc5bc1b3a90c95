//! `tidegate dev`: a server whose clock a test moves.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tidegate_core::time::Timestamp;

use super::{
    serve::{Setup, Tidegate},
    wait::eventually,
};

const CLOCK: &str = "/v1/dev/clock";
const HOUR: Duration = Duration::from_hours(1);

/// The server, with a frozen clock, and what the clock shows.
async fn frozen() -> (Tidegate, Timestamp) {
    let tide = Setup::dev().start().await;
    let clock = tide.post(CLOCK, json!({"freeze": true})).await.is(200);
    assert_eq!(clock["frozen"], true);
    (tide, instant(&clock["now"]))
}

fn instant(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_job_due_in_an_hour_runs_once_the_clock_is_there() {
    let (tide, start) = frozen().await;
    tide.job_type("t", json!({})).await;
    let id = tide.enqueue(json!({"type": "t", "data": 1, "delay_seconds": 3600})).await;
    let job = tide.job(&id).await;
    assert_eq!((&job["phase"], instant(&job["run_at"])), (&json!("scheduled"), start + HOUR));

    let early = tide.post(CLOCK, json!({"advance_seconds": 3599})).await.is(200);
    assert_eq!(instant(&early["now"]), start + HOUR - Duration::from_secs(1));
    let asked = json!({"types": ["t"], "max": 1, "wait_seconds": 0});
    assert_eq!(tide.post("/v1/leases", asked).await.is(200)["leases"], json!([]));

    // A lease request that waits gets it when the clock moves.
    let (api, asked) = (tide.api.clone(), json!({"types": ["t"], "max": 1, "wait_seconds": 30}));
    let waiting = tokio::spawn(async move { api.post("/v1/leases", asked).await.is(200) });
    tide.post(CLOCK, json!({"advance_seconds": 1})).await.is(200);
    let lease = waiting.await.unwrap()["leases"][0].clone();
    assert_eq!(lease["job"]["id"], json!(id));
    assert_eq!(instant(&lease["job"]["started_at"]), start + HOUR);
    assert_eq!(tide.job(&id).await["running"]["waited_ms"], 0);
}

/// Its clock is moved, and others may use that store.
#[tokio::test]
async fn a_store_of_the_environment_is_left_alone() {
    let store = "postgres://127.0.0.1:1/jobs";
    let tide = Setup::dev().env("TIDEGATE_STORE", store).start().await;
    tide.job_type("t", json!({})).await;
    tide.enqueue_a("t").await;
}

#[tokio::test]
async fn a_lease_expires_when_the_clock_passes_its_end() {
    let (tide, start) = frozen().await;
    let retry =
        json!({"strategy": "exponential", "config": {"base_seconds": 600, "jitter": "none"}});
    tide.job_type("t", json!({"lease_seconds": 60, "retry": retry})).await;
    let id = tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    tide.post(CLOCK, json!({"advance_seconds": 59})).await.is(200);
    assert_eq!(tide.job(&id).await["phase"], "running");
    tide.post(CLOCK, json!({"advance_seconds": 1})).await.is(200);
    let job = eventually("its lease has expired", || async {
        Some(tide.job(&id).await).filter(|job| job["phase"] == "retrying")
    })
    .await;
    let entry = &job["history"][0];
    assert_eq!(
        (&entry["error"]["reason"], &entry["duration_ms"]),
        (&json!("lease_expired"), &json!(60_000))
    );
    tide.report(&lease, "succeeded").await.problem(409, "stale_attempt");

    // The next one is retried when its time comes.
    let id = tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "failed").await.is(200);
    let at = instant(&tide.job(&id).await["run_at"]);
    assert_eq!(at, start + Duration::from_mins(11));
    tide.post(CLOCK, json!({"set": at})).await.is(200);
    assert_eq!(tide.lease_one("t").await.attempt, 2);
}

#[tokio::test]
async fn requests_wait_in_real_time_while_the_clock_is_frozen() {
    let (tide, _) = frozen().await;
    tide.job_type("t", json!({})).await;
    tide.job_type("u", json!({})).await;
    for types in [json!(["t"]), json!(["t", "u"])] {
        let asked = json!({"types": types, "max": 1, "wait_seconds": 0.3});
        assert_eq!(tide.post("/v1/leases", asked).await.is(200)["leases"], json!([]));
    }
    let id = tide.enqueue_a("t").await;
    tide.get(&format!("/v1/jobs/t/{id}/result?wait=0.3")).await.problem(408, "wait_timeout");
    // A moved clock that runs does not end a wait, nor make it longer.
    tide.post(CLOCK, json!({"freeze": false})).await.is(200);
    tide.post(CLOCK, json!({"advance_seconds": 86_400})).await.is(200);
    let asked = json!({"types": ["u"], "max": 1, "wait_seconds": 0.3});
    assert_eq!(tide.post("/v1/leases", asked).await.is(200)["leases"], json!([]));
    tide.get(&format!("/v1/jobs/t/{id}/result?wait=0.3")).await.problem(408, "wait_timeout");
}

#[tokio::test]
async fn the_doctor_compares_jobs_with_the_moved_clock() {
    let (tide, _) = frozen().await;
    tide.post(CLOCK, json!({"advance_seconds": 7200})).await.is(200);
    tide.job_type("t", json!({})).await;
    tide.enqueue_a("t").await;
    let doctor = tide.get("/v1/doctor").await.is(200);
    let checks = doctor["checks"].as_array().unwrap();
    assert!(!checks.is_empty());
    let clock: Vec<_> = checks.iter().filter(|check| check["about"] == "clock").collect();
    assert!(clock.iter().all(|check| check["level"] == "ok"), "{clock:?}");
}

#[tokio::test]
async fn a_wrong_move_names_its_field_and_changes_nothing() {
    let (tide, start) = frozen().await;
    for (wrong, field) in [
        (json!({}), "freeze"),
        (json!({"freeze": true, "advance_seconds": 1}), "freeze"),
        (json!({"advance_seconds": 1, "set": "2100-01-01T00:00:00Z"}), "set"),
        (json!({"advance_seconds": -1}), "advance_seconds"),
        (json!({"advance_seconds": 3_155_760_001_u64}), "advance_seconds"),
        (json!({"set": "2001-01-01T00:00:00Z"}), "set"),
        (json!({"set": "tomorrow"}), "set"),
        (json!({"freeze": "yes"}), "freeze"),
    ] {
        tide.post(CLOCK, wrong).await.blames(400, "invalid_field", field);
    }
    tide.post(CLOCK, json!({"now": 1})).await.problem(400, "unknown_field");
    let clock = tide.get(CLOCK).await.is(200);
    assert_eq!((instant(&clock["now"]), &clock["frozen"]), (start, &json!(true)));
}

#[tokio::test]
async fn an_ordinary_server_refuses_to_move_its_clock() {
    let tide = Tidegate::start().await;
    tide.get(CLOCK).await.problem(404, "not_a_dev_server");
    tide.post(CLOCK, json!({"freeze": true})).await.problem(404, "not_a_dev_server");
    let ran = tide.cli(&["dev", "clock", "--advance", "1h"]).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.err.contains("not_a_dev_server"), "{ran:?}");
    // Nor does a server for development take its data.
    let stopped = tide.stop().await;
    let refused = Setup::dev().flag("--dir", stopped.data().to_str().unwrap()).refused().await;
    assert_eq!(refused.0.code(), Some(2), "{}", refused.1);
    assert!(refused.1.contains("--dir: "), "{}", refused.1);
}

/// Every address of the machine, and a free port.
const EVERY_ADDRESS: &str = "0.0.0.0:0";

/// The token that a server for other machines has printed.
async fn printed_token(tide: &Tidegate) -> String {
    eventually("the token is printed", || async {
        let log = tide.log();
        let (_, rest) = log.split_once("Admin token: ")?;
        rest.split_once('\n').map(|(token, _)| token.to_owned())
    })
    .await
}

#[tokio::test]
async fn a_dev_server_for_other_machines_prints_its_token() {
    let tide = Setup::dev().flag("--listen", EVERY_ADDRESS).start().await;
    tide.get("/v1/queues").await.problem(401, "unauthorized");
    let admin = tide.with_token(&printed_token(&tide).await);
    admin.get("/v1/tokens").await.is(200);
    admin.post(CLOCK, json!({"freeze": true})).await.is(200);
    // Stored tokens do not replace it.
    admin.post("/v1/tokens", json!({"name": "ci", "scopes": ["admin"]})).await.is(201);
    admin.get("/v1/tokens").await.is(200);

    let given = "tg_ci_0123456789";
    let setup = Setup::dev().flag("--listen", EVERY_ADDRESS);
    let tide = setup.env("TIDEGATE_TOKEN", given).start().await;
    assert_eq!(printed_token(&tide).await, "the one that was given");
    assert!(!tide.log().contains(given), "it is a secret of its owner");
    tide.with_token(given).get("/v1/queues").await.is(200);
    let setup = Setup::dev().flag("--listen", EVERY_ADDRESS);
    let (status, text) = setup.env("TIDEGATE_TOKEN", "secret").refused().await;
    assert_eq!(status.code(), Some(2), "{text}");
    assert!(text.contains("--token: "), "{text}");
}

#[tokio::test]
async fn an_insecure_dev_server_serves_every_host_name() {
    let setup = Setup::dev().flag("--listen", EVERY_ADDRESS).switch("--insecure");
    let tide = setup.start().await;
    let host = [("host", "tidegate:8080"), ("x-forwarded-for", "10.0.0.7")];
    tide.send(Method::GET, "/v1/queues", &host, "").await.is(200);
    assert!(tide.log().contains("to every caller of every machine"), "{}", tide.log());
}

#[tokio::test]
async fn the_temporary_directory_of_a_dev_server_is_removed() {
    let mut tide = Setup::dev().start().await;
    let log = tide.log();
    let (_, rest) = log.split_once("tidegate dev serves ").unwrap();
    let dir = rest.split_whitespace().next().unwrap().to_owned();
    assert!(std::path::Path::new(&dir).join("tidegate.db").exists(), "{dir}");
    let shown = tide.cli(&["dev", "clock", "--freeze"]).await.ok();
    assert!(shown.ends_with(" (frozen)\n"), "{shown}");
    // A stop waits for no frozen time.
    tide.job_type("t", json!({})).await;
    tide.enqueue_a("t").await;
    tide.lease_one("t").await;
    tide.terminate();
    assert!(tide.ended().await.success(), "{}", tide.log());
    assert!(!std::path::Path::new(&dir).exists(), "{dir}");
}
