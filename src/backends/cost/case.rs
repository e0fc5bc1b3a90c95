//! The usage of each service by a job, case by case.
//!
//! `tests/it/dynamodb/cost` asserts these numbers. It runs such jobs through the functions on a
//! metered table and metered queues. A change that makes the code cheaper or more expensive must
//! change them.
//!
//! The usage depends on how many jobs arrive together: an invocation with ten messages, or a tick
//! that admits many jobs, costs each job less than one with a single job. So a case has three
//! measured points, and [`Case::units`] interpolates between them.

/// The usage of services: by a job, or in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Units {
    /// DynamoDB: write units.
    pub writes: f64,
    /// The write units of jobs' rows, which grow with the row.
    pub rows: f64,
    /// DynamoDB: read units.
    pub reads: f64,
    /// SQS: requests to standard queues.
    pub standard: f64,
    /// SQS: requests to the FIFO queue.
    pub fifo: f64,
    /// Lambda: invocations of `enqueue`, callbacks and leases included.
    pub enqueue: f64,
    /// Lambda: invocations of `tick`.
    pub tick: f64,
    /// Lambda: invocations of `deliver`.
    pub deliver: f64,
    /// Lambda: seconds in which `tick` waits for the time of a tick.
    pub waits: f64,
}

impl Units {
    fn both(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            writes: of(self.writes, other.writes),
            rows: of(self.rows, other.rows),
            reads: of(self.reads, other.reads),
            standard: of(self.standard, other.standard),
            fifo: of(self.fifo, other.fifo),
            enqueue: of(self.enqueue, other.enqueue),
            tick: of(self.tick, other.tick),
            deliver: of(self.deliver, other.deliver),
            waits: of(self.waits, other.waits),
        }
    }

    /// The share of each of `jobs`.
    #[must_use]
    pub fn over(self, jobs: f64) -> Self {
        self.times(1.0 / jobs)
    }

    /// The usage of `jobs`.
    #[must_use]
    pub fn times(self, jobs: f64) -> Self {
        self.both(self, |units, _| units * jobs)
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.both(other, |a, b| a + b)
    }

    /// Each number with its name.
    pub fn named(self) -> [(&'static str, f64); 9] {
        [
            ("writes", self.writes),
            ("rows", self.rows),
            ("reads", self.reads),
            ("standard", self.standard),
            ("fifo", self.fifo),
            ("enqueue", self.enqueue),
            ("tick", self.tick),
            ("deliver", self.deliver),
            ("waits", self.waits),
        ]
    }
}

/// A typical course of a job with a row of at most 1 KB, and its usage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The name of the case.
    pub name: &'static str,
    /// Jobs are enqueued one by one, and an invocation has ten messages. Limited jobs arrive at ten
    /// a second, because a tick reads the jobs of the last ten seconds.
    pub batched: Units,
    /// Jobs are enqueued one by one, an invocation has one message, and a tick admits one job.
    pub single: Units,
    /// Like `batched`, with a hundred jobs in an enqueue call.
    pub bulk: Units,
}

/// Messages of an invocation in `batched`.
pub const FULL_BATCH: f64 = 10.0;
/// Jobs of an enqueue call in `bulk`.
pub const BULK: f64 = 100.0;

impl Case {
    /// The usage of a job with `batch` messages in an invocation and `per_call` jobs in an enqueue
    /// call.
    pub fn units(&self, batch: f64, per_call: f64) -> Units {
        let single = (1.0 / batch - 1.0 / FULL_BATCH) / (1.0 - 1.0 / FULL_BATCH);
        let bulk = (1.0 - 1.0 / per_call) / (1.0 - 1.0 / BULK);
        let by_batch = self.single.and(self.batched.times(-1.0)).times(single);
        let by_call = self.bulk.and(self.batched.times(-1.0)).times(bulk);
        let units = self.batched.and(by_batch).and(by_call);
        units.both(units, |units, _| units.max(0.0))
    }
}

const fn units(
    writes: f64,
    rows: f64,
    reads: f64,
    standard: f64,
    fifo: f64,
    calls: [f64; 3],
    waits: f64,
) -> Units {
    Units {
        writes,
        rows,
        reads,
        standard,
        fifo,
        enqueue: calls[0],
        tick: calls[1],
        deliver: calls[2],
        waits,
    }
}

/// Due at once, dispatched without a claim.
pub const PLAIN: Case = Case {
    name: "at once, plain",
    batched: units(2.0, 2.0, 2.112, 1.205, 0.0, [1.0, 0.0, 0.103], 0.0),
    single: units(2.025, 2.0, 4.25, 3.0, 0.0, [1.0, 0.0, 1.0], 0.0),
    bulk: units(2.0, 2.0, 1.055, 0.03, 0.0, [0.01, 0.0, 0.01], 0.0),
};

/// Due at once, claimed.
pub const CLAIMED: Case = Case {
    name: "at once, claimed",
    batched: units(3.103, 3.0, 2.215, 1.205, 0.0, [1.0, 0.0, 0.103], 0.0),
    single: units(4.775, 3.0, 6.3, 3.0, 0.0, [1.0, 0.0, 1.0], 0.0),
    bulk: units(3.12, 3.0, 1.095, 0.03, 0.0, [0.01, 0.0, 0.01], 0.0),
};

/// Due at once, claimed, one retry.
pub const RETRIED: Case = Case {
    name: "at once, claimed, one retry",
    batched: units(6.2, 5.0, 4.598, 2.232, 0.0, [1.0, 0.0, 0.195], 0.0),
    single: units(9.575, 5.0, 10.575, 6.0, 0.0, [1.0, 0.0, 2.0], 0.0),
    bulk: units(6.272, 5.0, 2.295, 0.32, 0.0, [0.01, 0.0, 0.052], 0.0),
};

/// Due at once, claimed, completed by a callback.
pub const CALLED_BACK: Case = Case {
    name: "at once, claimed, single callback",
    batched: units(5.103, 4.0, 5.23, 1.205, 0.0, [2.0, 0.0, 0.103], 0.0),
    single: units(6.775, 4.0, 10.125, 3.0, 0.0, [2.0, 0.0, 1.0], 0.0),
    bulk: units(5.12, 4.0, 4.105, 0.03, 0.0, [1.01, 0.0, 0.01], 0.0),
};

/// Delayed, dispatched without a claim.
pub const DELAYED_PLAIN: Case = Case {
    name: "delayed, plain",
    batched: units(2.015, 2.0, 2.751, 0.03, 0.0, [1.0, 0.0, 0.013], 0.0),
    single: units(2.175, 2.0, 5.4, 2.175, 0.0, [1.0, 0.0, 1.0], 0.0),
    bulk: units(2.015, 2.0, 1.714, 0.025, 0.0, [0.01, 0.0, 0.01], 0.0),
};

/// Delayed, claimed.
pub const DELAYED: Case = Case {
    name: "delayed, claimed",
    batched: units(3.143, 3.0, 2.819, 0.03, 0.0, [1.0, 0.0, 0.013], 0.0),
    single: units(4.875, 3.0, 7.175, 2.175, 0.0, [1.0, 0.0, 1.0], 0.0),
    bulk: units(3.139, 3.0, 1.738, 0.025, 0.0, [0.01, 0.0, 0.01], 0.0),
};

/// In a limited queue.
pub const LIMITED: Case = Case {
    name: "limited",
    batched: units(4.907, 3.0, 6.603, 0.66, 0.672, [1.0, 0.223, 0.203], 0.073),
    single: units(8.025, 3.0, 27.975, 4.5, 6.0, [1.0, 2.5, 1.0], 0.395),
    bulk: units(3.238, 3.0, 3.085, 0.115, 0.56, [0.01, 0.065, 0.03], 0.012),
};

/// In a limited queue, one retry.
pub const LIMITED_RETRIED: Case = Case {
    name: "limited, one retry",
    batched: units(8.89, 5.0, 12.287, 1.647, 0.7, [1.0, 0.51, 0.245], 0.13),
    single: units(16.075, 5.0, 49.75, 13.675, 9.0, [1.0, 5.55, 2.0], 1.343),
    bulk: units(7.23, 5.0, 9.857, 0.478, 0.662, [0.01, 0.145, 0.09], 0.024),
};

/// In a limited queue, one retry, each attempt completed by a callback.
pub const LIMITED_CALLED_BACK: Case = Case {
    name: "limited, one retry, single callbacks",
    batched: units(11.643, 7.0, 18.135, 1.77, 0.765, [3.0, 0.57, 0.263], 0.142),
    single: units(16.1, 7.0, 81.475, 16.225, 9.0, [3.0, 6.4, 2.0], 0.395),
    bulk: units(10.558, 7.0, 14.255, 0.64, 0.655, [2.01, 0.278, 0.098], 0.069),
};

/// In a limited queue, leased by workers.
pub const PULLED: Case = Case {
    name: "limited, pulled",
    batched: units(6.01, 3.0, 18.597, 0.0, 0.0, [2.002, 0.0, 0.0], 0.0),
    single: units(9.925, 3.0, 36.86, 0.0, 0.0, [2.975, 0.0, 0.0], 0.0),
    bulk: units(3.312, 3.0, 1.887, 0.0, 0.0, [0.113, 0.0, 0.0], 0.0),
};

/// Seconds for which a call of [`HELD_CALL`] is held.
pub const HELD_SECONDS: f64 = 20.0;
/// A lease call without jobs that is held.
pub const HELD_CALL: Units = units(1.0, 0.0, 45.0, 0.0, 0.0, [0.0, 0.0, 0.0], 0.0);
/// A lease call without jobs that is answered with a pause.
pub const PAUSED_CALL: Units = units(0.0, 0.0, 5.8, 0.0, 0.0, [0.0, 0.0, 0.0], 0.0);
/// Seconds between two registrations of a worker.
pub const REGISTRATION_SECONDS: f64 = 30.0;
/// A registration of a worker.
pub const REGISTRATION: Units = units(1.0, 0.0, 1.0, 0.0, 0.0, [0.0, 0.0, 0.0], 0.0);

/// All cases in the order of the output.
pub const CASES: [Case; 10] = [
    PLAIN,
    CLAIMED,
    RETRIED,
    CALLED_BACK,
    DELAYED_PLAIN,
    DELAYED,
    LIMITED,
    LIMITED_RETRIED,
    LIMITED_CALLED_BACK,
    PULLED,
];

/// The usage of a maintenance sweep for each queue whose jobs have ended.
pub const IDLE_QUEUE: Units = units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0], 0.0);

/// The usage of a maintenance sweep that finds nothing, without its queues.
pub const IDLE_SWEEP: Units = units(2.0, 0.0, 13.0, 0.0, 0.0, [0.0, 0.0, 0.0], 0.0);
