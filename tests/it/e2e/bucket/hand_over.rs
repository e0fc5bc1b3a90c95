//! A leader is stopped while clients enqueue, which repeat as little as the shipped clients do.
//!
//! The standby starts the server of a leader within the hand-over. On a busy machine an unoptimised program
//! takes seconds for that, which may be more than the clients wait in all. So their waits are longer there,
//! by how much longer than usual a start took just before.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};

use super::{
    super::{crash::load, serve::Setup, wait::eventually},
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

#[tokio::test]
async fn a_stopped_leader_hands_over_without_a_wait() {
    let bucket = Bucket::new();
    let patient = |setup: Setup| setup.without_env(TAKEOVER).env(TAKEOVER, "600");
    let began = Instant::now();
    let leader = patient(bucket.server()).start().await;
    let slowness = began.elapsed().div_duration_f64(USUAL_START).max(1.0);
    leader.job_type("t", json!({})).await;
    let standby = patient(bucket.standby()).follow().await;
    eventually("the standby has announced itself", || async {
        (bucket.objects("hint") == 2).then_some(())
    })
    .await;
    let client = Client::of(&leader.api);
    client.add(&standby.api);
    let running: Vec<JoinHandle<()>> = ["a", "b", "c"]
        .map(|name| tokio::spawn(Arc::clone(&client).enqueue_with_few_repeats(name, slowness)))
        .into();
    client.has_enqueued(10).await;
    drop(leader.stop().await);
    leads(&standby).await;
    client.has_enqueued(client.count() + 10).await;
    client.settle(running, &standby.api).await;
    assert_eq!(bucket.objects("epoch"), 2, "one takeover");
}
