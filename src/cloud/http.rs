//! The HTTP API behind a function: the same routes, told of before each answer.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
};
use parking_lot::Mutex;

use crate::{
    adapter::system::SystemEntropy,
    api::{self, ApiOptions},
    auth::{Anonymous, BuiltIn, Scope, TokenItem},
    dashboard::DashboardOptions,
    engine::Error,
    server::Server,
    time::Timestamp,
};

/// How long a process goes by the tokens that it has read.
const TOKENS: Duration = Duration::from_secs(5);

/// The whole API over an away `server`. Nobody is let in without a token: one of the stored ones, or `first`.
///
/// # Errors
///
/// The store's: the tokens cannot be read.
pub async fn router(server: Server, max_data_bytes: usize, first: Option<TokenItem>) -> Result<Router, Error> {
    let auth = Arc::new(BuiltIn::new(None, Anonymous::Refused));
    let keeper = Arc::clone(&auth);
    server.watch_tokens(move |items| {
        let read = items.iter().map(|bytes| serde_json::from_slice::<TokenItem>(bytes)).collect::<Result<Vec<_>, _>>();
        match read {
            Ok(tokens) => keeper.set_tokens(tokens.into_iter().chain(first.clone()).collect()),
            Err(error) => tracing::error!(%error, "the tokens stay as they were: one cannot be read"),
        }
    });
    server.tell_tokens().await?;
    let options = ApiOptions {
        auth,
        entropy: Arc::new(SystemEntropy),
        max_data_bytes,
        dashboard: DashboardOptions::default(),
        log_traffic: false,
        metrics: None,
    };
    let read_at = Arc::new(Mutex::new(server.now()));
    let around = server.clone();
    let layer = middleware::from_fn(move |request: Request, next: Next| {
        let (server, read_at) = (around.clone(), Arc::clone(&read_at));
        async move {
            if is_old(&read_at, server.now())
                && let Err(error) = server.tell_tokens().await
            {
                tracing::warn!(%error, "the tokens are those that were read last");
            }
            let answer = next.run(request).await;
            // What fails here was logged and is found by the minute's round; the caller's job is in the store.
            let _ = server.flush().await;
            answer
        }
    });
    Ok(api::router(server, options).layer(layer))
}

/// Whether the tokens are to be read anew; whoever asks is taken to do so.
fn is_old(read_at: &Mutex<Timestamp>, now: Timestamp) -> bool {
    let mut read_at = read_at.lock();
    let old = now >= *read_at + TOKENS;
    if old {
        *read_at = now;
    }
    old
}

/// The token that `text` describes: its id, `:`, and the base64 of its secret's SHA-256.
pub fn first_token(text: &str) -> Option<TokenItem> {
    let (id, hash) = text.split_once(':')?;
    let good = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) && hash.len() == 44;
    good.then(|| TokenItem {
        id: id.to_owned(),
        name: "first".into(),
        scopes: Scope::Admin.into(),
        hash: hash.to_owned(),
        created_at: Timestamp::EPOCH,
    })
}
