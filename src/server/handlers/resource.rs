//! Named configurations: what the routes of queues, job types, schedules and triggers share.
//!
//! ```text
//!   list    GET     /v1/KIND         a page, by name
//!   get     GET     /v1/KIND/NAME    the item; its version is the ETag
//!   put     PUT     /v1/KIND/NAME    201 if it is new, 200 if it is replaced
//!   patch   PATCH   /v1/KIND/NAME    200; the merge patch is applied to the stored configuration
//!   delete  DELETE  /v1/KIND/NAME    204
//! ```
//!
//! The file of a kind implements [`Item`] for what the server keeps, and has one short function per
//! route, because utoipa documents functions. The type aliases are the arguments of these
//! functions; the functions here write the answers. The server refuses `put`, `patch` and `delete`
//! with 412 if `If-Match` names another version than the stored one.

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use serde::Serialize;

use super::{
    Api, HandlerResult,
    access::{Admin, May, Read, Within},
    error::Problem,
    media::Accept,
    params::{IfMatch, Name, PageRequest},
};
use tidegate_core::time::Timestamp;
use tidegate_engine::Error;

/// How often a patch without `If-Match` is repeated when a concurrent change makes it stale.
const MAX_PATCH_RETRIES: usize = 5;

/// The arguments of a route that lists items, for callers with the scope `read`.
pub type List = (State<Api>, Accept, May<Read>, PageRequest);
/// As [`List`]; the handler leaves out what is outside the caller's bounds.
pub type ListWithin = (State<Api>, Accept, Within<Read>, PageRequest);
/// The arguments of a route that shows the item of a name, for callers with the scope `read`.
pub type Get<N> = (State<Api>, Accept, May<Read>, Name<N>);
/// As [`Get`]; the handler refuses what is outside the caller's bounds.
pub type GetWithin<N> = (State<Api>, Accept, Within<Read>, Name<N>);
/// The arguments of a route that configures an item, for callers with the scope `admin`.
pub type Configure<N> = (State<Api>, Accept, May<Admin>, Name<N>, IfMatch);
/// The arguments of a route that deletes an item, for callers with the scope `admin`.
pub type Delete<N> = (State<Api>, May<Admin>, Name<N>, IfMatch);
/// The arguments of a route that pauses or resumes an item, for callers with the scope `admin`.
pub type Pause<N> = (State<Api>, Accept, May<Admin>, Name<N>);

/// What the server keeps under a name.
pub trait Item {
    /// The name of such an item.
    type Name;
    /// What an answer shows of it.
    type View: Serialize;

    /// Its version, which is the `ETag`.
    fn version(&self) -> u64;

    /// What an answer at `now` shows of it.
    ///
    /// # Errors
    ///
    /// 500 if it cannot be shown.
    fn view(self, name: Self::Name, accept: Accept, now: Timestamp) -> Result<Self::View, Problem>;
}

/// What an answer shows of `items`.
///
/// # Errors
///
/// 500 if an item cannot be shown.
pub fn views<I: Item>(
    api: &Api,
    accept: Accept,
    items: Vec<(I::Name, I)>,
) -> Result<Vec<I::View>, Problem> {
    let now = api.server.now();
    items.into_iter().map(|(name, item)| item.view(name, accept, now)).collect()
}

/// The answer that shows `item`, with its `ETag`.
///
/// # Errors
///
/// 500 if it cannot be shown.
pub fn shown<I: Item>(api: &Api, accept: Accept, name: I::Name, item: I) -> HandlerResult {
    answer(api, accept, StatusCode::OK, name, item)
}

/// The answer to a `put`: the stored item, with 201 if it is new.
///
/// # Errors
///
/// 500 if it cannot be shown.
pub fn stored<I: Item>(
    api: &Api,
    accept: Accept,
    name: I::Name,
    (item, new): (I, bool),
) -> HandlerResult {
    answer(api, accept, if new { StatusCode::CREATED } else { StatusCode::OK }, name, item)
}

fn answer<I: Item>(
    api: &Api,
    accept: Accept,
    status: StatusCode,
    name: I::Name,
    item: I,
) -> HandlerResult {
    let version = item.version();
    let view = item.view(name, accept, api.server.now())?;
    Ok(accept.reply(status, view).etag(version).into_response())
}

/// The item that `put` stores after `patched` has changed the configuration of the one found.
///
/// Without `If-Match` the patch is applied again to what a concurrent change stored, at most
/// [`MAX_PATCH_RETRIES`] times.
///
/// # Errors
///
/// Those of `find`, `patched` and `put`.
pub async fn patch<I: Item, C, Find, Put>(
    if_match: Option<u64>,
    find: impl Fn() -> Find,
    patched: impl Fn(&I) -> Result<C, Problem>,
    put: impl Fn(C, Option<u64>) -> Put,
) -> Result<I, Problem>
where
    Find: Future<Output = Result<I, Error>>,
    Put: Future<Output = Result<(I, bool), Error>>,
{
    let mut retries = 0..MAX_PATCH_RETRIES;
    loop {
        let item = find().await?;
        let config = patched(&item)?;
        match put(config, if_match.or(Some(item.version()))).await {
            Err(Error::Stale { .. }) if if_match.is_none() && retries.next().is_some() => {}
            stored => return Ok(stored?.0),
        }
    }
}
