//! The context of every command: its server, its output, and its exit code.

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write},
    sync::Arc,
    time::{Duration, SystemTime},
};

use comfy_table::Table;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use super::{
    Global,
    client::{self, Client},
    output::OutputStyle,
    safe::{shown, styled},
};
use tidegate_backends::bucket_log::LogError;
use tidegate_core::time::Timestamp;
use tidegate_server::settings::SettingsError;

/// The exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// Success.
    Ok = 0,
    /// The server rejected the request, or a part of it failed.
    Refused = 1,
    /// The arguments are wrong.
    Usage = 2,
    /// No server answers at the URL, or the store of a replicated log does not answer.
    Unreachable = 3,
    /// The named resource does not exist.
    NotFound = 4,
    /// The wait timed out.
    TimedOut = 5,
    /// Another server leads the replicated log.
    NotLeader = 6,
}

/// The exit codes as `--help` lists them.
pub const EXIT_CODES: &str = "Exit codes:\n  \
    0  done\n  \
    1  the server refused, or a part failed\n  \
    2  wrong usage\n  \
    3  the server, or the store of a log, is not reachable\n  \
    4  not found\n  \
    5  timed out waiting\n  \
    6  another server leads the log: start again with --standby to follow it";

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}

impl ExitCode {
    /// Returns the exit code for an error.
    pub fn of(error: &anyhow::Error) -> Self {
        let is_wrong_setting = error.downcast_ref::<SettingsError>().is_some();
        if is_wrong_setting || error.downcast_ref::<UsageError>().is_some() {
            return Self::Usage;
        }
        #[cfg(feature = "aws")]
        if let Some(failure) = error.downcast_ref::<super::aws::Failure>() {
            return failure.exit_code();
        }
        if let Some(LogError::NoAnswer { .. }) = error.downcast_ref::<LogError>() {
            return Self::Unreachable;
        }
        match error.downcast_ref::<client::Error>() {
            Some(client::Error::Unreachable { .. }) => Self::Unreachable,
            Some(client::Error::Problem(problem)) if problem.status == 404 => Self::NotFound,
            Some(client::Error::Problem(problem)) if problem.status == 408 => Self::TimedOut,
            _ => Self::Refused,
        }
    }
}

/// Wrong arguments. The message has the correction.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The output of a command.
pub type Output = Arc<Mutex<dyn Write + Send>>;

/// The context of a command.
#[derive(Clone)]
pub struct Context {
    /// The options that every command has.
    pub global: Global,
    /// The capabilities of the terminal.
    pub look: OutputStyle,
    output: Output,
    /// Whether the output is a terminal.
    terminal: bool,
}

impl Context {
    /// Returns the context of a command in this process.
    pub fn new(global: Global) -> Self {
        let terminal = io::stdout().is_terminal();
        let look = OutputStyle {
            color: terminal && !bare(),
            width: if terminal { Table::new().width() } else { None },
        };
        Self { global, look, output: Arc::new(Mutex::new(io::stdout())), terminal }
    }

    /// Returns a context that writes to `output` as to a pipe.
    pub fn captured(global: Global, output: Output) -> Self {
        Self { global, look: OutputStyle::default(), output, terminal: false }
    }

    /// Whether the output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Returns the context of a command that writes to a terminal.
    #[cfg(test)]
    #[must_use]
    pub fn on_terminal(self) -> Self {
        Self { terminal: true, ..self }
    }

    /// A client of the server that the options name.
    ///
    /// # Errors
    ///
    /// The machine's TLS settings are broken.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(self.global.server(), self.global.token.clone())?)
    }

    /// Returns whether the output is JSON.
    pub fn json(&self) -> bool {
        self.global.json
    }

    /// The present instant.
    #[expect(
        clippy::disallowed_methods,
        reason = "the command line is the edge: it reads the clock for everything below"
    )]
    pub fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(since.as_millis() as i64)
    }

    /// Whether what is written to standard error may be coloured.
    pub fn colored_errors() -> bool {
        io::stderr().is_terminal() && !bare()
    }

    /// Writes a line of output, with control characters [shown](super::safe).
    ///
    /// # Errors
    ///
    /// The reader is gone, which ends the program quietly.
    pub fn print(&self, line: impl Display) -> io::Result<()> {
        self.write(shown(&line.to_string()).as_bytes())
    }

    /// Writes tables with their colours, and control characters [shown](super::safe). Other text
    /// between the tables must be shown already.
    ///
    /// # Errors
    ///
    /// The reader is gone, which ends the program quietly.
    pub fn print_tables(&self, tables: impl Display) -> io::Result<()> {
        self.write(styled(&tables.to_string()).as_bytes())
    }

    /// Writes the JSON body of a response: unchanged to a file or a pipe, and with control
    /// characters [shown](super::safe) to a terminal.
    ///
    /// # Errors
    ///
    /// The reader is gone, which ends the program quietly.
    pub fn print_body(&self, body: &[u8]) -> io::Result<()> {
        let body = body.trim_ascii_end();
        match str::from_utf8(body) {
            // Some responses have no body.
            _ if body.is_empty() => Ok(()),
            Ok(text) if self.terminal => self.print(text),
            _ => self.write(body),
        }
    }

    /// Writes a line of output unchanged.
    fn write(&self, line: &[u8]) -> io::Result<()> {
        let mut output = self.output.lock();
        output.write_all(line)?;
        output.write_all(b"\n")?;
        output.flush()
    }

    /// Prints a note to standard error, unless the output is JSON.
    pub fn note(&self, line: impl Display) {
        if !self.json() {
            print_error(line);
        }
    }

    /// Returns a progress bar up to `total`, hidden without a terminal.
    pub fn progress(&self, total: u64, what: &'static str) -> ProgressBar {
        let target =
            if self.json() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style =
            ProgressStyle::with_template("{msg} {bar:32} {human_pos}/{human_len} {elapsed}")
                .expect("a good template");
        ProgressBar::with_draw_target(Some(total), target).with_style(style).with_message(what)
    }
}

/// Returns whether the user wants no colours.
#[expect(
    clippy::disallowed_methods,
    reason = "the command line is the edge: the environment has the terminal's preferences"
)]
fn bare() -> bool {
    std::env::var("NO_COLOR").is_ok_and(|wish| !wish.is_empty())
        || std::env::var("TERM").is_ok_and(|term| term == "dumb")
}

/// Writes a line to standard error, with control characters [shown](super::safe), and ignores a
/// failure.
pub fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", shown(&line.to_string()));
}

/// Waits for `span` of real time.
#[expect(
    clippy::disallowed_methods,
    reason = "the command line is the edge: it paces its own requests to a server elsewhere"
)]
pub async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}
