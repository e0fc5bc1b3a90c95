//! The monthly cost of jobs, service by service.
//!
//! The duration of invocations is assumed, because it depends on the targets. Every assumption is a
//! field of [`Deployment`].

use super::{
    OBJECT_BYTES,
    case::{self, Case, Units},
    price::Prices,
};
use tidegate_core::port::job_store::INLINE_BYTES;

/// Maximum bytes of a job's row in addition to its data, with few attributes.
pub(crate) const ROW_BYTES: usize = 500;
/// Bytes of a body's item in addition to the body.
const PART_OVERHEAD_BYTES: usize = 120;
/// Timers of each job that leaves something behind. Only jobs that end together share one.
const END_TIMERS: f64 = 0.85;
/// Billed bytes of an item in addition to its content.
const ITEM_OVERHEAD_BYTES: usize = 100;
/// Minutes of a month of thirty days.
const MINUTES_PER_MONTH: f64 = 43_200.0;
/// Empty receives of a poller in a minute.
const POLLS_PER_MINUTE: f64 = 3.0;
/// Minutes between receives from the dead-letter queues.
const DEAD_LETTER_MINUTES: f64 = 5.0;
/// Dead-letter queues: standard, FIFO.
const DEAD_LETTER_QUEUES: (f64, f64) = (2.0, 1.0);
/// Duration of receives that return nothing, in milliseconds.
const DEAD_LETTER_MS: f64 = 40.0;
/// Pollers of the work queue's mapping, which a maximum concurrency does not reduce.
const WORK_POLLERS: f64 = 5.0;
/// Bytes that a request to a target has in addition to the data: headers, signature, TLS.
const PUSH_OVERHEAD_BYTES: f64 = 1000.0;
/// Bytes of a response of the API.
const RESPONSE_BYTES: f64 = 500.0;
/// Bytes of the log lines from which CloudWatch takes the metrics of an invocation.
const METRIC_LOG_BYTES: f64 = 2500.0;
/// Bytes that a maintenance sweep logs.
const SWEEP_LOG_BYTES: f64 = 200.0;
const MILLION: f64 = 1e6;
const GB: f64 = (1u64 << 30) as f64;

/// A month's jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the flags are independent options of the command line"
)]
pub struct Workload {
    /// The number of jobs in a month of thirty days.
    pub jobs: f64,
    /// Bytes of each job's data.
    pub size: usize,
    /// Whether they are dispatched without a claim.
    pub plain: bool,
    /// Whether they are due more than a minute after they are enqueued.
    pub delayed: bool,
    /// Whether their queue has a limit.
    pub limited: bool,
    /// Whether workers lease them.
    pub pulled: bool,
    /// Whether workers answer 202 and call back, one by one.
    pub callbacks: bool,
    /// Retries of each job.
    pub retries: f64,
    /// Messages of an invocation.
    pub batch: f64,
    /// Jobs of one enqueue call.
    pub per_call: f64,
    /// Retention after the end of a job, in days.
    pub kept_days: f64,
}

impl Default for Workload {
    /// A million small jobs, due at once, claimed, batched, with the default retention.
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
            kept_days: 30.0,
        }
    }
}

/// The deployment, and the durations of its invocations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deployment {
    /// Memory of `enqueue`, `tick` and `deliver`, in MB.
    pub memory_mb: f64,
    /// Duration of an invocation of `enqueue`, in milliseconds.
    pub enqueue_ms: f64,
    /// Duration of an invocation of `tick`, in milliseconds.
    pub tick_ms: f64,
    /// Duration of an invocation of `deliver`, in milliseconds: that of the slowest target.
    pub deliver_ms: f64,
    /// Duration of a maintenance sweep that finds nothing, in milliseconds.
    pub sweep_ms: f64,
    /// Bytes that an invocation logs.
    pub log_bytes: f64,
    /// Pollers of Lambda for each queue except the work queue: 2 to 5.
    pub pollers: f64,
    /// The number of queues with jobs.
    pub queues: f64,
    /// The number of pull workers that wait for jobs all the time.
    pub waiting_workers: f64,
    /// The longest pause that they accept, in seconds. 0: their requests are held.
    pub worker_pause_s: f64,
    /// Duration of a lease call that finds nothing and is not held, in milliseconds.
    pub empty_lease_ms: f64,
    /// The number of alarms.
    pub alarms: f64,
    /// The number of custom metrics: of each queue and type. 0: the stack has no namespace.
    pub metrics: f64,
    /// Whether the table has point-in-time recovery.
    pub recovery: bool,
}

impl Default for Deployment {
    /// The defaults of the template, and durations that follow from the number of requests in
    /// sequence: four of `enqueue`, 24 of `tick` and of a sweep, 5 ms each at 512 MB.
    fn default() -> Self {
        Self {
            memory_mb: 512.0,
            enqueue_ms: 30.0,
            tick_ms: 125.0,
            deliver_ms: 150.0,
            sweep_ms: 120.0,
            log_bytes: 100.0,
            pollers: 2.0,
            queues: 1.0,
            waiting_workers: 0.0,
            worker_pause_s: 10.0,
            empty_lease_ms: 60.0,
            alarms: 2.0,
            metrics: 0.0,
            recovery: true,
        }
    }
}

/// The cost of one kind of usage of a service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The service.
    pub service: &'static str,
    /// The kind of usage.
    pub what: &'static str,
    /// The usage of a month.
    pub amount: f64,
    /// The dollars of a month.
    pub dollars: f64,
}

/// The sum of the dollars of `lines`.
pub fn total(lines: &[Line]) -> f64 {
    lines.iter().map(|line| line.dollars).sum()
}

impl Workload {
    /// The case of its jobs without failures.
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

    /// The same workload with jobs of `case`.
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

    /// The usage of each job, without the effect of its size.
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

    /// The usage of each job.
    pub fn units(&self) -> Units {
        let mut units = self.small();
        let kilobytes = |bytes: usize| bytes.div_ceil(1024) as f64;
        units.writes += units.rows * (kilobytes(self.row_bytes()) - 1.0);
        if self.has_parts() {
            // The parts are inserted, read for each attempt, and deleted at the end of the
            // retention. The row is also read for each attempt and at that end.
            units.writes += 2.0 * kilobytes(self.size + PART_OVERHEAD_BYTES);
            units.reads += (1.0 + self.retries)
                * (self.size + PART_OVERHEAD_BYTES).div_ceil(4096) as f64
                + 2.0
                + self.retries;
        }
        if self.has_parts() || self.is_object() {
            // The timer of the end of the retention, and its removal.
            units.writes += 2.0 * END_TIMERS;
        }
        if self.is_object() {
            // The row is read and deleted at that end.
            units.writes += kilobytes(self.row_bytes());
            units.reads += 1.0;
        }
        units
    }

    /// Bytes to the internet of each job, when each enqueue call has `per_call` jobs.
    fn transferred_bytes(&self) -> f64 {
        let sent = self.size as f64 + PUSH_OVERHEAD_BYTES;
        sent * (1.0 + self.retries) + RESPONSE_BYTES / self.per_call
    }

    fn has_parts(&self) -> bool {
        self.size > INLINE_BYTES && self.size <= OBJECT_BYTES
    }

    fn is_object(&self) -> bool {
        self.size > OBJECT_BYTES
    }

    fn row_bytes(&self) -> usize {
        ROW_BYTES + if self.size > INLINE_BYTES { 40 } else { self.size }
    }

    /// Bytes of each job in the table.
    fn kept_bytes(&self) -> usize {
        self.row_bytes()
            + ITEM_OVERHEAD_BYTES
            + if self.has_parts() {
                self.size + PART_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES
            } else {
                0
            }
    }
}

/// The monthly cost of the jobs of `workload`.
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
        + gb_seconds(units.deliver, deployment.deliver_ms)
        + gb_seconds(units.waits, 1000.0);
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
        line(
            "Transfer",
            "gigabytes to the internet",
            jobs * workload.transferred_bytes() / GB,
            prices.transfer_gb,
        ),
    ];
    if deployment.metrics > 0.0 {
        let gigabytes = calls * METRIC_LOG_BYTES / GB;
        lines.push(line("CloudWatch", "gigabytes of metrics", gigabytes, prices.log_gb));
    }
    if workload.is_object() {
        lines.extend([
            millions("S3", "PUTs", jobs, prices.put),
            millions("S3", "GETs", jobs * (1.0 + workload.retries), prices.get),
            line("S3", "gigabytes kept", kept(workload.size), prices.object_gb),
        ]);
    }
    lines
}

/// The monthly cost of a deployment without requests.
pub fn idle(deployment: &Deployment, prices: &Prices) -> Vec<Line> {
    let line = |service, what, amount: f64, price: f64| Line {
        service,
        what,
        amount,
        dollars: amount * price,
    };
    let polls = |pollers: f64| pollers * POLLS_PER_MINUTE * MINUTES_PER_MONTH;
    let sweep =
        case::IDLE_SWEEP.and(case::IDLE_QUEUE.times(deployment.queues)).times(MINUTES_PER_MONTH);
    let receives = MINUTES_PER_MONTH / DEAD_LETTER_MINUTES;
    let milliseconds = MINUTES_PER_MONTH * deployment.sweep_ms + receives * DEAD_LETTER_MS;
    let seconds = milliseconds / 1000.0 * deployment.memory_mb / 1024.0;
    let (standard, fifo) = DEAD_LETTER_QUEUES;
    let mut lines = vec![
        line(
            "SQS",
            "polls of the work and the timers",
            polls(WORK_POLLERS + deployment.pollers),
            prices.standard / MILLION,
        ),
        line("SQS", "polls of the hints", polls(deployment.pollers), prices.fifo / MILLION),
        Line {
            service: "SQS",
            what: "receives of dead letters",
            amount: receives * (standard + fifo),
            dollars: receives * (standard * prices.standard + fifo * prices.fifo) / MILLION,
        },
        line(
            "Lambda",
            "invocations of `sweep`",
            MINUTES_PER_MONTH + receives,
            prices.call / MILLION,
        ),
        line("Lambda", "gigabyte seconds", seconds, prices.gb_second),
        line(
            "DynamoDB",
            "write units of the maintenance sweep",
            sweep.writes,
            prices.write / MILLION,
        ),
        line("DynamoDB", "read units of the maintenance sweep", sweep.reads, prices.read / MILLION),
        line(
            "CloudWatch",
            "gigabytes logged",
            MINUTES_PER_MONTH * SWEEP_LOG_BYTES / GB,
            prices.log_gb,
        ),
        line("CloudWatch", "alarms", deployment.alarms, prices.alarm),
    ];
    if deployment.waiting_workers > 0.0 {
        lines.extend(waiting(deployment, prices));
    }
    if deployment.metrics > 0.0 {
        let gigabytes = MINUTES_PER_MONTH * METRIC_LOG_BYTES / GB;
        lines.extend([
            line("CloudWatch", "metrics", deployment.metrics, prices.metric),
            line("CloudWatch", "gigabytes of metrics", gigabytes, prices.log_gb),
        ]);
    }
    lines
}

/// The monthly cost of the pull workers of `deployment` that wait for jobs all the time, and renew
/// their registrations.
pub fn waiting(deployment: &Deployment, prices: &Prices) -> Vec<Line> {
    let seconds = MINUTES_PER_MONTH * 60.0;
    let (call, lasts, pause) = if deployment.worker_pause_s > 0.0 {
        (case::PAUSED_CALL, deployment.empty_lease_ms / 1000.0, deployment.worker_pause_s)
    } else {
        (case::HELD_CALL, case::HELD_SECONDS, 0.0)
    };
    let calls = deployment.waiting_workers * seconds / (lasts + pause);
    let registrations = deployment.waiting_workers * seconds / case::REGISTRATION_SECONDS;
    let units = call.times(calls).and(case::REGISTRATION.times(registrations));
    let requests = calls + registrations;
    let request_seconds = calls * lasts + registrations * deployment.empty_lease_ms / 1000.0;
    let line = |service, what, amount: f64, price: f64| Line {
        service,
        what,
        amount,
        dollars: amount * price,
    };
    let gigabyte_seconds = request_seconds * deployment.memory_mb / 1024.0;
    vec![
        line("Lambda", "invocations of waiting workers", requests, prices.call / MILLION),
        line("Lambda", "gigabyte seconds of waiting workers", gigabyte_seconds, prices.gb_second),
        line("DynamoDB", "write units of waiting workers", units.writes, prices.write / MILLION),
        line("DynamoDB", "read units of waiting workers", units.reads, prices.read / MILLION),
        line(
            "CloudWatch",
            "gigabytes logged for waiting workers",
            requests * deployment.log_bytes / GB,
            prices.log_gb,
        ),
    ]
}
