//! The server of the demo: in this process, as a child process that can be killed, or a remote one.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusBuilder;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use url::Url;

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
const MAX_START: Duration = Duration::from_secs(30);

/// A server and its data directory.
pub struct Target {
    url: Url,
    process: Process,
}

enum Process {
    Inside(Serving, Data),
    Child(Child, SocketAddr, Data),
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
    /// Starts a server on `data` or on a temporary directory, as a child process if it is to be
    /// `killed`.
    ///
    /// # Errors
    ///
    /// The port is taken, or the directory cannot be served.
    pub async fn open(
        data: Option<&Path>,
        port: Option<u16>,
        killed: bool,
    ) -> anyhow::Result<Self> {
        let address = free_address(port)?;
        let url = Url::parse(&format!("http://{address}")).expect("an address makes a URL");
        let data = match data {
            Some(dir) => Data::Kept(dir.to_owned()),
            None => Data::Temporary(
                tempfile::Builder::new()
                    .prefix("tidegate-demo-")
                    .tempdir()
                    .context("no temporary directory can be created")?,
            ),
        };
        let process = if killed {
            Process::Child(child(address, data.dir())?, address, data)
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
            Process::Remote => "(a remote server)".into(),
        }
    }

    /// Returns the temporary data directory.
    pub fn temporary_dir(&self) -> Option<&Path> {
        match &self.process {
            Process::Inside(_, Data::Temporary(dir))
            | Process::Child(_, _, Data::Temporary(dir)) => Some(dir.path()),
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
                        log(data.dir()).display()
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

    /// Kills the child with SIGKILL and starts another on the same directory and port.
    ///
    /// # Errors
    ///
    /// The server is no child process, or the new one does not serve.
    pub async fn kill_and_restart(&mut self, client: &Client) -> anyhow::Result<()> {
        let Process::Child(server, address, data) = &mut self.process else {
            anyhow::bail!("only a child process can be killed")
        };
        server.kill().await?;
        *server = child(*address, data.dir())?;
        self.ready(client).await
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
            Process::Remote => return,
        };
        if let Data::Temporary(dir) = data
            && keep_data
        {
            let _ = dir.keep();
        }
    }
}

/// Starts `tidegate serve` without settings in the environment. Its log is in the data directory.
fn child(address: SocketAddr, data: &Path) -> anyhow::Result<Child> {
    std::fs::create_dir_all(data).with_context(|| format!("{} cannot be made", data.display()))?;
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(log(data))
        .context("the server's log cannot be written")?;
    let mut command =
        Command::new(std::env::current_exe().context("the path of this program is unknown")?);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(PREFIX))
    {
        command.env_remove(name);
    }
    command.arg("serve").arg("--listen").arg(address.to_string()).arg("--data").arg(data);
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true).spawn();
    child.context("the server cannot be started as a process")
}

fn log(data: &Path) -> PathBuf {
    data.join("demo-server.log")
}

/// Returns a free loopback address: `port`, or without one the default port or any.
fn free_address(port: Option<u16>) -> anyhow::Result<SocketAddr> {
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
