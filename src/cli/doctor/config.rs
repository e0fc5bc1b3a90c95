//! Checks of queues, job types and plugins. Pure.

use std::{collections::HashMap, time::Duration};

use serde_json::Value;

use super::{CheckLevel, DoctorReport, finding};
use crate::cli::{output, plugin::user, queues::held_by};
use tidegate_api::{JobTypeView, PluginView, QueueView};
use tidegate_core::time::Timestamp;

/// The default timeout of a type, in seconds.
const DEFAULT_TIMEOUT: f64 = 86_400.0;
/// How long a due job may wait without a finding, if a rule holds it.
const MAX_HELD: Duration = Duration::from_hours(1);
/// How long a due job may wait without a finding, if only a worker is missing.
const MAX_UNTAKEN: Duration = Duration::from_mins(1);

/// Checks `queues` and `types` at `now`.
pub fn look(queues: &[QueueView<'_>], types: &[JobTypeView<'_>], now: Timestamp) -> DoctorReport {
    let mut report = DoctorReport::default();
    let limited: HashMap<&str, bool> = queues
        .iter()
        .map(|queue| (queue.name.as_str(), queue.config.concurrency.is_some()))
        .collect();
    for queue in queues {
        of_queue(queue, now, &mut report);
    }
    for job_type in types.iter().filter(|job_type| job_type.target_url().is_some()) {
        let queue_limited = limited.get(job_type.queue()).copied().unwrap_or_default();
        of_push(job_type, queue_limited, &mut report);
    }
    report
}

/// Checks the `plugins` in use.
pub fn look_at_plugins(plugins: &[PluginView], now: Timestamp) -> DoctorReport {
    let mut report = DoctorReport::default();
    for plugin in plugins.iter().filter(|plugin| !plugin.used_by.is_empty()) {
        let (name, about) = (&plugin.name, format!("plugin {}", plugin.name));
        let users: Vec<String> = plugin.used_by.iter().map(user).collect();
        report.check((!plugin.runnable).then(|| {
            let found = format!(
                "there is no code of version {} for this release; it decides for {}",
                plugin.live,
                users.join(", ")
            );
            finding(
                CheckLevel::Error,
                &about,
                found,
                format!("push its component again: `tidegate plugin push {name} FILE`"),
            )
        }));
        let fault = plugin.health.last_fault.as_ref().filter(|_| plugin.health.failing);
        report.check(fault.map(|fault| {
            let when = output::when(fault.at, now);
            let found = format!(
                "its latest call failed, {when} ({}): {}; it decides for {}",
                fault.kind,
                fault.message,
                users.join(", ")
            );
            finding(
                CheckLevel::Warning,
                &about,
                found,
                format!(
                    "`tidegate plugin faults {name}`; `tidegate plugin rollback {name}` if a \
                     version before did better"
                ),
            )
        }));
    }
    report
}

fn of_queue(queue: &QueueView<'_>, now: Timestamp, report: &mut DoctorReport) {
    let (name, about) = (&queue.name, format!("queue {}", queue.name));
    let paused = queue.status.as_ref().map_or_else(
        || "it is paused".to_owned(),
        |status| {
            let waiting = status.depth.get("scheduled").copied().unwrap_or_default();
            format!("it is paused, with {waiting} jobs waiting")
        },
    );
    report.check(queue.paused.then(|| {
        finding(
            CheckLevel::Warning,
            &about,
            paused,
            format!("`tidegate queues resume {name}`, unless the pause is intended"),
        )
    }));
    report.check((queue.config.concurrency == Some(0)).then(|| {
        let advice = format!(
            "`tidegate queues patch {name} --config '{{\"concurrency\": 10}}'`, or null for no \
             limit"
        );
        finding(CheckLevel::Warning, &about, "its limit is 0, which admits nothing", advice)
    }));
    let late = queue.status.as_ref().and_then(|status| {
        let first = status.held.first();
        let is_untaken = first.is_none_or(|held| held.kind == "worker");
        let most = if is_untaken { MAX_UNTAKEN } else { MAX_HELD };
        let due = status.oldest_due_at.filter(|due| now.since(*due) > most)?;
        Some((status, first.filter(|_| is_untaken), due))
    });
    report.check(late.filter(|_| !queue.paused).map(|(status, untaken, due)| {
        let held: Vec<String> =
            status.held.iter().map(|held| format!("{} by {}", held.jobs, held_by(held))).collect();
        let held =
            if held.is_empty() { String::new() } else { format!("; held: {}", held.join(", ")) };
        let due = output::when(due, now);
        let found = match untaken {
            Some(worker) => format!(
                "{} jobs are due and no worker takes them, the first since {due}: {}{held}",
                status.ready, worker.reason
            ),
            None => format!("a job was due {due} and still waits{held}"),
        };
        let advice = if untaken.is_some() {
            format!("start workers: `tidegate work --queue {name} -- COMMAND`")
        } else {
            format!("`tidegate queues explain {name}`")
        };
        finding(CheckLevel::Warning, &about, found, advice)
    }));
}

fn of_push(job_type: &JobTypeView<'_>, queue_limited: bool, report: &mut DoctorReport) {
    let (name, about) = (&job_type.name, format!("type {}", job_type.name));
    let number = |setting: &str| job_type.config.get(setting).and_then(Value::as_f64);
    let timeout = number("timeout_seconds").unwrap_or(DEFAULT_TIMEOUT);
    report.check(((timeout - DEFAULT_TIMEOUT).abs() < 0.001).then(|| {
        finding(
            CheckLevel::Warning,
            &about,
            "its timeout is the default, a day: a worker that answers 202 and never calls back \
             holds its slot that long",
            format!(
                "`tidegate types patch {name} --config '{{\"timeout_seconds\": 300}}'`, by how \
                 long its work takes"
            ),
        )
    }));
    report.check((!queue_limited && number("concurrency").is_none()).then(|| {
        finding(
            CheckLevel::Note,
            &about,
            format!(
                "neither it nor its queue {} has a limit: a backlog is pushed as fast as the \
                 target answers",
                job_type.queue()
            ),
            format!(
                "`tidegate types patch {name} --config '{{\"concurrency\": 10}}'`, if the \
                 target cannot take that"
            ),
        )
    }));
}
