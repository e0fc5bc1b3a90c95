//! `tidegate jobs cancel` and `replay`: one job by its id, or every job that matches a filter.
//!
//! A call with neither is rejected, so a forgotten option never means "all"; `--all` does.

use super::{filter::Filter, one::type_of};
use crate::cli::{
    Context, ExitCode, UsageError,
    args::{self, Fields, Json},
    operation,
};
use tidegate_api::{BulkBody, BulkReplayBody, ShortView};
use tidegate_core::time::Timestamp;

/// The options of `tidegate jobs cancel`.
#[derive(Debug, clap::Args)]
pub struct CancelArgs {
    /// The job's id; without it, give a filter.
    id: Option<String>,
    /// End a running job at once, without waiting for its worker; only with an id.
    #[arg(long, requires = "id")]
    force: bool,
    /// Cancel every job.
    #[arg(long)]
    all: bool,
    /// Count the jobs that match, and cancel none; only with a filter.
    #[arg(long, conflicts_with = "id")]
    dry_run: bool,
    #[command(flatten)]
    filter: Filter,
}

/// The options of `tidegate jobs replay`.
#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// The job's id; without it, give a filter.
    id: Option<String>,
    /// A field to change in the new job, for example `priority=10`; only with an id; repeatable.
    #[arg(long = "field", value_name = "NAME=JSON", value_parser = args::field, requires = "id")]
    fields: Vec<(String, Json)>,
    /// Make another job of one that was replayed before.
    #[arg(long)]
    again: bool,
    /// Replay every ended job.
    #[arg(long)]
    all: bool,
    /// Count the jobs that match, and replay none; only with a filter.
    #[arg(long, conflicts_with = "id")]
    dry_run: bool,
    #[command(flatten)]
    filter: Filter,
}

/// What a command applies to.
#[derive(Debug)]
pub(super) enum Chosen {
    /// The job of this id.
    One(String),
    /// Every job that this matches.
    Matching(Box<BulkBody>),
}

/// Exactly one of an id, a filter and `all`.
pub(super) fn choose(
    id: Option<String>,
    filter: &Filter,
    all: bool,
    now: Timestamp,
) -> Result<Chosen, UsageError> {
    match (id, filter.is_empty(), all) {
        (Some(id), true, false) => Ok(Chosen::One(id)),
        (None, false, false) | (None, true, true) => {
            let bulk = BulkBody { filter: filter.body(now), all, dry_run: false };
            Ok(Chosen::Matching(Box::new(bulk)))
        }
        (None, true, false) => Err(UsageError(
            "which jobs? Give an id, a filter such as --type or --state, or --all".to_owned(),
        )),
        _ => Err(UsageError("give one of an id, a filter and --all".to_owned())),
    }
}

/// Cancels jobs.
///
/// # Errors
///
/// Neither an id nor a filter is given, or the server is unreachable or rejects the request.
pub async fn cancel(args: CancelArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let id = match choose(args.id, &args.filter, args.all, ctx.now())? {
        Chosen::One(id) => id,
        Chosen::Matching(bulk) => {
            let bulk = BulkBody { dry_run: args.dry_run, ..*bulk };
            let answer = client.post(&["jobs", "cancel"]).json(&bulk).send().await?;
            return operation::follow(&client, answer, "cancelled", ctx).await;
        }
    };
    let job_type = type_of(&client, &id).await?;
    let mut request = client.delete(&["jobs", &job_type, &id]);
    if args.force {
        request = request.query("force", "true");
    }
    let answer = request.send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else if answer.status == 202 {
        ctx.print(format_args!(
            "{id} is running; its worker is notified at its next heartbeat \
             (--force ends it at once)"
        ))?;
    } else {
        ctx.print(format_args!("{id} is cancelled"))?;
    }
    Ok(ExitCode::Ok)
}

/// Runs ended jobs again.
///
/// # Errors
///
/// Neither an id nor a filter is given, or the server is unreachable or rejects the request.
pub async fn replay(args: ReplayArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let id = match choose(args.id, &args.filter, args.all, ctx.now())? {
        Chosen::One(id) => id,
        Chosen::Matching(bulk) => {
            let BulkBody { filter, all, .. } = *bulk;
            let bulk = BulkReplayBody { filter, all, again: args.again, dry_run: args.dry_run };
            let answer = client.post(&["jobs", "replay"]).json(&bulk).send().await?;
            return operation::follow(&client, answer, "replayed", ctx).await;
        }
    };
    let job_type = type_of(&client, &id).await?;
    let mut changes = Fields::default();
    changes.extend(&args.fields);
    if args.again {
        changes.set("again", true);
    }
    let answer = client.post(&["jobs", &job_type, &id, "replay"]).json(&changes).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print(answer.read::<ShortView<'_>>()?.id)?;
    }
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::json;

    use super::*;
    use crate::cli::testing::{FakeServer, sample};

    #[tokio::test]
    async fn a_bulk_cancel_is_followed_to_its_end() {
        let done = AtomicU64::new(0);
        let server = FakeServer::answering(move |seen| {
            if seen.method == "POST" {
                return (202, sample::operation("op1", "running", [0, 0, 0]));
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            let state = if done == 3 { "done" } else { "running" };
            (200, sample::operation("op1", state, [3, done, 0]))
        })
        .await;
        let (code, out) = server
            .run(&[
                "jobs",
                "cancel",
                "--queue",
                "mail",
                "--state",
                "scheduled",
                "--attribute",
                "region=east",
            ])
            .await;
        assert_eq!((code, out.as_str()), (ExitCode::Ok, "cancelled 3 of 3 jobs, 0 refused\n"));
        let seen = server.seen();
        assert_eq!(seen[0].line(), "POST /v1/jobs/cancel");
        assert_eq!(
            seen[0].body,
            json!({"filter": {
                "queue": "mail", "state": ["scheduled"], "attribute": {"region": "east"},
            }})
        );
        assert_eq!((seen.len(), seen[3].line().as_str()), (4, "GET /v1/operations/op1"));
    }

    #[tokio::test]
    async fn all_jobs_are_changed_only_by_name() {
        let server =
            FakeServer::answering(|_| (202, sample::operation("o", "done", [2, 2, 0]))).await;
        assert_eq!(server.run(&["jobs", "cancel", "--all"]).await.0, ExitCode::Ok);
        assert_eq!(server.seen()[0].body, json!({"all": true}));
    }

    #[tokio::test]
    async fn an_operation_with_refused_jobs_ends_with_exit_code_1() {
        let server =
            FakeServer::answering(|_| (202, sample::operation("o", "done", [2, 1, 1]))).await;
        assert_eq!(server.run(&["jobs", "replay", "--state", "failed"]).await.0, ExitCode::Refused);
    }

    #[tokio::test]
    async fn a_bulk_change_without_a_filter_is_rejected() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        assert_eq!(server.run(&["jobs", "cancel"]).await.0, ExitCode::Usage);
        assert_eq!(server.run(&["jobs", "replay"]).await.0, ExitCode::Usage);
        assert_eq!(
            server.run(&["jobs", "cancel", "--all", "--type", "t"]).await.0,
            ExitCode::Usage
        );
        assert_eq!(
            server.run(&["jobs", "cancel", "j1", "--type", "mail"]).await.0,
            ExitCode::Usage
        );
        assert!(server.seen().is_empty());
    }

    #[tokio::test]
    async fn one_job_is_cancelled_under_its_type() {
        let server = FakeServer::answering(|seen| match seen.method.as_str() {
            "GET" => (200, sample::job(json!({}))),
            _ => (202, json!({"id": "j1"})),
        })
        .await;
        let (code, out) = server.run(&["jobs", "cancel", "j1", "--force"]).await;
        assert_eq!(code, ExitCode::Ok);
        assert!(out.starts_with("j1 is running"), "{out}");
        assert_eq!(server.seen()[1].line(), "DELETE /v1/jobs/mail/j1?force=true");
    }

    #[tokio::test]
    async fn a_replay_prints_the_new_jobs_id() {
        let server = FakeServer::answering(|seen| match seen.method.as_str() {
            "GET" => (200, sample::job(json!({}))),
            _ => (201, sample::job(json!({"id": "j2", "replay_of": "j1"}))),
        })
        .await;
        assert_eq!(
            server.run(&["jobs", "replay", "j1", "--field", "priority=1"]).await,
            (ExitCode::Ok, "j2\n".to_owned())
        );
        assert_eq!(server.seen()[1].line(), "POST /v1/jobs/mail/j1/replay");
        assert_eq!(server.seen()[1].body, json!({"priority": 1}));
        server.run(&["jobs", "replay", "j1", "--again"]).await;
        assert_eq!(server.seen()[3].body, json!({"again": true}));
    }

    #[tokio::test]
    async fn skipped_jobs_are_named_with_their_holders() {
        let server = FakeServer::answering(|_| {
            let mut answer = sample::operation("o", "done", [3, 1, 0]);
            answer["operation"]["skipped"] = json!(2);
            answer["operation"]["skipped_jobs"] =
                json!([{"id": "j1", "reason": "already_replayed", "holder": "j9"}]);
            (202, answer)
        })
        .await;
        let (code, out) = server.run(&["jobs", "replay", "--state", "failed", "--again"]).await;
        let expected = "replayed 1 of 3 jobs, 0 refused, 2 skipped\n\
                        j1 is skipped: already_replayed, j9\n";
        assert_eq!((code, out.as_str()), (ExitCode::Ok, expected));
        let filter = json!({"state": ["failed"]});
        assert_eq!(server.seen()[0].body, json!({"filter": filter, "again": true}));
    }
}
