//! How jobs ended, how often they started, and what a kill of the server cost.

use std::collections::{BTreeMap, HashSet};

use super::{Evidence, Kill, ObservedJob, Row, equal, row};
use crate::demo::plan::{JobKind, Planned, PlannedOutcome, Timing};
use tidegate_api::Reason;

impl Evidence<'_> {
    /// No job is lost, and each ended as planned.
    pub(super) fn outcomes(&self) -> Vec<Row> {
        let (sent, known) = self.accepted.repeats;
        vec![
            self.ended(),
            self.as_planned(),
            row(
                "enqueued again with the same id",
                format!("{sent} known"),
                format!("{known} known"),
                sent == known && sent > 0,
            ),
            self.outside_window(),
            self.inside_window(),
        ]
    }

    /// Every accepted job ended, except those that wait by plan.
    fn ended(&self) -> Row {
        let waits = self.with(PlannedOutcome::Waits).count();
        let accepted = self.acknowledged().count();
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        for job in self.acknowledged().filter_map(|job| self.job(job)) {
            if !matches!(job.state.as_str(), "scheduled" | "running") {
                *states.entry(&job.state).or_default() += 1;
            }
        }
        let counts: Vec<String> =
            states.iter().map(|(state, jobs)| format!("{jobs} {state}")).collect();
        let ended: usize = states.values().sum();
        row(
            "every accepted job ended",
            format!("{}, and {waits} wait", self.plan.len() - waits),
            format!("{ended}: {}", counts.join(", ")),
            ended == accepted - waits && accepted == self.plan.len() && self.jobs.len() == accepted,
        )
    }

    /// No job ended otherwise than planned, unless the kill excuses it.
    fn as_planned(&self) -> Row {
        let unlike = |planned: &&Planned| {
            self.job(planned).is_none_or(|job| job.state != planned.fate.state())
        };
        let unlike: Vec<&Planned> = self.acknowledged().filter(unlike).collect();
        let excused = unlike
            .iter()
            .filter(|planned| self.job(planned).is_some_and(|job| self.excused(planned, job)))
            .count();
        let seen = if excused > 0 {
            format!("{}, {excused} of them by the kill", unlike.len())
        } else {
            unlike.len().to_string()
        };
        row("jobs that ended otherwise than planned", "0", seen, unlike.len() == excused)
    }

    /// Jobs outside their window wait, and the server explains why.
    fn outside_window(&self) -> Row {
        let waits = self.with(PlannedOutcome::Waits).count();
        let reasons: HashSet<&str> =
            self.explained.iter().filter_map(|why| Some(&*why.held_by.as_ref()?.kind)).collect();
        let mut reasons: Vec<&str> = reasons.into_iter().collect();
        reasons.sort_unstable();
        let until = self.explained.iter().filter_map(|why| why.earliest_at).min();
        let until = until
            .map(|at| format!(", until {}", at.to_utc().format("%H:%M UTC")))
            .unwrap_or_default();
        row(
            "outside their window: wait, and say why",
            format!("{waits} held by window"),
            format!("{} held by {}{until}", self.explained.len(), reasons.join(", ")),
            self.explained.len() == waits && reasons == ["window"],
        )
    }

    /// Jobs inside their window ran.
    fn inside_window(&self) -> Row {
        let open: Vec<&Planned> =
            self.acknowledged().filter(|job| job.timing == Timing::OpenWindow).collect();
        let ran = open.iter().filter(|job| self.succeeded(job)).count();
        equal("inside their window: ran", open.len(), ran, "")
    }

    /// Whether a kill may have cost this job an attempt, and so changed its outcome.
    fn excused(&self, planned: &Planned, job: &ObservedJob) -> bool {
        let lost = |reason: &Reason| interrupted(*reason) || *reason == Reason::OutcomeUnknown;
        self.kill.is_some()
            && job.failures.iter().any(lost)
            && !matches!(planned.fate, PlannedOutcome::Waits | PlannedOutcome::Expires)
    }

    /// The cost of a kill.
    pub(super) fn kill(&self) -> Option<Row> {
        let failures = self.jobs.values().flat_map(|job| &job.failures);
        let attempts = failures.filter(|reason| interrupted(**reason)).count();
        let lost = self.acknowledged().filter(|job| self.job(job).is_none()).count();
        let Kill { outage, loses_disk } = self.kill?;
        let seen = format!(
            "{lost} lost, {attempts} attempts to make again, {:.1} s without a server",
            outage.as_secs_f64()
        );
        let what =
            if loses_disk { "leader killed, its disk lost" } else { "kill -9 of the server" };
        Some(row(what, "no job lost", seen, lost == 0))
    }

    /// How often jobs were started.
    pub(super) fn attempts(&self) -> Vec<Row> {
        let runs = self.runs();
        let planned: u64 = self.acknowledged().map(Planned::runs).sum();
        let seen = self.pages.starts.len() as u64;
        let again = self.acknowledged().filter(|job| job.runs() > 1).count();
        let lost = self.kill.is_some();
        let promise =
            if lost { format!("{planned}, and what the kill cost") } else { planned.to_string() };
        let once: Vec<&Planned> =
            self.acknowledged().filter(|job| job.kind == JobKind::Payment).collect();
        let most = once
            .iter()
            .map(|job| runs.get(job.id.as_str()).copied().unwrap_or_default())
            .max()
            .unwrap_or_default();
        let unknown = once
            .iter()
            .filter(|job| {
                self.job(job).is_some_and(|job| job.error == Some(Reason::OutcomeUnknown))
            })
            .count();
        let doubts = self.with(PlannedOutcome::Doubt).count();
        vec![
            row(
                "attempts that workers saw",
                promise,
                format!("{seen}, {} to retry {again} jobs", self.pages.retries()),
                if lost { seen > 0 } else { seen == planned },
            ),
            row(
                "at most once: starts of one job",
                format!("at most 1, {doubts} in doubt"),
                format!("{most}, {unknown} ended unknown"),
                most <= 1 && if lost { unknown >= doubts } else { unknown == doubts },
            ),
        ]
    }
}

/// Whether an attempt ended without a result of its worker, as the kill of a server ends it.
fn interrupted(reason: Reason) -> bool {
    matches!(reason, Reason::LeaseExpired | Reason::ConnectionLost | Reason::Timeout)
}
