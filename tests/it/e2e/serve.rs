//! A `tidegate serve` to test against, and a lean client of it.

use std::{
    ffi::OsStr,
    fs::File,
    future::Future,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;
use reqwest::{Client, Method, header::HeaderMap};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long a test waits for a required result. It is long, because all tests may run at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// The first value that `ask` yields. `what` names what was awaited if a timeout ends it.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    let asked = async {
        loop {
            looks.tick().await;
            if let Some(answer) = ask().await {
                return answer;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asked)
        .await
        .unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

/// The first answer of `ask` that it marks as good. A timeout shows the last one.
pub async fn until<T: std::fmt::Debug, F: Future<Output = (bool, T)>>(
    mut ask: impl FnMut() -> F,
) -> T {
    let last = Mutex::new(None);
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    let asked = async {
        loop {
            looks.tick().await;
            let (good, answer) = ask().await;
            if good {
                return answer;
            }
            *last.lock() = Some(answer);
        }
    };
    tokio::time::timeout(PATIENCE, asked)
        .await
        .unwrap_or_else(|_| panic!("it stayed at {:#?}", last.lock()))
}

/// The program, without the variables of the tests' environment.
pub fn program<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let said = |name: &OsStr| {
        ["TIDEGATE_", "OTEL_"].iter().any(|start| name.to_string_lossy().starts_with(start))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| said(name)) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// How a server is to be started.
pub struct Setup {
    dir: Arc<TempDir>,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Setup {
    /// On an empty directory and a free port.
    pub fn new() -> Self {
        Self { dir: Arc::new(tempfile::tempdir().unwrap()), args: Vec::new(), env: Vec::new() }
    }

    /// With a flag and its value.
    pub fn flag(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.args.extend([name.to_owned(), value.as_ref().to_owned()]);
        self
    }

    /// With a variable in its environment.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Where the data is.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn spawn(&self) -> (Child, PathBuf) {
        let log = self.dir.path().join(format!("log-{:x}", rand::Rng::next_u64(&mut rand::rng())));
        let mut command = program(["serve"]);
        if !self.args.iter().any(|arg| arg == "--listen")
            && !self.env.iter().any(|(name, _)| name == "TIDEGATE_LISTEN")
        {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if !self.args.iter().any(|arg| arg == "--data") {
            command.arg("--data").arg(self.data());
        }
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let out = File::create(log.with_extension("out")).unwrap();
        let child = command.stdout(out).stderr(File::create(&log).unwrap()).spawn().unwrap();
        (child, log)
    }

    /// The server, ready.
    pub async fn start(self) -> Tidegate {
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
        let api = Api::at(format!("http://{address}"));
        eventually("the server is ready", || async {
            api.get("/readyz").await.status.eq(&200).then_some(())
        })
        .await;
        Tidegate { child: Some(child), log, setup: self, api }
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

    fn pid(&self) -> Pid {
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
        let mut command = program(args);
        command.env("TIDEGATE_URL", &self.base);
        if let Some(token) = token {
            command.env("TIDEGATE_TOKEN", token);
        }
        let output =
            tokio::process::Command::from(command).kill_on_drop(true).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
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

/// The output and exit status of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Its output after it exited with success.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }
}

/// A client of one server.
#[derive(Clone)]
pub struct Api {
    pub base: String,
    client: Client,
    token: Option<String>,
    patience: Duration,
}

impl Api {
    /// A client of the server at `base`.
    pub fn at(base: String) -> Self {
        Self { base, client: Client::new(), token: None, patience: PATIENCE }
    }

    /// The same client with a token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The same client with as much time as a compiler may take.
    pub fn patient(&self) -> Self {
        Self { patience: 4 * PATIENCE, ..self.clone() }
    }

    /// A request with any body and headers; none if no answer came.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Option<Answer> {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.base))
            .body(body)
            .timeout(self.patience);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.ok()?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Some(Answer { status, headers, body: response.bytes().await.ok()?.to_vec() })
    }

    /// A request with any body and headers.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Answer {
        self.try_send(method.clone(), path, headers, body)
            .await
            .unwrap_or_else(|| panic!("{method} {path} has no answer"))
    }

    /// A request in JSON.
    pub async fn ask(&self, method: Method, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, &[("content-type", "application/json")], body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::POST, path, &body).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::PUT, path, &body).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::PATCH, path, &body).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], "").await
    }

    /// Configures a queue.
    pub async fn queue(&self, name: &str, config: Value) -> Value {
        self.put(&format!("/v1/queues/{name}"), config).await.good()
    }

    /// Configures a job type.
    pub async fn job_type(&self, name: &str, config: Value) -> Value {
        self.put(&format!("/v1/job-types/{name}"), config).await.good()
    }

    /// Enqueues a job that is new, and answers its id.
    pub async fn enqueue(&self, job: Value) -> String {
        self.post("/v1/jobs", job).await.is(201)["id"].as_str().unwrap().to_owned()
    }

    /// Enqueues a job of `job_type` without data.
    pub async fn enqueue_a(&self, job_type: &str) -> String {
        self.enqueue(json!({"type": job_type, "data": null})).await
    }

    /// A job's current view.
    pub async fn job(&self, id: &str) -> Value {
        self.get(&format!("/v1/jobs/{id}")).await.is(200)
    }

    /// A job, once `good` accepts it.
    pub async fn job_when(&self, id: &str, good: impl Fn(&Value) -> bool) -> Value {
        until(|| async {
            let job = self.job(id).await;
            (good(&job), job)
        })
        .await
    }

    /// A job, once it is in `state`.
    pub async fn job_in(&self, id: &str, state: &str) -> Value {
        self.job_when(id, |job| job["state"] == state).await
    }

    /// A lease call.
    pub async fn lease(&self, ask: Value) -> Vec<Lease> {
        let answer = self.post("/v1/leases", ask).await.is(200);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let leases = answer["leases"].as_array().unwrap().iter();
        let lease = |lease: &Value| Lease {
            id: text(&lease["job"]["id"]),
            path: format!("/v1/jobs/{}/{}", text(&lease["job"]["type"]), text(&lease["job"]["id"])),
            attempt: lease["attempt"].as_u64().unwrap(),
            token: text(&lease["token"]),
            whole: lease.clone(),
        };
        leases.map(lease).collect()
    }

    /// One lease of `job_type`, waited for.
    pub async fn lease_one(&self, job_type: &str) -> Lease {
        let mut leases = self.lease(json!({"types": [job_type], "wait_seconds": 20})).await;
        assert_eq!(leases.len(), 1, "a job of type {job_type} was to come");
        leases.remove(0)
    }

    /// Reports on a lease with a worker's token.
    pub async fn report(&self, lease: &Lease, status: &str) -> Answer {
        self.post(&lease.path, json!({"attempt": lease.attempt, "status": status})).await
    }

    /// What explains a job's wait.
    pub async fn explain(&self, job_type: &str, id: &str) -> Value {
        self.get(&format!("/v1/jobs/{job_type}/{id}/explain")).await.is(200)
    }
}

/// A leased attempt.
#[derive(Clone, Debug)]
pub struct Lease {
    pub id: String,
    pub path: String,
    pub attempt: u64,
    pub token: String,
    pub whole: Value,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    /// Its body, decoded by its content type.
    #[track_caller]
    pub fn value(&self) -> Value {
        if self.body.is_empty() {
            return Value::Null;
        }
        let media = self.header("content-type").unwrap_or_default();
        if media.contains("msgpack") {
            rmp_serde::from_slice(&self.body)
                .unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
        } else {
            serde_json::from_slice(&self.body)
                .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Its body, if the status is the expected one.
    #[track_caller]
    pub fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.value()
    }

    /// Its body, if the status is a success.
    #[track_caller]
    pub fn good(&self) -> Value {
        assert!(
            (200..300).contains(&self.status),
            "{}: {}",
            self.status,
            String::from_utf8_lossy(&self.body)
        );
        self.value()
    }

    /// Its problem document, which must be complete and have this status and code.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.is(status);
        assert_eq!(problem["code"], code, "{problem}");
        assert!(
            self.header("content-type").unwrap().starts_with("application/problem+"),
            "{:?}",
            self.headers
        );
        assert_eq!(
            (&problem["status"], &problem["type"]),
            (&json!(status), &json!(format!("urn:tidegate:problem:{code}")))
        );
        for field in ["title", "detail", "instance"] {
            assert!(
                problem[field].as_str().is_some_and(|text| !text.is_empty()),
                "{field} of {problem}"
            );
        }
        problem
    }

    /// The same, blamed on `field`.
    #[track_caller]
    pub fn blames(&self, status: u16, code: &str, field: &str) -> Value {
        let problem = self.problem(status, code);
        assert_eq!(problem["field"], field, "{problem}");
        problem
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
