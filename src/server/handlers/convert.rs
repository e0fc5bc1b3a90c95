//! Answers of the engine, converted to types of the API.

use crate::runtime::{QueueOverview, action_view};
use tidegate_api as api;
use tidegate_core::job::TypeName;
use tidegate_engine::{
    events::{dead_letters, ingest},
    jobs::sorted::Compared,
    request,
};

/// An explanation of what a job waits for.
pub fn explanation(from: request::Explanation) -> api::Explanation {
    let request::Explanation { state, phase, held_by, since, reason, earliest_at, workers } = from;
    let held_by = held_by.map(|request::HeldBy { kind, name, value }| api::HeldBy {
        kind: kind.into(),
        name,
        value,
    });
    api::Explanation {
        state: state.into(),
        phase: phase.into(),
        held_by,
        since,
        reason,
        earliest_at,
        workers: workers.as_ref().map(worker_status),
    }
}

/// An explanation of what a queue waits for.
pub fn queue_explanation(from: request::QueueExplanation) -> api::QueueExplanation {
    let request::QueueExplanation {
        reason,
        examined,
        more,
        held,
        next_due_at,
        running,
        constraints,
        workers,
        startable: _,
    } = from;
    let type_use = |request::TypeUse { job_type, jobs, weight, limit }| api::TypeUse {
        r#type: job_type.to_string(),
        jobs,
        weight,
        limit,
    };
    let type_workers = |(job_type, status): (TypeName, _)| api::TypeWorkers {
        r#type: job_type.to_string(),
        workers: worker_status(&status),
    };
    api::QueueExplanation {
        reason,
        examined,
        more,
        held: held.into_iter().map(held_jobs).collect(),
        next_due_at,
        running: running.into_iter().map(type_use).collect(),
        constraints: constraints.into_iter().map(constraint_use).collect(),
        workers: workers.into_iter().map(type_workers).collect(),
    }
}

/// A queue of the overview.
pub fn queue_overview(from: QueueOverview) -> api::QueueOverview {
    let QueueOverview {
        name,
        paused,
        concurrency,
        phases,
        counted_at,
        depth_at_least,
        running_weight,
        oldest_due_at,
        held,
        desired_workers,
        explained_at,
        workers,
        start_delay_seconds,
        throughput,
        time_to_empty_seconds,
        minutes,
    } = from;
    api::QueueOverview {
        name,
        paused,
        concurrency,
        phases,
        counted_at,
        depth_at_least,
        running_weight,
        oldest_due_at,
        held: held.into_iter().map(held_jobs).collect(),
        desired_workers,
        explained_at,
        workers,
        start_delay_seconds,
        throughput,
        time_to_empty_seconds,
        minutes,
    }
}

fn held_jobs(from: request::HeldJobs) -> api::HeldJobs {
    let request::HeldJobs { by, jobs, types, since, reason, earliest_at } = from;
    let request::HeldBy { kind, name, value } = by;
    let types = types.into_iter().map(|(job_type, jobs)| (job_type.to_string(), jobs)).collect();
    api::HeldJobs { kind: kind.into(), name, value, jobs, types, since, reason, earliest_at }
}

fn worker_status(from: &request::WorkerStatus) -> api::WorkerStatus {
    let request::WorkerStatus { known, polling, busy, draining, in_use, capacity, last_seen_at } =
        *from;
    api::WorkerStatus { known, polling, busy, draining, in_use, capacity, last_seen_at }
}

/// The state of a queue.
pub fn queue_status(from: request::QueueStatus) -> api::QueueStatus {
    let request::QueueStatus {
        depth,
        phases,
        counted_at,
        depth_at_least,
        ready,
        running_weight,
        oldest_due_at,
        held,
        desired_workers,
        workers,
        lateness_seconds,
        constraints,
    } = from;
    api::QueueStatus {
        depth: depth.into_iter().map(|(state, jobs)| (state.into(), jobs)).collect(),
        phases: phases.into_iter().map(|(phase, jobs)| (phase.into(), jobs)).collect(),
        counted_at,
        depth_at_least,
        ready,
        running_weight,
        oldest_due_at,
        held: held.into_iter().map(held_jobs).collect(),
        desired_workers,
        workers,
        lateness_seconds,
        constraints: constraints.into_iter().map(constraint_use).collect(),
    }
}

fn constraint_use(from: request::ConstraintUse) -> api::ConstraintUse {
    let request::ConstraintUse { name, per, value, running_weight, limit } = from;
    api::ConstraintUse { name, per, value, running_weight, limit }
}

/// A worker.
pub fn worker(from: request::Worker) -> api::Worker {
    let request::Worker { name, capacity, running, draining, stopping, seen_at, queue, types } =
        from;
    api::Worker { name, capacity, running, draining, stopping, seen_at, queue, types }
}

/// A bulk operation.
pub fn operation(from: request::Operation) -> api::Operation {
    let request::Operation {
        id,
        kind: bulk_kind,
        state,
        dry_run,
        matched,
        done,
        refused,
        skipped,
        skipped_jobs,
        sample,
        unreadable,
        created_at,
        ended_at,
        error,
        unknown: _,
    } = from;
    let kind = match bulk_kind {
        request::BulkKind::Cancel => api::BulkKind::Cancel,
        request::BulkKind::Replay => api::BulkKind::Replay,
        request::BulkKind::Purge => api::BulkKind::Purge,
        request::BulkKind::Patch => api::BulkKind::Patch,
    };
    api::Operation {
        id,
        kind,
        state,
        dry_run,
        matched,
        done,
        refused,
        skipped,
        sample,
        skipped_jobs: skipped_jobs.into_iter().map(skipped_job).collect(),
        unreadable,
        created_at,
        ended_at,
        error,
    }
}

/// A group of errors.
pub fn error_group(from: request::ErrorGroup) -> api::ErrorGroup {
    let request::ErrorGroup {
        job_type,
        reason,
        pattern,
        message,
        jobs,
        first_at,
        last_at,
        examples,
    } = from;
    api::ErrorGroup {
        r#type: job_type,
        reason,
        pattern,
        message,
        jobs,
        first_at,
        last_at,
        examples,
    }
}

fn skipped_job(from: request::SkippedJob) -> api::SkippedJob {
    let request::SkippedJob { id, reason, holder } = from;
    api::SkippedJob { id, reason, holder }
}

/// The jobs that were compared for a sorted list.
pub fn compared(from: Compared) -> api::SortedJobs {
    let Compared { jobs, is_complete } = from;
    api::SortedJobs { compared: jobs, complete: is_complete }
}

/// The outcome of an event.
pub fn ingested(from: ingest::Ingested) -> api::Ingested {
    let ingest::Ingested { id, source, event_type: _, outcomes } = from;
    let outcomes = outcomes.into_iter();
    let outcomes = outcomes
        .map(|one| api::Applied { trigger: one.trigger, action: action_view(one.action) })
        .collect();
    api::Ingested { id, source, outcomes }
}

/// The outcome of a replayed dead letter.
pub fn replayed(from: dead_letters::Replayed) -> api::Replayed {
    match from {
        dead_letters::Replayed::Applied(done) => api::Replayed::Applied(action_view(done)),
        dead_letters::Replayed::Unmatched { action } => {
            api::Replayed::Unmatched { action: action.into() }
        }
    }
}
