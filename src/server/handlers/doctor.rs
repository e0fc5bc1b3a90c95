//! Diagnostics of the server and its deployment, for operators.

use axum::{extract::State, response::IntoResponse};
use tidegate_api::{CheckView, Doctor};

use super::{
    Api, HandlerResult,
    access::{Admin, May},
    media::Accept,
    routes::{Routes, routes},
};
use tidegate_core::port::health_check::{Check, CheckLevel};

fn view(check: Check) -> CheckView {
    let advice = Some(check.advice).filter(|advice| !advice.is_empty());
    CheckView { level: check.level.word().into(), about: check.about, finding: check.found, advice }
}

/// Check everything that the server depends on; each finding has advice.
///
/// It changes nothing. On AWS it sends one message without content to each SQS queue, which the
/// queue's function consumes.
#[utoipa::path(get, path = "/v1/doctor", tag = "operate", operation_id = "doctor",
    responses((status = 200, description = "All findings, good and bad", body = Doctor)),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn doctor(State(api): State<Api>, _: May<Admin>, accept: Accept) -> HandlerResult {
    let checks = api.server.doctor().await;
    let ok = checks.iter().all(|check| check.level != CheckLevel::Error);
    let checks = checks.into_iter().map(view).collect();
    Ok(accept.ok(Doctor { ok, version: env!("CARGO_PKG_VERSION").into(), checks }).into_response())
}

/// The route of the diagnostics.
pub fn routes() -> Routes {
    routes!(doctor)
}
