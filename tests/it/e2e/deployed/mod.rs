//! A deployment on a local stack, made by `localstack/deploy`: the real template with the real
//! functions. `localstack/test` starts a stack and runs these tests.

mod kills;
mod topic;
mod workers;

use std::path::Path;

use super::api::Api;

/// The deployment's API, with its first token.
#[allow(clippy::disallowed_methods, reason = "the scripts of the stack set the port of its proxy")]
fn deployed() -> Api {
    let setting =
        |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let token = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("target/localstack/token"),
    );
    let token = token.expect("localstack/deploy leaves a token");
    Api::at(format!("http://127.0.0.1:{}", setting("PROXY_PORT", "4580")))
        .with_token(token.trim())
        .patient()
}
