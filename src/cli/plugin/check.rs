//! `tidegate plugin check`: whether a component is a valid plugin, its description, and the cost of
//! a call.
//!
//! A server makes the same checks of a push, except for one: this command also makes a trial call
//! with a sample job. Without `--config` the trial uses the empty configuration.

use std::{fmt::Write as _, path::PathBuf};

use serde_json::{Value, json};

use super::local;
use crate::cli::{Context, ExitCode, args};
use crate::plugin_testing::{Case, Component};
use tidegate_core::{
    port::policy::{Fault, Problem},
    queue::plugin::{Description, Role},
};

/// The options of `tidegate plugin check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The component.
    file: PathBuf,
    /// A configuration that it must accept, JSON; `-` reads standard input.
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
}

/// The findings for one role.
struct RoleFindings {
    role: Role,
    description: Description,
    /// The problems that the plugin reports about the configuration.
    problems: Result<Vec<Problem>, Fault>,
    /// The usage of a call with one job, or its fault; none if the configuration is invalid.
    trial: Option<Result<tidegate_core::port::policy::Usage, Fault>>,
}

impl RoleFindings {
    /// Whether the component needs a fix. A plugin may reject the empty configuration.
    fn bad(&self, configured: bool) -> bool {
        let refused = match &self.problems {
            Ok(problems) => configured && !problems.is_empty(),
            Err(_) => true,
        };
        refused || matches!(&self.trial, Some(Err(_)))
    }
}

/// Checks the component.
///
/// # Errors
///
/// The file cannot be read, or the component is not a plugin.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let given = args::json_from(args.config.as_deref(), None).await?;
    let config = given.as_ref().map_or_else(|| "{}".to_owned(), |json| json.0.get().to_owned());
    let plugin = local::open(&args.file, ctx).await?;
    let mut found = Vec::new();
    for (role, description) in plugin.roles() {
        let problems = plugin.problems(role, &config).await;
        let trial = if problems.as_ref().is_ok_and(Vec::is_empty) {
            Some(trial(&plugin, role, &config).await)
        } else {
            None
        };
        found.push(RoleFindings { role, description: description.clone(), problems, trial });
    }
    let bad = found.iter().any(|found| found.bad(given.is_some()));
    if ctx.json() {
        ctx.print(json!({
            "ok": !bad, "bytes": plugin.bytes, "imports": plugin.imports,
            "roles": found.iter().map(as_json).collect::<Vec<_>>(), "log": plugin.take_log(),
        }))?;
    } else {
        let imports: Vec<&str> = plugin.imports.iter().map(String::as_str).collect();
        ctx.print(format_args!(
            "{}: {}, imports {}",
            args.file.display(),
            local::size(plugin.bytes),
            listed(&imports)
        ))?;
        for found in &found {
            ctx.print(as_text(found, given.is_some()))?;
        }
        for line in plugin.take_log() {
            ctx.print(format_args!("log: {line}"))?;
        }
    }
    Ok(if bad { ExitCode::Refused } else { ExitCode::Ok })
}

/// Makes one call with one job.
async fn trial(
    plugin: &Component,
    role: Role,
    config: &str,
) -> Result<tidegate_core::port::policy::Usage, Fault> {
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    let case = json!({
        "name": "trial", "role": role, "config": config, "candidates": [{"data": {}}],
        "job": {"data": {}},
    });
    let case =
        if role == Role::Throttler { without(case, "job") } else { without(case, "candidates") };
    let read = Case::read(&case.to_string())
        .and_then(|mut cases| cases.pop().ok_or_else(String::new))
        .and_then(|case| case.call());
    let invalid =
        |message| Fault { kind: tidegate_core::port::policy::FaultKind::Rejected, message };
    plugin.call(&read.map_err(invalid)?).await.map(|_| plugin.usage())
}

fn without(mut value: Value, field: &str) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.remove(field);
    }
    value
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

fn as_json(found: &RoleFindings) -> Value {
    let failed = |fault: &Fault| json!({"kind": fault.kind.as_str(), "message": fault.message});
    let problems: Vec<Value> = found
        .problems
        .iter()
        .flatten()
        .map(|problem| json!({"path": problem.path, "message": problem.message}))
        .collect();
    let fault = found.problems.as_ref().err().or_else(|| found.trial.as_ref()?.as_ref().err());
    let usage = found.trial.as_ref().and_then(|trial| trial.as_ref().ok());
    json!({
        "role": found.role, "description": found.description, "problems": problems, "usage": usage,
        "fault": fault.map(failed),
    })
}

fn as_text(found: &RoleFindings, configured: bool) -> String {
    let Description {
        about,
        config_schema,
        state_version,
        group_by,
        needs_running_jobs,
        needs_data,
        needs_ended,
        needs_earlier,
        waiting_by,
    } = &found.description;
    let mut text = format!("{}: {about}", local::word(found.role));
    let names: Vec<&str> = group_by.iter().map(String::as_str).collect();
    let needs: Vec<&str> = [
        (*needs_running_jobs, "running jobs"),
        (*needs_data, "data"),
        (*needs_ended, "ended attempts"),
        (*needs_earlier, "earlier attempts"),
        (!waiting_by.is_empty(), "waiting jobs"),
    ]
    .into_iter()
    .filter_map(|(needed, word)| needed.then_some(word))
    .collect();
    let _ = write!(text, "\n  groups by {}; reads {}; ", listed(&names), listed(&needs));
    let _ = match state_version {
        0 => write!(text, "keeps no state"),
        version => write!(text, "keeps state of version {version}"),
    };
    let _ = write!(
        text,
        "; {}",
        if config_schema.is_some() {
            "has a schema of its configuration"
        } else {
            "has no schema of its configuration"
        }
    );
    write_problems(&mut text, found, configured);
    write_trial(&mut text, found);
    text
}

/// Writes the problems of the configuration.
fn write_problems(text: &mut String, found: &RoleFindings, configured: bool) {
    match &found.problems {
        Err(fault) => {
            let _ = write!(
                text,
                "\n  the check of the configuration failed ({}): {fault}",
                fault.kind.as_str()
            );
        }
        Ok(problems) if problems.is_empty() => {}
        Ok(problems) => {
            let whose = if configured { "the configuration" } else { "an empty configuration" };
            let _ = write!(text, "\n  {whose} is invalid:");
            for Problem { path, message } in problems {
                let _ = write!(
                    text,
                    "\n    {}{message}",
                    if path.is_empty() { String::new() } else { format!("{path}: ") }
                );
            }
        }
    }
}

/// Writes the usage of the call with one job, or its fault.
fn write_trial(text: &mut String, found: &RoleFindings) {
    match &found.trial {
        Some(Ok(usage)) => {
            let _ = write!(text, "\n  a call with one job: {}", local::used(&usage.into()));
        }
        Some(Err(fault)) => {
            let _ =
                write!(text, "\n  a call with one job failed ({}): {fault}", fault.kind.as_str());
        }
        None => {
            let _ = write!(
                text,
                "\n  give a valid configuration with --config to see the cost of a call"
            );
        }
    }
}
