//! Diagnostics of a plugin's calls: log, faults, differences of the shadow version. They are kept
//! in memory, and the oldest are dropped first.

use axum::{extract::State, response::IntoResponse};
use tidegate_api::{
    AnyValue, FaultView, LogView, LogsView, RecordedFault, RecordedFaults, ShadowView,
};

use super::super::{
    Api, HandlerResult,
    access::{May, Read},
    media::Accept,
    params::{Name, Params},
    routes::{Routes, routes},
};
use crate::runtime::Comparison;
use tidegate_backends::wasm::diagnostics::{Failed, LogLine};
use tidegate_core::job::{Payload, PluginName};

/// `failed` without its call.
pub fn fault(failed: &Failed, shadow: bool) -> FaultView {
    let Failed { at, version, role, fault, .. } = failed;
    FaultView {
        at: *at,
        version: *version,
        shadow,
        role: *role,
        kind: fault.kind.as_str().into(),
        message: fault.message.clone(),
    }
}

fn log_line(line: &LogLine) -> LogView {
    let LogLine { number, at, version, role, level, text } = line;
    LogView {
        number: *number,
        at: *at,
        version: *version,
        role: *role,
        level: level.as_str().into(),
        message: text.clone(),
    }
}

/// The latest lines that a plugin logged since the server started.
#[utoipa::path(
    get, path = "/v1/plugins/{plugin}/logs", operation_id = "get_plugin_logs", tag = "plugins",
    params(
        ("plugin" = String, Path, description = "The plugin's name"),
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of lines, 1 to 1000 (default 100)",
        ),
        ("after" = Option<u64>, Query, description = "Only lines after the one of this number"),
    ),
    responses(
        (status = 200, description = "The lines", body = LogsView),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn logs(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<PluginName>,
    mut params: Params,
) -> HandlerResult {
    let (limit, after) = (params.limit()? as usize, params.one::<u64>("after")?);
    params.done()?;
    api.server.plugin(&name).await?;
    let seen = api.server.plugin_seen(&name);
    let logs: Vec<LogView> = seen
        .log
        .iter()
        .filter(|line| after.is_none_or(|after| line.number > after))
        .map(log_line)
        .collect();
    // With `after`, the caller follows the log and gets the next lines; without, the latest.
    let skipped = if after.is_some() { 0 } else { logs.len().saturating_sub(limit) };
    Ok(accept
        .ok(LogsView { logs: logs.into_iter().skip(skipped).take(limit).collect() })
        .into_response())
}

/// The latest failed calls, each with its input.
#[utoipa::path(
    get, path = "/v1/plugins/{plugin}/faults", operation_id = "get_plugin_faults", tag = "plugins",
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (
            status = 200,
            description = "The faults, latest first; at most 8 of the live version and 8 of the \
                shadow version. A call has at most 64 KiB of data; `data-left-out` is the number \
                of missing bytes",
            body = RecordedFaults,
        ),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn faults(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<PluginName>,
) -> HandlerResult {
    api.server.plugin(&name).await?;
    let recorded = |failed: &Failed, shadow| RecordedFault {
        fault: fault(failed, shadow),
        call: AnyValue::new(&Payload::json(failed.call.to_string()), accept.0),
    };
    let seen = api.server.plugin_seen(&name);
    let live = seen.live.failed.iter().map(|failed| recorded(failed, false));
    let mut faults: Vec<RecordedFault> =
        live.chain(seen.shadow.failed.iter().map(|failed| recorded(failed, true))).collect();
    faults.sort_by_key(|recorded| std::cmp::Reverse(recorded.fault.at));
    Ok(accept.ok(RecordedFaults { faults }).into_response())
}

/// The decisions in which the shadow version differs.
#[utoipa::path(
    get, path = "/v1/plugins/{plugin}/differences", operation_id = "get_plugin_differences",
    tag = "plugins",
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (
            status = 200,
            description = "What was compared; the latest 100 differences are kept",
            body = ShadowView,
        ),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn differences(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<PluginName>,
) -> HandlerResult {
    let Comparison { version, compared, different, failed, missed, differences } =
        api.server.plugin_differences(&name).await?;
    let differences = differences.into_iter().rev().collect();
    // 0 means no shadow version: versions are counted from 1.
    let version = Some(version).filter(|version| *version > 0);
    Ok(accept
        .ok(ShadowView { version, compared, different, failed, missed, differences })
        .into_response())
}

/// The routes of these diagnostics.
pub fn routes() -> Routes {
    routes!(logs, faults, differences)
}
