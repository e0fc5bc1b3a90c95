//! The settings that the server runs with.

use axum::{extract::State, response::IntoResponse};
use tidegate_api::SettingsView;

use super::{
    Api, HandlerResult,
    access::{Admin, May},
    media::Accept,
    routes::{Routes, routes},
};

/// The settings that the server runs with, each with the source of its value. Secrets are not
/// shown.
#[utoipa::path(get, path = "/v1/settings", operation_id = "get_settings", tag = "operate",
    responses((status = 200, description = "All settings", body = SettingsView)),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn get(State(api): State<Api>, _: May<Admin>, accept: Accept) -> HandlerResult {
    let settings = api.options.settings.clone();
    Ok(accept.ok(SettingsView { settings }).into_response())
}

/// The route of the settings.
pub fn routes() -> Routes {
    routes!(get)
}
