//! Programs that run until a check ends.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

/// How long a program may take to write the line that a check waits for.
const WAIT: Duration = Duration::from_secs(30);

/// A program that is killed when a check ends.
pub struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Running {
    /// Starts `command`.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Self, String> {
        let program = command.get_program().display().to_string();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let (sender, lines) = mpsc::channel();
        follow(child.stdout.take(), sender.clone());
        follow(child.stderr.take(), sender);
        Ok(Self { child, lines, seen: Vec::new() })
    }

    /// Returns what follows `start` in the first line that has it, on either stream.
    ///
    /// # Errors
    ///
    /// The program ends, or writes no such line in time. What it wrote is in the message.
    pub fn line_after(&mut self, start: &str) -> Result<String, String> {
        loop {
            if let Some(found) = self.seen.iter().find_map(|line| line.split_once(start)) {
                return Ok(found.1.to_owned());
            }
            match self.lines.recv_timeout(WAIT) {
                Ok(line) => self.seen.push(line),
                Err(why) => {
                    let seen = self.seen.join("\n");
                    return Err(format!("no line has {start:?} ({why}): {seen}"));
                }
            }
        }
    }

    /// Ends the program as a service manager does, or the one that it has started in its place, and
    /// waits for it.
    ///
    /// # Errors
    ///
    /// It ends with a failure.
    pub fn stop(mut self) -> Result<(), String> {
        self.signal("-TERM");
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the program ended with {status}")) }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id();
        // `unshare` waits for the program that it has started.
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        let own = id.to_string();
        let to = children.split_whitespace().next().unwrap_or(&own);
        let _ = Command::new("kill").args([signal, to]).status();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal("-KILL");
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Sends each line of `stream` until its end.
fn follow(stream: Option<impl Read + Send + 'static>, lines: mpsc::Sender<String>) {
    let Some(stream) = stream else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
}
