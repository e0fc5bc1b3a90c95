//! Diagnostics of a plugin's calls: log, recorded calls, differences of the shadow version. Log and
//! differences are kept in memory, or in a record of all servers that share a store, and the oldest are
//! dropped first. Recorded calls are stored, too.

use std::time::Duration;

use axum::{extract::State, response::IntoResponse};
use serde_json::value::RawValue;
use tidegate_api::{
    AnyValue, CallFault, CallLogLine, LogView, LogsView, PluginView, RecordedCallView,
    RecordedCalls, RecordedFault, RecordedFaults, RecordingBody, ShadowView,
};

use super::{
    super::{
        Api, HandlerResult,
        access::{Admin, May, Read},
        body::Body,
        error::Problem,
        media::Accept,
        params::{Name, Params, PluginCallPath},
        routes::{Routes, routes},
    },
    shown,
};
use crate::runtime::{Comparison, Server, ShownCall, Wanted};
use tidegate_core::{
    job::{Payload, PluginName},
    queue::plugin_calls::CallRecording,
    validate::{ValidationError, check_filter},
};
use tidegate_engine::Error;

/// Most faults of the live version, and of the shadow version, in an answer.
const MAX_FAULTS: usize = 8;
/// Most bytes of their calls together.
const MAX_FAULTS_BYTES: usize = 4 << 20;
/// How long calls are stored without `for_seconds`.
const DEFAULT_RECORDING_SECONDS: u32 = 3600;
/// The longest time for which calls are stored.
const MAX_RECORDING_SECONDS: u32 = 86_400;

/// A value of JSON in the answer's encoding.
fn any(json: &RawValue, accept: Accept) -> AnyValue {
    AnyValue::new(&Payload::json(json.get().to_owned()), accept.0)
}

/// A recorded call in the answer's encoding.
fn call_view(shown: ShownCall, accept: Accept) -> RecordedCallView {
    let log = shown.log.into_iter();
    RecordedCallView {
        id: shown.id,
        reason: shown.reason.into(),
        at: shown.at,
        version: shown.version,
        shadow: shown.shadow,
        role: shown.role,
        queue: shown.queue,
        decided: shown.decided,
        fault: shown.fault.map(|(kind, message)| CallFault { kind, message }),
        log: log.map(|(level, message)| CallLogLine { level, message }).collect(),
        usage: shown.usage,
        redacted: shown.redacted,
        answer: shown.answer.as_deref().map(|answer| any(answer, accept)),
        call: shown.call.as_deref().map(|call| any(call, accept)),
    }
}

/// The latest lines that a plugin logged.
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
    let seen = api.server.plugin_seen(&name).await?;
    let is_after = |line: &LogView| after.is_none_or(|after| line.number > after);
    let logs: Vec<LogView> = seen.log.into_iter().filter(is_after).collect();
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
                shadow version, also from before the start of the server. A call has at most 64 KiB \
                of data; `data-left-out` is the number of missing bytes. It is null if it is too \
                large, or the calls before it have more than 4 MiB",
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
    let calls = api.server.plugin_calls(&name, Wanted::Faults).await?;
    let input = |id: String| {
        let (server, name) = (&api.server, &name);
        async move { input_of(server, name, &id).await }
    };
    let faults = with_inputs(calls, input).await?.into_iter().filter_map(|(call, input)| {
        let input = input.as_deref().map_or("null", RawValue::get);
        let call_view = AnyValue::new(&Payload::json(input.to_owned()), accept.0);
        Some(RecordedFault { fault: call.into_fault()?, call: call_view })
    });
    Ok(accept.ok(RecordedFaults { faults: faults.collect() }).into_response())
}

/// The latest faults of the live version and of the shadow version, each with its input from
/// `input_of`. One that exceeds the bound of all inputs and those behind it are left out.
async fn with_inputs<F: Future<Output = Result<Option<Box<RawValue>>, Error>>>(
    calls: Vec<ShownCall>,
    input_of: impl Fn(String) -> F,
) -> Result<Vec<(ShownCall, Option<Box<RawValue>>)>, Error> {
    let (mut faults, mut bytes, mut counts) = (Vec::new(), 0, [0; 2]);
    for call in calls {
        let count = &mut counts[usize::from(call.shadow)];
        *count += 1;
        if *count > MAX_FAULTS {
            continue;
        }
        let mut input = None;
        if bytes <= MAX_FAULTS_BYTES {
            input = input_of(call.id.clone()).await?;
            bytes += input.as_ref().map_or(0, |input| input.get().len());
        }
        faults.push((call, input.filter(|_| bytes <= MAX_FAULTS_BYTES)));
    }
    Ok(faults)
}

/// The input of a recorded call; none if it is not stored, or if later calls have replaced it.
async fn input_of(
    server: &Server,
    plugin: &PluginName,
    id: &str,
) -> Result<Option<Box<RawValue>>, Error> {
    match server.plugin_call(plugin, id).await {
        Ok(call) => Ok(call.call),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The recorded calls, without their inputs and answers.
///
/// The server keeps the latest 20 calls of each plugin in memory. It stores those that failed (the
/// latest 50), those that the plugin's recording selects (100), and on AWS and Postgres one a minute
/// of each queue (60), for seven days, with what the plugin logged in each.
#[utoipa::path(
    get, path = "/v1/plugins/{plugin}/calls", operation_id = "list_plugin_calls", tag = "plugins",
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (status = 200, description = "The calls, latest first", body = RecordedCalls),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn calls(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<PluginName>,
) -> HandlerResult {
    let calls = api.server.plugin_calls(&name, Wanted::All).await?;
    let calls = calls.into_iter().map(|call| call_view(call, accept)).collect();
    Ok(accept.ok(RecordedCalls { calls }).into_response())
}

/// A recorded call, with its input and its answer.
#[utoipa::path(
    get, path = "/v1/plugins/{plugin}/calls/{id}", operation_id = "get_plugin_call",
    tag = "plugins",
    params(
        ("plugin" = String, Path, description = "The plugin's name"),
        ("id" = String, Path, description = "The id of the recorded call"),
    ),
    responses(
        (status = 200, description = "The call", body = RecordedCallView),
        (status = 404, description = "`plugin_not_found`, `plugin_call_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn call(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    path: PluginCallPath,
) -> HandlerResult {
    let call = api.server.plugin_call(&path.plugin, &path.id).await?;
    Ok(accept.ok(call_view(call, accept)).into_response())
}

/// Store the calls that a filter selects, for a time. It replaces an earlier filter.
///
/// At most 60 calls a minute are stored, and the latest 100 are kept for seven days.
#[utoipa::path(
    put, path = "/v1/plugins/{plugin}/recording", operation_id = "put_plugin_recording",
    tag = "plugins",
    request_body = RecordingBody,
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (status = 200, description = "The plugin after the change", body = PluginView),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn record(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<PluginName>,
    body: Body,
) -> HandlerResult {
    let RecordingBody { filter, for_seconds } = body.read_or_default()?;
    check_filter(&filter).map_err(|fault| {
        let ValidationError { field, message, .. } = fault.within("filter");
        Problem::invalid(field, message)
    })?;
    let seconds = for_seconds.unwrap_or(DEFAULT_RECORDING_SECONDS);
    if !(1..=MAX_RECORDING_SECONDS).contains(&seconds) {
        let bounds = format!("must be 1 to {MAX_RECORDING_SECONDS}");
        return Err(Problem::invalid("for_seconds", bounds));
    }
    let until = api.server.now() + Duration::from_secs(seconds.into());
    let recording = Some(CallRecording { filter, until });
    let item = api.server.record_plugin_calls(&name, recording).await?;
    shown(&api, accept, &name, &item).await
}

/// Stop storing the calls that a filter selects. What is stored stays.
#[utoipa::path(
    delete, path = "/v1/plugins/{plugin}/recording", operation_id = "delete_plugin_recording",
    tag = "plugins",
    params(("plugin" = String, Path, description = "The plugin's name")),
    responses(
        (status = 200, description = "The plugin after the change", body = PluginView),
        (status = 404, description = "`plugin_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn no_recording(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<PluginName>,
) -> HandlerResult {
    let item = api.server.record_plugin_calls(&name, None).await?;
    shown(&api, accept, &name, &item).await
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
    routes!(logs, faults, differences, calls, call, record, no_recording)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeMap};

    use tidegate_api::UsageView;
    use tidegate_core::{port::policy::Usage, queue::plugin::Role, time::Timestamp};

    use super::*;

    fn failed(number: usize, shadow: bool) -> ShownCall {
        ShownCall {
            id: number.to_string(),
            reason: "fault".into(),
            at: Timestamp::EPOCH,
            version: 1,
            shadow,
            role: Role::Throttler,
            queue: "mail".parse().unwrap(),
            usage: UsageView::from(&Usage::default()),
            decided: BTreeMap::new(),
            fault: Some(("trapped".into(), "no".into())),
            log: Vec::new(),
            redacted: Vec::new(),
            answer: None,
            call: None,
        }
    }

    #[tokio::test]
    async fn inputs_are_read_up_to_the_bound_of_an_answer() {
        let calls: Vec<ShownCall> = (0..40).map(|number| failed(number, number >= 20)).collect();
        for (input_bytes, with_input) in [(100, 16), (1 << 20, 4), (MAX_FAULTS_BYTES + 1, 0)] {
            let read = RefCell::new(Vec::new());
            let input_of = async |id: String| {
                read.borrow_mut().push(id);
                let text = format!("\"{}\"", "x".repeat(input_bytes - 2));
                Ok(Some(RawValue::from_string(text).unwrap()))
            };
            let faults = with_inputs(calls.clone(), input_of).await.unwrap();
            let ids: Vec<&str> = faults.iter().map(|(call, _)| &*call.id).collect();
            let latest: Vec<String> = (0..8).chain(20..28).map(|n| n.to_string()).collect();
            assert_eq!(ids, latest);
            let has_input: Vec<bool> = faults.iter().map(|(_, input)| input.is_some()).collect();
            assert!(has_input[..with_input].iter().all(|has| *has), "{has_input:?}");
            assert!(has_input[with_input..].iter().all(|has| !has), "{has_input:?}");
            // The one that exceeds the bound is read, and none behind it.
            assert_eq!(read.into_inner(), ids[..(with_input + 1).min(16)]);
        }
    }
}
