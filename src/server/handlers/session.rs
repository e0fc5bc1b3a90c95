//! Who the caller is, for the console: also answered to callers without credentials.

use axum::{extract::State, response::IntoResponse};
use tidegate_api::{ConsoleView, OtherServer, Scope, ServerView, Session};

use super::{
    Api, HandlerResult,
    access::Caller,
    media::Accept,
    routes::{Routes, routes},
};
use crate::dashboard::ConsoleOptions;

/// The options of the console as a caller sees them. One without the scope `read` sees the title
/// alone.
fn console(options: &ConsoleOptions, reads: bool) -> ConsoleView {
    let ConsoleOptions { title, embed, read_only, trace_url, servers } = options.clone();
    if !reads {
        return ConsoleView { title, read_only, ..ConsoleView::default() };
    }
    let servers = servers.into_iter().map(|(name, url)| OtherServer { name, url: url.into() });
    ConsoleView {
        title,
        read_only,
        embed: embed.map(String::from),
        trace_url,
        servers: servers.collect(),
    }
}

/// Who the caller is, what it may do, and what the console offers.
///
/// A caller without credentials is answered too, with `authenticated: false`.
#[utoipa::path(get, path = "/v1/session", operation_id = "get_session", tag = "operate",
    responses((status = 200, description = "The caller and the server", body = Session)),
    security((), ("bearer" = []), ("basic" = [])))]
async fn get(State(api): State<Api>, accept: Accept, caller: Caller) -> HandlerResult {
    let is_open = api.options.auth.is_open();
    let Caller { principal: caller, has_signed_in } = caller;
    let reads = caller.as_ref().is_some_and(|caller| caller.may(Scope::Read));
    let console = console(&api.options.console, reads);
    let has_tasks = !api.server.is_serverless();
    let is_embedded = has_tasks || api.server.is_standby();
    let server = caller.is_some().then(|| ServerView {
        version: env!("CARGO_PKG_VERSION").into(),
        deployment_mode: if is_embedded { "embedded" } else { "serverless" }.into(),
        stream: has_tasks,
        simulate: has_tasks,
    });
    let by = match (is_open, has_signed_in) {
        (true, _) => "open",
        (false, true) => "oidc",
        (false, false) => "token",
    };
    let signed_in_by = caller.as_ref().map(|_| by.into());
    let oidc = api.options.sign_in.as_ref().map(|_| "oidc".into());
    let sign_in = ["token".into()].into_iter().chain(oidc).collect();
    let authenticated = caller.is_some();
    let (name, scopes, bounds) = caller
        .map(|caller| (Some(caller.name), caller.scopes, (*caller.bounds).clone()))
        .unwrap_or_default();
    let (queues, types) = (bounds.queues, bounds.types);
    let session = Session {
        authenticated,
        name,
        scopes,
        queues,
        types,
        sign_in,
        signed_in_by,
        console,
        server,
    };
    Ok(accept.ok(session).into_response())
}

/// The route of the session.
pub fn routes() -> Routes {
    routes!(get)
}
