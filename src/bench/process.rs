//! The server under test as a separate process, and the resources of processes from `/proc`, if it
//! exists.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use super::{
    JOB_TYPE, clock,
    http::{self, Connection},
};
use crate::cli::context::pause;

/// Longest start or stop of a server.
const MAX_START_OR_STOP: Duration = Duration::from_mins(1);
/// Linux reports CPU time to programs in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// A server process, killed when this value is dropped.
pub(super) struct Process {
    /// Its address.
    pub address: SocketAddr,
    child: Child,
    pid: u32,
}

impl Process {
    /// Starts `tidegate serve` on `dir` with the type under test.
    pub(super) async fn serve(dir: &Path) -> anyhow::Result<Self> {
        let serving = Self::start(|command, address| {
            command.args(["serve", "--listen", &address.to_string(), "--data"]).arg(dir);
        })
        .await?;
        serving.ask("PUT", &format!("/v1/job-types/{JOB_TYPE}"), "{}").await?;
        Ok(serving)
    }

    /// Starts the bare handler with its table in `dir`.
    pub(super) async fn bare(dir: &Path) -> anyhow::Result<Self> {
        Self::start(|command, address| {
            command.args(["bench", "--bare-handler", &address.to_string(), "--dir"]).arg(dir);
        })
        .await
    }

    async fn start(arguments: impl FnOnce(&mut Command, SocketAddr)) -> anyhow::Result<Self> {
        // The port is free now, and no other program uses it.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command =
            Command::new(std::env::current_exe().context("this program cannot be found")?);
        arguments(&mut command, address);
        // The environment of the caller must not change the server under test.
        command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn().context("the server under test cannot be started")?;
        let pid = child.id().context("the server under test has ended")?;
        let start = clock::instant();
        loop {
            if let Ok(mut connection) = Connection::open(address).await
                && let Ok(answer) = connection.send(&http::request("GET", "/readyz", "")).await
                && answer.status == 200
            {
                return Ok(Self { address, child, pid });
            }
            if let Some(status) = child.try_wait()? {
                bail!("the server under test ended: {status}");
            }
            if start.elapsed() > MAX_START_OR_STOP {
                bail!("the server under test does not answer");
            }
            pause(Duration::from_millis(5)).await;
        }
    }

    /// Sends one request and returns the body of its answer.
    pub(super) async fn ask(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> anyhow::Result<Vec<u8>> {
        let mut connection = Connection::open(self.address).await?;
        Ok(connection.send(&http::request(method, path, body)).await?.ok()?.to_vec())
    }

    /// Stops the server gracefully.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.pid.cast_signed()), Signal::SIGTERM)?;
        tokio::time::timeout(MAX_START_OR_STOP, self.child.wait())
            .await
            .context("the server under test does not stop")??;
        Ok(())
    }

    /// Returns its resident memory.
    pub(super) fn memory(&self) -> Memory {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        Memory { all: bytes(&status, "VmRSS:"), own: bytes(&status, "RssAnon:") }
    }

    /// Starts a meter of its CPU time.
    pub(super) fn meter(&self) -> Meter {
        Meter::start(Some(self.pid))
    }
}

/// Resident memory in bytes, zero if it is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// All resident pages, including those of the program's file, which the system can drop.
    pub all: u64,
    /// Pages that the process has written.
    pub own: u64,
}

impl Memory {
    /// Returns the larger value of each field.
    pub(super) fn max(self, other: Self) -> Self {
        Self { all: self.all.max(other.all), own: self.own.max(other.own) }
    }
}

/// Returns a field of a process's `status` in bytes (the file has kibibytes), or zero if it is
/// absent.
fn bytes(status: &str, field: &str) -> u64 {
    let rest = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    rest.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default()
        * 1024
}

/// Measures CPU time.
pub(super) struct Meter {
    pid: Option<u32>,
    from: Instant,
    server: Duration,
    own: Duration,
    machine: Duration,
}

/// The usage while a meter ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorTime {
    /// Real time.
    pub wall: Duration,
    /// CPU time of the server, or of this process if it is the server.
    pub server: Duration,
    /// Cores that other programs used.
    pub others_cores: f64,
}

impl Meter {
    /// Starts a meter of this process, which runs the server under test.
    pub(super) fn embedded() -> Self {
        Self::start(None)
    }

    fn start(pid: Option<u32>) -> Self {
        Self {
            pid,
            from: clock::instant(),
            server: processor(pid),
            own: processor(None),
            machine: busy(),
        }
    }

    /// Returns the usage so far.
    pub(super) fn read(&self) -> ProcessorTime {
        let wall = self.from.elapsed();
        let (server, own) = (
            processor(self.pid).saturating_sub(self.server),
            processor(None).saturating_sub(self.own),
        );
        let ours = if self.pid.is_some() { server + own } else { own };
        let others = busy().saturating_sub(self.machine).saturating_sub(ours);
        ProcessorTime {
            wall,
            server,
            others_cores: others.as_secs_f64() / wall.as_secs_f64().max(0.001),
        }
    }
}

impl ProcessorTime {
    /// Returns the CPU time of the server per item, in microseconds.
    pub(super) fn micros_per(&self, pieces: u64) -> f64 {
        self.server.as_secs_f64() * 1e6 / pieces.max(1) as f64
    }
}

/// Returns the CPU time of a process, or of this one; zero if it is unknown.
fn processor(pid: Option<u32>) -> Duration {
    let path = pid.map_or_else(|| "/proc/self/stat".to_owned(), |pid| format!("/proc/{pid}/stat"));
    std::fs::read_to_string(path).ok().and_then(|stat| of_process(&stat)).unwrap_or_default()
}

/// Returns the user and system time in a process's `stat`. The name, in parentheses, may contain
/// anything.
fn of_process(stat: &str) -> Option<Duration> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user: u32 = fields.nth(11)?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(TICK * (user + system))
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
    let fields: Vec<u32> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    Some(TICK * [0, 1, 2, 5, 6].iter().filter_map(|place| fields.get(*place)).sum::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_from_a_stat_whose_name_has_spaces() {
        let stat = "42 (tide (gate) x) S 1 42 42 0 -1 4194560 5 0 0 0 150 50 0 0 20 0 9 0 1 2 3";
        assert_eq!(of_process(stat), Some(Duration::from_secs(2)));
        assert_eq!(of_process("nonsense"), None);
    }

    #[test]
    fn memory_is_read_in_kibibytes() {
        let status = "Name:\tx\nVmRSS:\t   22980 kB\nRssAnon:\t    5072 kB\n";
        assert_eq!(
            [bytes(status, "VmRSS:"), bytes(status, "RssAnon:"), bytes(status, "VmHWM:")],
            [23_531_520, 5_193_728, 0]
        );
    }

    #[test]
    fn idle_time_of_the_machine_is_not_counted() {
        let stat = "cpu  100 20 30 90000 500 3 7 11 0 0\ncpu0 1 2 3\n";
        assert_eq!(of_machine(stat), Some(Duration::from_millis(1600)));
    }
}
