//! Access tokens: created, listed without their secrets, revoked.

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use tidegate_api::{NewTokenBody, TokenPage, TokenView};
use tidegate_core::error_code::ErrorCode;

use super::{
    Api, HandlerResult,
    access::{Admin, May},
    body::Body,
    error::Problem,
    media::Accept,
    params::{Name, PageRequest, Params},
    routes::{Routes, routes},
};
use crate::{auth::TokenItem, runtime::TokenRemoval};

/// Create a token. Its text is shown only once.
///
/// With the first token the server requires one of every caller, so on an open server the first
/// must have scope `admin`, without `expires_at`. An `Idempotency-Key` is ignored, because a repeat
/// could not show the text again: if the answer is lost, create another token and revoke the lost
/// one.
#[utoipa::path(
    post, path = "/v1/tokens", operation_id = "create_token", tag = "tokens",
    request_body = NewTokenBody,
    responses(
        (status = 201, description = "The token", body = TokenView),
        (
            status = 409,
            description = "`admin_token_required`: no caller could administer the server",
        ),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn create(
    State(api): State<Api>,
    accept: Accept,
    admin: May<Admin>,
    body: Body,
) -> HandlerResult {
    let ask: NewTokenBody = body.read()?;
    let (item, text) = TokenItem::create(ask, api.server.now(), &*api.options.entropy)
        .map_err(|invalid| Problem::invalid(invalid.field, invalid.problem))?;
    if admin.server_is_open {
        item.check_first().map_err(|invalid| match invalid.field {
            "scopes" => {
                Problem::new(ErrorCode::AdminTokenRequired, invalid.problem).blame("scopes")
            }
            field => Problem::invalid(field, invalid.problem),
        })?;
    }
    api.server.put_token(&item).await?;
    Ok(accept.reply(StatusCode::CREATED, item.view(None, Some(text))).into_response())
}

/// Tokens, without their secrets.
#[utoipa::path(
    get, path = "/v1/tokens", operation_id = "list_tokens", tag = "tokens",
    params(
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of tokens on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = TokenPage)),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn list(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    request: PageRequest,
) -> HandlerResult {
    let items = api.server.tokens().await?;
    let mut uses = api.server.token_uses().await?;
    let items = items.into_iter().map(|item| (item.id.clone(), item)).collect();
    let (items, next_cursor) = request.page(items);
    let tokens = items.into_iter().map(|(id, item)| item.view(uses.remove(&id), None)).collect();
    Ok(accept.ok(TokenPage { tokens, next_cursor }).into_response())
}

/// Revoke a token.
///
/// A server that had a token never lets callers without credentials in again. So the last token
/// with scope `admin` is kept, unless `force` is true or an identity provider is configured. A
/// token that expires does not count as another one.
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", operation_id = "delete_token", tag = "tokens",
    params(
        ("id" = String, Path, description = "The token's id"),
        (
            "force" = Option<bool>, Query,
            description = "Revoke it even if it is the last with scope `admin` (default false)",
        ),
    ),
    responses(
        (status = 204, description = "Revoked"),
        (status = 404, description = "`token_not_found`"),
        (
            status = 409,
            description = "`last_admin_token`: no caller could administer the server without it",
        ),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn revoke(
    State(api): State<Api>,
    _: May<Admin>,
    Name(id): Name<String>,
    mut params: Params,
) -> Result<StatusCode, Problem> {
    let force = params.one::<bool>("force")?.unwrap_or_default();
    params.done()?;
    let keep = || !force && api.options.auth.is_last_admin(&id);
    match api.server.delete_token(&id, keep).await? {
        TokenRemoval::Removed => Ok(StatusCode::NO_CONTENT),
        TokenRemoval::Unknown => {
            Err(Problem::new(ErrorCode::TokenNotFound, format!("there is no token {id}")))
        }
        TokenRemoval::Kept => {
            let detail = "there is no other token with scope admin that does not expire: create \
                          one first, or give force=true; then a new one can only be made with the \
                          server stopped";
            Err(Problem::new(ErrorCode::LastAdminToken, detail))
        }
    }
}

/// The routes of tokens.
pub fn routes() -> Routes {
    routes!(create, list, revoke)
}
