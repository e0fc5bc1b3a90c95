//! A leader is stopped while clients enqueue, which repeat as little as the shipped clients do.
//!
//! The standby starts the server of a leader within the hand-over. On a busy machine an unoptimised program
//! takes seconds for that, which may be more than the clients wait in all. So their waits are longer there,
//! by how much longer than usual a start took just before.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::http::StatusCode;
use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};

use super::{
    super::{
        crash::load,
        serve::{Setup, Tidegate},
        target::Target,
        wait::eventually,
    },
    Bucket, Client, leads,
};

/// How often a client repeats a request, unless it is set otherwise.
const REPEATS: u32 = 5;
/// The backoff before the first repeat. It doubles with each.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// A start that takes no longer is that of a machine with time to spare. A client waits as long for a repeat.
const USUAL_START: Duration = Duration::from_secs(1);

const TAKEOVER: &str = "TIDEGATE_TAKEOVER_SECONDS";

impl Client {
    /// Enqueues one job after the other. Each is acknowledged after few repeats.
    async fn enqueue_with_few_repeats(self: Arc<Self>, name: &'static str, slowness: f64) {
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("{name}-{number}");
            let id = self.enqueue_once(&key, slowness).await;
            self.acknowledged.lock().insert(key, id);
        }
    }

    /// The id of a job, which is acknowledged after at most [`REPEATS`] repeats. The waits between them are
    /// those of a client, times `slowness`.
    async fn enqueue_once(&self, key: &str, slowness: f64) -> String {
        let mut backoff = MIN_BACKOFF;
        for _ in 0..=REPEATS {
            match self.try_enqueue(key).await {
                Ok(id) => return id,
                // A client waits as long as the server says, or between half of the backoff and all of it.
                Err(after) => {
                    let wait = after.unwrap_or(backoff / 2).mul_f64(slowness);
                    load::work(wait.as_millis() as u64).await;
                }
            }
            backoff *= 2;
        }
        panic!("{key} was not acknowledged after {REPEATS} repeats");
    }
}

/// A leader, the standby that it knows, and how much slower than usual the leader has started.
struct Pair {
    leader: Tidegate,
    standby: Tidegate,
    slowness: f64,
}

impl Pair {
    /// Servers on `bucket`, each with what `set` adds to its setup.
    async fn start(bucket: &Bucket, set: impl Fn(Setup) -> Setup) -> Self {
        // Nothing but the announced end makes the standby lead.
        let patient = |setup: Setup| set(setup.without_env(TAKEOVER).env(TAKEOVER, "600"));
        let began = Instant::now();
        let leader = patient(bucket.server()).start().await;
        let slowness = began.elapsed().div_duration_f64(USUAL_START).max(1.0);
        leader.job_type("t", json!({})).await;
        let standby = patient(bucket.standby()).follow().await;
        eventually("the standby has announced itself", || async {
            (bucket.objects("hint") == 2).then_some(())
        })
        .await;
        Self { leader, standby, slowness }
    }

    /// Clients that enqueue at the leader, and then at the standby.
    fn clients(&self) -> (Arc<Client>, Vec<JoinHandle<()>>) {
        let client = Client::of(&self.leader.api);
        client.add(&self.standby.api);
        let running = ["a", "b", "c"].map(|name| {
            tokio::spawn(Arc::clone(&client).enqueue_with_few_repeats(name, self.slowness))
        });
        (client, running.into())
    }
}

#[tokio::test]
async fn a_stopped_leader_hands_over_without_a_wait() {
    let bucket = Bucket::new();
    let pair = Pair::start(&bucket, |setup| setup).await;
    let (client, running) = pair.clients();
    let Pair { leader, standby, .. } = pair;
    client.has_enqueued(10).await;
    drop(leader.stop().await);
    leads(&standby).await;
    client.has_enqueued(client.count() + 10).await;
    client.settle(running, &standby.api).await;
    assert_eq!(bucket.objects("epoch"), 2, "one takeover");
}

#[tokio::test]
async fn a_stopped_leader_acknowledges_jobs_while_a_push_runs() {
    let bucket = Bucket::new();
    // The stop waits for as long as the test holds the push.
    let pair = Pair::start(&bucket, |setup| setup.env("TIDEGATE_SHUTDOWN_SECONDS", "600")).await;
    let (client, running) = pair.clients();
    let Pair { mut leader, standby, .. } = pair;
    let (target, go) = Target::held("done").await;
    // A slow machine needs a while until the push may end, and a push that times out is called again.
    let config = json!({"target": {"url": target.url}, "response_timeout_seconds": 600});
    leader.job_type("push", config).await;
    let job =
        |job_type: &str, key: &str| json!({"type": job_type, "data": null, "correlation_key": key});
    let pushed = leader.enqueue(job("push", "pushed")).await;
    target.call(1).await;
    let waited = leader.enqueue(job("t", "waited for")).await;
    let (api, path) = (leader.api.patient(), format!("/v1/jobs/t/{waited}/result?wait=60"));
    let waiting = tokio::spawn(async move { api.get(&path).await });
    client.has_enqueued(10).await;
    leader.terminate();
    eventually("the leader admits no more jobs", || async {
        leader.lease(json!({"types": ["t"], "max": 1})).await.is_empty().then_some(())
    })
    .await;
    // The standby waits for the push, so a health check must find the leader.
    leader.get("/readyz").await.is(200);
    let acknowledged = leader.enqueue(job("t", "while the push runs")).await;
    client.has_enqueued(client.count() + 10).await;
    assert_eq!(bucket.objects("epoch"), 1, "the old leader has acknowledged them");
    go.send_replace(true);
    let status = leader.ended().await;
    assert!(status.success(), "{status}: {}", leader.log());
    // The stop does not wait for the end of this request.
    waiting.await.unwrap().problem(408, "wait_timeout");
    leads(&standby).await;
    client.has_enqueued(client.count() + 10).await;
    let reported = standby.job(&pushed).await;
    assert_eq!((&reported["state"], &reported["result"]), (&json!("succeeded"), &json!("done")));
    assert_eq!(standby.job(&acknowledged).await["id"], json!(acknowledged));
    client.settle(running, &standby.api).await;
    assert_eq!((bucket.objects("epoch"), target.calls().len()), (2, 1), "one takeover, one call");
}

#[tokio::test]
async fn a_leader_ends_its_epoch_before_its_last_spans_are_sent() {
    let bucket = Arc::new(Bucket::new());
    let of_collector = Arc::clone(&bucket);
    // The collector answers nothing before the epoch has ended.
    let collector = Target::start(move |_| {
        let bucket = Arc::clone(&of_collector);
        async move {
            eventually("the epoch has ended", || async { bucket.has_ended().then_some(()) }).await;
            StatusCode::OK
        }
    })
    .await;
    let endpoint = collector.url.trim_end_matches("/work");
    let setup = bucket.server().env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
    let mut leader = setup.start().await;
    leader.job_type("t", json!({})).await;
    leader.enqueue_a("t").await;
    collector.call(1).await;
    leader.terminate();
    let (status, log) = (leader.ended().await, leader.log());
    assert!(status.success(), "{status}: {log}");
    assert!(!log.contains("timed out before all spans were sent"), "{log}");
}
