//! What jobs cost in a month, service by service.
//!
//! The one thing to know: how long functions run is not counted but assumed, since it depends on the targets; every assumption is a field
//! of [`Deployment`].

use super::{
    OBJECT_BYTES,
    case::{self, Case, Units},
    price::Prices,
};
use tidegate_core::port::job_store::INLINE_BYTES;

/// The most bytes that a job's item has in addition to its data, if its attributes are few.
pub const ROW_BYTES: usize = 500;
/// The bytes that an item of a body has in addition to the body.
const PART_BYTES: usize = 120;
/// The bytes that the table bills for an item in addition to its content.
const INDEX_BYTES: usize = 100;
/// Minutes of a month of thirty days.
const MINUTES: f64 = 43_200.0;
/// Receives that a poller makes in a minute, when nothing comes.
const POLLS: f64 = 3.0;
/// Event source mappings on standard queues, in addition to that of the work.
const STANDARD_MAPPINGS: f64 = 3.0;
/// Event source mappings on FIFO queues.
const FIFO_MAPPINGS: f64 = 2.0;
/// Pollers of the work's mapping: with a maximum concurrency it keeps as many.
const WORK_POLLERS: f64 = 5.0;
/// Bytes that the minute's round logs.
const MINUTE_LOG: f64 = 200.0;
const MILLION: f64 = 1e6;
const GB: f64 = (1u64 << 30) as f64;

/// Jobs as they come.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a choice of its own, and a flag of the command line"
)]
pub struct Workload {
    /// How many in a month of thirty days.
    pub jobs: f64,
    /// Bytes of each one's data.
    pub size: usize,
    /// Whether they are handed on without a claim.
    pub plain: bool,
    /// Whether they are due more than a minute after they come.
    pub delayed: bool,
    /// Whether their queue has a limit.
    pub limited: bool,
    /// Whether workers lease them.
    pub pulled: bool,
    /// Whether workers answer 202 and call back, one by one.
    pub callbacks: bool,
    /// Attempts of each beyond the first.
    pub retries: f64,
    /// Messages that a function is called with.
    pub batch: f64,
    /// Jobs of one enqueue call.
    pub per_call: f64,
    /// How long each is kept after its end, in days.
    pub kept_days: f64,
}

impl Default for Workload {
    /// A million small jobs, at once, claimed, batched, kept for a week.
    fn default() -> Self {
        Self {
            jobs: MILLION,
            size: 300,
            plain: false,
            delayed: false,
            limited: false,
            pulled: false,
            callbacks: false,
            retries: 0.0,
            batch: case::FULL_BATCH,
            per_call: 1.0,
            kept_days: 7.0,
        }
    }
}

/// What it runs on, and how long it takes there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deployment {
    /// Memory of `enqueue`, `tick` and `deliver`, in MB.
    pub memory_mb: f64,
    /// How long an invocation of each runs, in milliseconds.
    pub enqueue_ms: f64,
    /// A round.
    pub tick_ms: f64,
    /// A batch of deliveries: as long as the slowest target takes.
    pub deliver_ms: f64,
    /// The minute's round when nothing is to be done.
    pub minute_ms: f64,
    /// What an invocation logs, in bytes.
    pub log_bytes: f64,
    /// Pollers that Lambda keeps for each queue but that of the work: 2 to 5.
    pub pollers: f64,
    /// Queues that have jobs.
    pub queues: f64,
    /// Alarms.
    pub alarms: f64,
    /// Whether the table can be restored to any second.
    pub recovery: bool,
}

impl Default for Deployment {
    /// The template's, and durations that were assumed.
    fn default() -> Self {
        Self {
            memory_mb: 512.0,
            enqueue_ms: 8.0,
            tick_ms: 60.0,
            deliver_ms: 150.0,
            minute_ms: 50.0,
            log_bytes: 100.0,
            pollers: 5.0,
            queues: 1.0,
            alarms: 17.0,
            recovery: true,
        }
    }
}

/// What one service asks for one thing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The service.
    pub service: &'static str,
    /// What is paid for.
    pub what: &'static str,
    /// How much of it, in a month.
    pub amount: f64,
    /// Dollars, in a month.
    pub dollars: f64,
}

/// The dollars of `lines` together.
pub fn total(lines: &[Line]) -> f64 {
    lines.iter().map(|line| line.dollars).sum()
}

impl Workload {
    /// The way in which its jobs go before any fails.
    pub fn case(&self) -> Case {
        match (self.pulled, self.limited, self.delayed, self.plain) {
            (true, ..) => case::PULLED,
            (_, true, ..) => case::LIMITED,
            (_, _, true, true) => case::DELAYED_PLAIN,
            (_, _, true, false) => case::DELAYED,
            (_, _, false, true) => case::PLAIN,
            (_, _, false, false) => case::CLAIMED,
        }
    }

    /// The same with jobs that go the way of `case`.
    #[must_use]
    pub fn of_case(&self, case: &Case) -> Self {
        let is = |cases: &[Case]| cases.contains(case);
        Self {
            plain: is(&[case::PLAIN, case::DELAYED_PLAIN]),
            delayed: is(&[case::DELAYED_PLAIN, case::DELAYED]),
            limited: is(&[case::LIMITED, case::LIMITED_RETRIED, case::LIMITED_CALLED_BACK]),
            pulled: is(&[case::PULLED]),
            callbacks: is(&[case::CALLED_BACK, case::LIMITED_CALLED_BACK]),
            retries: if is(&[case::RETRIED, case::LIMITED_RETRIED, case::LIMITED_CALLED_BACK]) {
                1.0
            } else {
                0.0
            },
            ..*self
        }
    }

    /// What each job takes, its size apart.
    fn small(&self) -> Units {
        let of = |case: Case| case.units(self.batch, self.per_call);
        let beyond = |case, base| of(case).and(of(base).times(-1.0));
        let limited = self.limited || self.pulled;
        let retry = if limited {
            beyond(case::LIMITED_RETRIED, case::LIMITED)
        } else {
            beyond(case::RETRIED, case::CLAIMED)
        };
        let mut units = of(self.case()).and(retry.times(self.retries));
        if self.callbacks {
            let callback = if limited {
                beyond(case::LIMITED_CALLED_BACK, case::LIMITED_RETRIED).times(0.5)
            } else {
                beyond(case::CALLED_BACK, case::CLAIMED)
            };
            units = units.and(callback.times(1.0 + self.retries));
        }
        units
    }

    /// What each job takes.
    pub fn units(&self) -> Units {
        let mut units = self.small();
        let kilobytes = |bytes: usize| bytes.div_ceil(1024) as f64;
        units.writes += units.rows * (kilobytes(self.row_bytes()) - 1.0);
        if self.is_beside() {
            // Its parts come, are read for each attempt, and are told when they are to be forgotten; the job's item is read with each, and
            // where it ends.
            units.writes += 2.0 * kilobytes(self.size + PART_BYTES);
            units.reads += (1.0 + self.retries) * (self.size + PART_BYTES).div_ceil(4096) as f64
                + 2.0
                + self.retries;
        }
        units
    }

    fn is_beside(&self) -> bool {
        self.size > INLINE_BYTES && self.size <= OBJECT_BYTES
    }

    fn is_object(&self) -> bool {
        self.size > OBJECT_BYTES
    }

    fn row_bytes(&self) -> usize {
        ROW_BYTES + if self.size > INLINE_BYTES { 40 } else { self.size }
    }

    /// Bytes that the table keeps of each job.
    fn kept_bytes(&self) -> usize {
        self.row_bytes()
            + INDEX_BYTES
            + if self.is_beside() { self.size + PART_BYTES + INDEX_BYTES } else { 0 }
    }
}

/// What the jobs of `workload` cost in a month.
pub fn month(workload: &Workload, deployment: &Deployment, prices: &Prices) -> Vec<Line> {
    let jobs = workload.jobs;
    let units = workload.units().times(jobs);
    let line = |service, what, amount: f64, price: f64| Line {
        service,
        what,
        amount,
        dollars: amount * price,
    };
    let millions =
        |service, what, amount: f64, price: f64| line(service, what, amount, price / MILLION);
    let gb_seconds = |calls: f64, milliseconds: f64| {
        calls * milliseconds / 1000.0 * deployment.memory_mb / 1024.0
    };
    let calls = units.enqueue + units.tick + units.deliver;
    let seconds = gb_seconds(units.enqueue, deployment.enqueue_ms)
        + gb_seconds(units.tick, deployment.tick_ms)
        + gb_seconds(units.deliver, deployment.deliver_ms);
    let kept = |bytes: usize| jobs * bytes as f64 / GB * workload.kept_days / 30.0;
    let table_gb = prices.table_gb + if deployment.recovery { prices.recovery_gb } else { 0.0 };
    let mut lines = vec![
        millions("DynamoDB", "write units", units.writes, prices.write),
        millions("DynamoDB", "read units", units.reads, prices.read),
        line("DynamoDB", "gigabytes kept", kept(workload.kept_bytes()), table_gb),
        millions("SQS", "requests", units.standard, prices.standard + prices.fair),
        millions("SQS", "FIFO requests", units.fifo, prices.fifo),
        millions("Lambda", "invocations", calls, prices.call),
        line("Lambda", "gigabyte seconds", seconds, prices.gb_second),
        line("CloudWatch", "gigabytes logged", calls * deployment.log_bytes / GB, prices.log_gb),
    ];
    if workload.is_object() {
        lines.extend([
            millions("S3", "PUTs", jobs, prices.put),
            millions("S3", "GETs", jobs * (1.0 + workload.retries), prices.get),
            line("S3", "gigabytes kept", kept(workload.size), prices.object_gb),
        ]);
    }
    lines
}

/// What a deployment costs in a month without requests.
pub fn idle(deployment: &Deployment, prices: &Prices) -> Vec<Line> {
    let line = |service, what, amount: f64, price: f64| Line {
        service,
        what,
        amount,
        dollars: amount * price,
    };
    let polls = |pollers: f64| pollers * POLLS * MINUTES;
    let round = case::IDLE_MINUTE.and(case::IDLE_QUEUE.times(deployment.queues)).times(MINUTES);
    let seconds = MINUTES * deployment.minute_ms / 1000.0 * deployment.memory_mb / 1024.0;
    vec![
        line(
            "SQS",
            "polls of the work, wake-ups and dead letters",
            polls(WORK_POLLERS + STANDARD_MAPPINGS * deployment.pollers),
            prices.standard / MILLION,
        ),
        line(
            "SQS",
            "polls of the hints and their dead letters",
            polls(FIFO_MAPPINGS * deployment.pollers),
            prices.fifo / MILLION,
        ),
        line("Lambda", "invocations, one a minute", MINUTES, prices.call / MILLION),
        line("Lambda", "gigabyte seconds", seconds, prices.gb_second),
        line(
            "DynamoDB",
            "write units of the maintenance sweep",
            round.writes,
            prices.write / MILLION,
        ),
        line("DynamoDB", "read units of the maintenance sweep", round.reads, prices.read / MILLION),
        line("CloudWatch", "gigabytes logged", MINUTES * MINUTE_LOG / GB, prices.log_gb),
        line("CloudWatch", "alarms", deployment.alarms, prices.alarm),
    ]
}
