//! `tidegate plugin record`: lists the recorded calls of a plugin, saves them as cases, and sets
//! which calls the server stores.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tidegate_api::{AnyValue, CallFault, PluginView, RecordedCallView, RecordedCalls};
use tidegate_core::{queue::plugin_calls::RedactedPart, time::Seconds};

use super::{Named, faults::word};
use crate::cli::{
    Context, ExitCode, UsageError, args,
    client::{Client, Error},
    output,
};

/// The options of `tidegate plugin record`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The server keeps the latest 20 calls of each plugin in memory. For a week it stores \
    the latest 50 that failed, the latest 100 that --filter selects, and on AWS and Postgres the \
    latest 60 of one a minute of each queue, with what the plugin logged in each. The setting \
    `plugin_calls` of a queue lists what they lack.\n\n\
    A filter is KEY=VALUE: queue, type, job, attribute.NAME, action (run, hold, reschedule, drop, \
    retry, give_up) or reason (a part of it). A call is stored if one of its jobs meets all of them. \
    `--filter all` selects every call. At most 60 a minute are stored.\n\n\
    Examples:\n  \
    tidegate plugin record region-share\n  \
    tidegate plugin record region-share --save calls && \
    tidegate plugin test region-share.wasm calls\n  \
    tidegate plugin record region-share --filter attribute.region=east --filter action=hold --for 10m"
)]
pub struct Args {
    #[command(flatten)]
    name: Named,
    #[command(flatten)]
    which: Which,
    /// Write the calls to this folder, as cases for `plugin test` and `plugin replay`.
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Store the calls that meet this condition from now on; repeatable.
    #[arg(long, value_name = "KEY=VALUE", conflicts_with_all = ["save", "only", "limit"])]
    filter: Vec<String>,
    /// How long they are stored, at most 24h [default: 1h].
    #[arg(long = "for", value_name = "SPAN", requires = "filter", value_parser = args::span)]
    span: Option<Seconds>,
    /// Store no more calls for a filter.
    #[arg(long, conflicts_with_all = ["save", "filter", "only", "limit"])]
    stop: bool,
}

/// Which recorded calls are read.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Which {
    /// Only calls that were recorded for this reason.
    #[arg(long, value_name = "REASON")]
    only: Option<Reason>,
    /// The maximum number of calls, latest first.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 50,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    limit: u16,
}

/// Why a call was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Reason {
    /// It is in memory, as one of the latest.
    Latest,
    /// It failed.
    Fault,
    /// A filter selected it.
    Filter,
    /// It is the one of its queue and minute, on AWS and Postgres.
    Sample,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Latest => "latest",
            Self::Fault => "fault",
            Self::Filter => "filter",
            Self::Sample => "sample",
        }
    }
}

/// Lists or saves the calls, or sets which are stored.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin, a condition is wrong, or the folder
/// cannot be written.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let name = args.name.name.as_str();
    if args.stop || !args.filter.is_empty() {
        return set(&args, &client, ctx).await;
    }
    let listed = list(name, args.which, &client).await?;
    if let Some(dir) = &args.save {
        let saved = save(dir, name, &whole(name, listed, &client, ctx).await?).await?;
        ctx.note(match saved {
            0 => format!("{name} has no recorded call to save"),
            _ => format!(
                "calls saved: {saved}; repeat them with `tidegate plugin replay {name}.wasm {}`",
                dir.display()
            ),
        });
        return Ok(ExitCode::Ok);
    }
    if ctx.json() {
        ctx.print(serde_json::to_string(&RecordedCalls { calls: listed })?)?;
        return Ok(ExitCode::Ok);
    }
    let now = ctx.now();
    let rows = listed.iter().map(|call| {
        let shadow = if call.shadow { " (shadow)" } else { "" };
        [
            output::when(call.at, now),
            format!("{}{shadow}", call.version),
            word(call.role).to_owned(),
            call.queue.to_string(),
            call.reason.to_string(),
            outcome(call),
            call.log.len().to_string(),
        ]
    });
    let columns = ["when", "version", "role", "queue", "recorded as", "decided", "log lines"];
    ctx.print_tables(output::table(ctx.look, columns, rows))?;
    Ok(ExitCode::Ok)
}

/// What a call decided, or why it failed.
fn outcome(call: &RecordedCallView) -> String {
    if let Some(CallFault { kind, message }) = &call.fault {
        return format!("{kind}: {message}");
    }
    let decided = call.decided.iter().map(|(word, count)| format!("{count} {word}"));
    let decided = decided.collect::<Vec<_>>().join(", ");
    if decided.is_empty() { output::dash() } else { decided }
}

/// Sets which calls the server stores.
async fn set(args: &Args, client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let path = ["plugins", args.name.name.as_str(), "recording"];
    let request = if args.stop {
        client.delete(&path)
    } else {
        let mut body = json!({ "filter": filter(&args.filter)? });
        if let Some(span) = args.span {
            let seconds = span.duration().as_secs();
            if seconds == 0 || span.duration().subsec_nanos() > 0 {
                return Err(UsageError("--for must be whole seconds".to_owned()).into());
            }
            body["for_seconds"] = seconds.into();
        }
        client.put(&path).json(&body)
    };
    let answer = request.send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
        return Ok(ExitCode::Ok);
    }
    let plugin: PluginView = answer.read()?;
    match &plugin.recording {
        Some(recording) => ctx.print(format_args!(
            "calls of {} that match are stored until {}; see them with `tidegate plugin record {}`",
            plugin.name, recording.until, plugin.name
        ))?,
        None => ctx.print(format_args!("no filter stores calls of {}", plugin.name))?,
    }
    Ok(ExitCode::Ok)
}

/// The filter of these conditions, as the API has it.
fn filter(conditions: &[String]) -> Result<Value, UsageError> {
    if conditions == ["all"] {
        return Ok(json!({}));
    }
    let (mut filter, mut attributes) = (Map::new(), Map::new());
    for condition in conditions {
        let wrong = |why: &str| UsageError(format!("--filter {condition}: {why}"));
        let (key, value) = condition.split_once('=').ok_or_else(|| wrong("KEY=VALUE expected"))?;
        let before = match key {
            "queue" | "type" | "job" | "action" | "reason" => {
                filter.insert(key.to_owned(), value.into())
            }
            _ => {
                let Some(name) = key.strip_prefix("attribute.") else {
                    let keys = "queue, type, job, attribute.NAME, action or reason";
                    return Err(wrong(&format!("the key must be {keys}")));
                };
                attributes.insert(name.to_owned(), value.into())
            }
        };
        if before.is_some() {
            return Err(wrong("the key is given twice"));
        }
    }
    if !attributes.is_empty() {
        filter.insert("attributes".to_owned(), attributes.into());
    }
    Ok(filter.into())
}

/// The recorded calls of a plugin, without inputs and answers.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin.
pub(super) async fn list(
    name: &str,
    which: Which,
    client: &Client,
) -> anyhow::Result<Vec<RecordedCallView>> {
    let answer = client.get(&["plugins", name, "calls"]).send().await?;
    let RecordedCalls { mut calls } = answer.read()?;
    calls.retain(|call| which.only.is_none_or(|reason| reason.as_str() == call.reason));
    calls.truncate(which.limit.into());
    Ok(calls)
}

/// These calls with inputs and answers. One that later calls have replaced meanwhile is left out.
///
/// # Errors
///
/// The server is unreachable.
pub(super) async fn whole(
    name: &str,
    listed: Vec<RecordedCallView>,
    client: &Client,
    ctx: &Context,
) -> anyhow::Result<Vec<RecordedCallView>> {
    let bar = ctx.progress(listed.len() as u64, "recorded calls");
    let mut calls = Vec::with_capacity(listed.len());
    for call in &listed {
        match client.get(&["plugins", name, "calls", &call.id]).send().await {
            Ok(answer) => calls.push(answer.read()?),
            Err(Error::Problem(problem)) if problem.status == 404 => {}
            Err(error) => return Err(error.into()),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(calls)
}

/// Whether `call` of a recorded call has all inputs that decide its answer: nothing was too large,
/// and the queue redacted neither data nor state nor failures.
fn has_all_inputs(recorded: &RecordedCallView, call: &Value) -> bool {
    let inside = call.get("throttle").or(call.get("retry"));
    let is_left_out = |field: &str| {
        let left_out = inside.and_then(|inside| inside.get(field));
        left_out.is_some_and(|left_out| !left_out.is_null())
    };
    let is_input = |part: &RedactedPart| {
        matches!(part, RedactedPart::Data | RedactedPart::State | RedactedPart::Failures)
    };
    !(recorded.redacted.iter().any(is_input)
        || is_left_out("data-left-out")
        || is_left_out("texts-left-out"))
}

/// The case of a recorded call, and whether it has all inputs; none if its input was not kept. A
/// case with all inputs expects the recorded answer. Others expect nothing.
///
/// # Errors
///
/// The call is none of a plugin.
pub(super) fn case(
    name: &str,
    recorded: &RecordedCallView,
) -> anyhow::Result<Option<(Value, bool)>> {
    let json = |value: Option<&AnyValue>| -> anyhow::Result<Option<Value>> {
        let text = value.and_then(AnyValue::json);
        Ok(text.map(serde_json::from_str).transpose()?)
    };
    let Some(call) = json(recorded.call.as_ref())? else { return Ok(None) };
    let RecordedCallView { at, version, .. } = recorded;
    let mut title = format!("{at}, version {version} of {name}: {}", outcome(recorded));
    if !recorded.redacted.is_empty() {
        let parts: Vec<String> = recorded.redacted.iter().map(ToString::to_string).collect();
        title = format!("{title} (redacted: {})", parts.join(", "));
    }
    let mut case = crate::plugin_testing::recorded(&title, &call).map_err(anyhow::Error::msg)?;
    let is_whole = has_all_inputs(recorded, &call);
    let answer = json(recorded.answer.as_ref())?.filter(|_| is_whole);
    if let Some(fields) = case.as_object_mut() {
        match answer {
            Some(answer) => fields.insert("expect".to_owned(), answer),
            None => fields.remove("expect"),
        };
    }
    Ok(Some((case, is_whole)))
}

/// Writes a case for each call that has its input, and returns their number.
async fn save(dir: &Path, name: &str, calls: &[RecordedCallView]) -> anyhow::Result<usize> {
    tokio::fs::create_dir_all(dir)
        .await
        .with_context(|| format!("{} cannot be created", dir.display()))?;
    let mut saved = 0;
    for call in calls {
        let Some((case, _)) = case(name, call)? else { continue };
        let file = dir.join(file_name(call, &case));
        tokio::fs::write(&file, format!("{case:#}\n"))
            .await
            .with_context(|| format!("{} cannot be written", file.display()))?;
        saved += 1;
    }
    Ok(saved)
}

/// The name of the file for a call. It ends in a hash of the case, so that a call saved twice has
/// one file, and two calls of one millisecond have two.
fn file_name(call: &RecordedCallView, case: &Value) -> String {
    let at: String = call.at.to_string().chars().filter(char::is_ascii_alphanumeric).collect();
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(case.to_string()));
    let hash = u32::from_be_bytes([a, b, c, d]);
    format!("{at}-v{}-{}-{}-{hash:08x}.json", call.version, word(call.role), call.reason)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{cli::testing::FakeServer, plugin_testing::Case};

    /// A recorded call with its input and its answer.
    pub fn recorded(id: &str, answer: &Value, fault: &Value) -> Value {
        let call = json!({"throttle": {
            "context": {"queue": "mail", "now": "2026-01-01T00:00:00Z", "config": {"limit": 1}},
            "round": {"room": 5}, "candidates": [{"id": "a", "job-type": "t"}],
        }});
        json!({
            "id": id, "reason": if fault.is_null() { "latest" } else { "fault" },
            "at": "2026-01-01T00:00:00.125Z", "version": 3, "shadow": false, "role": "throttler",
            "queue": "mail", "decided": {"hold": 1}, "fault": fault, "redacted": ["texts"],
            "log": [{"level": "info", "message": "hello"}],
            "usage": {"fuel": 1, "took_seconds": 0.1, "memory_bytes": 1, "host_calls": 0},
            "answer": answer, "call": call,
        })
    }

    /// A server with a held call, one that failed, and one that is gone.
    pub async fn server() -> FakeServer {
        let answer = json!({"decisions": [{"action": "hold", "reason": "full"}], "more": false});
        let held = recorded("latest-1-1", &answer, &Value::Null);
        let fault = json!({"kind": "trapped", "message": "no"});
        let failed = recorded("fault-000-1-2", &Value::Null, &fault);
        let gone = recorded("filter-000-1-3", &Value::Null, &Value::Null);
        FakeServer::answering(move |seen| match seen.path.rsplit('/').next().unwrap() {
            "calls" => (200, json!({"calls": [held.clone(), failed.clone(), gone.clone()]})),
            "latest-1-1" => (200, held.clone()),
            "fault-000-1-2" => (200, failed.clone()),
            _ => (404, json!({"title": "Not found", "code": "plugin_call_not_found"})),
        })
        .await
    }

    #[tokio::test]
    async fn calls_are_listed_and_saved_as_cases() {
        let server = server().await;
        let (code, out) = server.run(&["plugin", "record", "share"]).await;
        assert_eq!(code, ExitCode::Ok);
        assert!(out.contains("trapped: no") && out.contains("1 hold"), "{out}");
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("new");
        let (code, _) =
            server.run(&["plugin", "record", "share", "--save", to.to_str().unwrap()]).await;
        assert_eq!(code, ExitCode::Ok);
        let mut files: Vec<_> =
            std::fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert_eq!(files.len(), 2, "one is gone: {files:?}");
        let read = |file: &Path| {
            Case::read(&std::fs::read_to_string(file).unwrap()).unwrap().pop().unwrap()
        };
        let [failed, held] = [read(&files[0]), read(&files[1])];
        assert!(failed.name.contains("version 3 of share: trapped: no"), "{}", failed.name);
        assert!(held.name.ends_with("1 hold (redacted: texts)"), "{}", held.name);
        assert!(held.call().is_ok() && !held.expect.is_empty() && failed.expect.is_empty());

        let args = ["plugin", "record", "share", "--only", "fault", "--json"];
        let (_, out) = server.run(&args).await;
        let printed: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(printed["calls"].as_array().unwrap().len(), 1, "{out}");
    }

    #[test]
    fn a_case_without_all_inputs_expects_nothing() {
        let answer = json!({"decisions": [{"action": "hold"}]});
        let whole = recorded("latest-1-1", &answer, &Value::Null);
        let read = |call: &Value| {
            let view = serde_json::from_value(call.clone()).unwrap();
            let (case, is_whole) = case("share", &view).unwrap().unwrap();
            assert_eq!(case.get("expect").is_some(), is_whole);
            is_whole
        };
        assert!(read(&whole));
        for part in ["data", "state", "failures"] {
            let mut lacks = whole.clone();
            lacks["redacted"] = json!(["texts", part]);
            assert!(!read(&lacks), "{part}");
        }
        for (field, value) in [("data-left-out", json!({"a": 9})), ("texts-left-out", json!(1))] {
            let mut lacks = whole.clone();
            lacks["call"]["throttle"][field] = value;
            assert!(!read(&lacks), "{field}");
        }
    }

    #[tokio::test]
    async fn a_filter_is_set_and_removed() {
        let plugin = crate::cli::testing::sample::plugin(json!({}));
        let server = FakeServer::answering(move |_| (200, plugin.clone())).await;
        let args =
            "--filter queue=mail --filter attribute.region=a=b --filter action=hold --for 10m";
        let args: Vec<&str> =
            ["plugin", "record", "share"].into_iter().chain(args.split(' ')).collect();
        assert_eq!(server.run(&args).await.0, ExitCode::Ok);
        let seen = server.seen().pop().unwrap();
        assert_eq!(seen.line(), "PUT /v1/plugins/share/recording");
        let filter = json!({"queue": "mail", "attributes": {"region": "a=b"}, "action": "hold"});
        assert_eq!(seen.body, json!({"filter": filter, "for_seconds": 600}));
        assert_eq!(
            server.run(&["plugin", "record", "share", "--filter", "all"]).await.0,
            ExitCode::Ok
        );
        assert_eq!(server.seen().pop().unwrap().body, json!({"filter": {}}));
        assert_eq!(server.run(&["plugin", "record", "share", "--stop"]).await.0, ExitCode::Ok);
        assert_eq!(server.seen().pop().unwrap().line(), "DELETE /v1/plugins/share/recording");
        for wrong in [&["queue"][..], &["color=red"], &["queue=a", "queue=b"], &["all", "queue=a"]]
        {
            let filters = wrong.iter().flat_map(|one| ["--filter", one]);
            let args: Vec<&str> =
                ["plugin", "record", "share"].into_iter().chain(filters).collect();
            assert_eq!(server.run(&args).await.0, ExitCode::Usage, "{wrong:?}");
        }
    }
}
