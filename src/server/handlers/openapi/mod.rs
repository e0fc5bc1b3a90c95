//! The `OpenAPI` document: served from the committed file `openapi.json`, which a test keeps equal
//! to the annotations of the handlers (`generate.rs`).
//!
//! `build.rs` compresses the file and makes the table of [`OPERATIONS`] from it, so that a server
//! builds nothing when it starts.

#[cfg(test)]
pub mod generate;

use axum::{
    Router,
    extract::{MatchedPath, Request},
    http::HeaderMap,
    routing::get,
};

use crate::packed_file::{PackedFile, packed_file};

/// An operation that may change something.
pub struct Operation {
    /// Its method, in upper case.
    pub method: &'static str,
    /// The path of its route, with parameters in braces.
    pub path: &'static str,
    /// Its `operationId`.
    pub id: &'static str,
    /// Whether it has the parameter `dry_run`.
    pub has_dry_run: bool,
}

/// The operations by `PUT`, `POST`, `PATCH` and `DELETE`.
pub static OPERATIONS: &[Operation] = include!(concat!(env!("OUT_DIR"), "/operations.rs"));

/// The document.
static DOCUMENT: PackedFile = packed_file!("openapi.json", "application/json");

/// The operation of a request that may change something, if its route has one.
pub fn operation(request: &Request) -> Option<&'static Operation> {
    let path = request.extensions().get::<MatchedPath>()?;
    let (method, path) = (request.method().as_str(), path.as_str());
    OPERATIONS.iter().find(|of| of.method == method && of.path == path)
}

/// The route that serves the document.
pub fn route() -> Router {
    Router::new().route("/openapi.json", get(async |headers: HeaderMap| DOCUMENT.answer(&headers)))
}
