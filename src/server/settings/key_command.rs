//! A program that prints the keys, such as the client of a cloud's key management service.
//!
//! It runs without a shell, so no character of an argument has a meaning of its own. Its standard error is
//! that of this process: operators see why it fails. What it prints is never shown.

use std::{io, process::Stdio, thread, time::Duration};

use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    runtime::Builder,
};

use super::Fault;

/// How long the program may take. A client of a cloud repeats its requests for some seconds.
const MAX_DURATION: Duration = Duration::from_secs(30);
/// Most bytes that it may print: more than the most keys have.
const MAX_OUTPUT_BYTES: usize = 4096;

/// What the program that `command` begins with prints, given the rest as its arguments.
///
/// # Errors
///
/// It cannot be run, takes over 30 seconds, fails, or prints nothing, too much or no text.
pub(super) fn printed(command: &[String]) -> Result<String, Fault> {
    printed_within(command, MAX_DURATION)
        .map_err(|problem| Fault { setting: "encryption_key_command", problem })
}

fn printed_within(command: &[String], limit: Duration) -> Result<String, String> {
    let in_runtime = || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot be run: {error}"))?;
        runtime.block_on(run(command, limit))
    };
    // The caller may be on a runtime, whose threads cannot wait for another one.
    thread::scope(|scope| scope.spawn(in_runtime).join())
        .unwrap_or_else(|_| Err("cannot be run".to_owned()))
}

async fn run(command: &[String], limit: Duration) -> Result<String, String> {
    let [program, arguments @ ..] = command else {
        return Err("must name a program".to_owned());
    };
    let mut process = Command::new(program);
    process.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let child = process.spawn();
    let mut child = child.map_err(|error| format!("cannot be run: {program}: {error}"))?;
    let printed = tokio::time::timeout(limit, printed_by(&mut child, program)).await;
    let late = |_| Err(format!("cannot be used: {program} has not ended after {limit:?}"));
    let printed = printed.unwrap_or_else(late);
    if printed.is_err() {
        // It may have ended by itself.
        let _ = child.kill().await;
    }
    printed
}

/// What `child` prints until it ends with success.
async fn printed_by(child: &mut Child, program: &str) -> Result<String, String> {
    let unread = |error: io::Error| {
        format!("cannot be used: the output of {program} cannot be read: {error}")
    };
    let mut printed = Vec::new();
    if let Some(output) = child.stdout.take() {
        let mut output = output.take(MAX_OUTPUT_BYTES as u64 + 1);
        output.read_to_end(&mut printed).await.map_err(unread)?;
    }
    if printed.len() > MAX_OUTPUT_BYTES {
        return Err(format!("must print at most {MAX_OUTPUT_BYTES} bytes"));
    }
    let status = child.wait().await.map_err(unread)?;
    if !status.success() {
        return Err(format!("cannot be used: {program} failed ({status})"));
    }
    match String::from_utf8(printed) {
        Ok(text) if text.trim().is_empty() => {
            Err("must print a key, and prints nothing".to_owned())
        }
        Ok(text) => Ok(text),
        Err(_) => Err("must print keys in base64, and prints no text".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output_of(command: &[&str]) -> Result<String, String> {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        printed_within(&command, MAX_DURATION)
    }

    #[test]
    fn arguments_reach_the_program_as_they_are() {
        let printed = output_of(&["printf", "%s|", "a b", "$HOME", "*", "; exit 1"]);
        assert_eq!(printed.as_deref(), Ok("a b|$HOME|*|; exit 1|"));
    }

    #[tokio::test]
    async fn a_program_can_be_run_from_a_runtime() {
        assert_eq!(output_of(&["echo", "key"]).as_deref(), Ok("key\n"));
    }

    #[test]
    fn a_failure_is_reported_without_the_output() {
        let cases: [(&[&str], &str); 8] = [
            (&["/nowhere/kms"], "cannot be run: /nowhere/kms: "),
            (&["sh", "-c", "echo hidden; exit 3"], "cannot be used: sh failed (exit status: 3)"),
            (&["sh", "-c", "echo hidden; kill -9 $$"], "cannot be used: sh failed (signal: 9"),
            (&["true"], "must print a key, and prints nothing"),
            (&["echo", " "], "must print a key, and prints nothing"),
            (&["printf", "hidden\\377"], "must print keys in base64, and prints no text"),
            // It never ends by itself.
            (&["yes", "hidden"], "must print at most 4096 bytes"),
            (&[], "must name a program"),
        ];
        for (command, expected) in cases {
            let problem = output_of(command).unwrap_err();
            assert!(problem.starts_with(expected), "{command:?}: {problem}");
            assert!(!problem.contains("hidden"), "{problem}");
        }
    }

    #[test]
    fn a_program_that_does_not_end_is_given_up() {
        let command = ["sleep", "600"].map(str::to_owned);
        let problem = printed_within(&command, Duration::from_millis(50)).unwrap_err();
        assert_eq!(problem, "cannot be used: sleep has not ended after 50ms");
        // Its output has ended, the program has not.
        let command = ["sh", "-c", "exec sleep 600 >&-"].map(str::to_owned);
        let problem = printed_within(&command, Duration::from_millis(50)).unwrap_err();
        assert_eq!(problem, "cannot be used: sh has not ended after 50ms");
    }

    #[test]
    fn a_fault_names_the_setting() {
        assert_eq!(printed(&["true".to_owned()]).unwrap_err().setting, "encryption_key_command");
    }
}
