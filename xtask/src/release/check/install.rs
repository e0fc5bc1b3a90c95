//! The install script, from a file server of this machine: it installs, and refuses what is damaged.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

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

/// Installs the release, runs a first job, and breaks the files of the server.
#[allow(clippy::disallowed_methods, reason = "measures the time to a first job")]
pub(super) fn check(checked: &Checked) -> Result<String, String> {
    let server = FileServer::start()?;
    let archive = archives::name(own_triple()?);
    server.put(&archive, checked.file(&archive)?)?;
    server.put(SUMS, checked.file(SUMS)?)?;
    let home = tempfile::tempdir().map_err(|error| error.to_string())?;
    let script = home.path().join("install.sh");
    write(&script, checked.file("install.sh")?)?;

    let began = Instant::now();
    let done = server.install(&script, home.path(), &[])?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    first_job(&home.path().join(".local/bin/tidegate"), home.path())?;
    let took = began.elapsed();
    if took > MAX_FIRST_JOB {
        return Err(format!("a first job takes {} s", took.as_secs()));
    }

    let refused = |what: &str, why: &str| {
        let done = server.install(&script, home.path(), &["--to", "elsewhere"])?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() || !said.contains(why) || Path::new("elsewhere").exists() {
            return Err(format!("{what} is not refused: {said}"));
        }
        Ok(())
    };
    server.put(&archive, b"damaged")?;
    refused("a damaged archive", "checksum")?;
    server.remove(&archive);
    refused("a missing archive", &archive)?;
    Ok(format!("a first job ends {:.1} s after the script begins", took.as_secs_f64()))
}

/// Starts a server, and runs a job with a worker, as the quick start does.
fn first_job(program: &Path, folder: &Path) -> Result<(), String> {
    let mut serve = Command::new(program);
    serve.args(["serve", "--listen=127.0.0.1:0", "--data"]).arg(folder.join("data"));
    let mut server = Running::start(&mut serve)?;
    let url = server.line_after(" on ")?;
    let run = |args: &[&str]| {
        let out = output(Command::new(program).env("TIDEGATE_URL", &url).args(args))?;
        Ok::<_, String>(String::from_utf8_lossy(&out).trim().to_owned())
    };
    run(&["types", "put", "letter", "--config={}"])?;
    let job = run(&["enqueue", "--type=letter", "--data=\"dear reader\""])?;
    let mut work = Command::new(program);
    work.env("TIDEGATE_URL", &url).args(["work", "--type=letter", "--", "tr", "a-z", "A-Z"]);
    let _worker = Running::start(&mut work)?;
    let result = run(&["jobs", "result", &job, "--wait=30s"])?;
    if result != "\"DEAR READER\"" {
        return Err(format!("the first job ends with {result}"));
    }
    server.stop()
}
