//! The plan: the jobs to enqueue, the behaviour of their workers, and the expected outcomes.
//!
//! Pure. Every expectation of the final table is defined here, next to its job.

mod mix;

pub use mix::{LONE, mix};

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
/// The queue in order of priority, one job at a time.
pub const RANKED: &str = "demo-ranked";

/// Most weight at once in [`SHOP`].
pub const LIMIT: u64 = 10;
/// Most weight at once of one tenant in [`SHOP`].
pub const TENANT_LIMIT: u64 = 4;
/// Attempts per second in [`PACED`], and how many may start at once.
pub const RATE: (u64, u64) = (10, 5);
/// The lease of pull workers; [`JobKind::Render`] takes longer.
pub const LEASE: Duration = Duration::from_secs(4);
/// Jobs that are enqueued twice, with the same id.
pub const REPEATS: usize = 20;
/// The number of pull workers, each with one job at a time.
pub const PULLERS: usize = 6;

/// The queues and their settings.
pub fn queues() -> [(&'static str, Value); 4] {
    [
        (
            SHOP,
            json!({"concurrency": LIMIT, "partition_by": "tenant", "order_step_seconds": 1,
            "constraints": [
                {"name": "per-tenant", "per": "tenant", "concurrency": TENANT_LIMIT},
            ]}),
        ),
        (TIMERS, json!({})),
        (
            PACED,
            json!({"constraints": [
                {"name": "pace", "rate": {"count": RATE.0, "per_seconds": 1, "burst": RATE.1}},
            ]}),
        ),
        (RANKED, json!({"concurrency": 1, "order": "priority"})),
    ]
}

/// The purpose of a job: its job type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobKind {
    /// Pushed; the worker answers at once.
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
    /// All kinds.
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

    /// Returns the name of its job type.
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

    /// Returns the kind with this job type.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the queue of its jobs.
    pub fn queue(self) -> &'static str {
        match self {
            Self::Timer => TIMERS,
            Self::Paced => PACED,
            Self::Ranked => RANKED,
            _ => SHOP,
        }
    }

    /// Returns the settings of its job type; pushes go to `worker` and are signed with `secret`.
    pub fn config(self, worker: &str, secret: &str) -> Value {
        let target = if Self::PULLED.contains(&self) {
            json!({"pull": true})
        } else {
            json!({"url": format!("{worker}/{{type}}"), "signing_secret": secret})
        };
        let backoff = json!({"base_seconds": 0.5, "max_seconds": 2});
        let mut config = json!({
            "queue": self.queue(), "target": target, "timeout_seconds": 60,
            "response_timeout_seconds": 6, "lease_seconds": LEASE.as_secs(),
            "attributes": {"tenant": "/tenant"},
            "retry": {"strategy": "exponential", "config": backoff},
        });
        if self == Self::Payment {
            config["delivery"] = json!("at_most_once");
        }
        config
    }
}

/// The data of a job: all that its worker needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannedJob {
    /// Its tenant.
    pub tenant: String,
    /// Its weight; 0 for a critical job, which takes no capacity.
    pub weight: u64,
    /// The duration of the work, in milliseconds.
    pub work_ms: u64,
    /// The number of attempts that fail first.
    pub failures: u16,
    /// Whether the connection breaks during the response, so that the outcome is unknown.
    pub breaks_off: bool,
    /// The due time, if one is set.
    pub due_at: Option<Timestamp>,
}

/// When a job may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// At once.
    Now,
    /// After this many milliseconds.
    After(u64),
    /// In a window that is open.
    OpenWindow,
    /// In a window that is closed for hours.
    ClosedWindow,
    /// In that closed window, with an expiry in two seconds: never.
    Expiring,
}

/// The time of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wave {
    /// With many others, at the start.
    Backlog,
    /// Alone, directly after the backlog.
    Behind,
    /// One by one, while the others run.
    Trickle,
}

/// The planned outcome of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedOutcome {
    /// It succeeds after its failures.
    Succeeds,
    /// It fails by the report of its worker.
    Fails,
    /// It fails with reason `outcome_unknown`: it started, its response broke off, and it must not
    /// run twice.
    Doubt,
    /// It expires.
    Expires,
    /// It is cancelled while it runs.
    Cancelled,
    /// It waits for its window.
    Waits,
}

impl PlannedOutcome {
    /// Returns the state at its end.
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
    /// Its id, chosen by the demo, so that a second enqueue is harmless.
    pub id: String,
    /// Its kind.
    pub kind: JobKind,
    /// Its data.
    pub errand: PlannedJob,
    /// Its priority: lower starts first.
    pub priority: i32,
    /// Whether it is exempt from limits.
    pub critical: bool,
    /// When it may start.
    pub timing: Timing,
    /// The time of its enqueue.
    pub wave: Wave,
    /// Its planned outcome.
    pub fate: PlannedOutcome,
}

impl Planned {
    /// Returns the number of attempts that its workers should see.
    pub fn runs(&self) -> u64 {
        match self.fate {
            PlannedOutcome::Succeeds => 1 + u64::from(self.errand.failures),
            PlannedOutcome::Fails => u64::from(self.errand.failures),
            PlannedOutcome::Doubt | PlannedOutcome::Cancelled => 1,
            PlannedOutcome::Expires | PlannedOutcome::Waits => 0,
        }
    }

    /// Returns the request that enqueues it at `now`. A second enqueue with the id must send the
    /// same request.
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

/// Returns a daily window in UTC.
fn window(from: Timestamp, to: Timestamp) -> Value {
    let clock = |at: Timestamp| at.to_utc().format("%H:%M").to_string();
    json!([{"from": clock(from), "to": clock(to), "tz": "UTC"}])
}

#[cfg(test)]
mod tests;
