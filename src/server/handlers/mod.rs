//! The HTTP API: resources over the [`Server`]'s verbs. Nothing is decided here.
//!
//! ```text
//!   envelope (id, problems, log) ─▶ host ─▶ access (who may) ─▶ a resource ─▶ Server
//!                                                                │    ▲
//!                                             Body, Params read ─┘    └─ Reply, Problem write
//! ```
//!
//! Read [`body`] and [`reply`] (how values come in and go out), [`error`] (the one table of statuses),
//! [`access`] (scopes), then a resource such as [`queues`]. Each handler says its own documentation;
//! [`openapi`] collects it.

mod access;
mod body;
mod bound;
mod config;
mod convert;
mod doctor;
mod envelope;
mod error;
mod events;
mod health;
mod host;
mod job_types;
mod jobs;
mod leases;
mod media;
mod msgpack;
mod openapi;
mod params;
mod plugins;
mod queues;
mod reply;
mod resource;
mod schedules;
mod tokens;
mod triggers;
mod workers;

use std::sync::Arc;
use tidegate_core::error_code::ErrorCode;

use axum::{Router, extract::FromRef, middleware, response::Response};
use metrics_exporter_prometheus::PrometheusHandle;
use tidegate_api::Bodies;
use utoipa_axum::router::OpenApiRouter;

use self::{error::Problem, host::Hosts};
use crate::{
    auth::Authenticate,
    dashboard::{self, DashboardOptions},
    runtime::Server,
};
use tidegate_core::{
    job::{Body, Job},
    port::Entropy,
};

/// Most bytes of a body that carries many jobs or reports.
pub const MOST_BATCH_BYTES: usize = 64 << 20;
/// What a body that carries one job may have beside the job's data.
const ENVELOPE_BYTES: usize = 64 << 10;

/// What the API is built from, beside the server.
#[derive(Clone)]
pub struct ApiOptions {
    /// Tells who is asking.
    pub auth: Arc<dyn Authenticate>,
    /// Draws tokens and request ids.
    pub entropy: Arc<dyn Entropy>,
    /// Most bytes of a job's data and of a result.
    pub max_data_bytes: usize,
    /// What the dashboard shows beside jobs and queues.
    pub dashboard: DashboardOptions,
    /// Whether each request is logged.
    pub log_traffic: bool,
    /// Whether what came unencrypted to the proxy in front is answered.
    pub allow_unencrypted_proxy: bool,
    /// What `/metrics` shows, if metrics are collected.
    pub metrics: Option<PrometheusHandle>,
}

/// What every handler is given.
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

/// What a handler answers.
type Answer = Result<Response, Problem>;

impl Api {
    /// Whether `answer` is not larger than one may be here.
    fn fits(&self, answer: &Response) -> bool {
        self.excess(answer) == 0
    }

    /// By how many bytes `answer` is larger than one may be here.
    fn excess(&self, answer: &Response) -> u64 {
        bound::excess(answer, self.server.options().answer_bytes)
    }

    /// The answer that shows as much as it may: where it has a bound, results are left out first, for they have a route of their own. Of many jobs
    /// even the least of these may be too large.
    fn fitting(&self, answer: impl Fn(Bodies) -> Response) -> Response {
        let fits =
            [Bodies::Whole, Bodies::Data].into_iter().map(&answer).find(|answer| self.fits(answer));
        fits.unwrap_or_else(|| answer(Bodies::Small))
    }

    /// `job` with its bodies, wherever they are kept.
    async fn whole(&self, job: Job) -> Result<Job, Problem> {
        let elsewhere = |body: &Body| body.inline().is_none();
        if !elsewhere(&job.data)
            && job.life.result.as_ref().is_none_or(|result| result.object.is_none())
        {
            return Ok(job);
        }
        let loaded = Box::pin(self.server.load(vec![job])).await?.pop();
        loaded.ok_or_else(|| Problem::internal("a job that was to be read in is missing"))
    }
}

/// Every route that is documented.
fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(openapi::base())
        .merge(jobs::routes())
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
        .merge(health::routes())
}

/// The whole of HTTP that a server speaks.
pub fn router(server: Server, options: ApiOptions) -> Router {
    let (resources, document) = routes().split_for_parts();
    let options = Arc::new(options);
    let most = server.options().answer_bytes;
    let hosts = Hosts::new(Arc::clone(&options.auth), &server.options().public_url);
    let resources = resources.with_state(Api { server, options: Arc::clone(&options) });
    let routes =
        resources.merge(openapi::route(document)).merge(dashboard::route(&options.dashboard));
    let bound =
        middleware::map_response(
            move |answer: Response| async move { bound::bounded(answer, most) },
        );
    wrapped(routes.layer(bound), options, hosts)
}

/// Routes with all that is around them.
fn wrapped(routes: Router, options: Arc<ApiOptions>, hosts: Hosts) -> Router {
    routes
        .fallback(async || {
            Problem::new(
                ErrorCode::RouteNotFound,
                "there is no such route; /openapi.json lists those there are",
            )
        })
        .method_not_allowed_fallback(async || {
            Problem::new(
                ErrorCode::MethodNotAllowed,
                "this route does not take that method; Allow lists those it takes",
            )
        })
        .layer(middleware::from_fn_with_state(Arc::new(hosts), host::only_here))
        .layer(middleware::from_fn_with_state(options, envelope::envelope))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
