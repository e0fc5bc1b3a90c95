//! The state of the server: `/healthz`, `/readyz`, `/v1/doctor`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The state of the server.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Health {
    /// `ok`.
    #[schema(value_type = String)]
    pub status: Cow<'static, str>,
    /// The server's version.
    #[schema(value_type = String)]
    pub version: Cow<'static, str>,
}

/// The results of the server's checks.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Doctor {
    /// Whether no check is an error.
    pub ok: bool,
    /// The server's version.
    #[schema(value_type = String)]
    pub version: Cow<'static, str>,
    /// Every check.
    pub checks: Vec<CheckView>,
}

/// The result of one check.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Check)]
pub struct CheckView {
    /// `error`, `warning`, `note` or `ok`.
    #[schema(value_type = String)]
    pub level: Cow<'static, str>,
    /// The subject of the check.
    pub about: String,
    /// What was found.
    pub finding: String,
    /// What to do; absent if nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}
