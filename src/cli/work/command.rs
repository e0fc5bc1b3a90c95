//! One process for one attempt: data in, result and progress out, and an end that can be forced.
//!
//! The process leads a group of its own, so that a Ctrl-C at the terminal reaches the worker alone, and
//! ending a job ends what its command started as well.

use std::{
    io,
    os::unix::process::ExitStatusExt as _,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use parking_lot::Mutex;
use serde_json::value::{RawValue, to_raw_value};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    sync::watch,
    time::timeout,
};

use super::lease::{Details, Lease, Progress, ReportResult, Status};
use crate::cli::context::print_error;
use tidegate_core::job::trace;

/// The exit code by which a command says that trying again cannot help.
pub const HOPELESS: i32 = 100;
/// Most bytes of a result.
const RESULT_BYTES: usize = 4 << 20;
/// Most bytes of a message: the last ones of standard error.
const MESSAGE_BYTES: usize = 4 << 10;
/// Most bytes of a line on standard error; a longer one is taken for several.
const LINE_BYTES: usize = 4 << 10;
/// How long output is still read after the command's end, in case something it started holds the pipes.
const LINGER: Duration = Duration::from_secs(1);

/// Why a command is ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Its job was cancelled.
    Cancelled,
    /// Its attempt is no longer this worker's.
    Lost,
    /// The worker was told twice to stop.
    Killed,
}

/// Runs `command` for `lease` until it ends or `stop` says why it must; keeps in `progress` what it last
/// said of itself.
///
/// # Errors
///
/// The command cannot be started.
pub async fn run(
    command: &[String],
    lease: &Lease,
    progress: watch::Sender<Option<Progress>>,
    mut stop: watch::Receiver<Option<Stop>>,
    grace: Duration,
) -> io::Result<ReportResult> {
    let job = &lease.job;
    // The names that tracing libraries look for in the environment.
    let traced = [(trace::PARENT, "TRACEPARENT"), (trace::STATE, "TRACESTATE")];
    let traced = traced
        .into_iter()
        .filter_map(|(name, variable)| Some((variable, trace::named(&job.headers, name)?.1)));
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .env("TIDEGATE_JOB_ID", &job.id)
        .env("TIDEGATE_JOB_TYPE", &job.r#type)
        .env("TIDEGATE_JOB_QUEUE", &job.queue)
        .env("TIDEGATE_JOB_ATTEMPT", lease.attempt.to_string())
        .env("TIDEGATE_JOB_MAX_ATTEMPTS", job.max_attempts.to_string())
        .env("TIDEGATE_JOB_ATTRIBUTES", job.attributes.as_deref().map_or("{}", RawValue::get))
        // What this process was started under is nothing of the job's.
        .env_remove("TRACEPARENT")
        .env_remove("TRACESTATE")
        .envs(traced)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;

    let data = job.data.as_deref().map_or("null", RawValue::get).to_owned();
    let mut stdin = child.stdin.take().expect("it is piped");
    // A command need not read its input: a pipe that breaks is no failure.
    let writing = tokio::spawn(async move { stdin.write_all(data.as_bytes()).await });
    let result = Arc::new(Mutex::new(Vec::new()));
    let tail = Arc::new(Mutex::new(Vec::new()));
    let stdout = tokio::spawn(keep(child.stdout.take().expect("it is piped"), result.clone()));
    let stderr = tokio::spawn(listen(
        child.stderr.take().expect("it is piped"),
        job.id.clone(),
        tail.clone(),
        progress,
    ));

    let (status, stopped) = tokio::select! {
        status = child.wait() => (status?, None),
        why = asked(&mut stop) => (end(&mut child, why, &mut stop, grace).await?, Some(why)),
    };
    writing.abort();
    let (stop_stdout, stop_stderr) = (stdout.abort_handle(), stderr.abort_handle());
    if timeout(LINGER, async { tokio::join!(stdout, stderr) }).await.is_err() {
        stop_stdout.abort();
        stop_stderr.abort();
    }
    let (result, tail) = (std::mem::take(&mut *result.lock()), text(&tail.lock()));
    Ok(match stopped {
        None => outcome(status, &result, &tail),
        Some(why) => ReportResult {
            error: Some(details(status)),
            ..ReportResult::failed(stopped_message(why))
        },
    })
}

/// How the end of a process is reported.
fn outcome(status: ExitStatus, output: &[u8], tail: &str) -> ReportResult {
    if !status.success() {
        let message = if tail.is_empty() { status.to_string() } else { tail.to_owned() };
        let retryable = (status.code() == Some(HOPELESS)).then_some(false);
        return ReportResult {
            error: Some(details(status)),
            retryable,
            ..ReportResult::failed(message)
        };
    }
    if output.len() > RESULT_BYTES {
        let message = format!("the command succeeded, but its result is over {RESULT_BYTES} bytes");
        return ReportResult { retryable: Some(false), ..ReportResult::failed(message) };
    }
    ReportResult {
        status: Status::Succeeded,
        result: Some(result(output)),
        message: None,
        error: None,
        retryable: None,
    }
}

/// What a command wrote, as a result: JSON if it is, else a text without its last line break; nothing is null.
fn result(output: &[u8]) -> Box<RawValue> {
    let text = String::from_utf8_lossy(output);
    let json = if text.trim().is_empty() { "null" } else { text.trim() };
    serde_json::from_str(json)
        .or_else(|_| to_raw_value(text.strip_suffix('\n').unwrap_or(&text)))
        .expect("a text has a JSON form")
}

fn details(status: ExitStatus) -> Details {
    Details { exit_code: status.code(), signal: status.signal() }
}

fn stopped_message(why: Stop) -> &'static str {
    match why {
        Stop::Cancelled => "cancelled",
        Stop::Lost => "the lease was lost",
        Stop::Killed => "the worker was killed",
    }
}

/// Waits until somebody says why the command must end.
async fn asked(stop: &mut watch::Receiver<Option<Stop>>) -> Stop {
    match stop.wait_for(Option::is_some).await.ok().and_then(|why| *why) {
        Some(why) => why,
        None => std::future::pending().await,
    }
}

/// Ends the process and what it started: politely first, unless the worker itself is being killed.
async fn end(
    child: &mut Child,
    why: Stop,
    stop: &mut watch::Receiver<Option<Stop>>,
    grace: Duration,
) -> io::Result<ExitStatus> {
    // Its id is gone only once it was waited for, which is done nowhere else.
    let group = Pid::from_raw(child.id().map_or(i32::MAX, |id| id as i32));
    // Both signals may find nobody left, which is what they are for.
    if why != Stop::Killed {
        let _ = killpg(group, Signal::SIGTERM);
        let killed = async { stop.wait_for(|why| *why == Some(Stop::Killed)).await.is_ok() };
        tokio::select! {
            _ = timeout(grace, child.wait()) => {}
            true = killed => {}
        }
    }
    let _ = killpg(group, Signal::SIGKILL);
    child.wait().await
}

/// Reads everything, so that the command never blocks, and keeps one byte more than a result may have.
async fn keep(mut from: impl AsyncRead + Unpin, kept: Arc<Mutex<Vec<u8>>>) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let mut kept = kept.lock();
        let room = (RESULT_BYTES + 1).saturating_sub(kept.len()).min(read);
        kept.extend_from_slice(&buffer[..room]);
    }
}

/// Reads lines: progress is taken out, everything else is passed on and its end kept.
async fn listen(
    mut from: impl AsyncRead + Unpin,
    id: String,
    tail: Arc<Mutex<Vec<u8>>>,
    progress: watch::Sender<Option<Progress>>,
) -> io::Result<()> {
    let mut pending = Vec::new();
    let take = |line: &[u8]| {
        if let Some(said) = self::progress(line) {
            progress.send_replace(Some(said));
            return;
        }
        print_error(format_args!("[{id}] {}", String::from_utf8_lossy(line)));
        let mut tail = tail.lock();
        tail.extend_from_slice(line);
        tail.push(b'\n');
        let over = tail.len().saturating_sub(MESSAGE_BYTES);
        tail.drain(..over);
    };
    loop {
        let read = from.read_buf(&mut pending).await?;
        while let Some(end) = pending
            .iter()
            .position(|byte| *byte == b'\n')
            .or((pending.len() >= LINE_BYTES).then_some(LINE_BYTES - 1))
        {
            let line: Vec<u8> = pending.drain(..=end).collect();
            take(line.strip_suffix(b"\n").unwrap_or(&line));
        }
        if read == 0 {
            if !pending.is_empty() {
                take(&pending);
            }
            return Ok(());
        }
    }
}

/// Reads `::progress 40 halfway`.
fn progress(line: &[u8]) -> Option<Progress> {
    let said = std::str::from_utf8(line).ok()?.strip_prefix("::progress ")?.trim();
    let (percent, note) = said
        .split_once(' ')
        .map_or((said, None), |(percent, note)| (percent, Some(note.trim().to_owned())));
    let percent: f64 = percent.trim_end_matches('%').parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(Progress { percent, note })
}

/// The bytes as text, a character that was cut at the front left out.
fn text(bytes: &[u8]) -> String {
    let whole = bytes.iter().position(|byte| *byte & 0xC0 != 0x80).unwrap_or(0);
    let mut text = String::from_utf8_lossy(&bytes[whole..]).trim().to_owned();
    // Bytes that are no text grow when they are replaced.
    while text.len() > MESSAGE_BYTES {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn said(outcome: &ReportResult) -> String {
        serde_json::to_string(outcome).unwrap()
    }

    #[test]
    fn output_is_a_result_and_json_only_if_it_is() {
        for (output, json) in [
            ("{\"b\": 1.0}\n", "{\"b\": 1.0}"),
            ("42\n", "42"),
            ("hello\nthere\n", "\"hello\\nthere\""),
            ("", "null"),
            ("\n", "null"),
            ("{\"a\":", "\"{\\\"a\\\":\""),
        ] {
            assert_eq!(
                said(&outcome(exited(0), output.as_bytes(), "")),
                format!("{{\"status\":\"succeeded\",\"result\":{json}}}")
            );
        }
    }

    #[test]
    fn exit_codes_say_whether_to_try_again() {
        assert_eq!(
            said(&outcome(exited(3), b"x", "boom")),
            r#"{"status":"failed","message":"boom","error":{"exit_code":3}}"#
        );
        assert_eq!(
            said(&outcome(exited(HOPELESS), b"", "")),
            r#"{"status":"failed","message":"exit status: 100","error":{"exit_code":100},"retryable":false}"#
        );
        assert_eq!(
            said(&outcome(ExitStatus::from_raw(9), b"", "gone")),
            r#"{"status":"failed","message":"gone","error":{"signal":9}}"#
        );
    }

    #[test]
    fn a_result_over_the_bound_is_a_failure_for_good() {
        let big = outcome(exited(0), &vec![b'1'; RESULT_BYTES + 1], "");
        assert_eq!((big.status, big.retryable), (Status::Failed, Some(false)));
    }

    #[test]
    fn progress_is_a_line_of_its_own_form() {
        assert_eq!(
            progress(b"::progress 40 half way"),
            Some(Progress { percent: 40.0, note: Some("half way".to_owned()) })
        );
        assert_eq!(progress(b"::progress 99.5%"), Some(Progress { percent: 99.5, note: None }));
        for other in
            [&b"::progress"[..], b"::progress x", b"::progress 101", b" ::progress 4", b"hello"]
        {
            assert_eq!(progress(other), None);
        }
    }

    #[tokio::test]
    async fn the_end_of_standard_error_is_kept_and_a_cut_character_left_out() {
        let tail = Arc::new(Mutex::new(Vec::new()));
        let (progress, said) = watch::channel(None);
        let mut input = "é".repeat(MESSAGE_BYTES).into_bytes();
        input.extend_from_slice(b"x\n::progress 7\nlast");
        listen(&input[..], "j".to_owned(), tail.clone(), progress).await.unwrap();
        let kept = text(&tail.lock());
        assert!(
            kept.len() <= MESSAGE_BYTES && kept.ends_with("x\nlast") && !kept.contains('\u{fffd}'),
            "{kept}"
        );
        assert_eq!(*said.borrow(), Some(Progress { percent: 7.0, note: None }));
    }

    #[tokio::test]
    async fn output_beyond_the_bound_is_read_but_not_kept() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        keep(&vec![b'x'; RESULT_BYTES * 2][..], kept.clone()).await.unwrap();
        assert_eq!(kept.lock().len(), RESULT_BYTES + 1);
    }
}
