//! What is known of a plugin's calls: its log, its faults, where its shadow differs. Kept in memory, the oldest going first.

use axum::{extract::State, response::IntoResponse};
use serde::Serialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::super::{
    Answer, Api,
    access::{May, Read},
    media::Accept,
    params::{Name, Params},
    reply::Raw,
    schema::AnyValue,
};
use crate::runtime::{Comparison, Difference};
use tidegate_backends::wasm::diagnostics::{Failed, LogLine};
use tidegate_core::{
    job::{Payload, PluginName},
    queue::plugin::Role,
    time::Timestamp,
};

/// A call that gave no answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginFault)]
pub struct FaultView {
    /// When.
    at: Timestamp,
    /// The number of the plugin's version.
    version: u32,
    /// Whether it was asked beside the live version, and decided nothing.
    shadow: bool,
    /// The role in which it was called.
    role: Role,
    /// What kind: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer` or `unavailable`.
    kind: &'static str,
    /// What went wrong, for the plugin's author.
    message: String,
}

impl FaultView {
    /// `failed` without its call.
    pub fn new(failed: &Failed, shadow: bool) -> Self {
        let Failed { at, version, role, fault, .. } = failed;
        Self {
            at: *at,
            version: *version,
            shadow,
            role: *role,
            kind: fault.kind.as_str(),
            message: fault.message.clone(),
        }
    }
}

/// A call that gave no answer, with what was asked.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = RecordedPluginFault)]
struct RecordedFault {
    #[serde(flatten)]
    fault: FaultView,
    /// The call, as `tidegate plugin test` makes it again.
    #[schema(value_type = AnyValue)]
    call: Raw,
}

/// The latest faults.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginFaults)]
struct Faults {
    /// The faults, latest first.
    faults: Vec<RecordedFault>,
}

/// A line of a plugin's log.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginLogLine)]
struct LogView {
    /// Counted up from 1 since the server started: what `after` names.
    number: u64,
    /// When the call was that logged it.
    at: Timestamp,
    /// The number of the plugin's version.
    version: u32,
    /// The role in which it was called.
    role: Role,
    /// How much it matters: `debug`, `info`, `warn` or `error`.
    level: &'static str,
    /// What it says.
    message: String,
}

impl LogView {
    fn new(line: &LogLine) -> Self {
        let LogLine { number, at, version, role, level, text } = line;
        Self {
            number: *number,
            at: *at,
            version: *version,
            role: *role,
            level: level.as_str(),
            message: text.clone(),
        }
    }
}

/// The latest lines of a plugin's log.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginLogs)]
struct Logs {
    /// The lines, oldest first.
    logs: Vec<LogView>,
}

/// The latest lines that a plugin logged since the server started.
#[utoipa::path(get, path = "/v1/plugins/{plugin}/logs", operation_id = "get_plugin_logs", tag = "plugins",
    params(
        ("plugin" = String, Path, description = "The plugin's name"),
        ("limit" = Option<u32>, Query, description = "Most lines, 1 to 1000 (default 100)"),
        ("after" = Option<u64>, Query, description = "Only lines after the one of this number"),
    ),
    responses((status = 200, description = "The lines", body = Logs), (status = 404, description = "`plugin_not_found`")),
    security(("bearer" = ["read"]), ("basic" = ["read"])))]
async fn logs(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<PluginName>,
    mut params: Params,
) -> Answer {
    let (limit, after) = (params.limit()? as usize, params.one::<u64>("after")?);
    params.done()?;
    api.server.plugin(&name).await?;
    let seen = api.server.plugin_seen(&name);
    let logs: Vec<LogView> = seen
        .log
        .iter()
        .filter(|line| after.is_none_or(|after| line.number > after))
        .map(LogView::new)
        .collect();
    // Who follows wants what comes next, who looks wants what came last.
    let skipped = if after.is_some() { 0 } else { logs.len().saturating_sub(limit) };
    Ok(accept
        .ok(Logs { logs: logs.into_iter().skip(skipped).take(limit).collect() })
        .into_response())
}

/// The latest calls that gave no answer, each as it can be made again.
#[utoipa::path(get, path = "/v1/plugins/{plugin}/faults", operation_id = "get_plugin_faults", tag = "plugins",
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses((status = 200, description = "The faults, latest first; at most 8 are kept of the live version and 8 of the one in its shadow. A call is kept with at most 64 KiB of data; `data-left-out` has the bytes of what is missing", body = Faults), (status = 404, description = "`plugin_not_found`")),
    security(("bearer" = ["read"]), ("basic" = ["read"])))]
async fn faults(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<PluginName>,
) -> Answer {
    api.server.plugin(&name).await?;
    let recorded = |failed: &Failed, shadow| RecordedFault {
        fault: FaultView::new(failed, shadow),
        call: Raw::new(&Payload::json(failed.call.to_string()), accept.0),
    };
    let seen = api.server.plugin_seen(&name);
    let live = seen.live.failed.iter().map(|failed| recorded(failed, false));
    let mut faults: Vec<RecordedFault> =
        live.chain(seen.shadow.failed.iter().map(|failed| recorded(failed, true))).collect();
    faults.sort_by_key(|recorded| std::cmp::Reverse(recorded.fault.at));
    Ok(accept.ok(Faults { faults }).into_response())
}

/// How the version in the shadow does beside the live one.
#[allow(clippy::struct_field_names, reason = "the names of the API")]
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginDifferences)]
struct ShadowView {
    /// The version in the shadow; null if none is.
    version: Option<u32>,
    /// Decisions that were compared.
    compared: u64,
    /// Those that differed.
    different: u64,
    /// Calls of the shadow that failed.
    failed: u64,
    /// Calls that there was no time to compare.
    missed: u64,
    /// The latest differences, latest first.
    differences: Vec<Difference>,
}

/// Where the version in the shadow would have decided otherwise.
#[utoipa::path(get, path = "/v1/plugins/{plugin}/differences", operation_id = "get_plugin_differences", tag = "plugins",
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (status = 200, description = "What was compared; the latest 100 differences are kept", body = ShadowView),
        (status = 404, description = "`plugin_not_found`"),
    ), security(("bearer" = ["read"]), ("basic" = ["read"])))]
async fn differences(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<PluginName>,
) -> Answer {
    let Comparison { version, compared, different, failed, missed, differences } =
        api.server.plugin_differences(&name).await?;
    let differences = differences.into_iter().rev().collect();
    // Versions are counted from 1.
    let version = Some(version).filter(|version| *version > 0);
    Ok(accept
        .ok(ShadowView { version, compared, different, failed, missed, differences })
        .into_response())
}

/// The routes of what is known of calls.
pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(logs)).routes(routes!(faults)).routes(routes!(differences))
}
