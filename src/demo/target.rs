//! The server of the demo: in this process, as a child process that can be killed, two child processes
//! on a replicated log, or a remote one.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusBuilder;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::Instant,
};
use url::Url;

use super::{Options, log_servers::LogServers};
use crate::cli::{
    UsageError,
    client::{Client, Error},
    context::pause,
    serve::{self, Serving},
};
use tidegate_core::time::Seconds;
use tidegate_server::settings::{PREFIX, Settings, Sources};

/// The default port.
const DEFAULT_PORT: u16 = 8080;
/// Longest start of the server.
pub(super) const MAX_START: Duration = Duration::from_secs(30);

/// A server and its data directory.
pub struct Target {
    url: Url,
    process: Process,
}

enum Process {
    Inside(Serving, Data),
    Child(Child, SocketAddr, Data),
    /// Two servers on a replicated log.
    Log(Box<LogServers>),
    /// A remote server.
    Remote,
}

/// The data directory of a server that the demo starts.
enum Data {
    /// The user's directory, which stays.
    Kept(PathBuf),
    /// A directory of this demo alone, which is removed with this value.
    Temporary(TempDir),
}

impl Data {
    fn dir(&self) -> &Path {
        match self {
            Self::Kept(dir) => dir,
            Self::Temporary(dir) => dir.path(),
        }
    }
}

impl Target {
    /// Starts a server on the directory of the options or on a temporary one, as a child process if it is
    /// to be killed; or two servers on a replicated log.
    ///
    /// # Errors
    ///
    /// The port is taken, or the directory or the bucket cannot be served.
    pub async fn open(options: &Options) -> anyhow::Result<Self> {
        let address = free_address(options.port)?;
        let url = Url::parse(&format!("http://{address}")).expect("an address makes a URL");
        let temporary = || {
            tempfile::Builder::new()
                .prefix("tidegate-demo-")
                .tempdir()
                .context("no temporary directory can be created")
        };
        if let Some(bucket) = &options.bucket {
            let servers = LogServers::start(bucket, address, temporary()?).await?;
            return Ok(Self { url, process: Process::Log(Box::new(servers)) });
        }
        let data = match &options.data {
            Some(dir) => Data::Kept(dir.clone()),
            None => Data::Temporary(temporary()?),
        };
        let process = if options.kill {
            Process::Child(child(address, data.dir(), &output(data.dir()), |_| {})?, address, data)
        } else {
            // A stop need not wait for running jobs: their workers stop at the same time.
            let settings = Settings {
                listen: address,
                data: data.dir().to_owned(),
                shutdown_seconds: Seconds::new(1),
                ..Settings::default()
            };
            let metrics = PrometheusBuilder::new()
                .install_recorder()
                .context("metrics cannot be collected")?;
            Process::Inside(
                serve::start(&settings, &Sources::default(), Some(metrics), None).await?,
                data,
            )
        };
        Ok(Self { url, process })
    }

    /// Returns a running server.
    pub fn remote(url: Url) -> Self {
        Self { url, process: Process::Remote }
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> Url {
        self.url.clone()
    }

    /// Returns the data directory and the kind of process, for the user.
    pub fn description(&self) -> String {
        match &self.process {
            Process::Inside(_, data) => format!("on {} (in this process)", data.dir().display()),
            Process::Child(_, _, data) => {
                format!("on {} (a separate process, to be killed)", data.dir().display())
            }
            Process::Log(servers) => servers.description(),
            Process::Remote => "(a remote server)".into(),
        }
    }

    /// Returns the temporary data directory.
    pub fn temporary_dir(&self) -> Option<&Path> {
        match &self.process {
            Process::Inside(_, Data::Temporary(dir))
            | Process::Child(_, _, Data::Temporary(dir)) => Some(dir.path()),
            Process::Log(servers) => Some(servers.dir().path()),
            _ => None,
        }
    }

    /// Waits until the server answers.
    ///
    /// # Errors
    ///
    /// It ended, or does not answer in time.
    pub async fn ready(&mut self, client: &Client) -> anyhow::Result<()> {
        let ready = async {
            loop {
                if let Process::Child(child, _, data) = &mut self.process
                    && let Some(status) = child.try_wait()?
                {
                    anyhow::bail!(
                        "the server ended at its start ({status}); see {}",
                        output(data.dir()).display()
                    );
                }
                match client.get(&["queues"]).query("limit", "1").send().await {
                    Ok(_) => return Ok(()),
                    Err(Error::Unreachable { .. }) if !matches!(self.process, Process::Remote) => {
                        pause(Duration::from_millis(20)).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        tokio::time::timeout(MAX_START, ready)
            .await
            .context("the server did not answer within 30 s of its start")?
    }

    /// Kills the server with SIGKILL, and waits until a server serves again: another one on the same
    /// directory and port, or the standby of a replicated log. Returns how long that took.
    ///
    /// # Errors
    ///
    /// The server is no child process, or the new one does not serve.
    pub async fn kill(&mut self, client: &Client) -> anyhow::Result<Duration> {
        let began = Instant::now();
        match &mut self.process {
            Process::Child(server, address, data) => {
                server.kill().await?;
                *server = child(*address, data.dir(), &output(data.dir()), |_| {})?;
            }
            Process::Log(servers) => return servers.lose_leader().await,
            Process::Inside(..) | Process::Remote => {
                anyhow::bail!("only a child process can be killed")
            }
        }
        self.ready(client).await?;
        Ok(began.elapsed())
    }

    /// Stops the server, and removes temporary data unless it is to be kept.
    pub async fn close(self, keep_data: bool) {
        let data = match self.process {
            Process::Inside(serving, data) => {
                serving.stop().await;
                data
            }
            Process::Child(mut child, _, data) => {
                // It may have exited already: Ctrl-C reaches it, too.
                let _ = child.kill().await;
                data
            }
            Process::Log(servers) => Data::Temporary(servers.close().await),
            Process::Remote => return,
        };
        if let Data::Temporary(dir) = data
            && keep_data
        {
            let _ = dir.keep();
        }
    }
}

/// Starts `tidegate serve` on `data` without settings in the environment, with what `set` adds. What it
/// writes is appended to the file `output`.
pub(super) fn child(
    address: SocketAddr,
    data: &Path,
    output: &Path,
    set: impl FnOnce(&mut Command),
) -> anyhow::Result<Child> {
    std::fs::create_dir_all(data).with_context(|| format!("{} cannot be made", data.display()))?;
    let output = std::fs::File::options()
        .create(true)
        .append(true)
        .open(output)
        .context("the server's output cannot be written")?;
    let mut command =
        Command::new(std::env::current_exe().context("the path of this program is unknown")?);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(PREFIX))
    {
        command.env_remove(name);
    }
    command.arg("serve").arg("--listen").arg(address.to_string()).arg("--data").arg(data);
    set(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).kill_on_drop(true);
    command.spawn().context("the server cannot be started as a process")
}

/// The file with the output of the server on `data`.
fn output(data: &Path) -> PathBuf {
    data.join("demo-server.log")
}

/// Returns a free loopback address: `port`, or without one the default port or any.
pub(super) fn free_address(port: Option<u16>) -> anyhow::Result<SocketAddr> {
    let take = |port| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|listener| listener.local_addr())
    };
    match port {
        Some(port) => take(port).map_err(|error| {
            UsageError(format!("--port: {port} cannot be listened on: {error}")).into()
        }),
        None => take(DEFAULT_PORT).or_else(|_| take(0)).context("no port can be listened on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_rejected_if_it_was_given() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        assert!(free_address(Some(port)).unwrap_err().to_string().contains("--port"));
        assert_ne!(free_address(None).unwrap().port(), port);
    }
}
