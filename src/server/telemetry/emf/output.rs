//! Writes the lines of an [`Emf`] recorder at an interval, to standard output or a file.

use std::{
    fs::{File, Permissions},
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, task::JoinHandle, time::MissedTickBehavior};

use super::Emf;
use tidegate_backends::system::SystemClock;
use tidegate_core::port::Clock as _;

/// A task that writes the lines of a recorder.
pub(crate) struct EmfWriter {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl EmfWriter {
    /// Starts the task, once `output` (`stdout` or a path) is known to be writable.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub(crate) fn start(emf: Arc<Emf>, output: &str, interval: Duration) -> io::Result<Self> {
        let output = Output::open(output)?;
        let (stop, stopped) = watch::channel(false);
        Ok(Self { stop, task: tokio::spawn(run(emf, output, interval, stopped)) })
    }

    /// Writes what was recorded since the last line, and ends the task.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

/// Where the lines go.
#[derive(Clone)]
enum Output {
    Stdout,
    File {
        path: PathBuf,
        /// The permissions of the first file, which those after a log rotation get too.
        permissions: Permissions,
    },
}

impl Output {
    fn open(name: &str) -> io::Result<Self> {
        if name == "stdout" {
            return Ok(Self::Stdout);
        }
        let file = File::options().append(true).create(true).open(name)?;
        Ok(Self::File { path: name.into(), permissions: file.metadata()?.permissions() })
    }

    fn write(&self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => write_stdout(lines),
            // Opened for each write, so that log rotation may move the file.
            Self::File { path, permissions } => {
                let mut file = match File::options().append(true).open(path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        let file = File::options().append(true).create(true).open(path)?;
                        file.set_permissions(permissions.clone())?;
                        file
                    }
                    opened => opened?,
                };
                file.write_all(lines)
            }
        }
    }
}

/// Writes whole lines to standard output under one lock, so that no other output splits them.
pub(crate) fn write_stdout(lines: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(lines).and_then(|()| stdout.flush())
}

async fn run(emf: Arc<Emf>, output: Output, interval: Duration, mut stop: watch::Receiver<bool>) {
    let mut tick = tokio::time::interval(interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick completes at once, when nothing is recorded.
    tick.tick().await;
    let mut failing = false;
    loop {
        let last = tokio::select! {
            _ = tick.tick() => false,
            _ = stop.wait_for(|stop| *stop) => true,
        };
        let lines = emf.flush(SystemClock.now());
        let to = output.clone();
        // The reader of standard output may be slow.
        let written = tokio::task::spawn_blocking(move || to.write(&lines)).await;
        let error = written.map_or_else(
            |panicked| Some(panicked.to_string()),
            |written| written.err().map(|error| error.to_string()),
        );
        // Only the first of several failures is logged.
        if let Some(error) = error.as_ref().filter(|_| !failing) {
            tracing::warn!(
                %error,
                "metrics for CloudWatch cannot be written; jobs are not affected"
            );
        }
        failing = error.is_some();
        if last {
            return;
        }
    }
}
