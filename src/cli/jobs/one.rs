//! The commands about one job: `get`, `explain`, `result`, `patch`.
//!
//! A route names a job by type and id, a user only by its id. Each command therefore looks up the
//! type first.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize as _;
use serde_json::json;

use super::{
    bulk::{Chosen, choose},
    filter::Filter,
};
use crate::cli::{
    Context, ExitCode, UsageError,
    args::{self, Fields, Json, When},
    client::{Client, Error},
    context::print_error,
    operation,
    output::{self, OutputStyle},
    queues::workers_line,
    safe::line,
};
use tidegate_api::{
    BulkBody, EntryView, ErrorCode, Explanation, JobView, OriginView, Problem, ShortView,
};
use tidegate_core::time::{Seconds, Timestamp};

/// Longest wait for a result in one request.
const MAX_REQUEST_WAIT: Duration = Duration::from_mins(1);

/// The options of `tidegate jobs get`.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    /// The job's id.
    id: String,
}

/// The options of `tidegate jobs explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The job's id.
    id: String,
}

/// The options of `tidegate jobs result`.
#[derive(Debug, clap::Args)]
pub struct ResultArgs {
    /// The job's id.
    id: String,
    /// How long to wait for the job's end, for example 30s or 5m.
    #[arg(long, value_name = "SPAN", value_parser = args::span, default_value = "0")]
    wait: Seconds,
}

/// The options of `tidegate jobs patch`.
#[derive(Debug, clap::Args)]
pub struct PatchArgs {
    /// The job's id; without it, give a filter. Of many jobs, `--run-at`, `--priority` and
    /// `--field windows=` can change.
    id: Option<String>,
    /// Change every scheduled job.
    #[arg(long)]
    all: bool,
    /// Count the jobs that match, and change none; only with a filter.
    #[arg(long, conflicts_with = "id")]
    dry_run: bool,
    #[command(flatten)]
    filter: Filter,
    /// Earliest start: RFC 3339, `now`, or a span from now such as +10m.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    run_at: Option<When>,
    /// The job expires if it has not started by then: RFC 3339, or a span from now such as +1h.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    expires_at: Option<When>,
    /// The priority: lower values start first.
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// The job's data, JSON; `-` reads standard input.
    #[arg(long, value_name = "JSON", conflicts_with = "data_file")]
    data: Option<String>,
    /// A file with the job's data, JSON; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    data_file: Option<PathBuf>,
    /// Any other field, for example `windows=[]` or `expires_at=null`; repeatable.
    #[arg(long = "field", value_name = "NAME=JSON", value_parser = args::field)]
    fields: Vec<(String, Json)>,
}

/// The type of the job `id`.
///
/// # Errors
///
/// There is no such job, or the server is unreachable or rejects the request.
pub async fn type_of(client: &Client, id: &str) -> Result<String, Error> {
    let answer = client.get(&["jobs", id]).send().await?;
    Ok(answer.read::<ShortView<'_>>()?.r#type.to_string())
}

/// Shows a job and its history.
///
/// # Errors
///
/// There is no such job, or the server is unreachable or rejects the request.
pub async fn get(args: GetArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let answer = ctx.client()?.get(&["jobs", &args.id]).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print_tables(render_job(
            ctx.look,
            &answer.read()?,
            &answer.read::<JobView<'_>>()?.history,
            ctx.now(),
        ))?;
    }
    Ok(ExitCode::Ok)
}

fn render_job(
    look: OutputStyle,
    fields: &output::Fields,
    history: &[EntryView<'_>],
    now: Timestamp,
) -> String {
    let mut fields = fields.clone();
    for (name, value) in &mut fields.0 {
        if name == "origin"
            && let Ok(origin) = OriginView::deserialize(&*value)
        {
            *value = origin_line(&origin, now).into();
        }
    }
    let job = output::fields(look, &fields, &["history"], now);
    if history.is_empty() {
        return job;
    }
    let rows = history.iter().map(|entry| {
        [
            entry.attempt.to_string(),
            output::when(entry.started_at, now),
            entry
                .waited_ms
                .map_or_else(output::dash, |millis| output::took(Duration::from_millis(millis))),
            output::took(Duration::from_millis(entry.duration_ms)),
            entry.outcome_word().to_owned(),
            entry.error.as_ref().map(output::failure_line).unwrap_or_default(),
        ]
    });
    format!(
        "{job}\n\n{}",
        output::table(look, ["attempt", "started", "waited", "took", "outcome", "error"], rows)
    )
}

/// What made a job, in a line: `schedule nightly, 2026-03-29T01:00:00.000Z (2 h ago)`, or `trigger
/// orders, event e-1 of /shop`.
fn origin_line(origin: &OriginView<'_>, now: Timestamp) -> String {
    let OriginView { schedule, occurrence, trigger, event, source } = origin;
    let made_by = match (schedule, trigger) {
        (Some(name), _) => format!("schedule {name}"),
        (None, Some(name)) => format!("trigger {name}"),
        (None, None) => output::dash(),
    };
    let details = [
        occurrence.map(|at| format!(", {at} ({})", output::when(at, now))),
        schedule.as_ref().filter(|_| occurrence.is_none()).map(|_| ", on request".to_owned()),
        event.as_ref().map(|id| format!(", event {id}")),
        source.as_ref().map(|source| format!(" of {source}")),
    ];
    details.into_iter().flatten().fold(made_by, |line, part| line + &part)
}

/// Explains why a job waits.
///
/// # Errors
///
/// There is no such job, or the server is unreachable or rejects the request.
pub async fn explain(args: ExplainArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let job_type = type_of(&client, &args.id).await?;
    let answer = client.get(&["jobs", &job_type, &args.id, "explain"]).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        let explanation: Explanation = answer.read()?;
        ctx.print(sentence(&explanation, ctx.now()))?;
        if let Some(workers) = &explanation.workers {
            ctx.print(format_args!("workers: {}", workers_line(workers, ctx.now())))?;
        }
    }
    Ok(ExitCode::Ok)
}

/// Returns the explanation as one sentence:
/// `scheduled, held by constraint per-region since 2 min ago: …; earliest in 3 s`.
fn sentence(explanation: &Explanation, now: Timestamp) -> String {
    let mut text = explanation.phase.clone().into_owned();
    let Some(rule) = &explanation.held_by else {
        return text;
    };
    text += ", held by ";
    text += &rule.kind;
    if let Some(name) = &rule.name {
        text = text + " " + &line(name);
    }
    if let Some(value) = &rule.value {
        text = text + " (" + &line(value) + ")";
    }
    if let Some(since) = explanation.since {
        text = text + " since " + &output::when(since, now);
    }
    if !explanation.reason.is_empty() {
        text = text + ": " + &line(&explanation.reason);
    }
    match explanation.earliest_at {
        Some(at) => text + "; earliest " + &output::when(at, now),
        None => text + "; no earliest time is known",
    }
}

/// How the job `id` ended, for people: `j1 failed: timeout: no result within 3 s`.
fn failure_of(id: &str, problem: &Problem) -> String {
    let state = line(problem.state.as_deref().unwrap_or("did not succeed"));
    let why = problem.error.as_ref().map(|error| match &error.message {
        Some(message) => format!(": {}: {}", error.reason.as_str(), line(message)),
        None => format!(": {}", error.reason.as_str()),
    });
    format!("{id} {state}{}", why.unwrap_or_default())
}

/// Prints the result of a job, after a wait if `--wait` is set. The exit code is 1 if the job did
/// not succeed, and 5 if it has not ended.
///
/// # Errors
///
/// There is no such job, or the server is unreachable or rejects the request.
pub async fn result(args: ResultArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let answer = client.get(&["jobs", &args.id]).send().await?;
    let ShortView { r#type, state, .. } = answer.read()?;
    let job_type = r#type.to_string();
    if args.wait == Seconds::default() && matches!(&*state, "scheduled" | "running") {
        print_error(format!("{} has not ended: it is {state}", args.id));
        return Ok(ExitCode::TimedOut);
    }
    let until = ctx.now() + args.wait.duration();
    loop {
        let wait = until.since(ctx.now()).min(MAX_REQUEST_WAIT);
        let request = client.get(&["jobs", job_type.as_str(), &args.id, "result"]).wait(wait);
        match request.query("wait", &wait.as_secs_f64().to_string()).send().await {
            Ok(answer) => {
                if ctx.json() {
                    ctx.print_body(&answer.body)?;
                } else {
                    ctx.print(String::from_utf8_lossy(&answer.body).trim_end())?;
                }
                return Ok(ExitCode::Ok);
            }
            Err(Error::Problem(problem)) if problem.status == 408 && ctx.now() < until => {}
            Err(Error::Problem(problem)) if problem.code == ErrorCode::JobFailed.as_str() => {
                print_error(failure_of(&args.id, &problem));
                return Ok(ExitCode::Refused);
            }
            Err(err) => return Err(err.into()),
        }
    }
}

/// Changes a scheduled job, or every one that matches a filter.
///
/// # Errors
///
/// Neither an id nor a filter is given, no change is given, the data is not JSON, or the server is
/// unreachable or rejects the request.
pub async fn patch(args: PatchArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let now = ctx.now();
    let mut changes = Fields::default();
    match args.run_at {
        // By the clock of the server.
        Some(When::NOW) => changes.set("run_at", serde_json::Value::Null),
        at => changes.maybe("run_at", at.map(|at| at.at(now))),
    }
    changes.maybe("expires_at", args.expires_at.map(|at| at.at(now)));
    changes.maybe("priority", args.priority);
    changes.maybe("data", args::json_from(args.data.as_deref(), args.data_file.as_deref()).await?);
    changes.extend(&args.fields);
    if changes.is_empty() {
        return Err(UsageError(
            "nothing to change: give --run-at, --priority, --data, --expires-at or --field"
                .to_owned(),
        )
        .into());
    }
    let id = match choose(args.id, &args.filter, args.all, now)? {
        Chosen::One(id) => id,
        Chosen::Matching(bulk) => {
            let BulkBody { filter, all, .. } = *bulk;
            let mut body = json!({"filter": filter, "all": all, "patch": changes});
            if args.dry_run {
                body["dry_run"] = true.into();
            }
            let answer = client.post(&["jobs", "patch"]).json(&body).send().await?;
            return operation::follow(&client, answer, "changed", ctx).await;
        }
    };
    let job_type = type_of(&client, &id).await?;
    let answer = client.patch(&["jobs", &job_type, &id]).json(&changes).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print_tables(render_job(ctx.look, &answer.read()?, &[], now))?;
    }
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::cli::testing::{FakeServer, sample};

    fn now() -> Timestamp {
        Timestamp::from_millis(1_000_000_000_000)
    }

    #[test]
    fn a_job_is_shown_with_its_history() {
        let body = r#"{"id":"j1","type":"mail","state":"scheduled","attempt":1,"max_attempts":3,
            "run_at":"2001-09-09T01:46:50Z","ended_at":null,"data":{"to":"ann"},"history":[]}"#;
        let job = sample::job(json!({"history": [{
            "attempt": 1, "started_at": "2001-09-09T01:46:30Z",
            "ended_at": "2001-09-09T01:46:31.250Z", "waited_ms": 4000, "duration_ms": 1250,
            "outcome": "failed",
            "error": {"reason": "timeout", "message": null, "details": null},
        }]}));
        let job: JobView<'_> = serde_json::from_str(&job.to_string()).unwrap();
        insta::assert_snapshot!(render_job(
            OutputStyle::default(),
            &serde_json::from_str(body).unwrap(),
            &job.history,
            now()
        ));
    }

    #[test]
    fn a_job_is_shown_with_what_made_it() {
        let shown = |origin: serde_json::Value| {
            let fields = json!({"id": "j1", "origin": origin}).to_string();
            let fields = serde_json::from_str(&fields).unwrap();
            render_job(OutputStyle::default(), &fields, &[], now())
        };
        let schedule = json!({"schedule": "nightly", "occurrence": "2001-09-09T01:44:40Z"});
        let line = "origin  schedule nightly, 2001-09-09T01:44:40.000Z (2 min ago)";
        assert!(shown(schedule).ends_with(line));
        assert!(shown(json!({"schedule": "n"})).ends_with("origin  schedule n, on request"));
        let trigger = json!({"trigger": "orders", "event": "e-1", "source": "/shop"});
        assert!(shown(trigger).ends_with("origin  trigger orders, event e-1 of /shop"));
        let newer = json!("of a newer release");
        assert!(shown(newer).ends_with("origin  of a newer release"), "an unknown form is shown");
    }

    #[tokio::test]
    async fn many_jobs_are_changed_by_a_filter() {
        let server =
            FakeServer::answering(|_| (202, sample::operation("o", "done", [2, 2, 0]))).await;
        let patch = ["jobs", "patch", "--type", "mail", "--field", "windows=[]"];
        let changed = (ExitCode::Ok, "changed 2 of 2 jobs, 0 refused\n".to_owned());
        assert_eq!(server.run(&patch).await, changed);
        assert_eq!(server.seen()[0].line(), "POST /v1/jobs/patch");
        let body = json!({"filter": {"type": "mail"}, "all": false, "patch": {"windows": []}});
        assert_eq!(server.seen()[0].body, body);
        let unchosen = ["jobs", "patch", "--field", "windows=[]"];
        assert_eq!(server.run(&unchosen).await.0, ExitCode::Usage);
    }

    #[tokio::test]
    async fn a_bulk_operation_that_left_jobs_out_is_not_whole() {
        let mut ended = sample::operation("o", "done", [2, 2, 0]);
        ended["operation"]["unreadable"] = json!(["damaged"]);
        let server = FakeServer::answering(move |_| (202, ended.clone())).await;
        for command in [&["jobs", "cancel"][..], &["jobs", "replay"]] {
            let (code, _) = server.run(&[command, &["--type", "mail"]].concat()).await;
            assert_eq!(code, ExitCode::Refused, "{command:?}");
        }
    }

    #[test]
    fn an_explanation_is_a_sentence() {
        let said = |body| sentence(&serde_json::from_value(body).unwrap(), now());
        assert_eq!(
            said(json!({
                "state": "scheduled", "phase": "ready",
                "held_by": {"kind": "constraint", "name": "per-region"},
                "since": "2001-09-09T01:44:40Z", "reason": "3 of 3 are running",
                "earliest_at": "2001-09-09T01:46:43Z",
            })),
            "ready, held by constraint per-region since 2 min ago: 3 of 3 are running; \
             earliest in 3 s"
        );
        assert_eq!(
            said(json!({
                "state": "scheduled", "phase": "ready", "held_by": {"kind": "worker"},
                "reason": "", "earliest_at": null,
            })),
            "ready, held by worker; no earliest time is known"
        );
        assert_eq!(
            said(json!({"state": "running", "phase": "running", "held_by": null, "reason": ""})),
            "running"
        );
    }

    #[tokio::test]
    async fn a_wait_that_times_out_has_its_own_exit_code() {
        let server = FakeServer::answering(|seen| match seen.path.as_str() {
            "/v1/jobs/j1" => (200, sample::job(json!({}))),
            _ => (408, json!({"title": "Request Timeout", "code": "wait_timeout"})),
        })
        .await;
        let waited = server.run(&["jobs", "result", "j1", "--wait", "1ms"]).await;
        assert_eq!(waited, (ExitCode::TimedOut, String::new()));
        assert_eq!(server.seen()[1].path, "/v1/jobs/mail/j1/result?wait=0.001");
    }

    #[tokio::test]
    async fn a_job_that_has_not_ended_has_no_result() {
        for state in ["scheduled", "running"] {
            let job = sample::job(json!({"state": state}));
            let server = FakeServer::answering(move |_| (200, job.clone())).await;
            let asked = server.run(&["jobs", "result", "j1"]).await;
            assert_eq!(asked, (ExitCode::TimedOut, String::new()));
            assert_eq!(server.seen().len(), 1, "its result of null says nothing");
        }
    }

    #[tokio::test]
    async fn the_result_of_a_job_that_failed_is_its_error() {
        let failed = json!({
            "title": "Job failed", "status": 409, "code": "job_failed", "state": "failed",
            "detail": "the job ended failed: timeout: no result",
            "error": {"reason": "timeout", "message": "no result"},
        });
        let problem: Problem = serde_json::from_value(failed.clone()).unwrap();
        assert_eq!(failure_of("j1", &problem), "j1 failed: timeout: no result");
        let answered = |state: &'static str, status: u16, answer: serde_json::Value| {
            FakeServer::answering(move |seen| match seen.path.as_str() {
                "/v1/jobs/j1" => (200, sample::job(json!({"state": state}))),
                _ => (status, answer.clone()),
            })
        };
        let server = answered("failed", 409, failed).await;
        assert_eq!(server.run(&["jobs", "result", "j1"]).await, (ExitCode::Refused, String::new()));
        let server = answered("succeeded", 200, json!(null)).await;
        assert_eq!(
            server.run(&["jobs", "result", "j1"]).await,
            (ExitCode::Ok, "null\n".to_owned())
        );
    }

    #[tokio::test]
    async fn a_wait_continues_after_the_wait_of_one_request() {
        let asked = AtomicU32::new(0);
        let server = FakeServer::answering(move |seen| match seen.path.as_str() {
            "/v1/jobs/j1" => (200, sample::job(json!({}))),
            _ if asked.fetch_add(1, Ordering::Relaxed) == 0 => {
                (408, json!({"title": "Request Timeout"}))
            }
            _ => (200, json!({"sum": 3})),
        })
        .await;
        assert_eq!(
            server.run(&["jobs", "result", "j1", "--wait", "2h"]).await,
            (ExitCode::Ok, "{\"sum\":3}\n".to_owned())
        );
        assert_eq!(server.seen()[1].path, "/v1/jobs/mail/j1/result?wait=60");
    }

    #[tokio::test]
    async fn a_missing_job_has_its_own_exit_code() {
        let server =
            FakeServer::answering(|_| (404, json!({"title": "Not Found", "code": "no_such_job"})))
                .await;
        assert_eq!(server.run(&["jobs", "get", "j1"]).await.0, ExitCode::NotFound);
    }

    #[tokio::test]
    async fn a_patch_sends_only_the_given_fields() {
        let server = FakeServer::answering(|_| (200, sample::job(json!({})))).await;
        let args = [
            "jobs",
            "patch",
            "j1",
            "--priority",
            "-1",
            "--run-at",
            "2030-01-01T00:00:00Z",
            "--field",
            "expires_at=null",
        ];
        assert_eq!(server.run(&args).await.0, ExitCode::Ok);
        assert_eq!(server.seen()[1].line(), "PATCH /v1/jobs/mail/j1");
        assert_eq!(
            server.seen()[1].body,
            json!({"priority": -1, "run_at": "2030-01-01T00:00:00.000Z", "expires_at": null})
        );
        assert_eq!(server.run(&["jobs", "patch", "j1"]).await.0, ExitCode::Usage);
    }
}
