//! The metrics of the server: name, kind, labels and help of each, in one table.
//!
//! The Prometheus endpoint takes its descriptions from here, CloudWatch its units, and
//! `docs/operate.md` its table. The code that records a metric names it by its literal; a test
//! compares the literals with this table.

use std::fmt::Write as _;

use metrics::{Recorder, Unit};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// The current value.
    Gauge,
    /// A distribution.
    Histogram,
}

impl MetricKind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Whether only functions on AWS record it.
    pub aws_only: bool,
    /// What it measures, in Markdown.
    pub help: &'static str,
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: MetricKind::Counter, labels, aws_only: false, help }
}

const fn aws_counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: MetricKind::Counter, labels, aws_only: true, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Gauge, labels, aws_only: false, help }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: MetricKind::Histogram, labels, aws_only: false, help }
}

/// Every metric, by subject.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    counter("tidegate_enqueued_total", &["queue", "type"], "jobs accepted"),
    counter("tidegate_attempts_started_total", &["queue"], "attempts started"),
    counter(
        "tidegate_attempts_finished_total", &["queue", "type", "outcome"],
        "attempts with a result, or handed back: `released`, `snoozed`",
    ),
    counter("tidegate_jobs_finished_total", &["queue", "type", "state"], "jobs that ended"),
    counter(
        "tidegate_occurrences_total", &["schedule"],
        "occurrences of a schedule that created a job",
    ),
    counter(
        "tidegate_occurrences_missed_total", &["schedule"],
        "missed occurrences without a job; at most 1000 per gap are counted",
    ),
    counter(
        "tidegate_occurrence_errors_total", &["schedule"],
        "failures to create the job of an occurrence; `last_error` of the schedule has the reason",
    ),
    histogram(
        "tidegate_job_start_delay_seconds", &["queue"],
        "time from a job's due time to the start of its attempt, including admission, in seconds",
    ),
    histogram(
        "tidegate_attempt_duration_seconds", &["queue"],
        "time from an attempt's start to its result, in seconds",
    ),
    histogram(
        "tidegate_tick_duration_seconds", &["queue"],
        "duration of a queue's ticks, including the commit, in seconds",
    ),
    gauge(
        "tidegate_jobs", &["queue", "type", "state", "phase"],
        "number of jobs, read every 2 s, less often if that takes long; beyond 1000 pairs of queue \
         and type, `type` is `other`. Of the jobs that are due later, the soonest 10 to 1000 of a \
         queue are looked at: further ones have the phase `scheduled`",
    ),
    gauge(
        "tidegate_oldest_due_job_age_seconds", &["queue"],
        "time since the oldest waiting job of a queue was due, in seconds; 0 if none is due; read \
         every 2 s, less often if that takes long",
    ),
    gauge(
        "tidegate_running_weight", &["queue"],
        "total weight of the running jobs, without critical ones; of a queue without limits read \
         every 2 s, less often if that takes long, at most 10,000 jobs",
    ),
    gauge(
        "tidegate_jobs_held", &["queue"],
        "due jobs that the rules of the queue held back in the latest tick",
    ),
    counter("tidegate_log_snapshots_total", &[], "snapshots of the replicated log"),
    counter(
        "tidegate_log_snapshot_failures_total", &[],
        "snapshots of the replicated log that failed; the server's log has the reason",
    ),
    counter(
        "tidegate_log_differences_total", &[],
        "states of this server that differed from a snapshot of the replicated log at the same \
         position; a standby replaces its own",
    ),
    counter(
        "tidegate_plugin_calls_total", &["plugin", "role", "purpose"],
        "calls of a plugin, by purpose: `live`, `shadow` (compared, without effect), `explain` (a \
         user requested the reason), `check` (of a configuration)",
    ),
    counter(
        "tidegate_plugin_faults_total", &["plugin", "kind", "purpose"],
        "failed calls of a plugin, by kind: `rejected`, `timeout`, `resource_exhausted`, \
         `trapped`, `invalid_answer`, `unavailable`",
    ),
    histogram(
        "tidegate_plugin_seconds", &["plugin", "role", "purpose"],
        "duration of plugin calls, in seconds",
    ),
    counter(
        "tidegate_plugin_fuel_total", &["plugin", "role", "purpose"],
        "fuel that plugin calls consumed: about one unit per WebAssembly instruction",
    ),
    counter(
        "tidegate_plugin_counter_total", &["plugin", "version", "queue", "name", "label"],
        "a counter of a plugin's own (`metrics.add`), in whole numbers",
    ),
    gauge(
        "tidegate_plugin_gauge", &["plugin", "version", "queue", "name", "label"],
        "a gauge of a plugin's own (`metrics.set`); `NaN` a minute after the last call of the \
         version, if another version is called",
    ),
    counter(
        "tidegate_plugin_metrics_dropped_total", &["plugin"],
        "changes of a plugin's own metrics that were invalid or exceeded a bound",
    ),
    counter(
        "tidegate_aws_errors_total", &["service", "reason"],
        "requests, and parts of them, that `dynamodb`, `sqs` or `s3` refused, by reason: \
         `throttled`, `invalid`, `other` (a missing permission; a deleted table, queue or bucket); \
         `tidegate doctor` has details",
    ),
    aws_counter("tidegate_lambda_invocations_total", &[], "invocations of a function"),
    aws_counter(
        "tidegate_dynamodb_requests_total", &["kind"],
        "requests to DynamoDB, by kind: `read`, `write`",
    ),
    aws_counter(
        "tidegate_dynamodb_units_total", &["kind"],
        "capacity units that requests to DynamoDB consumed, by kind: `read`, `write`",
    ),
    aws_counter(
        "tidegate_sqs_requests_total", &["kind"],
        "billed requests to SQS, without polls of empty queues, by kind: `standard`, `fifo`",
    ),
    aws_counter(
        "tidegate_dispatch_failures_total", &[],
        "failures to publish the messages of a change; the maintenance sweep repairs each",
    ),
    aws_counter(
        "tidegate_messages_malformed_total", &[],
        "malformed messages that `sweep` dropped; its log has the first 200 characters",
    ),
    counter(
        "tidegate_http_requests_total", &["status"],
        "requests answered, by class of status: `2xx`, `4xx`, ...",
    ),
    counter(
        "tidegate_lease_requests_forwarded_total", &["outcome"],
        "lease requests that were sent to the server that owns their queue, by outcome: \
         `forwarded` (it answered), `failed` (this server leased)",
    ),
    counter(
        "tidegate_requests_refused_total", &["reason"],
        "requests answered with 401 or 403, by reason: `no_credentials`, `invalid_credentials`, \
         `scope` (the token lacks it, or its bounds leave out the queue or type), `cross_site`, \
         `host_not_allowed`, `insecure_request`",
    ),
    gauge("tidegate_connections", &[], "open connections, read every second"),
    counter(
        "tidegate_connections_closed_total", &["reason"],
        "connections that the server closed, by reason: `idle`, `head_timeout` (no request in \
         time), `response_timeout` (its client stopped reading), `made_room` (all connections were \
         taken, and this one waited for a request)",
    ),
    counter(
        "tidegate_connections_refused_total", &[],
        "connections over `max_connections`, which got 503",
    ),
    counter(
        "tidegate_accept_errors_total", &[],
        "failures to accept a connection, such as too many open files",
    ),
    counter(
        "tidegate_spans_lost_total", &[],
        "spans that the collector refused, or that exceeded the buffer",
    ),
    counter(
        "tidegate_events_total", &["outcome"],
        "events received, by outcome: `matched` by a trigger, `unmatched`, `refused`",
    ),
    counter(
        "tidegate_trigger_total", &["trigger", "action"],
        "results of triggers: `enqueued`, `already_enqueued`, `completed`, `recorded`, \
         `already_processed`, `late`, `pending`, `dead_lettered`, `dropped`",
    ),
    gauge("tidegate_replies_pending", &[], "replies that wait for their job or its attempt"),
    counter(
        "tidegate_replies_unmatched_total", &[],
        "replies that came too late, or found no job within `reply_wait_seconds`",
    ),
    counter(
        "tidegate_events_malformed_total", &[],
        "records from other services that are no events, or exceed the limit: kept as dead letters",
    ),
    counter(
        "tidegate_inbox_refused_total", &[],
        "requests of `enqueue` in a database that were refused: kept as dead letters",
    ),
    counter(
        "tidegate_postgres_losses_total", &[],
        "times that a new connection found that the database has lost acknowledged commits: after a \
         failover to a standby that did not have them, or a restore",
    ),
    gauge(
        "tidegate_inbox_requests", &[],
        "requests of `enqueue` in a database that wait until a server adds their jobs, at most \
         10,000; read every 10 s",
    ),
    gauge(
        "tidegate_inbox_oldest_request_age_seconds", &[],
        "how long the oldest of these requests has waited, in whole seconds; 0 if none waits; read \
         every 10 s",
    ),
    gauge(
        "tidegate_dead_letters", &[],
        "dead letters: events that no trigger could handle, and refused requests of a database",
    ),
    counter(
        "tidegate_dead_letters_dropped_total", &["reason"],
        "dead letters dropped, by reason: `expired`, `too_many`",
    ),
    counter(
        "tidegate_dead_letters_replayed_total", &["action"],
        "dead letters replayed, by the result of the replay",
    ),
];

/// Describes every metric to `recorder`.
pub fn describe(recorder: &impl Recorder) {
    for metric in METRICS {
        let (name, unit) = (metric.name.into(), Some(unit(metric.name)));
        let help = metric.help.into();
        match metric.kind {
            MetricKind::Counter => recorder.describe_counter(name, unit, help),
            MetricKind::Gauge => recorder.describe_gauge(name, unit, help),
            MetricKind::Histogram => recorder.describe_histogram(name, unit, help),
        }
    }
}

/// The unit of a metric, by the ending of its name.
pub fn unit(name: &str) -> Unit {
    if name.ends_with("_seconds") {
        Unit::Seconds
    } else if name.ends_with("_bytes") {
        Unit::Bytes
    } else {
        Unit::Count
    }
}

/// [`METRICS`] as a Markdown table.
pub fn reference_table() -> String {
    let mut text = "| name | kind, labels | measures |\n|---|---|---|\n".to_owned();
    for Metric { name, kind, labels, aws_only, help } in METRICS {
        let mut about = kind.name().to_owned();
        if !labels.is_empty() {
            let _ = write!(about, "; {}", labels.join(", "));
        }
        if *aws_only {
            about.push_str("; AWS only");
        }
        let _ = writeln!(text, "| `{name}` | {about} | {help} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn metric_names_are_unique_and_end_with_kind_or_unit() {
        let names: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            assert!(metric.name.starts_with("tidegate_"), "{}", metric.name);
            let ending = match metric.kind {
                MetricKind::Counter => metric.name.ends_with("_total"),
                MetricKind::Gauge => !metric.name.ends_with("_total"),
                MetricKind::Histogram => metric.name.ends_with("_seconds"),
            };
            assert!(ending, "{}", metric.name);
        }
    }
}
