//! The `OpenAPI` document is whole: it has every route ([`routes`]), every reference in it leads to
//! a schema, and answers have the shape that it describes ([`shapes`], checked by [`schema`]).

mod routes;
mod schema;
mod shapes;

use std::{env, fs, path::Path};

use serde_json::Value;

use crate::handlers::{self, openapi};

fn document() -> Value {
    openapi::generate::document(&handlers::routes())
}

#[test]
fn the_committed_document_is_what_the_handlers_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap();
    assert!(committed == text, "run this test with UPDATE_EXPECT=1 to write openapi.json");
}
