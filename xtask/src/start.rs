//! `start`: the start time of each packaged function.
//!
//! It is the time from the start of the process until the function requests its first event. The
//! rest of a cold start is Lambda's own. The figure is the median of several starts of the package
//! for the architecture of this machine.
//!
//! The function starts with the settings of a deployment, so it creates every client and sends
//! every request of a start. A local endpoint answers them at once; on AWS each takes some
//! milliseconds.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    endpoint::Endpoint,
    package::{self, FUNCTIONS},
};

/// Starts of each function. The first one reads the file from disk and is not counted.
const STARTS: usize = 21;
/// Longest median that passes.
const MAX_START: Duration = Duration::from_millis(60);

/// Prints the start time of each function.
///
/// # Errors
///
/// A package is missing, or a function does not start or takes too long.
pub fn run() -> Result<(), String> {
    let root = package::root()?;
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "x86_64" };
    let aws = Endpoint::start()?;
    let mut slow = Vec::new();
    println!(
        "{:<12} {:>10} {:>10} {:>10}  requests",
        "function", "median ms", "least ms", "most ms"
    );
    for function in FUNCTIONS {
        let folder = root.join("target/start").join(function);
        unpack(&root.join("target/functions").join(arch).join(format!("{function}.zip")), &folder)?;
        let mut took = Vec::with_capacity(STARTS);
        for _ in 0..STARTS {
            aws.take_requests();
            took.push(start(&folder.join("bootstrap"), &aws)?);
        }
        took.remove(0);
        took.sort_unstable();
        let millis = |span: &Duration| span.as_secs_f64() * 1000.0;
        let median = took[took.len() / 2];
        let requests: Vec<String> = aws
            .take_requests()
            .iter()
            .map(|action| action.rsplit('.').next().unwrap_or(action).to_owned())
            .collect();
        let (least, most) = (millis(&took[0]), millis(&took[took.len() - 1]));
        println!(
            "{function:<12} {:>10.1} {least:>10.1} {most:>10.1}  {}",
            millis(&median),
            requests.join(", ")
        );
        if median > MAX_START {
            slow.push(function);
        }
    }
    if slow.is_empty() {
        Ok(())
    } else {
        Err(format!("slower than {} ms: {}", MAX_START.as_millis(), slow.join(", ")))
    }
}

fn unpack(zip: &Path, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if !zip.exists() {
        return Err(format!("{} does not exist: cargo xtask package", zip.display()));
    }
    package::call(
        Command::new("python3").args(["-m", "zipfile", "--extract"]).arg(zip).arg(folder),
    )?;
    // Python's zipfile does not restore the mode.
    package::call(Command::new("chmod").arg("755").arg(folder.join("bootstrap")))
}

/// A process that is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the time from the start of the process until it requests its first event.
#[allow(clippy::disallowed_methods, reason = "measures a process")]
fn start(program: &Path, aws: &Endpoint) -> Result<Duration, String> {
    let runtime =
        TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no port is free: {error}"))?;
    let address = runtime.local_addr().map_err(|error| error.to_string())?;
    let began = Instant::now();
    let spawned = command(program, address, aws.address()).spawn();
    let _running = Running(spawned.map_err(|error| format!("{}: {error}", program.display()))?);
    let (stream, _) = runtime.accept().map_err(|error| error.to_string())?;
    let mut request = String::new();
    BufReader::new(stream).read_line(&mut request).map_err(|error| error.to_string())?;
    let took = began.elapsed();
    if request.contains("/invocation/next") {
        Ok(took)
    } else {
        Err(format!("{} could not start: its first request was {request:?}", program.display()))
    }
}

fn command(program: &Path, runtime: SocketAddr, aws: SocketAddr) -> Command {
    let queue = |name: &str| format!("http://{aws}/000000000000/{name}");
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).envs([
        ("AWS_LAMBDA_RUNTIME_API", runtime.to_string()),
        ("AWS_LAMBDA_FUNCTION_NAME", "function".into()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512".into()),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".into()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", "group".into()),
        ("AWS_LAMBDA_LOG_STREAM_NAME", "stream".into()),
        ("AWS_REGION", "us-east-1".into()),
        ("AWS_ACCESS_KEY_ID", "test".into()),
        ("AWS_SECRET_ACCESS_KEY", "test".into()),
        ("AWS_ENDPOINT_URL", format!("http://{aws}")),
        ("TIDEGATE_TABLE", "tidegate".into()),
        ("TIDEGATE_BUCKET", "tidegate".into()),
        ("TIDEGATE_ENCRYPTION_KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=".into()),
        ("TIDEGATE_WORK_QUEUE_URL", queue("work")),
        ("TIDEGATE_HINT_QUEUE_URL", queue("hints.fifo")),
        ("TIDEGATE_TIMER_QUEUE_URL", queue("timers")),
        ("TIDEGATE_PUBLIC_URL", "https://api.example".into()),
    ]);
    command
}
