//! The clock of a server for development, which tests freeze and move.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use tidegate_api::{DevClockBody, DevClockView};
use tidegate_backends::system::DevClock;
use tidegate_core::{error_code::ErrorCode, port::Clock as _, time::Seconds};

use super::{
    Api, HandlerResult,
    access::{Admin, May, Read},
    body::Body,
    error::Problem,
    media::Accept,
    routes::{Routes, routes},
};

/// The longest move: 100 years.
const MAX_ADVANCE: Seconds = Seconds::new(3_155_760_000);

/// The clock that tests move.
fn clock(api: &Api) -> Result<&Arc<DevClock>, Problem> {
    api.options.dev_clock.as_ref().ok_or_else(|| {
        let detail = "this server has the machine's clock; only one that `tidegate dev` started \
                      has a clock that can be moved";
        Problem::new(ErrorCode::NotADevServer, detail)
    })
}

fn view(clock: &DevClock) -> DevClockView {
    DevClockView { now: clock.now(), frozen: clock.is_frozen() }
}

/// The clock of a server that `tidegate dev` started.
#[utoipa::path(
    get, path = "/v1/dev/clock", operation_id = "get_dev_clock", tag = "operate",
    responses(
        (status = 200, description = "The clock", body = DevClockView),
        (status = 404, description = "`not_a_dev_server`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn get(State(api): State<Api>, accept: Accept, _: May<Read>) -> HandlerResult {
    Ok(accept.ok(view(clock(&api)?)).into_response())
}

/// Freeze that clock, let it run, or move it forward.
///
/// The request has exactly one field. Everything that is due then happens at once.
#[utoipa::path(
    post, path = "/v1/dev/clock", operation_id = "move_dev_clock", tag = "operate",
    request_body = DevClockBody,
    responses(
        (status = 200, description = "The clock", body = DevClockView),
        (status = 404, description = "`not_a_dev_server`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn change(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    body: Body,
) -> HandlerResult {
    let clock = clock(&api)?;
    match body.read::<DevClockBody>()? {
        DevClockBody { freeze: Some(freeze), advance_seconds: None, set: None } => {
            clock.freeze(freeze);
        }
        DevClockBody { freeze: None, advance_seconds: Some(span), set: None } => {
            if span > MAX_ADVANCE {
                let bound = "must be 0 to 3155760000, which are 100 years";
                return Err(Problem::invalid("advance_seconds", bound));
            }
            clock.advance(span.duration());
        }
        DevClockBody { freeze: None, advance_seconds: None, set: Some(at) } => {
            clock.set(at).map_err(|error| Problem::invalid("set", error))?;
        }
        DevClockBody { freeze: None, advance_seconds: None, set: None } => {
            let one = "is missing: give freeze, advance_seconds or set";
            return Err(Problem::invalid("freeze", one));
        }
        DevClockBody { freeze, .. } => {
            let second = if freeze.is_some() { "freeze" } else { "set" };
            let one = "is not the only field: give one of freeze, advance_seconds and set";
            return Err(Problem::invalid(second, one));
        }
    }
    Ok(accept.ok(view(clock)).into_response())
}

/// The routes of the clock.
pub fn routes() -> Routes {
    routes!(get, change)
}
