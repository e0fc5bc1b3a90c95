//! Messages between server and workers: results, callbacks, signatures, heartbeats.

use super::{Evidence, ObservedJob, Row, equal, row};
use crate::demo::{
    plan::{JobKind, Planned, PlannedOutcome},
    web,
};

impl Evidence<'_> {
    /// Messages between server and workers.
    pub(super) fn messages(&self) -> Vec<Row> {
        let (signed, unsigned) = self.pages.signatures;
        let cancelled = self
            .with(PlannedOutcome::Cancelled)
            .filter(|job| self.pages.stopped_by_heartbeat.contains(&job.id))
            .count();
        vec![
            self.results(),
            self.callbacks(),
            self.busy_targets(),
            row(
                "pushes whose signature fits",
                "all",
                format!("{signed} of {}", signed + unsigned),
                unsigned == 0 && signed > 0,
            ),
            self.long_leases(),
            row(
                "cancelled while it ran",
                "notified by a heartbeat",
                format!("{cancelled} notified"),
                cancelled == self.with(PlannedOutcome::Cancelled).count(),
            ),
        ]
    }

    /// Whether the job succeeded.
    pub(super) fn succeeded(&self, planned: &Planned) -> bool {
        self.job(planned).is_some_and(|job| job.state == "succeeded")
    }

    /// Each result is that of an attempt which its worker saw succeed.
    fn results(&self) -> Row {
        let true_result = |job: &&ObservedJob| {
            let attempt = job
                .result
                .as_ref()
                .and_then(|result| u16::try_from(result.get("attempt")?.as_u64()?).ok());
            attempt.is_some_and(|attempt| {
                self.pages.succeeded.contains(&(job.id.clone(), attempt))
                    && job.result == Some(web::result(&job.id, attempt))
            })
        };
        let succeeded: Vec<&ObservedJob> = self
            .acknowledged()
            .filter(|job| self.succeeded(job))
            .filter_map(|job| self.job(job))
            .collect();
        let kept = succeeded.iter().copied().filter(true_result).count();
        equal("results that are the worker's own", succeeded.len(), kept, "")
    }

    /// Each 202 was followed by a callback that the server matched.
    fn callbacks(&self) -> Row {
        let (asked, taken) = self.pages.callbacks;
        let later: Vec<&Planned> =
            self.acknowledged().filter(|job| job.kind == JobKind::Later).collect();
        let matched = later.iter().filter(|job| self.succeeded(job)).count();
        row(
            "202, answered later by callback",
            format!("{} matched", later.len()),
            format!("{matched} matched, {taken} of {asked} taken"),
            matched == later.len() && (self.kill.is_some() || asked == taken),
        )
    }

    /// A target that answers 503 with Retry-After costs its job no attempt.
    fn busy_targets(&self) -> Row {
        let busy: Vec<&Planned> =
            self.acknowledged().filter(|job| job.kind == JobKind::Busy).collect();
        let first =
            busy.iter().filter(|job| self.job(job).is_some_and(|job| job.attempt == 1)).count();
        let refusals = self.pages.turned_away;
        row(
            "503 with Retry-After",
            format!("{} served in attempt 1", busy.len()),
            format!("{first}, after {refusals} refusals"),
            refusals as usize >= busy.len() && (self.kill.is_some() || first == busy.len()),
        )
    }

    /// Heartbeats keep the leases of jobs that take longer.
    fn long_leases(&self) -> Row {
        let long: Vec<&Planned> = self
            .acknowledged()
            .filter(|job| job.kind == JobKind::Render && job.fate == PlannedOutcome::Succeeds)
            .collect();
        let kept = long
            .iter()
            .filter(|job| {
                self.succeeded(job)
                    && (self.kill.is_some() || self.job(job).is_some_and(|job| job.attempt == 1))
            })
            .count();
        row(
            "pull jobs longer than their lease",
            format!("{} kept by heartbeats", long.len()),
            format!("{kept}, by {} heartbeats", self.pages.heartbeats),
            kept == long.len(),
        )
    }
}
