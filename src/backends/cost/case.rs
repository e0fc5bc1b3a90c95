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
    pub fn named(self) -> [(&'static str, f64); 8] {
        [
            ("writes", self.writes),
            ("rows", self.rows),
            ("reads", self.reads),
            ("standard", self.standard),
            ("fifo", self.fifo),
            ("enqueue", self.enqueue),
            ("tick", self.tick),
            ("deliver", self.deliver),
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
    }
}

/// Due at once, dispatched without a claim.
pub const PLAIN: Case = Case {
    name: "at once, plain",
    batched: units(2.0, 2.0, 4.02, 1.205, 0.0, [1.0, 0.0, 0.103]),
    single: units(2.0, 2.0, 6.05, 3.0, 0.0, [1.0, 0.0, 1.0]),
    bulk: units(2.0, 2.0, 1.242, 0.03, 0.0, [0.01, 0.0, 0.01]),
};

/// Due at once, claimed.
pub const CLAIMED: Case = Case {
    name: "at once, claimed",
    batched: units(3.103, 3.0, 4.02, 1.205, 0.0, [1.0, 0.0, 0.103]),
    single: units(4.75, 3.0, 7.55, 3.0, 0.0, [1.0, 0.0, 1.0]),
    bulk: units(3.09, 3.0, 1.242, 0.03, 0.0, [0.01, 0.0, 0.01]),
};

/// Due at once, claimed, one retry.
pub const RETRIED: Case = Case {
    name: "at once, claimed, one retry",
    batched: units(6.2, 5.0, 6.853, 2.243, 0.0, [1.0, 0.0, 0.193]),
    single: units(9.525, 5.0, 13.0, 6.0, 0.0, [1.0, 0.0, 2.0]),
    bulk: units(6.235, 5.0, 3.288, 0.375, 0.0, [0.01, 0.0, 0.06]),
};

/// Due at once, claimed, completed by a callback.
pub const CALLED_BACK: Case = Case {
    name: "at once, claimed, single callback",
    batched: units(5.103, 4.0, 7.205, 1.205, 0.0, [2.0, 0.0, 0.103]),
    single: units(6.75, 4.0, 10.475, 3.0, 0.0, [2.0, 0.0, 1.0]),
    bulk: units(5.09, 4.0, 5.04, 0.03, 0.0, [1.01, 0.0, 0.01]),
};

/// Delayed, dispatched without a claim.
pub const DELAYED_PLAIN: Case = Case {
    name: "delayed, plain",
    batched: units(2.01, 2.0, 3.856, 0.03, 0.0, [1.0, 0.0, 0.013]),
    single: units(2.1, 2.0, 6.175, 2.175, 0.0, [1.0, 0.0, 1.0]),
    bulk: units(2.01, 2.0, 1.381, 0.025, 0.0, [0.01, 0.0, 0.01]),
};

/// Delayed, claimed.
pub const DELAYED: Case = Case {
    name: "delayed, claimed",
    batched: units(3.118, 3.0, 3.841, 0.03, 0.0, [1.0, 0.0, 0.013]),
    single: units(4.8, 3.0, 7.35, 2.175, 0.0, [1.0, 0.0, 1.0]),
    bulk: units(3.105, 3.0, 1.366, 0.025, 0.0, [0.01, 0.0, 0.01]),
};

/// In a limited queue.
pub const LIMITED: Case = Case {
    name: "limited",
    batched: units(6.505, 3.0, 18.518, 2.083, 3.735, [1.0, 0.893, 0.58]),
    single: units(8.025, 3.0, 27.275, 4.5, 6.0, [1.0, 2.5, 1.0]),
    bulk: units(3.203, 3.0, 2.797, 0.095, 0.497, [0.01, 0.06, 0.02]),
};

/// In a limited queue, one retry.
pub const LIMITED_RETRIED: Case = Case {
    name: "limited, one retry",
    batched: units(9.438, 5.0, 34.998, 3.062, 3.57, [1.0, 1.265, 0.098]),
    single: units(16.075, 5.0, 58.525, 14.05, 9.0, [1.0, 5.675, 2.0]),
    bulk: units(7.34, 5.0, 26.562, 1.913, 1.022, [0.01, 0.595, 0.048]),
};

/// In a limited queue, one retry, each attempt completed by a callback.
pub const LIMITED_CALLED_BACK: Case = Case {
    name: "limited, one retry, single callbacks",
    batched: units(14.002, 7.0, 51.958, 3.59, 5.58, [3.0, 1.713, 0.17]),
    single: units(16.1, 7.0, 82.3, 15.85, 9.0, [3.0, 6.275, 2.0]),
    bulk: units(11.213, 7.0, 35.37, 2.228, 3.715, [2.01, 1.25, 0.068]),
};

/// In a limited queue, leased by workers.
pub const PULLED: Case = Case {
    name: "limited, pulled",
    batched: units(6.01, 3.0, 21.67, 0.0, 0.0, [2.002, 0.0, 0.0]),
    single: units(9.925, 3.0, 42.225, 0.0, 0.0, [2.975, 0.0, 0.0]),
    bulk: units(3.31, 3.0, 2.027, 0.0, 0.0, [0.113, 0.0, 0.0]),
};

/// Seconds for which a call of [`HELD_CALL`] is held.
pub const HELD_SECONDS: f64 = 20.0;
/// A lease call without jobs that is held.
pub const HELD_CALL: Units = units(1.0, 0.0, 45.0, 0.0, 0.0, [0.0, 0.0, 0.0]);
/// A lease call without jobs that is answered with a pause.
pub const PAUSED_CALL: Units = units(0.0, 0.0, 8.5, 0.0, 0.0, [0.0, 0.0, 0.0]);

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
pub const IDLE_QUEUE: Units = units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]);

/// The usage of a maintenance sweep that finds nothing, without its queues.
pub const IDLE_SWEEP: Units = units(2.0, 0.0, 19.0, 0.0, 0.0, [0.0, 0.0, 0.0]);
