//! Compresses the files that servers contain, and makes the table of the operations of the API, so
//! that no server does it.

use std::{
    env,
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;

/// The files of the console, in `dashboard/dist`.
const CONSOLE: [&str; 3] = ["index.html", "console.js", "console.css"];
/// The `OpenAPI` document. A test of the handlers writes it.
const DOCUMENT: &str = "openapi.json";

fn main() {
    for name in CONSOLE {
        pack(name, &read(&Path::new("dashboard/dist").join(name)));
    }
    let document: Value =
        serde_json::from_slice(&read(Path::new(DOCUMENT))).expect("the document is JSON");
    pack(DOCUMENT, document.to_string().as_bytes());
    fs::write(out().join("operations.rs"), operations(&document)).expect("OUT_DIR is writable");
}

/// Where the build writes.
fn out() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"))
}

/// The content of a committed file. The build is repeated when it changes.
fn read(path: &Path) -> Vec<u8> {
    println!("cargo::rerun-if-changed={}", path.display());
    fs::read(path).expect("the file is committed")
}

/// Writes `content` as `name` with `.gz`.
fn pack(name: &str, content: &[u8]) {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).expect("memory takes all bytes");
    let packed = encoder.finish().expect("memory takes all bytes");
    let path = out().join(Path::new(name).with_added_extension("gz"));
    fs::write(path, packed).expect("OUT_DIR is writable");
}

/// The operations of `document` that may change something, as a slice in Rust.
fn operations(document: &Value) -> String {
    let mut table = String::from("&[\n");
    for (path, item) in document["paths"].as_object().expect("the document has paths") {
        for method in ["put", "post", "patch", "delete"] {
            let Some(operation) = item.get(method) else { continue };
            let id = operation["operationId"].as_str().expect("every operation has an id");
            let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
            let has_dry_run = parameters.iter().any(|parameter| parameter["name"] == "dry_run");
            let method = method.to_uppercase();
            writeln!(
                table,
                "Operation {{ method: {method:?}, path: {path:?}, id: {id:?}, \
                 has_dry_run: {has_dry_run} }},"
            )
            .expect("memory takes all text");
        }
    }
    table + "]"
}
