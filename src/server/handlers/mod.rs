//! The HTTP API: resources over the [`Server`]'s verbs. Nothing is decided here.
//!
//! ```text
//!   envelope (id, problems, log) ─▶ host ─▶ access (who may) ─▶ a resource ─▶ Server
//!                                                                │    ▲
//!                                             Body, Params read ─┘    └─ Reply, Problem write
//! ```
//!
//! Read [`body`] and [`reply`] (requests and answers), [`error`] (problem documents), [`access`]
//! (scopes), [`resource`] (what named configurations share), then a resource such as [`queues`].
//! Each handler has an annotation with its route and its documentation; [`openapi`] has all of them.

mod access;
mod audit;
mod body;
mod bound;
mod config;
mod convert;
mod dev;
mod doctor;
mod dry_run;
mod envelope;
mod error;
mod events;
mod forwarded;
mod headers;
mod health;
mod host;
mod job_types;
mod jobs;
mod leases;
mod limits;
mod media;
mod msgpack;
mod openapi;
mod overview;
mod params;
mod plugins;
mod queues;
mod refused_head;
mod reply;
mod resource;
mod routes;
mod schedules;
mod session;
mod settings;
mod simulation;
#[cfg(feature = "embedded")]
mod standby;
mod stream;
mod tokens;
mod triggers;
mod workers;

use std::{sync::Arc, time::Duration};
use tidegate_core::error_code::ErrorCode;

use axum::{
    Router,
    extract::{FromRef, Request, State},
    http::Uri,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use metrics_exporter_prometheus::PrometheusHandle;
use tidegate_api::{Bodies, SettingView};

#[cfg(feature = "embedded")]
pub use self::standby::{LogRoutes, Proofs, Switch};
pub use self::{
    envelope::Overloaded,
    refused_head::{RefusedHead, refused_head},
};

use self::{envelope::Envelope, error::Problem, host::Hosts, routes::Routes};
use crate::{
    auth::{Authenticate, oidc::SignIn},
    dashboard::{self, ConsoleOptions},
    runtime::Server,
};
use tidegate_backends::system::DevClock;
use tidegate_core::{
    job::Job,
    port::{Clock, Entropy},
};

/// Maximum bytes of a body that carries many jobs or reports.
pub const MAX_BATCH_BYTES: usize = 64 << 20;
/// Maximum bytes of a body that carries one job, in addition to the job's data.
const ENVELOPE_BYTES: usize = 64 << 10;

/// What the API needs in addition to the server.
#[derive(Clone)]
pub struct ApiOptions {
    /// Authenticates callers.
    pub auth: Arc<dyn Authenticate>,
    /// Draws tokens and request ids.
    pub entropy: Arc<dyn Entropy>,
    /// Most bytes of a job's data and of a result.
    pub max_data_bytes: usize,
    /// The options of the console.
    pub console: ConsoleOptions,
    /// Signs users in at an identity provider, if that is configured.
    pub sign_in: Option<Arc<SignIn>>,
    /// The settings of the server, as `GET /v1/settings` shows them.
    pub settings: Vec<SettingView>,
    /// Measures the time of bodies.
    pub clock: Arc<dyn Clock>,
    /// How long the body of a request may take; a body of many bytes has more time.
    pub body_timeout: Duration,
    /// Whether each request is logged.
    pub log_traffic: bool,
    /// Whether requests that reached the proxy over plain HTTP are accepted.
    pub allow_unencrypted_proxy: bool,
    /// The source of `/metrics`, if metrics are collected.
    pub metrics: Option<PrometheusHandle>,
    /// The clock of the server, if callers may move it.
    pub dev_clock: Option<Arc<DevClock>>,
}

/// The state of every handler.
#[derive(Clone)]
pub struct Api {
    server: Server,
    options: Arc<ApiOptions>,
}

impl FromRef<Api> for Arc<ApiOptions> {
    fn from_ref(api: &Api) -> Self {
        Self::clone(&api.options)
    }
}

/// The result of a handler.
type HandlerResult = Result<Response, Problem>;

impl Api {
    /// Whether `answer` is within the bound of the deployment mode.
    fn fits(&self, answer: &Response) -> bool {
        self.excess(answer) == 0
    }

    /// By how many bytes `answer` exceeds the bound of the deployment mode.
    fn excess(&self, answer: &Response) -> u64 {
        bound::excess(answer, self.server.options().answer_bytes)
    }

    /// The answer with as much as fits. Results are left out first, because they have a route of
    /// their own. With many jobs, even the smallest of these answers can be too large.
    fn fitting(&self, answer: impl Fn(Bodies) -> Response) -> Response {
        let fits =
            [Bodies::Whole, Bodies::Data].into_iter().map(&answer).find(|answer| self.fits(answer));
        fits.unwrap_or_else(|| answer(Bodies::Small))
    }

    /// `job` with its bodies, loaded from the object store if they are there.
    async fn whole(&self, job: Job) -> Result<Job, Problem> {
        if job.is_whole() {
            return Ok(job);
        }
        let loaded = Box::pin(self.server.load(vec![job])).await?.pop();
        loaded.ok_or_else(|| Problem::internal("a job whose bodies were loaded is missing"))
    }
}

/// Every documented route.
fn routes() -> Routes {
    jobs::routes()
        .merge(leases::routes())
        .merge(queues::routes())
        .merge(job_types::routes())
        .merge(schedules::routes())
        .merge(events::routes())
        .merge(triggers::routes())
        .merge(workers::routes())
        .merge(plugins::routes())
        .merge(tokens::routes())
        .merge(doctor::routes())
        .merge(audit::routes())
        .merge(dev::routes())
        .merge(stream::routes())
        .merge(session::routes())
        .merge(limits::routes())
        .merge(settings::routes())
        .merge(simulation::routes())
        .merge(overview::routes())
        .merge(health::routes())
}

/// All routes of a server, with their layers.
pub fn router(server: Server, options: ApiOptions) -> Router {
    let options = Arc::new(options);
    let answer_bytes = server.options().answer_bytes;
    let hosts = Hosts::new(Arc::clone(&options.auth), &server.options().public_url);
    let api = Api { server, options: Arc::clone(&options) };
    let resources = routes()
        .with_state(api.clone())
        .layer(middleware::from_fn_with_state(api, around_documented));
    let routes = resources.merge(openapi::route()).merge(dashboard::routes(&options.console));
    let routes = match &options.sign_in {
        Some(sign_in) => routes.merge(dashboard::sign_in::routes(Arc::clone(sign_in))),
        None => routes,
    };
    wrapped(routes, Envelope { options, hosts, answer_bytes })
}

/// The layer of the documented routes.
///
/// Each layer takes a kilobyte of each request that waits, so the routes have only one.
async fn around_documented(State(api): State<Api>, request: Request, next: Next) -> Response {
    let operation = openapi::operation(&request);
    if let Err(problem) = dry_run::check(operation, &request) {
        return problem.into_response();
    }
    match operation.filter(|operation| audit::is_audited(operation)) {
        None => next.run(request).await,
        Some(operation) => Box::pin(audit::audited(api, operation.id, request, next)).await,
    }
}

/// `routes` with their fallbacks, and with the layer around them.
fn wrapped(routes: Router, envelope: Envelope) -> Router {
    routes
        .fallback(async |uri: Uri| {
            let detail = match uri.path() {
                // Another system's route.
                "/v1/archived-jobs" => "ended jobs are in GET /v1/jobs?state=ended",
                _ => "there is no such route; /openapi.json lists the routes",
            };
            Problem::new(ErrorCode::RouteNotFound, detail)
        })
        .method_not_allowed_fallback(async || {
            Problem::new(
                ErrorCode::MethodNotAllowed,
                "this route does not accept the method; the header Allow lists those it accepts",
            )
        })
        .layer(middleware::from_fn_with_state(Arc::new(envelope), envelope::envelope))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
