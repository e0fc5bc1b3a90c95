//! Two servers on one replicated log, and the address that leads to the one that leads.
//!
//! ```text
//!   clients ──▶ balancer ──▶ the server that is ready ─▶ bucket ◀─ the standby
//! ```

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    process::Child,
    sync::watch,
    task::JoinSet,
    time::{Duration, timeout},
};
use url::Url;

use super::{
    Bucket,
    target::{MAX_START, child, free_address},
};
use crate::cli::{client::Client, context::pause};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::port::Entropy as _;

/// How often the balancer checks which server is ready.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a server may take to answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// The servers, each with a directory that is lost with it.
pub struct LogServers {
    servers: [LogServer; 2],
    settings: LogSettings,
    /// The server that is ready.
    leader: watch::Receiver<Option<SocketAddr>>,
    _balancer: JoinSet<()>,
    /// The directories of the servers, and the bucket if it is a directory.
    dir: TempDir,
}

struct LogServer {
    process: Child,
    address: SocketAddr,
    data: PathBuf,
}

/// What all servers of a log have in common.
struct LogSettings {
    /// The bucket of the log.
    log: String,
    /// The key for secrets.
    key: String,
    /// Where clients reach the leader.
    public_url: String,
}

impl LogSettings {
    /// Starts a server on `data`.
    fn start(&self, address: SocketAddr, data: &Path, is_standby: bool) -> anyhow::Result<Child> {
        child(address, data, &output(data), |command| {
            command.args(["--log", &self.log, "--public-url", &self.public_url]);
            command.env("TIDEGATE_ENCRYPTION_KEY", &self.key);
            if is_standby {
                command.arg("--standby");
            }
        })
    }
}

/// The file with what the server on `data` writes. It is not lost with the data.
fn output(data: &Path) -> PathBuf {
    data.with_extension("log")
}

impl LogServers {
    /// Starts a server that leads a new log in `bucket` or in a temporary directory, a standby, and a
    /// balancer at `address`.
    ///
    /// # Errors
    ///
    /// A server cannot be started, or does not serve in time.
    pub async fn start(bucket: &Bucket, address: SocketAddr, dir: TempDir) -> anyhow::Result<Self> {
        let key = [SystemEntropy.bits(), SystemEntropy.bits()].map(u128::to_be_bytes).concat();
        let settings = LogSettings {
            log: log_url(bucket, dir.path()),
            key: BASE64_STANDARD.encode(key),
            public_url: format!("http://{address}"),
        };
        let server = |name: &str, is_standby| {
            let (address, data) = (free_address(Some(0))?, dir.path().join(name));
            let process = settings.start(address, &data, is_standby)?;
            anyhow::Ok(LogServer { process, address, data })
        };
        let servers = [server("first", false)?, server("second", true)?];
        let (found, leader) = watch::channel(None);
        let mut balancer = JoinSet::new();
        balancer.spawn(check([servers[0].address, servers[1].address], found));
        let listener = TcpListener::bind(address).await.context("the balancer cannot listen")?;
        balancer.spawn(balance(listener, leader.clone()));
        let mut all = Self { servers, settings, leader, _balancer: balancer, dir };
        all.wait_for_leader(None).await?;
        Ok(all)
    }

    /// Where the data is, for the user.
    pub fn description(&self) -> String {
        format!("with the log {} (two processes, one of them a standby)", self.settings.log)
    }

    /// The temporary directory with the data of the servers and their output.
    pub fn dir(&self) -> &TempDir {
        &self.dir
    }

    /// Kills the leader with SIGKILL, removes its disk, and waits until the standby leads. Then a server
    /// with an empty disk takes the place of the one that was lost. Returns how long no server led.
    ///
    /// # Errors
    ///
    /// The standby does not take over in time, or the new server cannot be started.
    pub async fn lose_leader(&mut self) -> anyhow::Result<Duration> {
        let leader = self.wait_for_leader(None).await?;
        let began = tokio::time::Instant::now();
        let lost = usize::from(self.servers[1].address == leader);
        self.servers[lost].process.kill().await?;
        std::fs::remove_dir_all(&self.servers[lost].data).context("the disk cannot be removed")?;
        self.wait_for_leader(Some(leader)).await?;
        let took = began.elapsed();
        let lost = &mut self.servers[lost];
        lost.process = self.settings.start(lost.address, &lost.data, true)?;
        Ok(took)
    }

    /// The address of the leader, once it is another one than `lost`.
    async fn wait_for_leader(&mut self, lost: Option<SocketAddr>) -> anyhow::Result<SocketAddr> {
        let is_new = |leader: &Option<SocketAddr>| leader.is_some() && *leader != lost;
        let mut leader = self.leader.clone();
        tokio::select! {
            found = leader.wait_for(is_new) => found.ok().and_then(|found| *found),
            ended = self.ended() => anyhow::bail!("a server ended: {ended}"),
            () = pause(MAX_START) => None,
        }
        .context("no server leads the log within 30 s")
    }

    /// Ends when a server has ended that was not killed: where its output is.
    async fn ended(&mut self) -> String {
        loop {
            for server in &mut self.servers {
                // One that was killed was waited for, and has no id any more.
                if server.process.id().is_some()
                    && let Ok(Some(status)) = server.process.try_wait()
                {
                    return format!("{status}; see {}", output(&server.data).display());
                }
            }
            pause(CHECK_INTERVAL).await;
        }
    }

    /// Kills the servers, and returns their directory.
    pub async fn close(self) -> TempDir {
        for mut server in self.servers {
            // It may have exited already: Ctrl-C reaches it, too.
            let _ = server.process.kill().await;
        }
        self.dir
    }
}

/// The address of a new log: in `dir`, or below the URL of the user, with a prefix of its own so that no log
/// that is there is touched.
fn log_url(bucket: &Bucket, dir: &Path) -> String {
    match bucket {
        Bucket::At(bucket) => format!("{}/{}", bucket.as_str().trim_end_matches('/'), name()),
        Bucket::Temporary => format!("file://{}", dir.join("bucket").display()),
    }
}

/// A name for the prefix of a log.
fn name() -> String {
    format!("tidegate-demo-{:016x}", SystemEntropy.bits() as u64)
}

/// Finds out again and again which of the servers is ready.
async fn check(servers: [SocketAddr; 2], leader: watch::Sender<Option<SocketAddr>>) {
    let clients = servers.map(|address| {
        let url = Url::parse(&format!("http://{address}")).expect("an address makes a URL");
        (address, Client::new(url, None))
    });
    loop {
        let mut ready = None;
        for (address, client) in &clients {
            let Ok(client) = client else { continue };
            // A standby refuses it. It answers most other reads.
            let asked = client.get(&["workers"]).send();
            if matches!(timeout(CHECK_TIMEOUT, asked).await, Ok(Ok(_))) {
                ready = Some(*address);
            }
        }
        leader.send_if_modified(|leader| std::mem::replace(leader, ready) != ready);
        pause(CHECK_INTERVAL).await;
    }
}

/// Passes each connection to the server that is ready, as a load balancer does. Without one it is closed.
async fn balance(listener: TcpListener, leader: watch::Receiver<Option<SocketAddr>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((mut client, _)) = accepted else {
                    pause(CHECK_INTERVAL).await;
                    continue;
                };
                let Some(address) = *leader.borrow() else { continue };
                connections.spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(address).await {
                        // Either side may have gone: that is what the demo is about.
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_demo_has_a_prefix_of_its_own_in_a_bucket() {
        for url in ["s3://bucket/demo", "s3://bucket/demo/"] {
            let bucket = Bucket::At(url.parse().unwrap());
            let [log, other] = [(); 2].map(|()| log_url(&bucket, Path::new("/unused")));
            assert!(log.starts_with("s3://bucket/demo/tidegate-demo-"), "{log}");
            assert_ne!(log, other);
        }
    }
}
