//! The mix: what is enqueued, how its workers behave, and what is to become of it.
//!
//! Pure. Everything the final table expects is written here, next to the job that it is expected of.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use tidegate_core::time::Timestamp;

/// The limited queue, where most jobs go.
pub const SHOP: &str = "demo-shop";
/// The queue without limits, for jobs of a certain time.
pub const TIMERS: &str = "demo-timers";
/// The queue with a rate.
pub const PACED: &str = "demo-paced";
/// The queue that goes by priority, one at a time.
pub const RANKED: &str = "demo-ranked";

/// Most weight at once in [`SHOP`].
pub const LIMIT: u64 = 10;
/// Most weight at once of one tenant in [`SHOP`].
pub const TENANT_LIMIT: u64 = 4;
/// Attempts per second in [`PACED`], and how many may start at once.
pub const RATE: (u64, u64) = (10, 5);
/// How long a pull worker may be silent; [`JobKind::Render`] takes longer.
pub const LEASE: Duration = Duration::from_secs(4);
/// Jobs that are enqueued twice, with the same id.
pub const REPEATS: usize = 20;
/// How many pull workers there are, one job each at a time.
pub const PULLERS: usize = 6;

/// The queues and their settings.
pub fn queues() -> [(&'static str, Value); 4] {
    [
        (
            SHOP,
            json!({"concurrency": LIMIT, "partition_by": "tenant", "order_step_seconds": 1,
                "constraints": [{"name": "per-tenant", "per": "tenant", "concurrency": TENANT_LIMIT}]}),
        ),
        (TIMERS, json!({})),
        (
            PACED,
            json!({"constraints": [{"name": "pace", "rate": {"count": RATE.0, "per_seconds": 1, "burst": RATE.1}}]}),
        ),
        (RANKED, json!({"concurrency": 1, "order": "priority"})),
    ]
}

/// What a job is for: its job type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobKind {
    /// Pushed; answered at once.
    Call,
    /// Pushed; fails as often as planned, then succeeds.
    Flaky,
    /// Pushed; fails without a retry.
    Hopeless,
    /// Pushed; accepted by 202, and answered later by a callback.
    Later,
    /// Pushed; the worker is too busy at first: 503 with `Retry-After`.
    Busy,
    /// Pushed, at most once; some answers break off.
    Payment,
    /// Pulled; heavy.
    Crunch,
    /// Pulled; takes longer than its lease, so it needs heartbeats.
    Render,
    /// Pushed at a certain time.
    Timer,
    /// Pushed at a certain rate.
    Paced,
    /// Pushed in order of priority.
    Ranked,
}

impl JobKind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Call,
        Self::Flaky,
        Self::Hopeless,
        Self::Later,
        Self::Busy,
        Self::Payment,
        Self::Crunch,
        Self::Render,
        Self::Timer,
        Self::Paced,
        Self::Ranked,
    ];
    /// The kinds that pull workers lease.
    pub const PULLED: [Self; 2] = [Self::Crunch, Self::Render];

    /// Its job type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "demo-call",
            Self::Flaky => "demo-flaky",
            Self::Hopeless => "demo-hopeless",
            Self::Later => "demo-later",
            Self::Busy => "demo-busy",
            Self::Payment => "demo-payment",
            Self::Crunch => "demo-crunch",
            Self::Render => "demo-render",
            Self::Timer => "demo-timer",
            Self::Paced => "demo-paced",
            Self::Ranked => "demo-ranked",
        }
    }

    /// The kind with this job type.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The queue its jobs wait in.
    pub fn queue(self) -> &'static str {
        match self {
            Self::Timer => TIMERS,
            Self::Paced => PACED,
            Self::Ranked => RANKED,
            _ => SHOP,
        }
    }

    /// The settings of its job type; pushes go to `worker` and are signed with `secret`.
    pub fn config(self, worker: &str, secret: &str) -> Value {
        let target = if Self::PULLED.contains(&self) {
            json!({"pull": true})
        } else {
            json!({"url": format!("{worker}/{{type}}"), "signing_secret": secret})
        };
        let mut config = json!({"queue": self.queue(), "target": target, "timeout_seconds": 60, "response_timeout_seconds": 6,
            "lease_seconds": LEASE.as_secs(), "attributes": {"tenant": "/tenant"},
            "retry": {"strategy": "exponential", "config": {"base_seconds": 0.5, "max_seconds": 2}}});
        if self == Self::Payment {
            config["delivery"] = json!("at_most_once");
        }
        config
    }
}

/// What a job carries: all that its worker needs to know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannedJob {
    /// Whose it is.
    pub tenant: String,
    /// What it takes of a limit; 0 for a critical one, which takes nothing.
    pub weight: u64,
    /// How long the work takes.
    pub work_ms: u64,
    /// How many attempts fail first.
    pub failures: u16,
    /// Whether its response breaks off, so that its outcome is unknown.
    pub breaks_off: bool,
    /// The due time, if one is set.
    pub due_at: Option<Timestamp>,
}

/// When a job may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// At once.
    Now,
    /// After so many milliseconds.
    After(u64),
    /// In a window that is open.
    OpenWindow,
    /// In a window that is closed for hours.
    ClosedWindow,
    /// In that closed window, but no later than in two seconds, so never.
    Expiring,
}

/// The time of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wave {
    /// With many others, at the start.
    Backlog,
    /// Alone, right behind the backlog.
    Behind,
    /// One by one, while the others run.
    Trickle,
}

/// What is to become of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedOutcome {
    /// It succeeds after its failures.
    Succeeds,
    /// It fails by the report of its worker.
    Fails,
    /// It fails with reason `unknown`: it was started, its answer broke off, and it must not run twice.
    Doubt,
    /// It expires.
    Expires,
    /// It is cancelled while it runs.
    Cancelled,
    /// It waits for its window.
    Waits,
}

impl PlannedOutcome {
    /// The state that it ends in.
    pub fn state(self) -> &'static str {
        match self {
            Self::Succeeds => "succeeded",
            Self::Fails | Self::Doubt => "failed",
            Self::Expires => "expired",
            Self::Cancelled => "cancelled",
            Self::Waits => "scheduled",
        }
    }
}

/// A job to enqueue.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its id, given by us, so that handing it in again is harmless.
    pub id: String,
    /// What it is for.
    pub kind: JobKind,
    /// What it carries.
    pub errand: PlannedJob,
    /// Lower goes first.
    pub priority: i32,
    /// Whether limits do not hold it.
    pub critical: bool,
    /// When it may start.
    pub timing: Timing,
    /// The time of its enqueue.
    pub wave: Wave,
    /// What is to become of it.
    pub fate: PlannedOutcome,
}

impl Planned {
    /// How many attempts its workers are to see.
    pub fn runs(&self) -> u64 {
        match self.fate {
            PlannedOutcome::Succeeds => 1 + u64::from(self.errand.failures),
            PlannedOutcome::Fails => u64::from(self.errand.failures),
            PlannedOutcome::Doubt | PlannedOutcome::Cancelled => 1,
            PlannedOutcome::Expires | PlannedOutcome::Waits => 0,
        }
    }

    /// The request that hands it in at `now`. Made once, for the same id takes only the same request again.
    pub fn request(&self, now: Timestamp) -> Value {
        let mut errand = self.errand.clone();
        let mut job = json!({"id": self.id, "type": self.kind.name(), "priority": self.priority});
        match self.timing {
            Timing::Now => {}
            Timing::After(millis) => {
                let due_at = now + Duration::from_millis(millis);
                errand.due_at = Some(due_at);
                job["run_at"] = json!(due_at);
            }
            Timing::OpenWindow => job["windows"] = window(now - HOUR, now + HOUR),
            Timing::ClosedWindow => job["windows"] = window(now + 6 * HOUR, now + 7 * HOUR),
            Timing::Expiring => {
                job["windows"] = window(now + 6 * HOUR, now + 7 * HOUR);
                job["expires_at"] = json!(now + Duration::from_secs(2));
            }
        }
        if self.critical {
            job["critical"] = json!(true);
        } else {
            job["weight"] = json!(errand.weight);
        }
        job["data"] = json!(errand);
        job
    }
}

const HOUR: Duration = Duration::from_hours(1);

/// A window of every day, in UTC.
fn window(from: Timestamp, to: Timestamp) -> Value {
    let clock = |at: Timestamp| at.to_utc().format("%H:%M").to_string();
    json!([{"from": clock(from), "to": clock(to), "tz": "UTC"}])
}

/// The mix of about `size` jobs, each id starting with `run`.
pub fn mix(run: &str, size: usize) -> Vec<Planned> {
    let mut mix = Mix { run, jobs: Vec::with_capacity(size + size / 4) };
    let part = |percent: usize| (size * percent / 100).max(2);
    mix.add(JobKind::Call, part(30), |job, i| job.errand.weight = 1 + i % 3);
    mix.add(JobKind::Crunch, part(9), |job, _| job.errand.weight = 3);
    mix.add(JobKind::Flaky, part(8), |job, i| {
        (job.errand.failures, job.fate) = if i % 4 == 3 {
            (3, PlannedOutcome::Fails)
        } else {
            (1 + (i % 2) as u16, PlannedOutcome::Succeeds)
        };
    });
    mix.add(JobKind::Hopeless, part(2), |job, _| {
        (job.errand.failures, job.fate) = (1, PlannedOutcome::Fails);
    });
    mix.add(JobKind::Later, part(8), |job, i| job.errand.work_ms = 200 + i * 97 % 500);
    mix.add(JobKind::Busy, part(3), |_, _| {});
    mix.add(JobKind::Payment, part(4), |job, i| {
        if i % 2 == 1 {
            (job.errand.breaks_off, job.fate) = (true, PlannedOutcome::Doubt);
        }
    });
    mix.add(JobKind::Render, 3, |job, i| {
        job.errand.work_ms = LEASE.as_millis() as u64 + 1000;
        TENANTS[i as usize].clone_into(&mut job.errand.tenant);
    });
    mix.add(JobKind::Render, 1, |job, _| {
        job.errand.work_ms = 30_000;
        job.fate = PlannedOutcome::Cancelled;
    });
    mix.add(JobKind::Timer, part(20), |job, i| {
        job.timing = Timing::After(1000 + i * 7000 / part(20) as u64);
        job.errand.work_ms = 5;
    });
    mix.add(JobKind::Paced, 30, |job, _| job.errand.work_ms = 5);
    mix.add(JobKind::Ranked, 16, |job, i| {
        job.priority = (i * 7 % 16) as i32;
        job.errand.work_ms = 20;
    });
    mix.add(JobKind::Call, 3, |job, _| job.timing = Timing::OpenWindow);
    mix.add(JobKind::Call, 2, |job, _| {
        (job.timing, job.fate) = (Timing::ClosedWindow, PlannedOutcome::Waits);
    });
    mix.add(JobKind::Call, 2, |job, _| {
        (job.timing, job.fate) = (Timing::Expiring, PlannedOutcome::Expires);
    });
    mix.add(JobKind::Call, 3, |job, _| {
        (job.critical, job.wave) = (true, Wave::Behind);
        job.errand.weight = 0;
    });
    mix.add(JobKind::Call, 1, |job, _| {
        job.wave = Wave::Behind;
        LONE.clone_into(&mut job.errand.tenant);
    });
    mix.add(JobKind::Call, part(15), |job, i| {
        job.wave = Wave::Trickle;
        job.errand.weight = 1 + i % 2;
    });
    mix.jobs
}

/// Whose jobs there are; the first has the most.
const TENANTS: [&str; 3] = ["acme", "blue", "coda"];
/// The tenant with a single job, behind the jobs of all others.
pub const LONE: &str = "dune";

struct Mix<'a> {
    run: &'a str,
    jobs: Vec<Planned>,
}

impl Mix<'_> {
    /// Adds `count` jobs of `kind`, each with what is special about it.
    fn add(&mut self, kind: JobKind, count: usize, special: impl Fn(&mut Planned, u64)) {
        for i in 0..count as u64 {
            let number = self.jobs.len() as u64;
            let tenant = TENANTS[[0, 1, 0, 2, 0, 1, 0, 2, 1, 0][(number % 10) as usize]];
            let errand = PlannedJob {
                tenant: tenant.to_owned(),
                weight: 1,
                work_ms: 40 + number * 37 % 100,
                ..PlannedJob::default()
            };
            let mut job = Planned {
                id: format!("{}-{number}", self.run),
                kind,
                errand,
                priority: 100,
                critical: false,
                timing: Timing::Now,
                wave: Wave::Backlog,
                fate: PlannedOutcome::Succeeds,
            };
            special(&mut job, i);
            self.jobs.push(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_kind_and_fate_is_in_the_smallest_mix_and_no_id_twice() {
        let jobs = mix("r", 40);
        assert!(JobKind::ALL.iter().all(|kind| jobs.iter().any(|job| job.kind == *kind)));
        for fate in [
            PlannedOutcome::Succeeds,
            PlannedOutcome::Fails,
            PlannedOutcome::Doubt,
            PlannedOutcome::Expires,
            PlannedOutcome::Cancelled,
            PlannedOutcome::Waits,
        ] {
            assert!(jobs.iter().any(|job| job.fate == fate), "{fate:?}");
        }
        let ids: HashSet<_> = jobs.iter().map(|job| &job.id).collect();
        assert_eq!(ids.len(), jobs.len());
        assert!(
            jobs.iter().all(|job| job.errand.weight <= TENANT_LIMIT),
            "each fits its tenant's limit"
        );
    }

    #[test]
    fn a_request_says_when_and_the_errand_says_the_same() {
        let now: Timestamp = "2026-01-31T23:30:00Z".parse().unwrap();
        let jobs = mix("r", 40);
        let timed =
            jobs.iter().find(|job| matches!(job.timing, Timing::After(_))).unwrap().request(now);
        assert_eq!(timed["run_at"], timed["data"]["due_at"]);
        let open = jobs.iter().find(|job| job.timing == Timing::OpenWindow).unwrap().request(now);
        assert_eq!(open["windows"], json!([{"from": "22:30", "to": "00:30", "tz": "UTC"}]));
        let critical = jobs.iter().find(|job| job.critical).unwrap().request(now);
        assert_eq!((&critical["critical"], critical.get("weight")), (&json!(true), None));
    }
}
