//! One process for one attempt: data in, result and progress out, and a forced end.
//!
//! The process leads its own group, so a Ctrl-C at the terminal reaches only the worker, and the
//! end of an attempt also ends the processes that its command started.

use std::{
    io,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use serde_json::value::{RawValue, to_raw_value};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
    sync::watch,
    time::timeout,
};

use super::{
    lines::{HandBack, News, Said, read_messages, text},
    report::AttemptOutcome,
};
use crate::cli::context::print_error;
use tidegate_api::{AnyValue, LeaseView, Status};
use tidegate_core::job::trace;

/// The exit code of a failure that a retry cannot help.
pub const FINAL_EXIT_CODE: i32 = 100;
/// Largest result, in bytes.
const MAX_RESULT_BYTES: usize = 4 << 20;
/// Longest checkpoint, in bytes of JSON, that a variable of the environment can have. Linux takes 128
/// KiB with the name. Only what another client stored as MessagePack can be longer as JSON.
const MAX_CHECKPOINT_BYTES: usize = 120 << 10;
/// How long output is read after the command's end, in case a process that it started holds the
/// pipes.
const MAX_DRAIN: Duration = Duration::from_secs(1);

/// Why a command is ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Its job was cancelled.
    Cancelled,
    /// The worker lost the lease of the attempt.
    Lost,
    /// The worker received a second stop signal.
    Killed,
}

/// Runs `command` for `lease` until it ends or `stop` has a reason, and returns the report.
///
/// `news` gets the progress and the checkpoints that the command reports.
///
/// # Errors
///
/// The command cannot be started.
pub async fn run(
    command: &[String],
    lease: &LeaseView<'_>,
    news: News,
    mut stop: watch::Receiver<Option<Stop>>,
    grace: Duration,
) -> io::Result<AttemptOutcome> {
    let job = &lease.job;
    // The variables that tracing libraries read.
    let traced = [(trace::PARENT, "TRACEPARENT"), (trace::STATE, "TRACESTATE")];
    let traced = traced
        .into_iter()
        .filter_map(|(name, variable)| Some((variable, trace::named(&job.headers, name)?.1)));
    let checkpoint = job.checkpoint.as_ref().and_then(AnyValue::json).filter(|text| {
        let fits = text.len() <= MAX_CHECKPOINT_BYTES;
        if !fits {
            print_error(format_args!(
                "[{}] its checkpoint is too long for the environment: it begins without it",
                job.id
            ));
        }
        fits
    });
    let mut process = Command::new(&command[0]);
    process
        .args(&command[1..])
        .env("TIDEGATE_JOB_ID", job.id.as_str())
        .env("TIDEGATE_JOB_TYPE", job.r#type.as_str())
        .env("TIDEGATE_JOB_QUEUE", job.queue.as_str())
        .env("TIDEGATE_JOB_ATTEMPT", lease.attempt.to_string())
        .env("TIDEGATE_JOB_MAX_ATTEMPTS", job.max_attempts.to_string())
        .env("TIDEGATE_JOB_ATTRIBUTES", serde_json::to_string(&job.attributes)?)
        .env("TIDEGATE_JOB_CHECKPOINT", checkpoint.unwrap_or_default())
        // The trace of the worker's own process is not that of the job.
        .env_remove("TRACEPARENT")
        .env_remove("TRACESTATE")
        .envs(traced)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child =
        CommandWrap::from(process).wrap(ProcessGroup::leader()).wrap(KillOnDrop).spawn()?;

    let data = job.data.as_ref().and_then(AnyValue::json).unwrap_or("null").to_owned();
    let mut stdin = child.stdin().take().expect("it is piped");
    // A command need not read its input: a pipe that breaks is no failure.
    let writing = tokio::spawn(async move { stdin.write_all(data.as_bytes()).await });
    let result = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::new(Mutex::new(Said::default()));
    let stdout =
        tokio::spawn(read_result(child.stdout().take().expect("it is piped"), result.clone()));
    let stderr = tokio::spawn(read_messages(
        child.stderr().take().expect("it is piped"),
        job.id.to_string(),
        said.clone(),
        news,
    ));

    let (status, stopped) = tokio::select! {
        status = leader_exit(&mut *child) => (status?, None),
        reason = requested(&mut stop) => {
            (end(&mut *child, reason, &mut stop, grace).await?, Some(reason))
        }
    };
    writing.abort();
    let (stop_stdout, stop_stderr) = (stdout.abort_handle(), stderr.abort_handle());
    if timeout(MAX_DRAIN, async { tokio::join!(stdout, stderr) }).await.is_err() {
        stop_stdout.abort();
        stop_stderr.abort();
    }
    let (result, said) = (std::mem::take(&mut *result.lock()), std::mem::take(&mut *said.lock()));
    let outcome = match stopped {
        None => match said.hand_back {
            Some(HandBack { delay, message }) => AttemptOutcome::handed_back(delay, message),
            None => outcome(status, &result, &text(&said.tail)),
        },
        Some(reason) => AttemptOutcome::failed(stopped_message(reason)).with_exit(status),
    };
    let checkpoint = said.checkpoint.filter(|_| outcome.status != Status::Succeeded);
    Ok(AttemptOutcome { checkpoint, ..outcome })
}

/// Returns the report of a process that ended by itself.
fn outcome(status: ExitStatus, output: &[u8], tail: &str) -> AttemptOutcome {
    if !status.success() {
        let message = if tail.is_empty() { status.to_string() } else { tail.to_owned() };
        let retryable = (status.code() == Some(FINAL_EXIT_CODE)).then_some(false);
        return AttemptOutcome { retryable, ..AttemptOutcome::failed(message).with_exit(status) };
    }
    if output.len() > MAX_RESULT_BYTES {
        let message =
            format!("the command succeeded, but its result is over {MAX_RESULT_BYTES} bytes");
        return AttemptOutcome { retryable: Some(false), ..AttemptOutcome::failed(message) };
    }
    AttemptOutcome {
        status: Status::Succeeded,
        result: Some(result(output)),
        message: None,
        error: None,
        retryable: None,
        delay: None,
        checkpoint: None,
        log: Vec::new(),
    }
}

/// Returns the output of a command as a result.
///
/// It is the output itself if that is JSON, null if it is empty, otherwise a JSON string without
/// the last line break.
fn result(output: &[u8]) -> Box<RawValue> {
    let text = String::from_utf8_lossy(output);
    let json = if text.trim().is_empty() { "null" } else { text.trim() };
    serde_json::from_str(json)
        .or_else(|_| to_raw_value(text.strip_suffix('\n').unwrap_or(&text)))
        .expect("a text has a JSON form")
}

fn stopped_message(reason: Stop) -> &'static str {
    match reason {
        Stop::Cancelled => "cancelled",
        Stop::Lost => "the lease was lost",
        Stop::Killed => "the worker was killed",
    }
}

/// Waits for a reason to end the command.
async fn requested(stop: &mut watch::Receiver<Option<Stop>>) -> Stop {
    match stop.wait_for(Option::is_some).await.ok().and_then(|reason| *reason) {
        Some(reason) => reason,
        None => std::future::pending().await,
    }
}

/// Waits for the command itself. Processes that it left in the background do not hold the attempt:
/// as process 1 of a container the worker would wait for them, too.
async fn leader_exit(child: &mut dyn ChildWrapper) -> io::Result<ExitStatus> {
    child.inner_mut().wait().await
}

/// Ends the process group: by SIGTERM first, unless the worker itself is being killed.
async fn end(
    child: &mut dyn ChildWrapper,
    reason: Stop,
    stop: &mut watch::Receiver<Option<Stop>>,
    grace: Duration,
) -> io::Result<ExitStatus> {
    // Both signals fail if the group has ended already, which is their purpose.
    if reason != Stop::Killed {
        let _ = child.signal(Signal::SIGTERM as i32);
        let killed = async { stop.wait_for(|reason| *reason == Some(Stop::Killed)).await.is_ok() };
        tokio::select! {
            _ = timeout(grace, leader_exit(child)) => {}
            true = killed => {}
        }
    }
    let _ = child.start_kill();
    leader_exit(child).await
}

/// Reads everything, so that the command never blocks, and keeps one byte more than a result may
/// have.
async fn read_result(
    mut from: impl AsyncRead + Unpin,
    kept: Arc<Mutex<Vec<u8>>>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let mut kept = kept.lock();
        let accepted = (MAX_RESULT_BYTES + 1).saturating_sub(kept.len()).min(read);
        kept.extend_from_slice(&buffer[..accepted]);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::{super::report::Report, *};
    use crate::cli::testing::sample;

    fn exited(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    /// The body of a report of the sample's attempt.
    fn report_of(outcome: AttemptOutcome) -> String {
        let lease = serde_json::from_value(sample::lease("j1", 1000)).unwrap();
        serde_json::to_string(&Report::new(&lease, outcome).body()).unwrap()
    }

    #[test]
    fn output_that_is_no_json_becomes_a_string() {
        for (output, json) in [
            ("{\"b\": 1.0}\n", "{\"b\": 1.0}"),
            ("42\n", "42"),
            ("hello\nthere\n", "\"hello\\nthere\""),
            ("", "null"),
            ("\n", "null"),
            ("{\"a\":", "\"{\\\"a\\\":\""),
        ] {
            assert_eq!(
                report_of(outcome(exited(0), output.as_bytes(), "")),
                format!(r#"{{"status":"succeeded","attempt":2,"result":{json}}}"#)
            );
        }
    }

    #[test]
    fn exit_code_100_is_a_final_failure() {
        assert_eq!(
            report_of(outcome(exited(3), b"x", "boom")),
            r#"{"status":"failed","attempt":2,"error":{"exit_code":3},"message":"boom"}"#
        );
        assert_eq!(
            report_of(outcome(exited(FINAL_EXIT_CODE), b"", "")),
            concat!(
                r#"{"status":"failed","attempt":2,"error":{"exit_code":100},"#,
                r#""message":"exit status: 100","retryable":false}"#
            )
        );
        assert_eq!(
            report_of(outcome(ExitStatus::from_raw(9), b"", "gone")),
            r#"{"status":"failed","attempt":2,"error":{"signal":9},"message":"gone"}"#
        );
    }

    #[test]
    fn a_result_over_the_limit_is_a_final_failure() {
        let big = outcome(exited(0), &vec![b'1'; MAX_RESULT_BYTES + 1], "");
        assert_eq!((big.status, big.retryable), (Status::Failed, Some(false)));
    }

    #[tokio::test]
    async fn output_over_the_limit_is_read_but_not_kept() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        read_result(&vec![b'x'; MAX_RESULT_BYTES * 2][..], kept.clone()).await.unwrap();
        assert_eq!(kept.lock().len(), MAX_RESULT_BYTES + 1);
    }
}
