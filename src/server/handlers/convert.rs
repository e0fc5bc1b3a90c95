//! Answers of the engine, converted to types of the API.

use tidegate_api as api;
use tidegate_engine::{
    events::{dead_letters, ingest},
    request,
};

/// An explanation of what a job waits for.
pub fn explanation(from: request::Explanation) -> api::Explanation {
    let request::Explanation { state, phase, held_by, since, reason, earliest_at } = from;
    let held_by = held_by.map(|held| api::HeldBy { kind: held.kind.into(), name: held.name });
    api::Explanation {
        state: state.into(),
        phase: phase.into(),
        held_by,
        since,
        reason,
        earliest_at,
    }
}

/// The state of a queue.
pub fn queue_status(from: request::QueueStatus) -> api::QueueStatus {
    let request::QueueStatus {
        depth,
        ready,
        running_weight,
        oldest_due_at,
        held,
        desired_workers,
        lateness_seconds,
        constraints,
    } = from;
    api::QueueStatus {
        depth: depth.into_iter().map(|(state, jobs)| (state.into(), jobs)).collect(),
        ready,
        running_weight,
        oldest_due_at,
        held,
        desired_workers,
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
    let request::Worker { name, capacity, running, draining, seen_at } = from;
    api::Worker { name, capacity, running, draining, seen_at }
}

/// A bulk operation.
pub fn operation(from: request::Operation) -> api::Operation {
    let request::Operation { id, kind, state, matched, done, refused, created_at, ended_at, error } =
        from;
    let kind = match kind {
        request::BulkKind::Cancel => api::BulkKind::Cancel,
        request::BulkKind::Replay => api::BulkKind::Replay,
        request::BulkKind::Purge => api::BulkKind::Purge,
    };
    api::Operation { id, kind, state, matched, done, refused, created_at, ended_at, error }
}

/// The outcome of an event.
pub fn ingested(from: ingest::Ingested) -> api::Ingested {
    let ingest::Ingested { id, source, outcomes } = from;
    let outcomes = outcomes.into_iter();
    let outcomes =
        outcomes.map(|one| api::Applied { trigger: one.trigger, did: did(one.did) }).collect();
    api::Ingested { id, source, outcomes }
}

/// What a trigger did.
pub fn did(from: ingest::Did) -> api::Did {
    use ingest::Did as D;
    match from {
        D::Enqueued { job, job_type } => api::Did::Enqueued { job, job_type },
        D::Repeated { job } => api::Did::Repeated { job },
        D::Completed { job } => api::Did::Completed { job },
        D::Recorded { job } => api::Did::Recorded { job },
        D::Known { job } => api::Did::Known { job },
        D::Late { job } => api::Did::Late { job },
        D::Kept { until } => api::Did::Kept { until },
        D::Dead { letter, reason } => api::Did::Dead { letter, reason },
        D::Dropped { reason } => api::Did::Dropped { reason },
    }
}

/// The outcome of a replayed dead letter.
pub fn replayed(from: dead_letters::Replayed) -> api::Replayed {
    match from {
        dead_letters::Replayed::Applied(done) => api::Replayed::Applied(did(done)),
        dead_letters::Replayed::Passed { did } => api::Replayed::Passed { did: did.into() },
    }
}
