//! Who may enter: what a start says about tokens, and when they were used.

use std::{sync::Arc, time::Duration};

use tidegate_server::{
    auth::{Authenticate as _, BuiltIn},
    runtime::Server,
    settings::Settings,
};
use tokio::sync::watch;

/// How often the last use of tokens is recorded.
const TOKEN_USE_INTERVAL: Duration = Duration::from_mins(1);

/// Why a server that others can reach does not start without a token.
pub(super) fn no_token(settings: &Settings) -> String {
    let reached = match &settings.public_url {
        Some(url) if settings.listen.ip().is_loopback() => {
            format!("public_url: {url} is not an address of this machine")
        }
        _ => format!("listen: {} is not a loopback address", settings.listen),
    };
    format!("{reached}, and there are no tokens: get one first: {}", create_token(settings))
}

/// How to get an admin token while the server is stopped.
fn create_token(settings: &Settings) -> String {
    if settings.log.is_some() {
        return "set `admin_token`, from which the others are made".to_owned();
    }
    if settings.store.is_some() {
        // The address may have a password.
        return "tidegate token create --name admin --scope admin --store, with the same `store`"
            .to_owned();
    }
    format!("tidegate token create --name admin --scope admin --data {}", settings.data.display())
}

/// Logs that every caller may enter, or none.
pub(super) fn warn_of_access(auth: &BuiltIn, has_access: bool, settings: &Settings) {
    if auth.is_open() {
        tracing::warn!(
            "there is no token: every program and every user of this machine may do everything; \
             close the server with `tidegate token create --name admin --scope admin`"
        );
    } else if !has_access {
        tracing::warn!(
            "every token is revoked, so no caller may enter; stop the server and get one: {}",
            create_token(settings)
        );
    }
}

/// Records once a minute when tokens were used, until the server stops.
pub(super) async fn record_token_uses(
    server: Server,
    auth: Arc<BuiltIn>,
    mut closing: watch::Receiver<bool>,
) {
    while tokio::time::timeout(TOKEN_USE_INTERVAL, closing.changed()).await.is_err() {
        server.record_token_uses(&auth, TOKEN_USE_INTERVAL).await;
    }
}
