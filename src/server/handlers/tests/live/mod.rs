//! The routes on a real server whose store is in memory, by subject.

mod access;
mod attempts;
mod audit;
mod bounds;
mod config;
mod events;
mod jobs;
mod own_jobs;
#[cfg(feature = "embedded")]
mod simulation;
#[cfg(feature = "embedded")]
mod standby;
mod stream;
mod traces;
mod workers;

use std::sync::Arc;

use axum::Router;
use serde_json::Value;

use super::{ApiOptions, ask, options};
use crate::{
    handlers,
    runtime::{Builder, Server},
};
use tidegate_backends::{
    http::HttpTarget,
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::port::JobStore;
use tidegate_engine::{
    Ports,
    memory::{MemoryStore, MemoryWorkQueue},
};

pub(super) const ALL: (&str, &str) = ("authorization", "Bearer admin");
pub(super) const MSGPACK: (&str, &str) = ("content-type", "application/msgpack");

pub(super) async fn router() -> Router {
    router_on(Arc::new(MemoryStore::default())).await
}

/// The routes of a server on `store`.
pub(super) async fn router_on(store: Arc<impl JobStore + 'static>) -> Router {
    router_with(store, |builder| builder).await
}

/// A server on an empty store.
pub(super) async fn server() -> Server {
    server_with(Arc::new(MemoryStore::default()), |builder| builder).await
}

/// A server on `store` that `build` changes before its start.
async fn server_with(
    store: Arc<impl JobStore + 'static>,
    build: impl FnOnce(Builder) -> Builder,
) -> Server {
    let ports = Ports {
        store,
        objects: Arc::new(object_store::memory::InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(tidegate_core::port::policy::NoPolicy),
    };
    let target = HttpTarget::new(tidegate_backends::http::Guard::default()).unwrap();
    build(Server::builder(ports, Arc::new(target))).start().await.unwrap()
}

/// The routes of a server on `store` that `build` changes before its start.
async fn router_with(
    store: Arc<impl JobStore + 'static>,
    build: impl FnOnce(Builder) -> Builder,
) -> Router {
    let server = server_with(store, build).await;
    let router = handlers::router(server, ApiOptions::clone(&options()));
    let (made, _) = ask(&router, "PUT", "/v1/job-types/invoice", &[ALL], "{}").await;
    assert_eq!(made.status(), 201);
    router
}

/// The status and the JSON of the answer to a request in JSON by a caller with every scope.
pub(super) async fn json(router: &Router, method: &str, path: &str, body: Value) -> (u16, Value) {
    let sent = if body.is_null() { String::new() } else { body.to_string() };
    let (answer, body) = ask(router, method, path, &[ALL], sent).await;
    (answer.status().as_u16(), serde_json::from_slice(&body).unwrap_or(Value::Null))
}
