//! Access tokens: created, listed without their secrets, revoked.

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use tidegate_api::{NewTokenBody, TokenPage, TokenView};
use tidegate_core::error_code::ErrorCode;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Api, HandlerResult,
    access::{Admin, May},
    body::Body,
    error::Problem,
    media::Accept,
    params::{Name, PageRequest},
};
use crate::auth::{Scope, TokenItem};

fn view(item: TokenItem, token: Option<String>) -> TokenView {
    TokenView {
        id: item.id,
        name: item.name,
        scopes: item.scopes,
        created_at: item.created_at,
        token,
    }
}

/// Create a token. Its text is shown only once.
///
/// With the first token the server requires one of every caller, so on an open server the first
/// must have scope `admin`. An `Idempotency-Key` is ignored, because a repeat could not show the
/// text again: if the answer is lost, create another token and revoke the lost one.
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
    if !(1..=128).contains(&ask.name.len()) {
        return Err(Problem::invalid("name", "must have 1 to 128 bytes"));
    }
    if ask.scopes.is_empty() {
        return Err(Problem::invalid("scopes", "must have at least one"));
    }
    if admin.anonymous && !ask.scopes.allow(Scope::Admin) {
        let detail =
            "the first token must have scope admin: from then on every caller needs a token";
        return Err(Problem::new(ErrorCode::AdminTokenRequired, detail).blame("scopes"));
    }
    let (item, text) =
        TokenItem::mint(ask.name, ask.scopes, api.server.now(), &*api.options.entropy);
    let json = serde_json::to_vec(&item).map_err(|error| Problem::internal(error.to_string()))?;
    api.server.put_token(&item.id, json).await?;
    Ok(accept.reply(StatusCode::CREATED, view(item, Some(text))).into_response())
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
    let mut items = Vec::new();
    for json in api.server.tokens().await? {
        let item = TokenItem::read(&json);
        items.push((item.id.clone(), item));
    }
    let (items, next_cursor) = request.page(items);
    let tokens = items.into_iter().map(|(_, item)| view(item, None)).collect();
    Ok(accept.ok(TokenPage { tokens, next_cursor }).into_response())
}

/// Revoke a token.
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", operation_id = "delete_token", tag = "tokens",
    params(("id" = String, Path, description = "The token's id")),
    responses(
        (status = 204, description = "Revoked"),
        (status = 404, description = "`token_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn revoke(
    State(api): State<Api>,
    _: May<Admin>,
    Name(id): Name<String>,
) -> Result<StatusCode, Problem> {
    if api.server.delete_token(&id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::new(ErrorCode::TokenNotFound, format!("there is no token {id}")))
    }
}

/// The routes of tokens.
pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(revoke))
}
