//! What a job takes of each service, case by case.
//!
//! The one thing to know: these numbers are asserted by `tests/it/dynamodb/cost.rs`, which runs such jobs through the functions on a metered
//! table and metered queues. Whoever makes the code cheaper or dearer is told to change them.
//!
//! How dense jobs come matters: functions that are called with ten messages, and rounds that admit many jobs, cost each job less than
//! those that have one. So a case has three points, and [`Case::units`] lies between them.

/// What is used up: for a job, or in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Units {
    /// DynamoDB: write units.
    pub writes: f64,
    /// Those of them that wrote a job's own item: they grow with it.
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

    /// A share of it, if so many took it.
    #[must_use]
    pub fn over(self, jobs: f64) -> Self {
        self.times(1.0 / jobs)
    }

    /// What so many take.
    #[must_use]
    pub fn times(self, jobs: f64) -> Self {
        self.both(self, |units, _| units * jobs)
    }

    /// Both together.
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

/// A way in which a job may go, and what it takes, its item being 1 KB at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// What it is called.
    pub name: &'static str,
    /// Enqueued one by one; functions are called with ten messages. Limited ones come ten a second, since a round reads the jobs of the last ten
    /// seconds.
    pub dense: Units,
    /// Enqueued one by one; functions are called with one message, rounds admit one job.
    pub lone: Units,
    /// As `dense`, enqueued a hundred to a call.
    pub bulk: Units,
}

/// Messages that a function is called with at `dense`.
pub const DENSE: f64 = 10.0;
/// Jobs of an enqueue call at `bulk`.
pub const BULK: f64 = 100.0;

impl Case {
    /// What a job takes if functions are called with `batch` messages and jobs enqueued `per_call` at a time.
    pub fn units(&self, batch: f64, per_call: f64) -> Units {
        let lone = (1.0 / batch - 1.0 / DENSE) / (1.0 - 1.0 / DENSE);
        let bulk = (1.0 - 1.0 / per_call) / (1.0 - 1.0 / BULK);
        let by_batch = self.lone.and(self.dense.times(-1.0)).times(lone);
        let by_call = self.bulk.and(self.dense.times(-1.0)).times(bulk);
        let units = self.dense.and(by_batch).and(by_call);
        units.both(units, |units, _| units.max(0.0))
    }
}

const fn units(writes: f64, rows: f64, reads: f64, standard: f64, fifo: f64, calls: [f64; 3]) -> Units {
    Units { writes, rows, reads, standard, fifo, enqueue: calls[0], tick: calls[1], deliver: calls[2] }
}

/// At once, plain.
pub const PLAIN: Case = Case {
    name: "at once, plain",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// At once, claimed.
pub const CLAIMED: Case = Case {
    name: "at once, claimed",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// At once, claimed, one retry.
pub const RETRIED: Case = Case {
    name: "at once, claimed, one retry",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// At once, claimed, lone callback.
pub const CALLED_BACK: Case = Case {
    name: "at once, claimed, lone callback",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// Delayed, plain.
pub const DELAYED_PLAIN: Case = Case {
    name: "delayed, plain",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// Delayed, claimed.
pub const DELAYED: Case = Case {
    name: "delayed, claimed",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// Limited.
pub const LIMITED: Case = Case {
    name: "limited",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// Limited, one retry.
pub const LIMITED_RETRIED: Case = Case {
    name: "limited, one retry",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// Limited, one retry, lone callbacks.
pub const LIMITED_CALLED_BACK: Case = Case {
    name: "limited, one retry, lone callbacks",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// Limited, pulled.
pub const PULLED: Case = Case {
    name: "limited, pulled",
    dense: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    lone: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
    bulk: units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]),
};

/// Every case, in the order in which they are told.
pub const CASES: [Case; 10] =
    [PLAIN, CLAIMED, RETRIED, CALLED_BACK, DELAYED_PLAIN, DELAYED, LIMITED, LIMITED_RETRIED, LIMITED_CALLED_BACK, PULLED];

/// What the minute's round takes of each queue that has jobs, beside that.
pub const IDLE_QUEUE: Units = units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]);

/// What the minute's round takes while nothing is to be done, without any queue of one's own.
pub const IDLE_MINUTE: Units = units(0.0, 0.0, 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]);
