//! What the server records. The table of all metrics is in [`catalog`](super::catalog).
//!
//! Nothing here costs a job a write or a lock: counters are summed per tick, and depths are read at
//! an interval.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use metrics::{counter, gauge, histogram};

use tidegate_core::{
    job::{Job, Phase, QueueName, ScheduleName, lifecycle},
    port::{
        InboxDepth,
        job_store::{Purged, StateFilter},
    },
    time::Timestamp,
};
use tidegate_engine::{
    Claimed, Error, Materialized, TickOutcome,
    events::{dead_letters::Replayed, ingest::Ingested, reply::SweptReplies},
    jobs::phases::PhaseCounts,
    request::Enqueued,
};

/// The upper bounds, in seconds, of the buckets of every histogram.
pub(crate) const BUCKETS: [f64; 15] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3600.0];

/// Counts accepted jobs.
pub(crate) fn enqueued<'a>(jobs: impl Iterator<Item = &'a Enqueued>) {
    // Most calls have one job, and few have many types.
    let mut counts: Vec<(&str, &str, u64)> = Vec::new();
    for spec in jobs.filter(|enqueued| enqueued.new).map(|enqueued| &enqueued.job.spec) {
        let (queue, job_type) = (spec.queue.as_str(), spec.job_type.as_str());
        match counts.iter_mut().find(|(of, kind, _)| (*of, *kind) == (queue, job_type)) {
            Some((.., count)) => *count += 1,
            None => counts.push((queue, job_type, 1)),
        }
    }
    for (queue, job_type, count) in counts {
        let labels = [("queue", queue.to_owned()), ("type", job_type.to_owned())];
        counter!("tidegate_enqueued_total", &labels).increment(count);
    }
}

/// Counts the occurrences that created a job, were missed, or failed to create a job.
pub(crate) fn materialized(materialized: &Materialized) {
    let count = |name: &'static str, schedule: &ScheduleName, count: u64| {
        counter!(name, "schedule" => schedule.to_string()).increment(count);
    };
    for (schedule, _) in &materialized.made {
        count("tidegate_occurrences_total", schedule, 1);
    }
    for (schedule, missed) in &materialized.missed {
        count("tidegate_occurrences_missed_total", schedule, *missed);
    }
    for (schedule, _) in &materialized.errors {
        count("tidegate_occurrence_errors_total", schedule, 1);
    }
}

/// Records a tick: its duration, its claims, and what its reports settled.
pub(crate) fn tick(queue: &QueueName, ticked: &TickOutcome, now: Timestamp, took: Duration) {
    let queue = queue.as_str();
    histogram!("tidegate_tick_duration_seconds", "queue" => queue.to_owned())
        .record(took.as_secs_f64());
    claimed(&ticked.claimed, now);
    settled(queue, ticked);
}

/// Records claimed jobs.
pub(crate) fn claimed(claimed: &[Claimed], now: Timestamp) {
    for claimed in claimed.chunk_by(|a, b| a.job.spec.queue == b.job.spec.queue) {
        let queue = claimed[0].job.spec.queue.as_str();
        counter!("tidegate_attempts_started_total", "queue" => queue.to_owned())
            .increment(claimed.len() as u64);
        let start_delay =
            histogram!("tidegate_job_start_delay_seconds", "queue" => queue.to_owned());
        for claimed in claimed {
            start_delay.record(now.since(claimed.run_at).as_secs_f64());
        }
    }
}

/// Records attempts that a tick settled.
pub(crate) fn settled(queue: &str, ticked: &TickOutcome) {
    let mut attempts: BTreeMap<(&str, &'static str), u64> = BTreeMap::new();
    for job in ticked.settled() {
        let Some(entry) = job.life.history.last() else {
            continue;
        };
        let outcome = entry.ended_as().as_str();
        *attempts.entry((job.spec.job_type.as_str(), outcome)).or_default() += 1;
        histogram!("tidegate_attempt_duration_seconds", "queue" => queue.to_owned())
            .record(entry.ended_at.since(entry.started_at).as_secs_f64());
    }
    for ((job_type, outcome), count) in attempts {
        let labels = [
            ("queue", queue.to_owned()),
            ("type", job_type.to_owned()),
            ("outcome", outcome.to_owned()),
        ];
        counter!("tidegate_attempts_finished_total", &labels).increment(count);
    }
}

/// Records the weight of a queue's grants, if it has a ledger, and what its rules held in the
/// latest tick.
pub(crate) fn queue(queue: &QueueName, running_weight: Option<u64>, held: &BTreeMap<String, u64>) {
    if let Some(weight) = running_weight {
        gauge!("tidegate_running_weight", "queue" => queue.to_string()).set(weight as f64);
    }
    gauge!("tidegate_jobs_held", "queue" => queue.to_string())
        .set(held.values().sum::<u64>() as f64);
}

/// Counts a job that ended.
pub(crate) fn job_finished(job: &Job) {
    let state = lifecycle::word(&job.life.state);
    let labels = [
        ("queue", job.spec.queue.to_string()),
        ("type", job.spec.job_type.to_string()),
        ("state", state.to_owned()),
    ];
    counter!("tidegate_jobs_finished_total", &labels).increment(1);
}

/// Most pairs of queue and type for which the numbers of jobs are recorded separately.
const MAX_DEPTH_TYPES: usize = 1000;
/// The type under which the jobs of all further types are counted.
const OTHER_TYPES: &str = "other";

/// The gauges of depths and ages that were recorded last, so that one whose jobs are gone becomes
/// 0.
#[derive(Debug, Default)]
pub(crate) struct DepthGauges {
    jobs: BTreeSet<(String, String, Phase)>,
    ages: BTreeSet<String>,
    weights: BTreeSet<QueueName>,
}

impl DepthGauges {
    /// Records the number of jobs of each queue, by type and phase.
    pub(crate) fn jobs(&mut self, counts: &BTreeMap<QueueName, PhaseCounts>) {
        let mut types: BTreeSet<(&str, &str)> = BTreeSet::new();
        let mut sums: BTreeMap<(String, String, Phase), u64> =
            std::mem::take(&mut self.jobs).into_iter().map(|labels| (labels, 0)).collect();
        let all =
            counts.iter().flat_map(|(queue, counts)| counts.iter().map(move |one| (queue, one)));
        for (queue, ((job_type, phase), jobs)) in all {
            let (queue, job_type) = (queue.as_str(), job_type.as_str());
            let fits = types.len() < MAX_DEPTH_TYPES || types.contains(&(queue, job_type));
            let label = if fits { job_type } else { OTHER_TYPES };
            if fits {
                types.insert((queue, job_type));
            }
            *sums.entry((queue.into(), label.into(), *phase)).or_default() += jobs;
        }
        for ((queue, job_type, phase), jobs) in sums {
            let labels = [
                ("queue", queue.clone()),
                ("type", job_type.clone()),
                ("state", StateFilter::from(phase).as_str().into()),
                ("phase", phase.as_str().into()),
            ];
            gauge!("tidegate_jobs", &labels).set(jobs as f64);
            // What has become 0 was said once, and may belong to a type that is gone.
            if jobs > 0 {
                self.jobs.insert((queue, job_type, phase));
            }
        }
    }

    /// Records the weight that runs in each of these queues, and 0 for those of the call before.
    pub(crate) fn weights(&mut self, weights: &BTreeMap<QueueName, u64>) {
        let gone: Vec<_> =
            self.weights.iter().filter(|queue| !weights.contains_key(*queue)).collect();
        for (queue, weight) in gone.into_iter().map(|queue| (queue, &0)).chain(weights) {
            gauge!("tidegate_running_weight", "queue" => queue.to_string()).set(*weight as f64);
        }
        self.weights = weights.keys().cloned().collect();
    }

    /// Records how long the oldest due job of each queue has been due at `now`.
    pub(crate) fn oldest_due(
        &mut self,
        oldest: &BTreeMap<QueueName, Option<Timestamp>>,
        now: Timestamp,
    ) {
        let mut ages: BTreeMap<String, f64> =
            std::mem::take(&mut self.ages).into_iter().map(|queue| (queue, 0.0)).collect();
        for (queue, due) in oldest {
            let age = due.map_or(0.0, |due| now.since(due).as_secs_f64());
            ages.insert(queue.to_string(), age);
        }
        for (queue, age) in ages {
            gauge!("tidegate_oldest_due_job_age_seconds", "queue" => queue.clone()).set(age);
            if age > 0.0 {
                self.ages.insert(queue);
            }
        }
    }
}

/// Counts events by outcome, and the results of their triggers.
pub(crate) fn ingested(answers: &[Result<Ingested, Error>]) {
    let mut outcomes: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut done: BTreeMap<(&str, &'static str), u64> = BTreeMap::new();
    for answer in answers {
        let outcome = match answer {
            Ok(ingested) if ingested.outcomes.is_empty() => "unmatched",
            Ok(_) => "matched",
            Err(_) => "refused",
        };
        *outcomes.entry(outcome).or_default() += 1;
        for applied in answer.iter().flat_map(|ingested| &ingested.outcomes) {
            *done.entry((applied.trigger.as_str(), applied.action.word())).or_default() += 1;
        }
    }
    for (outcome, count) in outcomes {
        counter!("tidegate_events_total", "outcome" => outcome).increment(count);
    }
    for ((trigger, action), count) in done {
        counter!("tidegate_trigger_total", "trigger" => trigger.to_owned(), "action" => action)
            .increment(count);
        if action == "late" {
            counter!("tidegate_replies_unmatched_total").increment(count);
        }
    }
}

/// Counts events that were refused over HTTP before any trigger.
pub(crate) fn events_refused(count: u64) {
    counter!("tidegate_events_total", "outcome" => "refused").increment(count);
}

/// Counts malformed events, which are kept as dead letters.
pub(crate) fn events_malformed(count: u64) {
    counter!("tidegate_events_malformed_total").increment(count);
}

/// Counts refused requests of the inbox, which are kept as dead letters.
pub(crate) fn inbox_refused(count: u64) {
    counter!("tidegate_inbox_refused_total").increment(count);
}

/// Records how much waits in the inbox.
pub(crate) fn inbox_depth(depth: InboxDepth) {
    gauge!("tidegate_inbox_requests").set(depth.requests as f64);
    gauge!("tidegate_inbox_oldest_request_age_seconds").set(depth.oldest_age.as_secs_f64());
}

/// Counts a lease request that was sent to the owner of its queue, which `answered` it or not.
pub(crate) fn lease_forwarded(answered: bool) {
    let outcome = if answered { "forwarded" } else { "failed" };
    counter!("tidegate_lease_requests_forwarded_total", "outcome" => outcome).increment(1);
}

/// Counts a replayed dead letter.
pub(crate) fn dead_letter_replayed(replayed: &Replayed) {
    let action = match replayed {
        Replayed::Applied(action) => action.word(),
        Replayed::Unmatched { .. } => "unmatched",
    };
    counter!("tidegate_dead_letters_replayed_total", "action" => action).increment(1);
}

/// Records how many replies are pending.
pub(crate) fn pending_reply_count(count: u64) {
    gauge!("tidegate_replies_pending").set(count as f64);
}

/// Records a sweep of the pending replies.
pub(crate) fn pending_replies(swept: &SweptReplies) {
    pending_reply_count(swept.kept);
    if swept.unmatched > 0 {
        counter!("tidegate_replies_unmatched_total").increment(swept.unmatched);
    }
}

/// Records how many dead letters there are.
pub(crate) fn dead_letter_count(count: u64) {
    gauge!("tidegate_dead_letters").set(count as f64);
}

/// Records a sweep of the dead letters.
pub(crate) fn dead_letters(purged: Purged) {
    dead_letter_count(purged.left);
    for (reason, count) in [("expired", purged.expired), ("too_many", purged.over)] {
        if count > 0 {
            counter!("tidegate_dead_letters_dropped_total", "reason" => reason).increment(count);
        }
    }
}
