//! The server under test as a separate process, and its memory from `/proc`, if it exists.

use std::{
    net::{SocketAddr, TcpListener},
    process::Stdio,
    slice,
    time::Duration,
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use super::{
    JOB_TYPE, STORE_VARIABLE, clock,
    http::{self, Connection},
    meter::Meter,
    place::{KEY, Place},
    postmaster::Postmaster,
    storage::{self, Storage},
};
use crate::cli::context::pause;

/// Longest start or stop of a server. A start may fill an empty directory from a log.
const MAX_START_OR_STOP: Duration = Duration::from_mins(5);

/// Whether servers that share a place forward lease requests to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forwarding {
    On,
    Off,
}

/// A server process, killed when this value is dropped.
pub(super) struct Process {
    /// Its address.
    pub address: SocketAddr,
    child: Child,
    pid: u32,
    postmaster: Option<Postmaster>,
}

impl Process {
    /// Starts `tidegate serve` on `place` with the type under test. Other servers can reach it.
    pub(super) async fn serve(place: &Place) -> anyhow::Result<Self> {
        Self::serve_as(place, Forwarding::On).await
    }

    async fn serve_as(place: &Place, forwarding: Forwarding) -> anyhow::Result<Self> {
        let serving = Self::start(place, |command, address| {
            command.args(["serve", "--listen", &address.to_string()]);
            match place {
                Place::Directory(dir) => command.arg("--data").arg(dir.path()),
                Place::Schema(schema) => command
                    .env("TIDEGATE_STORE", &schema.address)
                    .env("TIDEGATE_ENCRYPTION_KEY", KEY),
            };
            if forwarding == Forwarding::On && matches!(place, Place::Schema(_)) {
                command.env("TIDEGATE_PEER_URL", format!("http://{address}"));
            }
        })
        .await?;
        serving.ask("PUT", &format!("/v1/job-types/{JOB_TYPE}"), "{}").await?;
        Ok(serving)
    }

    /// Starts `tidegate serve` on the directory `place`, with a log in `storage` and the type under
    /// test.
    pub(super) async fn serve_with_log(place: &Place, storage: &Storage) -> anyhow::Result<Self> {
        let serving = Self::start_with_log(place, storage).await?;
        serving.ask("PUT", &format!("/v1/job-types/{JOB_TYPE}"), "{}").await?;
        Ok(serving)
    }

    /// The same without the type. It returns once the server is ready.
    pub(super) async fn start_with_log(place: &Place, storage: &Storage) -> anyhow::Result<Self> {
        let Place::Directory(dir) = place else {
            bail!("a server with a log has a directory");
        };
        Self::start(place, |command, address| {
            command
                .args(["serve", "--listen", &address.to_string(), "--log", storage::LOG, "--data"])
                .arg(dir.path())
                .env(storage::ACCOUNT_VARIABLE, storage.account())
                .env("TIDEGATE_ENCRYPTION_KEY", KEY);
        })
        .await
    }

    /// Starts `number` servers that share `place`.
    pub(super) async fn serve_all(place: &Place, number: usize) -> anyhow::Result<Vec<Self>> {
        Self::serve_all_as(place, number, Forwarding::On).await
    }

    /// Starts `number` servers that share `place` and forward no requests. They race for limits.
    pub(super) async fn serve_racing(place: &Place, number: usize) -> anyhow::Result<Vec<Self>> {
        Self::serve_all_as(place, number, Forwarding::Off).await
    }

    async fn serve_all_as(
        place: &Place,
        number: usize,
        forwarding: Forwarding,
    ) -> anyhow::Result<Vec<Self>> {
        let mut servers = Vec::with_capacity(number);
        for _ in 0..number {
            servers.push(Self::serve_as(place, forwarding).await?);
        }
        Ok(servers)
    }

    /// Starts the bare handler with its table in `place`.
    pub(super) async fn bare(place: &Place) -> anyhow::Result<Self> {
        Self::start(place, |command, address| {
            command.args(["bench", "--bare-handler", &address.to_string()]);
            match place {
                Place::Directory(dir) => command.arg("--dir").arg(dir.path()),
                Place::Schema(schema) => command.env(STORE_VARIABLE, &schema.address),
            };
        })
        .await
    }

    async fn start(
        place: &Place,
        arguments: impl FnOnce(&mut Command, SocketAddr),
    ) -> anyhow::Result<Self> {
        // The port is free now, and no other program uses it.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command =
            Command::new(std::env::current_exe().context("this program cannot be found")?);
        // The environment of the caller must not change the server under test.
        command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        arguments(&mut command, address);
        let mut child = command.spawn().context("the server under test cannot be started")?;
        let pid = child.id().context("the server under test has ended")?;
        let start = clock::instant();
        loop {
            if let Ok(mut connection) = Connection::open(address).await
                && let Ok(answer) = connection.send(&http::request("GET", "/readyz", "")).await
                && answer.status == 200
            {
                return Ok(Self { address, child, pid, postmaster: place.postmaster() });
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

    /// Stops servers gracefully, one after the other.
    pub(super) async fn stop_all(servers: Vec<Self>) -> anyhow::Result<()> {
        for server in servers {
            server.stop().await?;
        }
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
        Self::meter_of(slice::from_ref(self))
    }

    /// Starts a meter of the CPU time of servers that share a place.
    pub(super) fn meter_of(servers: &[Self]) -> Meter {
        let postmaster = servers.first().and_then(|server| server.postmaster);
        Meter::start(servers.iter().map(|server| server.pid).collect(), postmaster)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kibibytes() {
        let status = "Name:\tx\nVmRSS:\t   22980 kB\nRssAnon:\t    5072 kB\n";
        assert_eq!(
            [bytes(status, "VmRSS:"), bytes(status, "RssAnon:"), bytes(status, "VmHWM:")],
            [23_531_520, 5_193_728, 0]
        );
    }
}
