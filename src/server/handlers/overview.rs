//! The state and the last hour of many queues, for the first page of the console.

use axum::{extract::State, response::IntoResponse};
use tidegate_api::OverviewPage;

use super::{
    Api, HandlerResult,
    access::{Read, Within},
    convert,
    media::Accept,
    params::{PageRequest, Params},
    routes::{Routes, routes},
};
use tidegate_core::job::QueueName;

/// The state and the last hour of queues, by name.
///
/// The numbers are those that the server counts regularly, so that a page costs little; the status
/// of a queue has those of the moment. A caller whose token concerns only some queues gets these.
#[utoipa::path(
    get, path = "/v1/overview", operation_id = "get_overview", tag = "queues",
    params(
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of queues on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
        (
            "prefix" = Option<String>, Query,
            description = "Only queues whose name begins with this, at most 64 bytes",
        ),
    ),
    responses((status = 200, description = "A page", body = OverviewPage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn get(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Read>,
    mut params: Params,
) -> HandlerResult {
    // The beginning of a name is a name.
    let prefix = params.one::<QueueName>("prefix")?;
    let request = PageRequest::read(params)?;
    let mut queues = api.server.queues().await?;
    queues.retain(|(name, _)| {
        let has_prefix =
            prefix.as_ref().is_none_or(|prefix| name.as_str().starts_with(prefix.as_str()));
        has_prefix && caller.bounds().allow_whole_queue(name)
    });
    let (queues, next_cursor) = request.page(queues);
    let at = api.server.now();
    let overview = api.server.overview(queues).await?;
    let queues = overview.into_iter().map(convert::queue_overview).collect();
    Ok(accept.ok(OverviewPage { at, queues, next_cursor }).into_response())
}

/// The route of the overview.
pub fn routes() -> Routes {
    routes!(get)
}
