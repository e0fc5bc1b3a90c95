//! The final table: what was promised, what was seen, and whether the two agree.
//!
//! Pure. What ran at once, when, and how often comes from the workers' own `event_log`; what became of each job
//! from the server's answers; the two are held against each other and against the plan.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;

use super::{
    event_log::{Pages, Scope, Start, percentile},
    plan::{
        JobKind, LIMIT, LONE, PACED, Planned, PlannedOutcome, RANKED, RATE, SHOP, TENANT_LIMIT,
        Timing,
    },
    producer::Accepted,
    web,
};
use tidegate_api::{AnyValue, Explanation, JobView, Reason};
use tidegate_core::time::Timestamp;

/// One promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What it is about.
    pub what: &'static str,
    /// What was promised.
    pub expected: String,
    /// What was seen.
    pub seen: String,
    /// Whether the promise was kept.
    pub ok: bool,
}

/// The server's view of a job at the end, as far as the promises depend on it.
#[derive(Clone, Debug, Default)]
pub struct ObservedJob {
    pub id: String,
    pub state: String,
    pub attempt: u16,
    /// Why attempts failed, oldest first.
    pub failures: Vec<Reason>,
    /// The latest failure.
    pub error: Option<Reason>,
    pub result: Option<Value>,
}

impl From<JobView<'_>> for ObservedJob {
    fn from(job: JobView<'_>) -> Self {
        let result = job.result.as_ref().and_then(AnyValue::json);
        Self {
            id: job.id.to_string(),
            state: job.state.to_string(),
            attempt: job.attempt,
            failures: job
                .history
                .iter()
                .filter_map(|entry| Some(entry.error.as_ref()?.reason))
                .collect(),
            error: job.error.as_ref().map(|error| error.reason),
            result: result.and_then(|json| serde_json::from_str(json).ok()),
        }
    }
}

/// All that the table is made of.
pub struct Evidence<'a> {
    /// The planned jobs.
    pub plan: &'a [Planned],
    /// What the server acknowledged.
    pub accepted: &'a Accepted,
    /// What the workers saw.
    pub pages: &'a Pages,
    /// The server's view of the jobs, by id.
    pub jobs: &'a HashMap<String, ObservedJob>,
    /// Why those wait that wait.
    pub explained: &'a [Explanation],
    /// How often the server was killed.
    pub kills: usize,
    /// The lateness that is fine at the 99th percentile.
    pub lateness: Duration,
}

/// Whether an attempt ended without a result of its worker, as the kill of a server ends it.
fn interrupted(reason: &Reason) -> bool {
    matches!(reason, Reason::LeaseExpired | Reason::ConnectionLost | Reason::Timeout)
}

/// The table.
pub fn table(evidence: &Evidence<'_>) -> Vec<Row> {
    let mut rows = evidence.fates();
    rows.extend(evidence.kill());
    rows.extend(evidence.limits());
    rows.extend(evidence.times());
    rows.extend(evidence.attempts());
    rows.extend(evidence.talk());
    rows
}

fn row(what: &'static str, expected: impl Into<String>, seen: impl Into<String>, ok: bool) -> Row {
    Row { what, expected: expected.into(), seen: seen.into(), ok }
}

/// A row whose two sides are one number each, and must be equal.
fn equal(what: &'static str, expected: usize, seen: usize, unit: &str) -> Row {
    let said = |number: usize| {
        if unit.is_empty() { number.to_string() } else { format!("{number} {unit}") }
    };
    row(what, said(expected), said(seen), expected == seen)
}

impl<'a> Evidence<'a> {
    /// The planned jobs that the server acknowledged; only those are promised anything.
    fn acknowledged(&self) -> impl Iterator<Item = &'a Planned> {
        let known = &self.accepted.jobs;
        self.plan.iter().filter(|job| known.contains_key(&job.id))
    }

    fn with(&self, fate: PlannedOutcome) -> impl Iterator<Item = &'a Planned> {
        self.acknowledged().filter(move |job| job.fate == fate)
    }

    fn job(&self, planned: &Planned) -> Option<&'a ObservedJob> {
        self.jobs.get(&planned.id)
    }

    /// How many attempts the workers saw of each job.
    fn runs(&self) -> HashMap<&str, u64> {
        let mut runs: HashMap<&str, u64> = HashMap::new();
        for start in &self.pages.starts {
            *runs.entry(&start.id).or_default() += 1;
        }
        runs
    }

    /// Whether a kill may have cost this job an attempt, so that it may not end as planned.
    fn excused(&self, planned: &Planned, job: &ObservedJob) -> bool {
        let lost = |reason: &Reason| interrupted(reason) || *reason == Reason::OutcomeUnknown;
        self.kills > 0
            && job.failures.iter().any(lost)
            && !matches!(planned.fate, PlannedOutcome::Waits | PlannedOutcome::Expires)
    }

    /// None lost, and each ended as it should.
    fn fates(&self) -> Vec<Row> {
        let waits = self.with(PlannedOutcome::Waits).count();
        let accepted = self.acknowledged().count();
        let ended = self
            .acknowledged()
            .filter_map(|job| self.job(job))
            .filter(|job| !matches!(job.state.as_str(), "scheduled" | "running"));
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        for job in ended {
            *states.entry(&job.state).or_default() += 1;
        }
        let said: Vec<String> =
            states.iter().map(|(state, jobs)| format!("{jobs} {state}")).collect();
        let ended: usize = states.values().sum();
        let whole =
            ended == accepted - waits && accepted == self.plan.len() && self.jobs.len() == accepted;
        let promise = format!("{}, and {waits} wait", self.plan.len() - waits);
        let mut rows = vec![row(
            "every accepted job ended",
            promise,
            format!("{ended}: {}", said.join(", ")),
            whole,
        )];

        let unlike = |planned: &&Planned| {
            self.job(planned).is_none_or(|job| job.state != planned.fate.state())
        };
        let unlike: Vec<&Planned> = self.acknowledged().filter(unlike).collect();
        let excused = unlike
            .iter()
            .filter(|planned| self.job(planned).is_some_and(|job| self.excused(planned, job)))
            .count();
        let said = if excused > 0 {
            format!("{}, {excused} of them by the kill", unlike.len())
        } else {
            unlike.len().to_string()
        };
        rows.push(row(
            "jobs that ended otherwise than planned",
            "0",
            said,
            unlike.len() == excused,
        ));
        let (sent, known) = self.accepted.repeats;
        rows.push(row(
            "enqueued again with the same id",
            format!("{sent} known"),
            format!("{known} known"),
            sent == known && sent > 0,
        ));
        let told: HashSet<&str> =
            self.explained.iter().filter_map(|why| Some(&*why.held_by.as_ref()?.kind)).collect();
        let until = self.explained.iter().filter_map(|why| why.earliest_at).min();
        let mut told: Vec<&str> = told.into_iter().collect();
        told.sort_unstable();
        let until = until
            .map(|at| format!(", until {}", at.to_utc().format("%H:%M UTC")))
            .unwrap_or_default();
        let ok = self.explained.len() == waits && told == ["window"];
        rows.push(row(
            "outside their window: wait, and say why",
            format!("{waits} held by window"),
            format!("{} held by {}{until}", self.explained.len(), told.join(", ")),
            ok,
        ));
        let open: Vec<&Planned> =
            self.acknowledged().filter(|job| job.timing == Timing::OpenWindow).collect();
        let ran = open
            .iter()
            .filter(|job| self.job(job).is_some_and(|job| job.state == "succeeded"))
            .count();
        rows.push(equal("inside their window: ran", open.len(), ran, ""));
        rows
    }

    /// What a kill cost.
    fn kill(&self) -> Option<Row> {
        let failures = self.jobs.values().flat_map(|job| &job.failures);
        let attempts = failures.filter(|reason| interrupted(reason)).count();
        let lost = self.acknowledged().filter(|job| self.job(job).is_none()).count();
        let seen = format!("{lost} lost, {attempts} attempts to make again");
        (self.kills > 0).then(|| row("kill -9 of the server", "no job lost", seen, lost == 0))
    }

    /// What ran at once, as the workers counted it.
    fn limits(&self) -> Vec<Row> {
        let most = |scope: &Scope| self.pages.most.get(scope).copied().unwrap_or_default();
        let shop = most(&Scope::Queue(SHOP));
        let tenants: Vec<(&str, u64)> = self
            .pages
            .most
            .iter()
            .filter_map(|(scope, most)| match scope {
                Scope::Tenant(name) => Some((name.as_str(), *most)),
                Scope::Queue(_) => None,
            })
            .collect();
        let said: Vec<String> =
            tenants.iter().map(|(name, most)| format!("{name} {most}")).collect();
        let kept = !tenants.is_empty() && tenants.iter().all(|(_, most)| *most <= TENANT_LIMIT);
        let begun = self.pages.first_starts();
        let passed: Vec<usize> = self
            .acknowledged()
            .filter(|job| job.critical || job.errand.tenant == LONE)
            .map(|job| {
                self.accepted.overtaken(job, self.plan, |id| begun.get(id).map(|(place, _)| *place))
            })
            .collect();
        let least = passed.iter().min().copied().unwrap_or_default();
        let ranked = self.ranks();
        let misplaced = ranked.windows(2).filter(|pair| pair[0] > pair[1]).count();
        vec![
            row(
                "most weight at once in demo-shop",
                format!("at most {LIMIT}"),
                shop.to_string(),
                (1..=LIMIT).contains(&shop),
            ),
            row(
                "most weight at once of one tenant",
                format!("at most {TENANT_LIMIT}"),
                said.join(", "),
                kept,
            ),
            row(
                "critical jobs, and a tenant's only job",
                "pass the backlog",
                format!("each passed {least} or more"),
                least > 0,
            ),
            row(
                "by priority, one at a time",
                "in place, 1 at once",
                format!("{misplaced} misplaced, {} at once", most(&Scope::Queue(RANKED))),
                // One attempt at most was under way when the server was killed, and comes again later.
                misplaced <= self.kills && most(&Scope::Queue(RANKED)) == 1,
            ),
        ]
    }

    /// The priorities of the ranked jobs in the order of their first starts.
    fn ranks(&self) -> Vec<i32> {
        let priorities: HashMap<&str, i32> = self
            .plan
            .iter()
            .filter(|job| job.kind == JobKind::Ranked)
            .map(|job| (job.id.as_str(), job.priority))
            .collect();
        let mut begun: Vec<(usize, i32)> = self
            .pages
            .first_starts()
            .into_iter()
            .filter_map(|(id, (place, _))| Some((place, *priorities.get(id)?)))
            .collect();
        begun.sort_unstable();
        begun.into_iter().map(|(_, priority)| priority).collect()
    }

    /// When jobs started.
    fn times(&self) -> Vec<Row> {
        let late = self.pages.lateness();
        let at = |percent| percentile(&late, percent).unwrap_or(-1);
        let most = i64::try_from(self.lateness.as_millis()).unwrap_or(i64::MAX);
        // A job whose first attempt a kill swallowed is not among them, and one that was due meanwhile is late.
        let fine = !late.is_empty() && late[0] >= 0 && (self.kills > 0 || at(99) <= most);
        let promise = if self.kills > 0 {
            "never early".to_owned()
        } else {
            format!("never early, p99 at most {most} ms")
        };
        let paced: Vec<&Start> =
            self.pages.starts.iter().filter(|start| start.kind.queue() == PACED).collect();
        let first = self
            .acknowledged()
            .filter(|job| job.kind == JobKind::Paced)
            .filter_map(|job| Some(self.accepted.jobs.get(&job.id)?.0))
            .min();
        let took =
            paced.last().zip(first).map(|(last, first)| last.at.since(first)).unwrap_or_default();
        vec![
            row(
                "delayed jobs: lateness",
                promise,
                format!("p50 {} ms, p99 {} ms, of {}", at(50), at(99), late.len()),
                fine,
            ),
            row(
                "rate: attempts that started",
                format!("{} at first, then {} a second", RATE.1, RATE.0),
                format!("{} in {:.1} s", paced.len(), took.as_secs_f64()),
                !paced.is_empty() && first.is_some_and(|first| within_rate(&paced, first)),
            ),
        ]
    }

    /// How often jobs were started.
    fn attempts(&self) -> Vec<Row> {
        let runs = self.runs();
        let planned: u64 = self.acknowledged().map(Planned::runs).sum();
        let seen = self.pages.starts.len() as u64;
        let again = self.acknowledged().filter(|job| job.runs() > 1).count();
        let lost = self.kills > 0;
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

    /// Messages between server and workers.
    fn talk(&self) -> Vec<Row> {
        let lost = self.kills > 0;
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
        let succeeded = || {
            self.acknowledged()
                .filter_map(|job| self.job(job))
                .filter(|job| job.state == "succeeded")
        };
        let (asked, taken) = self.pages.callbacks;
        let later = self.acknowledged().filter(|job| job.kind == JobKind::Later).count();
        let matched = self
            .acknowledged()
            .filter(|job| {
                job.kind == JobKind::Later
                    && self.job(job).is_some_and(|job| job.state == "succeeded")
            })
            .count();
        let busy: Vec<&Planned> =
            self.acknowledged().filter(|job| job.kind == JobKind::Busy).collect();
        let first =
            busy.iter().filter(|job| self.job(job).is_some_and(|job| job.attempt == 1)).count();
        let (signed, unsigned) = self.pages.signatures;
        let long: Vec<&Planned> = self
            .acknowledged()
            .filter(|job| job.kind == JobKind::Render && job.fate == PlannedOutcome::Succeeds)
            .collect();
        let kept = long
            .iter()
            .filter(|job| {
                self.job(job)
                    .is_some_and(|job| job.state == "succeeded" && (lost || job.attempt == 1))
            })
            .count();
        let cancelled = self
            .with(PlannedOutcome::Cancelled)
            .filter(|job| self.pages.told_to_stop.contains(&job.id))
            .count();
        vec![
            equal(
                "results that are the worker's own",
                succeeded().count(),
                succeeded().filter(true_result).count(),
                "",
            ),
            row(
                "202, answered later by callback",
                format!("{later} matched"),
                format!("{matched} matched, {taken} of {asked} taken"),
                matched == later && (lost || asked == taken),
            ),
            row(
                "503 with Retry-After",
                format!("{} served in attempt 1", busy.len()),
                format!("{first}, after {} refusals", self.pages.turned_away),
                self.pages.turned_away as usize >= busy.len() && (lost || first == busy.len()),
            ),
            row(
                "pushes whose signature fits",
                "all",
                format!("{signed} of {}", signed + unsigned),
                unsigned == 0 && signed > 0,
            ),
            row(
                "pull jobs longer than their lease",
                format!("{} kept by heartbeats", long.len()),
                format!("{kept}, by {} heartbeats", self.pages.heartbeats),
                kept == long.len(),
            ),
            row(
                "cancelled while it ran",
                "notified by a heartbeat",
                format!("{cancelled} notified"),
                cancelled == self.with(PlannedOutcome::Cancelled).count(),
            ),
        ]
    }
}

/// Whether, counted from `first`, when the first of them was enqueued, never more had begun than the rate allows.
///
/// A delivery may be slow, so two starts may come closer than they were admitted; but none can come before it was admitted.
fn within_rate(starts: &[&Start], first: Timestamp) -> bool {
    starts.iter().enumerate().all(|(before, start)| {
        let allowed = RATE.1 as f64 + start.at.since(first).as_secs_f64() * RATE.0 as f64;
        (before + 1) as f64 <= allowed + 0.02
    })
}

#[cfg(test)]
mod tests;
