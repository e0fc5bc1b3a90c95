//! The `OpenAPI` document is whole: it has every route ([`routes`]), every reference in it leads to
//! a schema, and answers have the shape that it describes ([`shapes`], checked by [`schema`]).

mod routes;
mod schema;
mod shapes;

use serde_json::Value;

use crate::handlers::{self, openapi};

fn document() -> Value {
    openapi::complete(handlers::routes().into_openapi())
}
