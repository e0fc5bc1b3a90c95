//! The compiler in a process of its own: a component that bombs it takes that process down and nothing else.
//!
//! ```text
//!   this process                        tidegate compile-plugin
//!   wasm ──────────── stdin ──────────▶ limits itself, looks at the parts, compiles
//!   what came of it ◀─────── stdout ─── `C` and the code, or `R` and what is wrong as a JSON list
//! ```
//!
//! The process has an empty environment and bounded memory and time. It calls nothing of the component: that is done
//! under the bounds of a call, by whoever asked.

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

/// Bytes of memory that compiling may take, if nothing else is said.
pub const MEMORY: u64 = 3 << 30;
/// Seconds of the processor that compiling may take, all its threads together, if nothing else is said: four times what a
/// component made from Python does.
pub const PROCESSOR_SECONDS: u64 = 60;
/// How long compiling may take by the clock, which on a busy machine is longer; the client that pushes waits two minutes.
const TIME: Duration = Duration::from_secs(110);
/// Bytes of code that are taken; a component made from Python has 40 million.
const CODE_BYTES: u64 = 256 << 20;
/// What an answer starts with that goes on with code.
const CODE: u8 = b'C';
/// What an answer starts with that goes on with what is wrong.
const REFUSED: u8 = b'R';

/// How to start the compiler's process.
#[derive(Clone, Debug)]
pub struct Process {
    program: PathBuf,
    args: Vec<OsString>,
    time: Duration,
    /// One at a time: two would take twice the memory.
    turn: Arc<Semaphore>,
}

impl Process {
    /// `program` with `args`, which does what [`serve`] does: for tidegate's own binary, `compile-plugin`.
    pub fn new(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self { program: program.into(), args, time: TIME, turn: Arc::new(Semaphore::new(1)) }
    }

    /// With another bound on the time, counted from the process's start.
    #[must_use]
    pub fn within(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    /// The code of `wasm`.
    pub(super) async fn code_of(&self, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        let _turn = self.turn.acquire().await.map_err(io::Error::other)?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().kill_on_drop(true);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let Ok(done) = tokio::time::timeout(self.time, talk(&mut child, wasm)).await else {
            child.kill().await?;
            // The component did not use up the time it is given, so that another try may go well.
            let message = format!(
                "in {} s it had too little of this machine's processor to be done",
                self.time.as_secs()
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, message).into());
        };
        let Done { status, said, complained } = done?;
        match said.split_first() {
            _ if !status.success() => Err(broke(status, &complained)),
            Some((&CODE, code)) if code.len() as u64 <= CODE_BYTES => Ok(code.to_vec()),
            Some((&CODE, _)) => {
                Err(Refused::because(format!("compiles to more than {} MiB", CODE_BYTES >> 20))
                    .into())
            }
            Some((&REFUSED, messages)) => Err(Refused {
                messages: serde_json::from_slice(messages).map_err(io::Error::other)?,
            }
            .into()),
            _ => Err(io::Error::other("its answer is not one of a compiler").into()),
        }
    }
}

/// What came of a process.
struct Done {
    status: ExitStatus,
    said: Vec<u8>,
    complained: String,
}

async fn talk(child: &mut Child, wasm: &[u8]) -> io::Result<Done> {
    let missing = || io::Error::other("a pipe is missing");
    let mut stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    let stderr = child.stderr.take().ok_or_else(missing)?;
    let give = async {
        // A process that ends early does not read it all, and its end says more than a broken pipe.
        let _ = stdin.write_all(wasm).await;
        drop(stdin);
    };
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let (mut out, mut err) = (stdout.take(CODE_BYTES + 2), stderr.take(64 << 10));
    let ((), read, complaint) =
        tokio::join!(give, out.read_to_end(&mut said), err.read_to_end(&mut complained));
    read.and(complaint)?;
    // What is left unread would keep it from ending.
    drop((out, err));
    let status = child.wait().await?;
    Ok(Done { status, said, complained: String::from_utf8_lossy(&complained).into_owned() })
}

/// The process ended in a way that it does not choose: by its bounds, by a fault of the compiler, or never started well.
fn broke(status: ExitStatus, complained: &str) -> CompileError {
    let last =
        complained.trim().lines().rfind(|line| !line.starts_with("note:")).unwrap_or_default();
    match status.signal() {
        // An allocation that is refused aborts, as a panic does in some builds; the system's own killer takes who has most.
        Some(nix::libc::SIGABRT) if !complained.contains("memory allocation of") => {
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

/// What the process does: bounds itself to `memory` bytes and `seconds` of the processor, reads a component from `input`,
/// and writes what came of it to `output`.
///
/// # Errors
///
/// If it cannot be bounded, read or written.
#[cfg(feature = "compiler")]
pub fn serve(
    memory: u64,
    seconds: u64,
    mut input: impl io::Read,
    mut output: impl io::Write,
) -> io::Result<()> {
    use std::io::Read as _;

    use nix::sys::resource::{Resource, setrlimit};

    // What is reserved and never written to is not counted, so that a machine with many cores has as much as one with few.
    setrlimit(Resource::RLIMIT_DATA, memory, memory)?;
    // At the first bound the signal says that it was the time; at the second it would be the one for too much memory.
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
