//! `?dry_run=true` on a route that has no dry run is refused: its caller expects that nothing
//! changes.

use axum::extract::Request;
use url::form_urlencoded;

use super::{error::Problem, openapi::Operation};

/// Refuses a dry run of an operation that has none.
///
/// # Errors
///
/// 400 that names the parameter.
pub(super) fn check(operation: Option<&Operation>, request: &Request) -> Result<(), Problem> {
    let query = request.uri().query().unwrap_or_default();
    let has_dry_run = operation.is_some_and(|operation| operation.has_dry_run);
    if has_dry_run || form_urlencoded::parse(query.as_bytes()).all(|(name, _)| name != "dry_run") {
        return Ok(());
    }
    Err(Problem::invalid("dry_run", "this route has no dry run"))
}
