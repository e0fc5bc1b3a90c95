//! Plugins: pushed, made live, rolled back; and diagnostics of their calls ([`calls`]).
//!
//! A plugin is pushed as a WebAssembly component. A recorded call can be repeated with `tidegate
//! plugin test`. The server compiles components and selects the version that decides.

mod calls;
mod view;

use axum::{
    extract::{FromRequest, Request, State},
    http::{StatusCode, header},
    response::IntoResponse,
};
use bytes::Bytes;
use tidegate_api::{
    PluginPage, PluginView, PruneBody, PrunedView, RollbackBody, ShadowBody, VersionPage,
    VersionView,
};
use tidegate_core::error_code::ErrorCode;

use super::{
    Api, HandlerResult,
    access::{Admin, May, Read},
    body::{self, Body},
    error::Problem,
    media::{self, Accept},
    params::{Name, PageRequest, Params, VersionPath},
    routes::{Routes, routes},
};
use crate::runtime::CannotPush;
use tidegate_backends::wasm::COMPONENT_BYTES;
use tidegate_core::{job::PluginName, queue::plugin::MAX_VERSIONS};
use tidegate_engine::plugins::registry::Stage;

/// The latest versions that a prune keeps.
const DEFAULT_KEPT_VERSIONS: u32 = 5;

/// A component, as a request's body.
struct Component(Bytes);

impl<S: Send + Sync> FromRequest<S> for Component {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let headers = request.headers();
        let kind = media::essence(headers);
        if headers.contains_key(header::CONTENT_TYPE) && kind != "application/wasm" {
            let detail = format!(
                "Content-Type {kind:?} is not supported; send a component as application/wasm"
            );
            return Err(Problem::new(ErrorCode::UnsupportedMediaType, detail));
        }
        body::bounded(request, COMPONENT_BYTES).await.map(Self)
    }
}

impl From<CannotPush> for Problem {
    fn from(error: CannotPush) -> Self {
        match error {
            CannotPush::Refused(reasons) => {
                Self::new(ErrorCode::InvalidPlugin, "the component cannot be used as a plugin")
                    .reasons(reasons)
            }
            CannotPush::Failed(error) => error.into(),
        }
    }
}

/// Push a component: it becomes the plugin's next version, and decides from the next tick on.
///
/// The server compiles it once. A push of stored bytes changes nothing; the answer names their
/// version.
#[utoipa::path(
    put, path = "/v1/plugins/{plugin}", operation_id = "put_plugin", tag = "plugins",
    request_body(
        content = Vec<u8>, content_type = "application/wasm",
        description = "A component of at most 32 MiB",
    ),
    params(
        (
            "plugin" = String, Path,
            description = "The plugin's name: 1 to 64 of `A-Z a-z 0-9 _ . -`",
        ),
        (
            "shadow" = Option<bool>, Query,
            description = "Whether the version becomes the shadow (default false); a plugin's \
                first version is always live",
        ),
    ),
    responses(
        (status = 201, description = "A new version; `pushed` is its number", body = PluginView),
        (
            status = 200,
            description = "The same bytes are stored already, as version `pushed`",
            body = PluginView,
        ),
        (status = 400, description = "`invalid_plugin`: `reasons` has everything that is wrong"),
        (
            status = 409,
            description = "`plugin_in_use`, `config_refused`: a queue or type that uses the \
                plugin cannot use this version",
        ),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn put(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<PluginName>,
    mut params: Params,
    Component(wasm): Component,
) -> HandlerResult {
    let stage = if params.one("shadow")?.unwrap_or(false) { Stage::Shadow } else { Stage::Live };
    params.done()?;
    let pushed = api.server.push_component(&name, wasm, stage).await?;
    let status = if pushed.new { StatusCode::CREATED } else { StatusCode::OK };
    let view = PluginView {
        pushed: Some(pushed.number),
        ..view::plugin(&api.server, &name, &pushed.item).await?
    };
    Ok(accept.reply(status, view).etag(pushed.item.version).into_response())
}

/// Plugins, by name, with their health.
#[utoipa::path(
    get, path = "/v1/plugins", operation_id = "list_plugins", tag = "plugins",
    params(
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of plugins on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = PluginPage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn list(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    request: PageRequest,
) -> HandlerResult {
    let (items, next_cursor) = request.page(api.server.plugins().await?);
    let mut plugins = Vec::with_capacity(items.len());
    for (name, item) in &items {
        plugins.push(view::plugin(&api.server, name, item).await?);
    }
    Ok(accept.ok(PluginPage { plugins, next_cursor }).into_response())
}

/// The answer `item`, with its `ETag`.
async fn shown(
    api: &Api,
    accept: Accept,
    name: &PluginName,
    item: &tidegate_core::queue::plugin::PluginItem,
) -> HandlerResult {
    let view = view::plugin(&api.server, name, item).await?;
    Ok(accept.ok(view).etag(item.version).into_response())
}

/// A plugin: its roles, its users and its health.
#[utoipa::path(
    get, path = "/v1/plugins/{plugin}", operation_id = "get_plugin", tag = "plugins",
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (status = 200, description = "The plugin", body = PluginView),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn get(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<PluginName>,
) -> HandlerResult {
    let item = api.server.plugin(&name).await?;
    shown(&api, accept, &name, &item).await
}

/// Delete a plugin that no queue and no type uses, with all its versions.
#[utoipa::path(
    delete, path = "/v1/plugins/{plugin}", operation_id = "delete_plugin", tag = "plugins",
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "`plugin_not_found`"),
        (status = 409, description = "`plugin_in_use`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn delete(
    State(api): State<Api>,
    _: May<Admin>,
    Name(name): Name<PluginName>,
) -> Result<StatusCode, Problem> {
    api.server.delete_plugin(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A plugin's versions, oldest first.
///
/// At most 50 are kept, and fewer if their configuration schemas are long.
#[utoipa::path(
    get, path = "/v1/plugins/{plugin}/versions", operation_id = "list_plugin_versions",
    tag = "plugins",
    params(
        ("plugin" = String, Path, description = "The plugin's name"),
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of versions on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "A page", body = VersionPage),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn versions(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<PluginName>,
    mut params: Params,
) -> HandlerResult {
    let (limit, cursor) = (params.limit()?, params.one::<u32>("cursor")?);
    params.done()?;
    let item = api.server.plugin(&name).await?;
    let mut versions: Vec<VersionView> =
        item.versions.iter().map(|version| VersionView::new(&item, version)).collect();
    versions.retain(|version| cursor.is_none_or(|cursor| version.number > cursor));
    let more = versions.len() > limit as usize;
    versions.truncate(limit as usize);
    let next_cursor = versions.last().filter(|_| more).map(|version| version.number.to_string());
    Ok(accept.ok(VersionPage { versions, next_cursor }).into_response())
}

/// The component of a version, as it was pushed.
#[utoipa::path(
    get, path = "/v1/plugins/{plugin}/versions/{number}/component",
    operation_id = "get_plugin_component", tag = "plugins",
    params(
        ("plugin" = String, Path, description = "The plugin's name"),
        ("number" = u32, Path, description = "The version's number"),
    ),
    responses(
        (
            status = 200,
            description = "The component",
            body = Vec<u8>, content_type = "application/wasm",
        ),
        (status = 404, description = "`plugin_not_found`, `plugin_version_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn component(State(api): State<Api>, _: May<Read>, path: VersionPath) -> HandlerResult {
    let wasm = api.server.plugin_component(&path.plugin, path.number).await?;
    Ok(([(header::CONTENT_TYPE, "application/wasm")], wasm).into_response())
}

/// Make another version live: it decides from the next tick on.
///
/// The plugin's state is kept if both versions have the same state schema.
#[utoipa::path(
    post, path = "/v1/plugins/{plugin}/rollback", operation_id = "rollback_plugin", tag = "plugins",
    request_body = RollbackBody,
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (status = 200, description = "The plugin after the change", body = PluginView),
        (status = 404, description = "`plugin_not_found`, `plugin_version_not_found`"),
        (
            status = 409,
            description = "`plugin_in_use`, `config_refused`: a queue or type that uses the \
                plugin cannot use this version",
        ),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn rollback(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<PluginName>,
    body: Body,
) -> HandlerResult {
    let ask: RollbackBody = body.read_or_default()?;
    let item = api.server.rollback_plugin(&name, ask.version).await?;
    shown(&api, accept, &name, &item).await
}

/// Remove old versions.
///
/// Kept are the live version, the shadow version, the one that a rollback would return to, and the
/// latest `keep`.
#[utoipa::path(
    post, path = "/v1/plugins/{plugin}/prune", operation_id = "prune_plugin", tag = "plugins",
    request_body = PruneBody,
    params(
        ("plugin" = String, Path, description = "The plugin's name"),
        (
            "dry_run" = Option<bool>, Query,
            description = "Change nothing, and return what would be removed (default false)",
        ),
    ),
    responses(
        (status = 200, description = "The removed and the kept versions", body = PrunedView),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn prune(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<PluginName>,
    mut params: Params,
    body: Body,
) -> HandlerResult {
    let dry_run = params.one("dry_run")?.unwrap_or(false);
    params.done()?;
    let PruneBody { keep } = body.read_or_default()?;
    let keep = keep.unwrap_or(DEFAULT_KEPT_VERSIONS);
    if !(1..=MAX_VERSIONS as u32).contains(&keep) {
        return Err(Problem::invalid("keep", format_args!("must be 1 to {MAX_VERSIONS}")));
    }
    let (item, removed) = api.server.prune_plugin(&name, keep as usize, !dry_run).await?;
    let kept = item.versions.iter().map(|version| version.number).collect();
    Ok(accept.ok(PrunedView { removed, kept }).into_response())
}

/// Set the shadow version. It is called for comparison with the live version, and decides nothing.
#[utoipa::path(
    put, path = "/v1/plugins/{plugin}/shadow", operation_id = "put_plugin_shadow", tag = "plugins",
    request_body = ShadowBody,
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (status = 200, description = "The plugin after the change", body = PluginView),
        (status = 404, description = "`plugin_not_found`, `plugin_version_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn shadow(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<PluginName>,
    body: Body,
) -> HandlerResult {
    let ask: ShadowBody = body.read()?;
    let item = api.server.shadow_plugin(&name, Some(ask.version)).await?;
    shown(&api, accept, &name, &item).await
}

/// Remove the shadow version.
#[utoipa::path(
    delete, path = "/v1/plugins/{plugin}/shadow", operation_id = "delete_plugin_shadow",
    tag = "plugins",
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (status = 200, description = "The plugin after the change", body = PluginView),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn no_shadow(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<PluginName>,
) -> HandlerResult {
    let item = api.server.shadow_plugin(&name, None).await?;
    shown(&api, accept, &name, &item).await
}

/// The routes of plugins.
pub fn routes() -> Routes {
    routes!(list, put, get, delete, versions, component, rollback, prune, shadow, no_shadow)
        .merge(calls::routes())
}
