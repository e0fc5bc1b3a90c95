//! A server of a replicated log: what it answers while it follows, and what its reads promise while
//! it leads.
//!
//! ```text
//!   request ─▶ Switch ─┬▶ following: 503, with the address of the leader
//!                      └▶ leading: is this still the leader? ─▶ the routes
//! ```

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tidegate_backends::bucket_log::Handle;
use tidegate_core::{
    error_code::ErrorCode,
    job::Encoding,
    port::{Clock, Entropy, job_store::Committed},
    time::Timestamp,
};
use tokio::sync::Mutex;

use super::{envelope, error::Problem, health, media, reply};

/// How old the proof of leadership behind a read may be.
const PROOF_AGE: Duration = Duration::from_secs(1);
/// How long a proof may take. The bucket does not answer then.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Measures the age of proofs.
    pub clock: Arc<dyn Clock>,
    /// Draws request ids.
    pub entropy: Arc<dyn Entropy>,
}

impl LogRoutes {
    /// The routes while the node follows: only `/healthz` answers that all is well.
    pub fn following(&self) -> Router {
        let routes = self.clone();
        Router::new().fallback(async move |request: Request| {
            if request.uri().path() == health::ROUTES[0] {
                return routes.answer(StatusCode::OK, &health::HEALTH);
            }
            routes.refusal()
        })
    }

    /// The `routes` of a server while the node leads. A read is at most [`PROOF_AGE`] behind what
    /// another leader has acknowledged.
    pub fn leading(&self, routes: Router) -> Router {
        let proof = Arc::new(Proof { routes: self.clone(), at: Mutex::default() });
        routes.layer(middleware::from_fn_with_state(proof, with_proof))
    }

    fn refusal(&self) -> Response {
        let problem = match (self.handle.epoch(), self.handle.leader()) {
            (Some(_), _) => Problem::new(
                ErrorCode::Unavailable,
                "the bucket of the log does not answer, so another server may lead by now",
            ),
            (None, Some(leader)) => Problem::new(
                ErrorCode::NotLeader,
                format!("this server follows the log; its leader is at {leader}"),
            ),
            (None, None) => Problem::new(ErrorCode::NotLeader, "this server follows the log"),
        };
        let mut response = self.answer(problem.status(), &problem);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        response.headers_mut().insert(header::CONTENT_TYPE, media::problem_name(Encoding::Json));
        response
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

/// The proof that no other node leads, shared by all reads.
struct Proof {
    routes: LogRoutes,
    /// When the newest one began.
    at: Mutex<Option<Timestamp>>,
}

impl Proof {
    /// Whether this node leads, as of an instant that is at most [`PROOF_AGE`] ago.
    async fn holds(&self) -> bool {
        tokio::select! {
            holds = self.is_proved() => holds,
            () = self.routes.clock.sleep(PROOF_TIMEOUT) => false,
        }
    }

    async fn is_proved(&self) -> bool {
        let LogRoutes { handle, clock, .. } = &self.routes;
        let mut at = self.at.lock().await;
        let now = clock.now();
        // A clock that went back needs a new proof.
        if at.is_some_and(|at| at <= now && now.since(at) < PROOF_AGE) {
            return true;
        }
        let proved = handle.prove_leadership().await.is_ok();
        *at = proved.then_some(now);
        proved
    }
}

async fn with_proof(State(proof): State<Arc<Proof>>, request: Request, next: Next) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_read && request.uri().path().starts_with("/v1/") && !proof.holds().await {
        return proof.routes.refusal();
    }
    next.run(request).await
}
