//! Health, readiness and metrics.

use std::borrow::Cow;

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use tidegate_api::Health;
use tidegate_core::error_code::ErrorCode;

use super::{
    Api, HandlerResult,
    access::{May, Read},
    error::Problem,
    media::Accept,
    routes::{Routes, routes},
};

/// What a healthy server answers.
pub(super) const HEALTH: Health =
    Health { status: Cow::Borrowed("ok"), version: Cow::Borrowed(env!("CARGO_PKG_VERSION")) };

/// The routes that monitors call; they are answered over plain HTTP, and over the bound of
/// connections.
pub(crate) const ROUTES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// Those of them that need no credentials; an open server answers them under any host name and
/// through a proxy.
pub(crate) const OPEN_ROUTES: [&str; 2] = ["/healthz", "/readyz"];

/// Whether the process is up.
#[utoipa::path(get, path = "/healthz", tag = "operate", security(()),
    responses((status = 200, description = "It is up", body = Health)))]
async fn healthz(accept: Accept) -> Response {
    accept.ok(HEALTH).into_response()
}

/// Whether requests are served: the store answers, and the bucket of a log does, and the server is not
/// stopping (the leader of a log serves until its running jobs have finished).
#[utoipa::path(get, path = "/readyz", tag = "operate", security(()),
    responses((status = 200, description = "Requests are served", body = Health)))]
async fn readyz(State(api): State<Api>, accept: Accept) -> HandlerResult {
    api.server.ready().await?;
    Ok(accept.ok(HEALTH).into_response())
}

/// Metrics in the format of Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "operate",
    responses(
        (status = 200, description = "Prometheus text", body = String, content_type = "text/plain"),
        (status = 404, description = "`metrics_off`"),
    ), security(("bearer" = ["read"]), ("basic" = ["read"])))]
async fn metrics(State(api): State<Api>, _: May<Read>) -> HandlerResult {
    let handle = api.options.metrics.as_ref();
    let text = handle.map(metrics_exporter_prometheus::PrometheusHandle::render);
    let text =
        text.ok_or_else(|| Problem::new(ErrorCode::MetricsOff, "this server collects no metrics"))?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// The routes of health and metrics.
pub fn routes() -> Routes {
    routes!(healthz, readyz, metrics)
}
