//! The compiler in a separate process: a malicious component can break only that process.
//!
//! ```text
//!   this process                        tidegate compile-plugin
//!   wasm ──────────── stdin ──────────▶ limits itself, inspects the parts, compiles
//!   outcome ◀─────────────── stdout ─── `C` and the code, or `R` and a JSON list of problems
//! ```
//!
//! The process has an empty environment, and bounded memory and time. It calls no function of the
//! component: the parent process does, within the bounds of a call.
//!
//! At most two processes run. Every component has a short first turn, one at a time. A process that
//! takes longer goes on as the long one, if there is none; otherwise it ends, and starts again when
//! the long one has ended. So a component that keeps the compiler busy for a minute delays another
//! one by its first turn. The bytes of what waits are bounded.

use std::{
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    sync::Semaphore,
};

use super::compile::{CompileError, Refused};

/// Default maximum of the compiler's memory in bytes.
pub const MEMORY: u64 = 3 << 30;
/// Default maximum of the compiler's processor time in seconds, over all threads: four times the
/// time for a component from Python.
pub const PROCESSOR_SECONDS: u64 = 60;
/// Maximum duration of compiling by the clock, for a busy machine. The client waits two minutes.
const MAX_DURATION: Duration = Duration::from_secs(110);
/// How long a component is compiled before it must be the only long one. Those of Rust take less
/// than a second.
const FIRST_TURN: Duration = Duration::from_secs(2);
/// Maximum bytes of all components that wait for the compiler or are compiled, in KiB.
const MAX_WAITING_KIB: usize = 128 << 10;
/// Maximum bytes of code; that of a component from Python has 40 million.
const MAX_CODE_BYTES: u64 = 256 << 20;
/// The first byte of an answer with code.
const CODE: u8 = b'C';
/// The first byte of an answer with problems.
const REFUSED: u8 = b'R';

/// How to start the compiler's process.
#[derive(Clone, Debug)]
pub struct Process {
    program: PathBuf,
    args: Vec<OsString>,
    time: Duration,
    first_turn: Duration,
    /// Permits one first turn at a time.
    first: Arc<Semaphore>,
    /// Permits one longer process at a time.
    long: Arc<Semaphore>,
    /// The KiB of components that may still come.
    room: Arc<Semaphore>,
}

impl Process {
    /// `program` with `args`, which calls [`serve`]. For tidegate's own binary: `compile-plugin`.
    pub fn new(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self {
            program: program.into(),
            args,
            time: MAX_DURATION,
            first_turn: FIRST_TURN,
            first: Arc::new(Semaphore::new(1)),
            long: Arc::new(Semaphore::new(1)),
            room: Arc::new(Semaphore::new(MAX_WAITING_KIB)),
        }
    }

    /// Sets the duration of the first turn.
    #[must_use]
    pub fn first_turn(self, first_turn: Duration) -> Self {
        Self { first_turn, ..self }
    }

    /// Sets the maximum duration from the start of the process.
    #[must_use]
    pub fn within(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    /// The code of `wasm`.
    pub(super) async fn code_of(&self, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        let kib = u32::try_from(wasm.len().div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let Ok(_room) = self.room.try_acquire_many(kib) else {
            let most = MAX_WAITING_KIB >> 10;
            let message = format!("components of {most} MiB wait for it; push again later");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, message).into());
        };
        let ProcessOutput { status, stdout, stderr } = self.output_for(wasm).await?;
        match stdout.split_first() {
            _ if !status.success() => Err(exit_error(status, &stderr)),
            Some((&CODE, code)) if code.len() as u64 <= MAX_CODE_BYTES => Ok(code.to_vec()),
            Some((&CODE, _)) => {
                Err(Refused::because(format!("compiles to more than {} MiB", MAX_CODE_BYTES >> 20))
                    .into())
            }
            Some((&REFUSED, messages)) => Err(Refused {
                messages: serde_json::from_slice(messages).map_err(io::Error::other)?,
            }
            .into()),
            _ => Err(io::Error::other("its answer is malformed").into()),
        }
    }
}

impl Process {
    fn start(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    }

    /// The output of a process that compiled `wasm`, in its turn.
    async fn output_for(&self, wasm: &[u8]) -> io::Result<ProcessOutput> {
        let turn = self.first.acquire().await.map_err(io::Error::other)?;
        let mut child = self.start()?;
        let mut talking = Box::pin(talk(&mut child, wasm));
        if let Ok(done) = tokio::time::timeout(self.first_turn, &mut talking).await {
            return done;
        }
        if let Ok(_long) = self.long.try_acquire() {
            drop(turn);
            return self.within_time(talking).await;
        }
        // Its work is lost, and the next component need not wait for it.
        drop(talking);
        child.kill().await?;
        drop(turn);
        let _long = self.long.acquire().await.map_err(io::Error::other)?;
        let mut child = self.start()?;
        self.within_time(talk(&mut child, wasm)).await
    }

    async fn within_time(
        &self,
        talking: impl Future<Output = io::Result<ProcessOutput>>,
    ) -> io::Result<ProcessOutput> {
        tokio::time::timeout(self.time, talking).await.unwrap_or_else(|_| {
            // The processor time was not used up, so a repeat may succeed.
            let message =
                format!("the machine was too busy to finish in {} s", self.time.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

/// The outcome of a process.
struct ProcessOutput {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
}

async fn talk(child: &mut Child, wasm: &[u8]) -> io::Result<ProcessOutput> {
    let missing = || io::Error::other("a pipe is missing");
    let mut stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    let stderr = child.stderr.take().ok_or_else(missing)?;
    let give = async {
        // A process that ends early breaks the pipe. Its exit status is more informative.
        let _ = stdin.write_all(wasm).await;
        drop(stdin);
    };
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let (mut out, mut err) = (stdout.take(MAX_CODE_BYTES + 2), stderr.take(64 << 10));
    let ((), out_read, err_read) =
        tokio::join!(give, out.read_to_end(&mut output), err.read_to_end(&mut errors));
    out_read.and(err_read)?;
    // A full pipe would keep the process from ending.
    drop((out, err));
    let status = child.wait().await?;
    Ok(ProcessOutput {
        status,
        stdout: output,
        stderr: String::from_utf8_lossy(&errors).into_owned(),
    })
}

/// The error of a process that did not exit with success: it exceeded a bound, the compiler has a
/// bug, or it could not start.
fn exit_error(status: ExitStatus, stderr: &str) -> CompileError {
    let last = stderr.trim().lines().rfind(|line| !line.starts_with("note:")).unwrap_or_default();
    match status.signal() {
        // A failed allocation aborts, and so does a panic in some builds. The system may kill the
        // process with the most memory.
        Some(nix::libc::SIGABRT) if !stderr.contains("memory allocation of") => {
            io::Error::other(format!("it was aborted: {last}")).into()
        }
        Some(nix::libc::SIGABRT | nix::libc::SIGKILL) => {
            Refused::because("takes more memory to compile than it is given").into()
        }
        Some(nix::libc::SIGXCPU) => {
            Refused::because("takes more of the processor's time to compile than it is given")
                .into()
        }
        Some(signal) => {
            Refused::because(format!("breaks the compiler (signal {signal}): {last}")).into()
        }
        None => io::Error::other(format!("it ended with {status}: {last}")).into(),
    }
}

/// The work of the process. It limits itself to `memory` bytes and `seconds` of processor time,
/// compiles a component from `input`, and writes the outcome to `output`.
///
/// # Errors
///
/// The limits cannot be set, or the input or output fails.
#[cfg(feature = "compiler")]
pub fn serve(
    memory: u64,
    seconds: u64,
    mut input: impl io::Read,
    mut output: impl io::Write,
) -> io::Result<()> {
    use std::io::Read as _;

    use nix::sys::resource::{Resource, setrlimit};

    // RLIMIT_DATA does not count reserved address space, which grows with the number of cores.
    setrlimit(Resource::RLIMIT_DATA, memory, memory)?;
    // The soft limit sends SIGXCPU, which identifies the cause. The hard limit would send SIGKILL,
    // like too much memory.
    setrlimit(Resource::RLIMIT_CPU, seconds, seconds + 1)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let mut wasm = Vec::new();
    input.by_ref().take(super::COMPONENT_BYTES as u64 + 1).read_to_end(&mut wasm)?;
    match super::compile::code_of(&wasm) {
        Ok(code) => {
            output.write_all(&[CODE])?;
            output.write_all(&code)?;
        }
        Err(Refused { messages }) => {
            output.write_all(&[REFUSED])?;
            serde_json::to_writer(&mut output, &messages)?;
        }
    }
    output.flush()
}
