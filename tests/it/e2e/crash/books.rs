//! The records of the clients and workers: what was acknowledged, started, reported and held.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rand::seq::IndexedRandom as _;
use reqwest::Method;
use serde_json::Value;
use tidegate_core::time::Timestamp;

use super::super::{
    api::{Api, ApiAnswer},
    wait::eventually,
};

/// An attempt of a worker, with its start and end.
struct Held {
    limit: String,
    from: Timestamp,
    to: Timestamp,
}

/// The records of the clients and workers.
#[derive(Default)]
pub struct Books {
    /// The servers that run. A request goes to any of them.
    pub apis: Mutex<Vec<Api>>,
    /// How much has happened: kills are aimed by it.
    pub events: AtomicU64,
    /// Set after the last kill: the clients stop.
    pub enough: AtomicBool,
    /// Set when every job has ended: the workers stop.
    pub over: AtomicBool,
    pub acknowledged: Mutex<BTreeSet<String>>,
    /// The jobs among them that transactions of a database requested.
    pub requested: Mutex<BTreeSet<String>>,
    /// The jobs that transactions requested which were rolled back.
    pub undone: Mutex<BTreeSet<String>>,
    /// The keys of the orders whose event was acknowledged.
    pub ordered: Mutex<BTreeSet<String>>,
    /// The attempts of each delivered job.
    pub started: Mutex<BTreeMap<String, Vec<u64>>>,
    pub succeeded: Mutex<BTreeSet<String>>,
    held: Mutex<Vec<Held>>,
    pub faults: Mutex<Vec<String>>,
}

impl Books {
    /// Sends a request to a server that runs; none if it died meanwhile.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: &Value,
    ) -> Option<ApiAnswer> {
        let api = self.apis.lock().choose(&mut rand::rng()).cloned();
        let Some(api) = api else {
            tokio::task::yield_now().await;
            return None;
        };
        let answer = api.try_send(method, path, &[("content-type", media)], body.to_string()).await;
        if answer.as_ref().is_none_or(|answer| answer.status == 503) {
            tokio::task::yield_now().await;
            return None;
        }
        self.events.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// Sends a request in JSON; none if the server died meanwhile.
    pub async fn ask_json(&self, method: Method, path: &str, body: &Value) -> Option<ApiAnswer> {
        self.ask(method, path, "application/json", body).await
    }

    /// Asks until there is an answer.
    pub async fn insist(&self, method: Method, path: &str, media: &str, body: &Value) -> ApiAnswer {
        eventually("the server answers", || self.ask(method.clone(), path, media, body)).await
    }

    /// Asks in JSON until there is an answer.
    pub async fn insist_json(&self, method: Method, path: &str, body: &Value) -> ApiAnswer {
        self.insist(method, path, "application/json", body).await
    }

    pub fn acknowledge(&self, job: &Value) {
        self.acknowledged.lock().insert(job["id"].as_str().unwrap().to_owned());
    }

    /// How many acknowledged jobs and orders have not started yet.
    pub fn waiting(&self) -> usize {
        let acknowledged = self.acknowledged.lock().len() + self.ordered.lock().len();
        acknowledged.saturating_sub(self.started.lock().len())
    }

    /// An attempt starts once. It may start after the next one: a server that was frozen in its call goes
    /// on with that when the lease is over.
    pub fn start(&self, id: &str, attempt: u64) {
        let mut started = self.started.lock();
        let attempts = started.entry(id.to_owned()).or_default();
        if attempts.contains(&attempt) {
            self.faults.lock().push(format!("{id}: attempt {attempt} after {attempts:?}"));
        }
        attempts.push(attempt);
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    pub fn hold(&self, limit: &str, from: Timestamp, to: Timestamp) {
        self.held.lock().push(Held { limit: limit.to_owned(), from, to });
    }

    /// The most attempts of `limit` that were held at once.
    pub fn most_at_once(&self, limit: &str) -> usize {
        let held = self.held.lock();
        let mut edges: Vec<(Timestamp, i32)> = held
            .iter()
            .filter(|held| held.limit == limit)
            .flat_map(|held| [(held.from, 1), (held.to, -1)])
            .collect();
        // An end in the same millisecond comes first, because it may have caused the next start.
        edges.sort_unstable();
        let mut now = 0;
        edges
            .iter()
            .map(|(_, step)| {
                now += step;
                now
            })
            .max()
            .unwrap_or_default() as usize
    }
}
