//! `?dry_run=true` on a route that has no dry run is refused: its caller expects that nothing
//! changes.

use std::collections::HashSet;

use axum::{
    extract::{MatchedPath, Request},
    http::Method,
};
use url::form_urlencoded;
use utoipa::openapi::{OpenApi, RefOr, path::Parameter};

use super::error::Problem;

/// The routes with a dry run: methods and paths.
pub(super) type DryRuns = HashSet<(Method, String)>;

/// The operations of `document` that declare the parameter.
pub(super) fn dry_runs(document: &OpenApi) -> DryRuns {
    let mut routes = DryRuns::new();
    for (path, item) in &document.paths.paths {
        for (method, operation) in [
            (Method::PUT, &item.put),
            (Method::POST, &item.post),
            (Method::PATCH, &item.patch),
            (Method::DELETE, &item.delete),
        ] {
            let parameters = operation.iter().flat_map(|operation| &operation.parameters);
            let is_dry_run = |parameter: &RefOr<Parameter>| matches!(parameter, RefOr::T(of) if of.name == "dry_run");
            if parameters.flatten().any(is_dry_run) {
                routes.insert((method, path.clone()));
            }
        }
    }
    routes
}

/// Refuses a dry run of a route that has none.
///
/// # Errors
///
/// 400 that names the parameter.
pub(super) fn check(known: &DryRuns, request: &Request) -> Result<(), Problem> {
    let query = request.uri().query().unwrap_or_default();
    if form_urlencoded::parse(query.as_bytes()).all(|(name, _)| name != "dry_run") {
        return Ok(());
    }
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let is_known = route.is_some_and(|route| known.contains(&(request.method().clone(), route)));
    if is_known { Ok(()) } else { Err(Problem::invalid("dry_run", "this route has no dry run")) }
}
