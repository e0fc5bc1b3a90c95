//! `partitions`: what a limit loses if its ledger is divided into partitions.
//!
//! Each partition has a part of the limit and admits jobs of its own. At a *renewal*, partitions
//! whose jobs wait take idle slots from the others. Each move is one transaction over two ledgers,
//! so that the parts always sum to the limit. A slot is *lost* while it is idle in one partition and
//! a job waits in another one: a single ledger would use it.
//!
//! The simulation favours partitions: a move takes no time and is never refused, a job takes one
//! slot, and there is one limit. `docs/decisions/0028-one-ledger-for-each-queue.md` has the table.

use std::{cmp::Reverse, fmt::Write as _};

/// Steps of a second.
const STEPS: u32 = 50;
/// Seconds of a run.
const SECONDS: u32 = 300;
/// Seconds after which another partition is the busy one in [`Demand::Moving`].
const MOVING_SECONDS: u32 = 10;
/// Jobs that arrive, in percent of those that the limit lets through.
const LOAD_PERCENT: u64 = 90;
/// The numbers of partitions in the table.
const PARTITIONS: [usize; 5] = [1, 2, 4, 8, 16];

/// How jobs are spread over the partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// Evenly and at random, as by a digest of their ids.
    Even,
    /// Half of them are in the first partition.
    Skewed,
    /// Half of them are in one partition, which changes.
    Moving,
}

/// A row of the table. Times are in steps.
#[derive(Clone, Copy, Debug)]
struct Case {
    demand: Demand,
    limit: u32,
    /// How long a job runs, on average.
    duration: u32,
    /// The time between two renewals; none if parts never move.
    renewal: Option<u32>,
}

const fn case(demand: Demand, limit: u32, duration: u32, renewal: Option<u32>) -> Case {
    Case { demand, limit, duration, renewal }
}

const CASES: [Case; 13] = [
    case(Demand::Even, 100, 5, Some(25)),
    case(Demand::Even, 100, 50, Some(25)),
    case(Demand::Even, 100, 500, Some(25)),
    case(Demand::Even, 100, 50, Some(5)),
    case(Demand::Even, 100, 50, Some(100)),
    case(Demand::Even, 100, 50, None),
    case(Demand::Even, 10, 50, Some(25)),
    case(Demand::Even, 400, 50, Some(25)),
    case(Demand::Skewed, 100, 5, Some(25)),
    case(Demand::Skewed, 100, 50, Some(25)),
    case(Demand::Skewed, 100, 50, None),
    case(Demand::Moving, 100, 5, Some(25)),
    case(Demand::Moving, 100, 50, Some(25)),
];

/// A ledger with a part of the limit, and the jobs that it decides about.
#[derive(Clone, Copy, Debug, Default)]
struct Partition {
    part: u32,
    running: u32,
    waiting: u32,
}

impl Partition {
    fn idle(self) -> u32 {
        self.part - self.running
    }

    fn admit(&mut self) {
        let started = self.waiting.min(self.idle());
        self.running += started;
        self.waiting -= started;
    }
}

/// A generator of pseudo-random numbers (xorshift64*), the same on every machine.
struct Random(u64);

impl Random {
    /// A number below 2^32.
    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// How many of `trials` succeed, each with the chance `numerator / denominator`.
    fn successes(&mut self, trials: u32, numerator: u64, denominator: u64) -> u32 {
        let bound = (numerator << 32) / denominator;
        (0..trials).map(|_| u32::from(self.draw() < bound)).sum()
    }
}

/// A run of a case.
struct Simulation {
    case: Case,
    partitions: Vec<Partition>,
    random: Random,
    now: u32,
    /// Parts that were moved, each by a transaction.
    moves: u64,
    /// Slot-steps in which a single ledger would run a job, and those of them that were lost.
    usable: u64,
    lost: u64,
}

impl Simulation {
    fn new(case: Case, count: usize) -> Self {
        let (count, random) = (count as u32, Random(27));
        let part = |index| case.limit / count + u32::from(index < case.limit % count);
        let partition = |index| Partition { part: part(index), ..Partition::default() };
        let partitions = (0..count).map(partition).collect();
        Self { case, partitions, random, now: 0, moves: 0, usable: 0, lost: 0 }
    }

    fn run(mut self) -> Self {
        while self.now < SECONDS * STEPS {
            self.step();
        }
        self
    }

    /// Jobs end, jobs arrive, each partition admits, and parts move if a renewal is due.
    fn step(&mut self) {
        let Case { limit, duration, renewal, .. } = self.case;
        for partition in &mut self.partitions {
            partition.running -= self.random.successes(partition.running, 1, duration.into());
        }
        let arrived = self.random.successes(limit, LOAD_PERCENT, u64::from(duration) * 100);
        for _ in 0..arrived {
            let index = self.partition_of_a_job();
            self.partitions[index].waiting += 1;
        }
        self.partitions.iter_mut().for_each(Partition::admit);
        if renewal.is_some_and(|renewal| self.now.is_multiple_of(renewal)) {
            self.renew();
        }
        let idle: u32 = self.partitions.iter().map(|one| one.idle()).sum();
        let waiting: u32 = self.partitions.iter().map(|one| one.waiting).sum();
        let lost = idle.min(waiting);
        self.lost += u64::from(lost);
        self.usable += u64::from(limit - idle + lost);
        self.now += 1;
    }

    fn partition_of_a_job(&mut self) -> usize {
        let count = self.partitions.len();
        let busy = match self.case.demand {
            Demand::Even => None,
            Demand::Skewed => Some(0),
            Demand::Moving => Some((self.now / (MOVING_SECONDS * STEPS)) as usize % count),
        };
        let busy = busy.filter(|_| self.random.draw().is_multiple_of(2));
        busy.unwrap_or_else(|| self.random.draw() as usize % count)
    }

    /// Gives idle slots to the partitions whose jobs wait, most first. None of these has idle slots.
    fn renew(&mut self) {
        let mut takers: Vec<usize> = (0..self.partitions.len()).collect();
        takers.sort_by_key(|index| Reverse(self.partitions[*index].waiting));
        for taker in takers {
            while self.partitions[taker].waiting > 0 {
                let donors = 0..self.partitions.len();
                let donor = donors.max_by_key(|index| self.partitions[*index].idle());
                let Some(donor) = donor.filter(|index| self.partitions[*index].idle() > 0) else {
                    return;
                };
                let moved = self.partitions[donor].idle().min(self.partitions[taker].waiting);
                self.partitions[donor].part -= moved;
                self.partitions[taker].part += moved;
                self.partitions[taker].admit();
                self.moves += 1;
            }
        }
    }

    /// The part of the usable slots that was lost, in percent with one decimal.
    fn loss(&self) -> String {
        let permille = (self.lost * 1000 + self.usable / 2) / self.usable.max(1);
        format!("{}.{}", permille / 10, permille % 10)
    }
}

/// The loss of each case, in percent, for each number of partitions; and how many parts move in a
/// second with the most partitions.
pub fn table() -> String {
    let columns: Vec<String> = PARTITIONS.iter().map(usize::to_string).collect();
    let mut text = format!(
        "| jobs | limit | a job takes | renewal | {} | moves/s |\n|{}\n",
        columns.join(" | "),
        "---|".repeat(columns.len() + 5)
    );
    for Case { demand, limit, duration, renewal } in CASES {
        let jobs = match demand {
            Demand::Even => "spread evenly",
            Demand::Skewed => "half in one partition",
            Demand::Moving => "the same, another one every 10 s",
        };
        let renewal_text = renewal.map_or("never".to_owned(), seconds);
        let runs = PARTITIONS
            .map(|count| Simulation::new(case(demand, limit, duration, renewal), count).run());
        let losses: Vec<String> = runs.iter().map(Simulation::loss).collect();
        let moves = runs.last().map_or(0, |run| run.moves / u64::from(SECONDS));
        let _ = writeln!(
            text,
            "| {jobs} | {limit} | {} | {renewal_text} | {} | {moves} |",
            seconds(duration),
            losses.join(" | ")
        );
    }
    text
}

fn seconds(steps: u32) -> String {
    format!("{} s", f64::from(steps) / f64::from(STEPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_sum_to_the_limit_after_every_step() {
        for case in CASES {
            let mut simulation = Simulation::new(case, 8);
            for _ in 0..60 * STEPS {
                simulation.step();
                let parts: u32 = simulation.partitions.iter().map(|one| one.part).sum();
                assert_eq!(parts, case.limit, "{case:?}");
            }
            assert_eq!(simulation.moves > 0, case.renewal.is_some(), "{case:?}");
        }
    }

    #[test]
    fn no_partition_runs_more_jobs_than_its_part() {
        for case in CASES {
            let mut simulation = Simulation::new(case, 8);
            for _ in 0..60 * STEPS {
                simulation.step();
                let is_within = |one: &Partition| one.running <= one.part;
                assert!(simulation.partitions.iter().all(is_within), "{case:?}");
            }
        }
    }

    #[test]
    fn one_partition_loses_nothing() {
        for case in CASES {
            let run = Simulation::new(case, 1).run();
            assert_eq!((run.lost, run.moves), (0, 0), "{case:?}");
            assert!(run.usable > 0, "{case:?}");
        }
    }

    #[test]
    fn the_decision_has_the_printed_table() {
        let decision = include_str!("../../docs/decisions/0028-one-ledger-for-each-queue.md");
        let table = table();
        assert!(decision.contains(&table), "cargo xtask partitions prints\n{table}");
    }
}
