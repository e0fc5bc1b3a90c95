//! A `tidegate serve` to test against.

use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::Arc,
};

use base64::Engine as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use super::{api::Api, wait::eventually};
use crate::port::Port;

/// Removes the variables of the tests' environment that change what tidegate does, and the compiler
/// with lints by which `./test` builds this workspace.
pub fn remove_variables(command: &mut Command) {
    let starts = ["TIDEGATE_", "OTEL_", "RUSTC_WORKSPACE_WRAPPER"];
    for (name, _) in std::env::vars_os() {
        if starts.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
}

/// The program, in an environment without settings.
pub fn program<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    remove_variables(&mut command);
    command.args(args).stdin(Stdio::null());
    command
}

/// How a server is to be started.
pub struct Setup {
    dir: Arc<TempDir>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    files: Option<u32>,
    is_dev: bool,
    /// Where it listens in all its lives; none if each finds a free port.
    port: Option<Port>,
}

impl Setup {
    /// On an empty directory and a free port.
    pub fn new() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self { dir, args: Vec::new(), env: Vec::new(), files: None, is_dev: false, port: None }
    }

    /// `tidegate dev` on a temporary directory and a free port.
    pub fn dev() -> Self {
        Self { is_dev: true, ..Self::new() }
    }

    /// On a free port, with its data in a schema of the database at `address`.
    pub fn on_postgres(address: &str, schema: &str) -> Self {
        let store = format!("{address}&schema={schema}");
        let key = base64::engine::general_purpose::STANDARD.encode([7; 32]);
        Self::new().env("TIDEGATE_STORE", store).env("TIDEGATE_ENCRYPTION_KEY", key)
    }

    /// On this port.
    pub fn on_port(self, port: Port) -> Self {
        Self { port: Some(port), ..self }
    }

    /// With a flag and its value.
    pub fn flag(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.args.extend([name.to_owned(), value.as_ref().to_owned()]);
        self
    }

    /// With a flag that has no value.
    pub fn switch(mut self, name: &str) -> Self {
        self.args.push(name.to_owned());
        self
    }

    /// With a variable in its environment.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Without a variable of [`env`](Self::env).
    pub fn without_env(mut self, name: &str) -> Self {
        self.env.retain(|(set, _)| set != name);
        self
    }

    /// With a limit of open files that cannot be raised.
    pub fn files(mut self, most: u32) -> Self {
        self.files = Some(most);
        self
    }

    /// Where the data is.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Runs `tidegate log` with these arguments on the log of the server, which need not run.
    pub fn on_log(&self, args: &[&str]) -> Ran {
        let flag = self.args.iter().position(|arg| arg == "--log").expect("the server has a log");
        let mut command = program([&["log"], args].concat());
        command.args(&self.args[flag..flag + 2]).envs(self.env.iter().cloned());
        Ran::of(command.output().unwrap())
    }

    fn spawn(&self) -> (Child, PathBuf) {
        let log = self.dir.path().join(format!("log-{:x}", rand::Rng::next_u64(&mut rand::rng())));
        let mut command = match self.files {
            None if self.is_dev => program(["dev"]),
            None => program(["serve"]),
            Some(most) => {
                let mut shell = Command::new("sh");
                remove_variables(&mut shell);
                let serve = format!("ulimit -n {most} && exec \"$@\"");
                shell.args(["-c", &serve, "sh", env!("CARGO_BIN_EXE_tidegate"), "serve"]);
                shell.stdin(Stdio::null());
                shell
            }
        };
        if let Some(port) = &self.port {
            command.args(["--listen", &port.address()]);
        } else if !self.args.iter().any(|arg| arg == "--listen")
            && !self.env.iter().any(|(name, _)| name == "TIDEGATE_LISTEN")
        {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if self.is_dev {
            // It makes its own directory, which stays if it is killed.
            command.env("TMPDIR", self.dir.path());
        } else if !self.args.iter().any(|arg| arg == "--data")
            && !self.env.iter().any(|(name, _)| name == "TIDEGATE_STORE")
        {
            command.arg("--data").arg(self.data());
        }
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let out = File::create(log.with_extension("out")).unwrap();
        let child = command.stdout(out).stderr(File::create(&log).unwrap()).spawn().unwrap();
        (child, log)
    }

    /// The server, ready.
    pub async fn start(self) -> Tidegate {
        let tide = self.follow().await;
        // A server of a log has no other route before it leads.
        let api = tide.api.unchecked();
        eventually("the server is ready", || async {
            api.get("/readyz").await.status.eq(&200).then_some(())
        })
        .await;
        tide
    }

    /// The server, once it listens. A standby is not ready for long.
    pub async fn follow(self) -> Tidegate {
        let (mut child, log) = self.spawn();
        let address = eventually("the server says where it listens", || {
            let text = std::fs::read_to_string(&log).unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the server ended with {status}: {text}");
            }
            let address = text
                .split_once(" on http://")
                .and_then(|(_, rest)| rest.split_once('\n'))
                .map(|(address, _)| address.to_owned());
            async { address }
        })
        .await;
        let api = Api::at(format!("http://{address}")).checked();
        Tidegate { child: Some(child), log, setup: self, api }
    }

    /// Starts the server and kills it when `until` is over, probably before it is ready.
    pub async fn start_and_kill<F: Future<Output = ()>>(self, until: impl FnOnce() -> F) -> Self {
        let (mut child, _) = self.spawn();
        until().await;
        child.kill().unwrap();
        child.wait().unwrap();
        self
    }

    /// The output and exit status of a server that must not start.
    pub async fn refused(&self) -> (ExitStatus, String) {
        let (mut child, log) = self.spawn();
        let status = eventually("the server ends", || {
            let status = child.try_wait().unwrap();
            async move { status }
        })
        .await;
        (status, std::fs::read_to_string(log).unwrap())
    }
}

/// A server that runs until this is dropped.
pub struct Tidegate {
    child: Option<Child>,
    log: PathBuf,
    setup: Setup,
    pub api: Api,
}

impl std::ops::Deref for Tidegate {
    type Target = Api;
    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Tidegate {
    /// A server with the default settings.
    pub async fn start() -> Self {
        Setup::new().start().await
    }

    /// What it wrote to standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Where its standard output goes.
    pub fn out(&self) -> PathBuf {
        self.log.with_extension("out")
    }

    /// Where its data is.
    pub fn data(&self) -> PathBuf {
        self.setup.data()
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.as_ref().unwrap().id() as i32)
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        kill(self.pid(), Signal::SIGTERM).unwrap();
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        let child = self.child.as_mut().unwrap();
        eventually("the server ends", || {
            let status = child.try_wait().unwrap();
            async move { status }
        })
        .await
    }

    /// Kills it with SIGKILL; returns how to start it again.
    pub fn kill(mut self) -> Setup {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        std::mem::replace(&mut self.setup, Setup::new())
    }

    /// Stops it gracefully; returns how to start it again.
    pub async fn stop(mut self) -> Setup {
        self.terminate();
        let status = self.ended().await;
        assert!(status.success(), "{status}: {}", self.log());
        std::mem::replace(&mut self.setup, Setup::new())
    }

    /// Runs the command line against it.
    pub async fn cli(&self, args: &[&str]) -> Ran {
        self.cli_as(None, args).await
    }

    /// The same with a token.
    pub async fn cli_as(&self, token: Option<&str>, args: &[&str]) -> Ran {
        cli(&self.base, token, args).await
    }
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!(
                "the server said:\n{}",
                std::fs::read_to_string(&self.log).unwrap_or_default()
            );
        }
    }
}

/// Runs the command line against the server at `base`, with a token if there is one.
pub async fn cli(base: &str, token: Option<&str>, args: &[&str]) -> Ran {
    let mut command = program(args);
    command.env("TIDEGATE_URL", base);
    if let Some(token) = token {
        command.env("TIDEGATE_TOKEN", token);
    }
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await.unwrap();
    Ran::of(output)
}

/// The output and exit status of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Its output after it exited with success.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
