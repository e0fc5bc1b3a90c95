//! What every command is given: the server it talks to, where its answer goes, and how its end is told.

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
    show::OutputStyle,
};
use tidegate_core::time::Timestamp;

/// What a command tells the script that ran it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// It did what was asked.
    Ok = 0,
    /// The server refused, or a part of it failed.
    Refused = 1,
    /// It was called wrongly.
    Usage = 2,
    /// No server answers at the URL.
    Unreachable = 3,
    /// What was named is not there.
    NotFound = 4,
    /// The wait ended first.
    TimedOut = 5,
}

/// [`ExitCode`] as `--help` tells it.
pub const EXIT_CODES: &str = "Exit codes:\n  \
    0  done\n  \
    1  the server refused, or a part failed\n  \
    2  wrong usage\n  \
    3  the server is not reachable\n  \
    4  not found\n  \
    5  timed out waiting";

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}

impl ExitCode {
    /// The code that a command's error ends with.
    pub fn of(error: &anyhow::Error) -> Self {
        if error.downcast_ref::<UsageError>().is_some() {
            return Self::Usage;
        }
        match error.downcast_ref::<client::Error>() {
            Some(client::Error::Unreachable { .. }) => Self::Unreachable,
            Some(client::Error::Problem(problem)) if problem.status == 404 => Self::NotFound,
            Some(client::Error::Problem(problem)) if problem.status == 408 => Self::TimedOut,
            _ => Self::Refused,
        }
    }
}

/// The command line asks for what cannot be; the message says what to write instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Where a command's answer goes.
pub type Output = Arc<Mutex<dyn Write + Send>>;

/// What every command is given.
#[derive(Clone)]
pub struct Context {
    /// The options that every command has.
    pub global: Global,
    /// What the terminal can show.
    pub look: OutputStyle,
    output: Output,
}

impl Context {
    /// A command's surroundings on this machine.
    pub fn new(global: Global) -> Self {
        let terminal = io::stdout().is_terminal();
        let look = OutputStyle {
            color: terminal && !bare(),
            width: if terminal { Table::new().width() } else { None },
        };
        Self { global, look, output: Arc::new(Mutex::new(io::stdout())) }
    }

    /// A command's surroundings whose answer goes to `output`, as a pipe would get it.
    pub fn captured(global: Global, output: Output) -> Self {
        Self { global, look: OutputStyle::default(), output }
    }

    /// A client of the server that the options name.
    ///
    /// # Errors
    ///
    /// The machine's TLS settings are broken.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(self.global.server(), self.global.token.clone())?)
    }

    /// Whether a program reads the answer.
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

    /// Writes a line of the answer.
    ///
    /// # Errors
    ///
    /// The reader is gone, which ends the program quietly.
    pub fn print(&self, line: impl Display) -> io::Result<()> {
        let mut output = self.output.lock();
        writeln!(output, "{line}")?;
        output.flush()
    }

    /// Writes a server's body as it came.
    ///
    /// # Errors
    ///
    /// The reader is gone, which ends the program quietly.
    pub fn print_body(&self, body: &[u8]) -> io::Result<()> {
        // Some answers say all with their status.
        if body.is_empty() {
            return Ok(());
        }
        let mut output = self.output.lock();
        output.write_all(body.trim_ascii_end())?;
        output.write_all(b"\n")?;
        output.flush()
    }

    /// Tells the person at the terminal, beside the answer; a program that reads the answer is not told.
    pub fn note(&self, line: impl Display) {
        if !self.json() {
            print_error(line);
        }
    }

    /// A bar that counts to `total`; hidden when nobody would see it.
    pub fn progress(&self, total: u64, what: &'static str) -> ProgressBar {
        let target =
            if self.json() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style =
            ProgressStyle::with_template("{msg} {bar:32} {human_pos}/{human_len} {elapsed}")
                .expect("a good template");
        ProgressBar::with_draw_target(Some(total), target).with_style(style).with_message(what)
    }
}

/// Whether the person at the terminal wants no colours.
#[expect(
    clippy::disallowed_methods,
    reason = "the command line is the edge: a terminal's wishes are told by the environment"
)]
fn bare() -> bool {
    std::env::var("NO_COLOR").is_ok_and(|wish| !wish.is_empty())
        || std::env::var("TERM").is_ok_and(|term| term == "dumb")
}

/// Writes a line to standard error; nothing is left to do when even that fails.
pub fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Waits for `span` of real time.
#[expect(
    clippy::disallowed_methods,
    reason = "the command line is the edge: it paces its own requests to a server elsewhere"
)]
pub async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}
