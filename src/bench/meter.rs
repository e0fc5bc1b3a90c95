//! The CPU time of servers, of Postgres and of other programs, from `/proc`, if it exists.

use std::time::{Duration, Instant};

use super::{clock, figure::Figure, place::Place, postmaster::Postmaster};

/// Linux reports CPU time to programs in hundredths of a second.
const TICK_MILLIS: u64 = 10;

/// Measures CPU time.
pub(super) struct Meter {
    /// The servers; none if this process is the server.
    servers: Vec<u32>,
    postmaster: Option<Postmaster>,
    from: Instant,
    start: Used,
}

/// The usage while a meter ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorTime {
    /// Real time.
    pub wall: Duration,
    /// CPU time of the servers, or of this process if it is the server.
    pub server: Duration,
    /// CPU time of Postgres, if it runs on this machine and has the jobs.
    pub postgres: Option<Duration>,
    /// Cores that other programs used.
    pub others_cores: f64,
}

/// CPU time at an instant.
#[derive(Clone, Copy)]
struct Used {
    servers: Duration,
    own: Duration,
    postgres: Option<Duration>,
    machine: Duration,
}

impl Used {
    fn now(servers: &[u32], postmaster: Option<Postmaster>) -> Self {
        Self {
            servers: servers.iter().map(|pid| processor(*pid)).sum(),
            own: processor(std::process::id()),
            postgres: postmaster.map(Postmaster::processor),
            machine: busy(),
        }
    }
}

impl Meter {
    /// Starts a meter of this process, which runs the servers under test on `place`.
    pub(super) fn embedded(place: &Place) -> Self {
        Self::start(Vec::new(), place.postmaster())
    }

    /// Starts a meter of the processes `servers`, whose jobs the server of `postmaster` has, if any.
    pub(super) fn start(servers: Vec<u32>, postmaster: Option<Postmaster>) -> Self {
        let start = Used::now(&servers, postmaster);
        Self { servers, postmaster, from: clock::instant(), start }
    }

    /// Returns the usage so far.
    pub(super) fn read(&self) -> ProcessorTime {
        let wall = self.from.elapsed();
        let (start, now) = (self.start, Used::now(&self.servers, self.postmaster));
        let servers = now.servers.saturating_sub(start.servers);
        let own = now.own.saturating_sub(start.own);
        let postgres = now.postgres.zip(start.postgres);
        let postgres = postgres.map(|(now, start)| now.saturating_sub(start));
        let ours = servers + own + postgres.unwrap_or_default();
        let others = now.machine.saturating_sub(start.machine).saturating_sub(ours);
        ProcessorTime {
            wall,
            server: if self.servers.is_empty() { own } else { servers },
            postgres,
            others_cores: others.as_secs_f64() / wall.as_secs_f64().max(0.001),
        }
    }
}

impl ProcessorTime {
    /// Returns the CPU time of the server per item, in microseconds.
    pub(super) fn micros_per(&self, pieces: u64) -> f64 {
        self.server.as_secs_f64() * 1e6 / pieces.max(1) as f64
    }

    /// Returns the CPU time of Postgres per job of `what` as a figure, if it is known.
    pub(super) fn postgres_figure(&self, what: &str, jobs: u64) -> Option<Figure> {
        let micros = self.postgres?.as_secs_f64() * 1e6 / jobs.max(1) as f64;
        let what = format!("{what}: processor of Postgres per job");
        Some(Figure::cost(what, "us", micros).among(self.others_cores))
    }
}

/// A process, by its `stat`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub id: u32,
    pub name: String,
    /// The id of its parent.
    pub parent: u32,
    /// Its CPU time.
    pub own: Duration,
    /// That of its children that have ended.
    pub of_ended_children: Duration,
}

/// Returns the process `pid`; none if it is unknown.
pub(super) fn stat(pid: u32) -> Option<Stat> {
    Stat::read(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

impl Stat {
    /// Reads a `stat`. The name, in parentheses, may contain anything.
    fn read(stat: &str) -> Option<Self> {
        let (start, rest) = stat.rsplit_once(')')?;
        let (id, name) = start.split_once(" (")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
        Some(Self {
            id: id.parse().ok()?,
            name: name.to_owned(),
            parent: u32::try_from(number(1)?).ok()?,
            own: ticks(number(11)? + number(12)?),
            of_ended_children: ticks(number(13)? + number(14)?),
        })
    }
}

/// Returns the time of so many ticks.
fn ticks(number: u64) -> Duration {
    Duration::from_millis(number * TICK_MILLIS)
}

/// Returns the CPU time of a process; zero if it is unknown.
fn processor(pid: u32) -> Duration {
    stat(pid).map(|stat| stat.own).unwrap_or_default()
}

/// Returns the CPU time of the whole machine that was not idle; zero if it is unknown.
fn busy() -> Duration {
    std::fs::read_to_string("/proc/stat")
        .ok()
        .and_then(|stat| of_machine(&stat))
        .unwrap_or_default()
}

/// Returns the time of programs and the kernel: user, nice, system and both kinds of interrupts.
fn of_machine(stat: &str) -> Option<Duration> {
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    Some(ticks([0, 1, 2, 5, 6].iter().filter_map(|place| fields.get(*place)).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_from_a_stat_whose_name_has_spaces() {
        let stat = "42 (tide (gate) x) S 1 42 42 0 -1 4194560 5 0 0 0 150 50 70 30 20 0 9 0 1 2 3";
        let read = Stat {
            id: 42,
            name: "tide (gate) x".into(),
            parent: 1,
            own: Duration::from_secs(2),
            of_ended_children: Duration::from_secs(1),
        };
        assert_eq!(Stat::read(stat), Some(read));
        assert_eq!(Stat::read("nonsense"), None);
    }

    #[test]
    fn idle_time_of_the_machine_is_not_counted() {
        let stat = "cpu  100 20 30 90000 500 3 7 11 0 0\ncpu0 1 2 3\n";
        assert_eq!(of_machine(stat), Some(Duration::from_millis(1600)));
        // 64 cores for four months: five were busy.
        let stat = "cpu  5000000000 0 0 60000000000 0 0 0 0 0 0\n";
        assert_eq!(of_machine(stat), Some(Duration::from_secs(50_000_000)));
    }
}
