//! The errors of jobs, counted in groups.

use axum::{extract::State, response::IntoResponse};
use tidegate_api::{ErrorPage, FilterBody};

use super::{
    super::{
        Api, HandlerResult,
        access::{Read, Within},
        convert,
        media::Accept,
        params::Params,
    },
    read::within,
};
use tidegate_core::port::{job_filter::TimeRange, job_store::ListQuery, listing::Cursor};

/// Errors, counted by type, reason and pattern of the message.
///
/// Each job counts with its latest error. Unless `state` or `phase` is given, the jobs are those that
/// failed and those that wait for their next attempt. `from` and `to` bound the time of the error; the
/// other conditions are those of `GET /v1/jobs`.
///
/// A page counts at most 20,000 jobs, and reads a bounded number of others. The groups of all pages
/// add up. A token with bounds sees only the jobs within them.
#[utoipa::path(
    get, path = "/v1/errors", operation_id = "list_errors", tag = "jobs",
    params(
        ("from" = Option<String>, Query, description = "Only errors at this instant or later"),
        ("to" = Option<String>, Query, description = "Only errors before this instant"),
        FilterBody,
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page of groups", body = ErrorPage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub async fn errors(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Read>,
    mut params: Params,
) -> HandlerResult {
    let at = TimeRange { from: params.one("from")?, to: params.one("to")? };
    let query = ListQuery {
        filter: params.filter()?,
        now: api.server.now(),
        cursor: params.one::<Cursor>("cursor")?.map(|cursor| cursor.to_string()),
        ..ListQuery::default()
    };
    params.done()?;
    let query = within(query, caller.bounds())?;
    let page = api.server.errors(&query, at).await?;
    let errors = page.groups.into_iter().map(convert::error_group).collect();
    let page = ErrorPage { errors, ungrouped: page.ungrouped, next_cursor: page.next_cursor };
    Ok(accept.ok(page).into_response())
}
