//! A server of a replicated log: what it answers while it follows, and what its reads promise while
//! it leads.
//!
//! ```text
//!   request ─▶ Switch ─┬▶ following: a read of the replica, marked; else 503 with the leader's address
//!                      └▶ leading: is this still the leader? ─▶ the routes
//! ```
//!
//! [`reads`] is the first way, [`proof`] the second. Answers of both have the position of the log that
//! they reflect. A read that names such a position, of whichever server, sees at least that.

mod proof;
mod reads;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tidegate_backends::{
    bucket_log::{Handle, Replica as _, Tail, key::Slot},
    sqlite::SqliteReplica,
};
use tidegate_core::{
    error_code::ErrorCode,
    job::Encoding,
    port::{Clock, Entropy, job_store::Committed},
};
use tokio::sync::Semaphore;

pub use self::proof::Proofs;
#[cfg(test)]
pub(super) use self::reads::OF_LEADER;
use self::reads::Reads;
use super::{envelope, error::Problem, health, media, reply};
use crate::{auth::BuiltIn, runtime::Server};

/// In a request: whether a read must see every change that was acknowledged before it.
static CONSISTENT: HeaderName = HeaderName::from_static("tidegate-consistent");
/// In an answer: how much of the log it reflects, as `epoch.number` of the first record that it may
/// lack. In a request: how much of the log a read must reflect at least.
static POSITION: HeaderName = HeaderName::from_static("tidegate-position");
/// In an answer of a standby: when the last record before the position was written.
static POSITION_AT: HeaderName = HeaderName::from_static("tidegate-position-at");
/// In an answer: that a standby gave it.
static STANDBY: HeaderName = HeaderName::from_static("tidegate-standby");

/// How long a read waits until the local state has reached its position.
const POSITION_TIMEOUT: Duration = Duration::from_secs(5);
/// Most reads that wait for their positions at once. They have shown no token yet, and each holds a
/// connection.
pub(super) const MAX_POSITION_WAITS: usize = 256;
/// Why a node refuses a read whose position its state has not reached.
const BEHIND: &str = "this server has not read the log up to the requested position";
/// Why a node refuses that cannot prove that it leads.
const NO_PROOF: &str = "the bucket of the log does not answer, so another server may lead by now";

/// Routes that can be exchanged while a listener serves them.
#[derive(Clone, Debug)]
pub struct Switch(Arc<ArcSwap<Router>>);

impl Switch {
    /// Serves `routes` first.
    pub fn new(routes: Router) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(routes)))
    }

    /// Serves `routes` from now on.
    pub fn set(&self, routes: Router) {
        self.0.store(Arc::new(routes));
    }

    /// The routes for a listener.
    pub fn router(&self) -> Router {
        let routes = Arc::clone(&self.0);
        Router::new().fallback(async move |request: Request| {
            let routes = Router::clone(&routes.load());
            TowerToHyperService::new(routes).call(request).await
        })
    }
}

/// What the routes of a log need.
#[derive(Clone)]
pub struct LogRoutes {
    /// The handle of the node.
    pub handle: Handle<Committed>,
    /// The local state of the node.
    pub replica: Arc<SqliteReplica>,
    /// The clock of the node, by which records and other proofs are dated. It also ends waits.
    pub clock: Arc<dyn Clock>,
    /// Draws request ids.
    pub entropy: Arc<dyn Entropy>,
}

impl LogRoutes {
    /// The routes after the node has lost its leadership: only `/healthz` answers that all is well.
    pub fn refusing(&self) -> Router {
        let routes = self.clone();
        Router::new().fallback(async move |request: Request| {
            if request.uri().path() == health::ROUTES[0] {
                return routes.healthy();
            }
            routes.refusal(NO_PROOF)
        })
    }

    /// The routes while the node follows: the reads of `routes`, which are those of `server`, a
    /// [standby](crate::runtime::Builder::standby) on the replica with a
    /// [listener](Server::watch_tokens) that sets the tokens of `auth`. Everything else is refused.
    pub fn following(&self, server: Server, auth: Arc<BuiltIn>, routes: Router) -> Router {
        let reads = Arc::new(Reads::new(self.clone(), server, auth));
        routes.layer(middleware::from_fn_with_state(reads, reads::answer))
    }

    /// The refusal of a request that only a leader answers; `while_leading` is why this node does not,
    /// if it leads.
    fn refusal(&self, while_leading: &'static str) -> Response {
        let problem = match (self.handle.epoch(), self.handle.leader()) {
            (Some(_), _) => Problem::new(ErrorCode::Unavailable, while_leading),
            (None, Some(leader)) => Problem::new(
                ErrorCode::NotLeader,
                format!("this server follows the log; its leader is at {leader}"),
            ),
            (None, None) => Problem::new(ErrorCode::NotLeader, "this server follows the log"),
        };
        self.refused_for_now(&problem)
    }

    /// Whether the local state has all of the log before `wanted`, which a read needs, at the latest after
    /// [`POSITION_TIMEOUT`]. A wait takes one of `places`; without a free one, the answer comes at once.
    async fn reaches(&self, wanted: Option<Slot>, places: &Semaphore) -> bool {
        let Some(wanted) = wanted else { return true };
        if self.replica.tail().next >= wanted {
            return true;
        }
        // A leader that another server has replaced never reaches the epoch of that one.
        if self.handle.epoch().is_some_and(|epoch| epoch < wanted.epoch) {
            return false;
        }
        let Ok(_place) = places.try_acquire() else { return false };
        tokio::select! {
            () = self.replica.reached(wanted) => true,
            () = self.clock.sleep(POSITION_TIMEOUT) => false,
        }
    }

    /// The refusal of a read whose position the local state has not reached.
    fn behind(&self) -> Response {
        self.refused_for_now(&Problem::new(ErrorCode::Unavailable, BEHIND))
    }

    /// The refusal of a request that may succeed in a second.
    fn refused_for_now(&self, problem: &Problem) -> Response {
        let mut response = self.refused(problem);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        response
    }

    fn refused(&self, problem: &Problem) -> Response {
        let mut response = self.answer(problem.status(), problem);
        response.headers_mut().insert(header::CONTENT_TYPE, media::problem_name(Encoding::Json));
        response
    }

    fn healthy(&self) -> Response {
        self.answer(StatusCode::OK, &health::HEALTH)
    }

    fn answer(&self, status: StatusCode, value: &impl serde::Serialize) -> Response {
        let body = reply::encode(value, Encoding::Json).unwrap_or_default();
        envelope::count(status);
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (header::SERVER, envelope::SERVER),
            (header::X_CONTENT_TYPE_OPTIONS, envelope::NOSNIFF),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            (HeaderName::from_static("x-request-id"), envelope::new_request_id(&*self.entropy)),
        ];
        (status, headers, body).into_response()
    }
}

/// Whether a request with this method changes nothing.
fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Whether a request must see every change that was acknowledged before it.
///
/// # Errors
///
/// 400 if the header is neither `true` nor `false`.
fn is_consistent(headers: &HeaderMap) -> Result<bool, Problem> {
    match headers.get(&CONSISTENT).map(HeaderValue::as_bytes) {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => {
            let detail = format!("the header {CONSISTENT} must be true or false");
            Err(Problem::new(ErrorCode::InvalidHeader, detail))
        }
    }
}

/// The position of the log that a read must reflect at least; none if it names none.
///
/// # Errors
///
/// 400 if the header is not a position.
fn wanted_position(headers: &HeaderMap) -> Result<Option<Slot>, Problem> {
    let Some(value) = headers.get(&POSITION) else { return Ok(None) };
    let position = value.to_str().ok().and_then(|text| text.parse::<Slot>().ok());
    position.map(Some).ok_or_else(|| {
        let detail = format!("the header {POSITION} must be a position of the log, such as 3.1204");
        Problem::new(ErrorCode::InvalidHeader, detail)
    })
}

/// Adds to an answer that it reflects the log up to `tail`.
fn add_position(headers: &mut HeaderMap, tail: &Tail) {
    if let Ok(position) = HeaderValue::from_str(&tail.next.to_string()) {
        headers.insert(POSITION.clone(), position);
    }
}
