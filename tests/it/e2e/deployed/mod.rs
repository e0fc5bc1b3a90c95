//! A deployment on a local stack, made by `localstack/deploy`: the real template with the real
//! functions. `localstack/test` starts a stack and runs these tests.

mod kills;
mod topic;
mod workers;

use std::path::Path;

use super::api::Api;

/// A setting of the scripts of the stack.
#[allow(clippy::disallowed_methods, reason = "the scripts of the stack set them")]
fn setting(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// The name of the stack.
fn stack() -> String {
    setting("STACK", "tidegate")
}

/// The deployment's API with its first token, and the token.
fn deployed() -> (Api, String) {
    let token = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("target/localstack/token"),
    );
    let token = token.expect("localstack/deploy leaves a token");
    let api = Api::at(format!("http://127.0.0.1:{}", setting("PROXY_PORT", "4580")));
    (api.with_token(token.trim()).patient(), token.trim().to_owned())
}
