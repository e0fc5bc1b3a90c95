//! The reads of a standby: the routes of a server without tasks on the replica, which its node changes.
//!
//! The state that a read shows was true once, because the replica is a prefix of the log at every
//! instant. How old it is, no standby knows. Nothing is decided by it: every change goes through the
//! log, at the leader.

use std::sync::Arc;

use axum::{
    extract::{MatchedPath, Request, State},
    http::HeaderValue,
    middleware::Next,
    response::Response,
};
use tidegate_backends::bucket_log::Replica as _;
use tidegate_core::error_code::ErrorCode;
use tidegate_engine::Error;
use tokio::sync::{Mutex, Semaphore};

use super::{
    LogRoutes, MAX_POSITION_WAITS, POSITION_AT, STANDBY, add_position, is_consistent, is_read,
    wanted_position,
};
use crate::{
    auth::BuiltIn,
    handlers::{error::Problem, health},
    runtime::Server,
};

/// The reads that only a leader answers. The replica does not have what they show, except for two: a
/// standby is not ready, and `doctor` writes a probe into the bucket.
pub(in crate::handlers) const OF_LEADER: [&str; 7] = [
    "/readyz",
    "/v1/doctor",
    "/v1/plugins/{plugin}/differences",
    "/v1/plugins/{plugin}/logs",
    "/v1/stream",
    "/v1/workers",
    "/v1/workers/{worker}/history",
];

/// Why a node refuses that leads, and whose server has not started yet.
const BEGINS: &str = "this server begins to lead the log";

/// What reads need.
pub(super) struct Reads {
    log: LogRoutes,
    server: Server,
    auth: Arc<BuiltIn>,
    /// The version of the known tokens.
    tokens_version: Mutex<Option<u64>>,
    /// Those of reads that wait for their positions.
    places: Semaphore,
}

impl Reads {
    pub(super) fn new(log: LogRoutes, server: Server, auth: Arc<BuiltIn>) -> Self {
        let places = Semaphore::new(MAX_POSITION_WAITS);
        Self { log, server, auth, tokens_version: Mutex::default(), places }
    }

    /// Reads the tokens again if a record has changed them: the leader may have revoked one.
    async fn read_tokens(&self) -> Result<(), Error> {
        let mut known = self.tokens_version.lock().await;
        // A change after this, which the reads may see or not, has another version.
        let version = self.log.replica.tokens_version();
        if *known == Some(version) {
            return Ok(());
        }
        if self.server.is_closed().await? {
            self.auth.close();
        }
        self.server.publish_tokens().await?;
        *known = Some(version);
        Ok(())
    }
}

/// Answers a read by the routes, and refuses everything else: nothing was done then.
pub(super) async fn answer(
    State(reads): State<Arc<Reads>>,
    request: Request,
    next: Next,
) -> Response {
    let log = &reads.log;
    if request.uri().path() == health::ROUTES[0] {
        return log.healthy();
    }
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let is_of_leader = route.is_some_and(|route| OF_LEADER.contains(&route));
    if !is_read(request.method()) || is_of_leader || !log.handle.has_caught_up() {
        return log.refusal(BEGINS);
    }
    match is_consistent(request.headers()) {
        Ok(false) => {}
        Ok(true) => return log.refusal(BEGINS),
        Err(problem) => return log.refused(&problem),
    }
    let wanted = match wanted_position(request.headers()) {
        Ok(wanted) => wanted,
        Err(problem) => return log.refused(&problem),
    };
    // Before the tokens are read: the position may be that of the change of one.
    if !log.reaches(wanted, &reads.places).await {
        return log.behind();
    }
    // The node may have cleared its state meanwhile.
    if !log.handle.has_caught_up() {
        return log.refusal(BEGINS);
    }
    if let Err(error) = reads.read_tokens().await {
        tracing::warn!(%error, "the tokens cannot be read");
        let problem = Problem::new(ErrorCode::Unavailable, "the tokens cannot be read now");
        return log.refused_for_now(&problem);
    }
    let tail = log.replica.tail();
    let mut response = next.run(request).await;
    // The node has cleared its state meanwhile, so the read may have seen none.
    if log.replica.tail().next < tail.next {
        return log.refusal(BEGINS);
    }
    let headers = response.headers_mut();
    headers.insert(STANDBY.clone(), HeaderValue::from_static("true"));
    add_position(headers, &tail);
    if let Ok(at) = HeaderValue::from_str(&tail.time.to_string()) {
        headers.insert(POSITION_AT.clone(), at);
    }
    response
}
