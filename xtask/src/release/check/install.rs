//! The install script, from a file server of this machine: it installs, and refuses what is damaged.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Checked, own_triple, process::Running, write};
use crate::release::{archives, archives::output, sums::SUMS};

/// Longest time from the install script to the result of a first job.
const MAX_FIRST_JOB: Duration = Duration::from_mins(1);

/// A folder, and a server of its files.
pub struct FileServer {
    folder: tempfile::TempDir,
    url: String,
    _server: Running,
}

impl FileServer {
    /// Serves an empty folder.
    ///
    /// # Errors
    ///
    /// There is no Python.
    pub fn start() -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut python = Command::new("python3");
        python.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]);
        let mut server = Running::start(python.arg(folder.path()))?;
        let port = server.line_after("port ")?;
        let port = port.split(' ').next().unwrap_or_default();
        let url = format!("http://127.0.0.1:{port}");
        Ok(Self { folder, url, _server: server })
    }

    /// Writes a file.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        write(&self.folder.path().join(name), bytes)
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.folder.path().join(name));
    }

    /// Runs the install script `script` with the files of this server, and `home` as the home.
    ///
    /// # Errors
    ///
    /// There is no shell.
    pub fn install(&self, script: &Path, home: &Path, args: &[&str]) -> Result<Output, String> {
        let mut sh = Command::new("sh");
        sh.arg(script).args(args).env("HOME", home).env("TIDEGATE_DOWNLOAD_URL", &self.url);
        sh.output().map_err(|error| format!("sh: {error}"))
    }
}

/// The home of a user, and the server that has the files of the release for the install script.
pub(super) struct Installation {
    server: FileServer,
    home: tempfile::TempDir,
    script: PathBuf,
    /// The file name of the archive for this machine.
    archive: String,
}

impl Installation {
    /// Serves the release. Nothing is installed yet.
    pub(super) fn new(checked: &Checked) -> Result<Self, String> {
        let server = FileServer::start()?;
        let archive = archives::name(own_triple()?);
        server.put(&archive, checked.file(&archive)?)?;
        server.put(SUMS, checked.file(SUMS)?)?;
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        let script = home.path().join("install.sh");
        write(&script, checked.file("install.sh")?)?;
        Ok(Self { server, home, script, archive })
    }

    /// Runs the install script.
    pub(super) fn install(&self) -> Result<(), String> {
        let done = self.server.install(&self.script, self.home.path(), &[])?;
        let why = || String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() { Ok(()) } else { Err(why()) }
    }

    /// Returns the path of the installed program.
    pub(super) fn program(&self) -> PathBuf {
        self.home.path().join(".local/bin/tidegate")
    }
}

/// Installs the release, runs a first job, and breaks the files of the server.
#[allow(clippy::disallowed_methods, reason = "measures the time to a first job")]
pub(super) fn check(checked: &Checked) -> Result<String, String> {
    let installation = Installation::new(checked)?;
    let program = installation.program();
    let began = Instant::now();
    installation.install()?;
    let Installation { server, home, script, archive } = &installation;
    first_job(&program, home.path())?;
    let took = began.elapsed();
    if took > MAX_FIRST_JOB {
        return Err(format!("a first job takes {} s", took.as_secs()));
    }

    upgrade(&program, home.path(), &|| installation.install())?;

    let refused = |what: &str, why: &str| {
        let done = server.install(script, home.path(), &["--to", "elsewhere"])?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() || !said.contains(why) || Path::new("elsewhere").exists() {
            return Err(format!("{what} is not refused: {said}"));
        }
        Ok(())
    };
    server.put(archive, b"damaged")?;
    refused("a damaged archive", "checksum")?;
    server.remove(archive);
    refused("a missing archive", archive)?;
    let took = took.as_secs_f64();
    Ok(format!(
        "a first job ends {took:.1} s after the script begins; a second installation keeps a running one"
    ))
}

/// A server of the installed program.
struct Server<'a> {
    program: &'a Path,
    data: PathBuf,
    url: String,
    running: Running,
}

impl<'a> Server<'a> {
    /// Starts it on `listen`.
    fn start(program: &'a Path, data: PathBuf, listen: &str) -> Result<Self, String> {
        let mut serve = Command::new(program);
        serve.args(["serve", "--listen", listen, "--data"]).arg(&data);
        let mut running = Running::start(&mut serve)?;
        let url = running.line_after(" on ")?;
        Ok(Self { program, data, url, running })
    }

    /// Stops it and starts the program that is installed now, at the same address.
    fn restart(self) -> Result<Self, String> {
        let listen = self.url.trim_start_matches("http://").to_owned();
        self.running.stop()?;
        Self::start(self.program, self.data, &listen)
    }

    /// Returns what a command against it prints.
    fn run(&self, args: &[&str]) -> Result<String, String> {
        let out = output(Command::new(self.program).env("TIDEGATE_URL", &self.url).args(args))?;
        Ok(String::from_utf8_lossy(&out).trim().to_owned())
    }

    /// Starts a worker that runs `command` for each job of the type `letter`.
    fn work(&self, command: &[&str]) -> Result<Running, String> {
        let mut work = Command::new(self.program);
        work.env("TIDEGATE_URL", &self.url).args(["work", "--type=letter", "--"]);
        Running::start(work.args(command))
    }
}

/// Starts a server, and runs a job with a worker, as the quick start does.
fn first_job(program: &Path, folder: &Path) -> Result<(), String> {
    let server = Server::start(program, folder.join("data"), "127.0.0.1:0")?;
    server.run(&["types", "put", "letter", "--config={}"])?;
    let job = server.run(&["enqueue", "--type=letter", "--data=\"dear reader\""])?;
    let _worker = server.work(&["tr", "a-z", "A-Z"])?;
    let result = server.run(&["jobs", "result", &job, "--wait=30s"])?;
    if result != "\"DEAR READER\"" {
        return Err(format!("the first job ends with {result}"));
    }
    server.running.stop()
}

/// Installs the program again while its server runs a job, and restarts the server twice: to the new
/// file and back, as an upgrade does. The job's one attempt succeeds.
fn upgrade(
    program: &Path,
    folder: &Path,
    install: &dyn Fn() -> Result<(), String>,
) -> Result<(), String> {
    let mut server = Server::start(program, folder.join("data"), "127.0.0.1:0")?;
    let go = folder.join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done; cat", go.display());
    let job = server.run(&["enqueue", "--type=letter", "--data=7"])?;
    let _worker = server.work(&["sh", "-c", &wait])?;
    let mut polls = 0;
    while !server.run(&["jobs", "list", "--state=running"])?.contains(&job) {
        polls += 1;
        if polls > 500 {
            return Err("no worker takes the job".into());
        }
    }
    for _ in 0..2 {
        install()?;
        server = server.restart()?;
    }
    write(&go, b"")?;
    let result = server.run(&["jobs", "result", &job, "--wait=30s"])?;
    let found: Value = serde_json::from_str(&server.run(&["jobs", "get", &job, "--json"])?)
        .map_err(|error| error.to_string())?;
    if result != "7" || found["attempt"] != 1 {
        return Err(format!("the job under way ends with {result}, as {found}"));
    }
    server.running.stop()
}
