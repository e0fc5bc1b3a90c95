//! A test kit on `tidegate dev`: a throw-away server whose clock a test freezes and moves.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use tidegate_client::{Attempt, BoxError, Handler, Worker, testing::DevServer};
//! # async fn remind(to: String, _: Attempt) -> Result<String, BoxError> { Ok(to) }
//! # async fn a_reminder_comes_after_a_week() {
//! let server = DevServer::start().await;
//! let mut worker = Worker::new(server.client().clone());
//! worker.handle(Handler::new("reminder", remind)).unwrap();
//! server.freeze().await;
//! server.apply(&worker).await;
//! let week = Duration::from_secs(7 * 86_400);
//! server.client().enqueue("reminder", "ann").delay(week).await.unwrap();
//! server.advance(week).await;
//! assert_eq!(server.drain(&worker).await.len(), 1);
//! # }
//! ```
//!
//! The methods panic when the server does not do what they request, so that the test fails.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, SystemTime},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_api::{DevClockBody, DevClockView, JobPage, LeaseBody, Status, Timestamp};
use tokio::{sync::oneshot, time::timeout};

use crate::{
    attempt::Attempt,
    client::Client,
    error::BoxError,
    handler::{Ended, PermanentError, Produced, Report, called, perform, run},
    job::{Job, instant, seconds},
    lease::{Lease, Leases},
    transport::{Request, path},
    worker::Worker,
};

const START_TIME: Duration = Duration::from_secs(30);
const MAX_DRAINED: usize = 10_000;

/// A server for one test run, without tokens, on this machine alone. It ends with this value.
#[derive(Debug)]
pub struct DevServer {
    client: Client,
    process: Child,
    /// Removed after the end of the process.
    _data: TempDir,
}

/// One attempt that [`DevServer::drain`] ran.
#[derive(Clone, Debug)]
pub struct Run {
    /// The type of the job.
    pub job_type: String,
    /// Its id.
    pub id: String,
    /// The attempt, from 1.
    pub attempt: u16,
    /// What the job carries.
    pub data: Value,
    /// What was reported.
    pub status: Status,
    /// The result.
    pub result: Option<Value>,
    /// Why it did not succeed.
    pub message: Option<String>,
}

impl DevServer {
    /// Starts a server on a free port. The program is that of `TIDEGATE_PROGRAM`, or `tidegate` in
    /// `PATH`.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub async fn start() -> Self {
        let program = env::var_os("TIDEGATE_PROGRAM").unwrap_or_else(|| "tidegate".into());
        Self::start_program(program).await
    }

    /// Starts a server with a program.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub async fn start_program(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let data = tempfile::tempdir().expect("a temporary directory can be created");
        let mut command = Command::new(program);
        command.args(["dev", "--listen", "127.0.0.1:0", "--dir"]).arg(data.path().join("data"));
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEGATE_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let shown = program.to_string_lossy();
        let mut process =
            command.spawn().unwrap_or_else(|err| panic!("{shown} did not start: {err}"));
        let errors = process.stderr.take().expect("standard error is piped");
        let (found, address) = oneshot::channel();
        // It reads on to the end, so that the server never waits for its output to be read.
        thread::spawn(move || {
            let mut found = Some(found);
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                let address = line.split_whitespace().find(|word| word.starts_with("http://"));
                if let Some(address) = address
                    && let Some(found) = found.take()
                {
                    let _ = found.send(address.to_owned());
                }
            }
        });
        let address = timeout(START_TIME, address).await;
        let Ok(Ok(address)) = address else {
            let _ = process.kill();
            panic!("{shown} did not start");
        };
        let client = Client::builder().url(address).token("").build();
        Self { client: client.expect("the address is a URL"), process, _data: data }
    }

    /// Returns a client of the server.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns what the server's clock shows.
    pub async fn now(&self) -> SystemTime {
        self.clock(Request::get("/v1/dev/clock")).await
    }

    /// Stops the clock, and returns what it shows.
    pub async fn freeze(&self) -> SystemTime {
        self.change(DevClockBody { freeze: Some(true), ..DevClockBody::default() }).await
    }

    /// Lets the clock run on from what it shows.
    pub async fn unfreeze(&self) -> SystemTime {
        self.change(DevClockBody { freeze: Some(false), ..DevClockBody::default() }).await
    }

    /// Moves the clock forward. What is due then happens at once. Over several due times, move it
    /// step by step.
    pub async fn advance(&self, span: Duration) -> SystemTime {
        let advance_seconds = Some(seconds(span));
        self.change(DevClockBody { advance_seconds, ..DevClockBody::default() }).await
    }

    /// Moves the clock forward to an instant.
    pub async fn set_time(&self, now: SystemTime) -> SystemTime {
        self.change(DevClockBody { set: Some(instant(now)), ..DevClockBody::default() }).await
    }

    async fn change(&self, change: DevClockBody) -> SystemTime {
        self.clock(Request::post("/v1/dev/clock").json(&change)).await
    }

    async fn clock(&self, request: Request) -> SystemTime {
        let clock: DevClockView = self.read(request).await;
        let since = clock.now.since(Timestamp::EPOCH);
        SystemTime::UNIX_EPOCH + since
    }

    async fn read<T: DeserializeOwned>(&self, request: Request) -> T {
        let answer = self.client.request(request).await.and_then(|answer| answer.read());
        answer.unwrap_or_else(|err| panic!("{err}"))
    }

    /// Applies the configuration of a worker; see [`Worker::apply`].
    pub async fn apply(&self, worker: &Worker) {
        let config = worker.apply().await;
        config.unwrap_or_else(|err| panic!("the configuration is refused: {err}"));
    }

    /// Returns the jobs of a type with their data, oldest first.
    pub async fn jobs(&self, job_type: &str) -> Vec<Job> {
        let listed = self.client.jobs([("type", job_type)]).all().await;
        let mut jobs = Vec::new();
        for job in listed.unwrap_or_else(|err| panic!("{err}")).into_iter().rev() {
            // A list leaves out large data.
            jobs.push(job.refresh().await.unwrap_or_else(|err| panic!("{err}")));
        }
        jobs
    }

    /// Returns the jobs of a type that have the fields of an object, such as `data` and `priority`,
    /// oldest first. Of a field that is an object, what is wanted must be in the job's. Null
    /// matches all.
    ///
    /// # Panics
    ///
    /// There are not `count` of them; with none, not a single one.
    pub async fn assert_enqueued(
        &self,
        job_type: &str,
        count: Option<usize>,
        wanted: impl Serialize,
    ) -> Vec<Job> {
        let wanted = serde_json::to_value(wanted).expect("what is wanted is a JSON value");
        let (mut found, mut shown) = (Vec::new(), Vec::new());
        for job in self.jobs(job_type).await {
            let actual: Value = job.fields().unwrap_or_else(|err| panic!("{err}"));
            shown.push(format!("\n  {} {} {}", job.id(), job.phase(), actual["data"]));
            if wanted.is_null() || contains(&actual, &wanted) {
                found.push(job);
            }
        }
        let is_good = count.map_or(!found.is_empty(), |count| count == found.len());
        let wish = count.map_or("any".to_owned(), |count| count.to_string());
        let (number, shown) = (found.len(), shown.concat());
        assert!(
            is_good,
            "{number} jobs of type {job_type} match {wanted}, not {wish}; there are{shown}"
        );
        found
    }

    /// Runs the due jobs of a worker's handlers here, until none can start. A job that a handler
    /// enqueues is run, too, if it is due; a retry that is due later is not. Returns the attempts
    /// in the order in which they ran.
    ///
    /// # Panics
    ///
    /// A handler enqueues its own type without an end.
    pub async fn drain(&self, worker: &Worker) -> Vec<Run> {
        let mut runs = Vec::new();
        while runs.len() < MAX_DRAINED {
            let wait = Duration::from_millis(if runs.is_empty() { 0 } else { 50 });
            let mut leases = self.lease(worker, wait).await;
            if leases.is_empty() && self.has_ready(worker).await {
                // A limit may be about to be freed. If not, it holds what is left.
                leases = self.lease(worker, Duration::from_secs(1)).await;
            }
            if leases.is_empty() {
                return runs;
            }
            for lease in leases {
                runs.push(self.run(worker, &lease).await);
            }
        }
        panic!("more than {MAX_DRAINED} attempts: a handler enqueues its own type");
    }

    async fn lease(&self, worker: &Worker, wait: Duration) -> Vec<Lease> {
        let body = LeaseBody {
            types: Some(worker.types().filter_map(|name| name.parse().ok()).collect()),
            max: Some(1),
            wait_seconds: Some(seconds(wait)),
            worker: Some("drain".to_owned()),
            ..LeaseBody::default()
        };
        let answer: Leases = self.read(Request::post("/v1/leases").json(&body).wait(wait)).await;
        answer.leases
    }

    async fn has_ready(&self, worker: &Worker) -> bool {
        for name in worker.types() {
            let request = Request::get("/v1/jobs").query("type", name).query("phase", "ready");
            let page: JobPage<'static> = self.read(request.query("limit", "1")).await;
            if !page.jobs.is_empty() {
                return true;
            }
        }
        false
    }

    async fn run(&self, worker: &Worker, lease: &Lease) -> Run {
        let (job, _) = lease.attempt().unwrap_or_else(|err| panic!("{err}"));
        let handler = worker.handler(job.job_type()).expect("its types were leased");
        let report = match perform(&handler.run, &job, job.clone()).await {
            Ended::Reported(report) => report,
            Ended::Later | Ended::Lost => Report::permanent("only a push reports later"),
        };
        let report = report.complete(&job);
        let request = Request::post(path(&["jobs", job.job_type(), job.id()]))
            .json(&report.body(None))
            .bearer(&lease.token)
            .repeatable(true);
        let _: Value = self.read(request).await;
        let value = |text: &str| serde_json::from_str(text).unwrap_or_default();
        Run {
            job_type: job.job_type().to_owned(),
            id: job.id().to_owned(),
            attempt: job.number(),
            data: value(job.data().get()),
            status: report.status,
            result: report.result.as_ref().map(|raw| value(raw.get())),
            message: report.message,
        }
    }
}

impl Drop for DevServer {
    fn drop(&mut self) {
        // Its data is removed, so nothing is to be saved.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a handler's function without a server, as a worker would, and returns its result. Data and
/// result are encoded and decoded as on their way through the server, and requests within the
/// function carry the job's trace context. `job` has fields of the job, such as `attempt`,
/// `headers` and `checkpoint`.
///
/// ```
/// # use serde_json::json;
/// # use tidegate_client::{Attempt, BoxError, testing::run_in_place};
/// async fn remind(to: String, job: Attempt) -> Result<String, BoxError> {
///     Ok(format!("{to} {}", job.number()))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let result = run_in_place(remind, "ann", json!({"attempt": 2})).await;
/// assert_eq!(result.unwrap(), "ann 2");
/// # }
/// ```
///
/// # Errors
///
/// That of the function; [`PermanentError`] if the data or the result has not the form of its type.
pub async fn run_in_place<T, R, E, F, Fut>(
    function: F,
    data: impl Serialize,
    job: Value,
) -> Result<Value, BoxError>
where
    F: Fn(T, Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
    T: DeserializeOwned,
    R: Serialize,
    E: Into<BoxError>,
{
    let mut raw = json!({ "id": "test", "type": "test", "max_attempts": 3, "attempt": 1 });
    match job {
        Value::Null => {}
        Value::Object(job) => raw.as_object_mut().expect("it is an object").extend(job),
        _ => return Err("the fields of the job are not an object".into()),
    }
    raw["data"] = serde_json::to_value(data)?;
    let attempt: u16 = serde_json::from_value(raw["attempt"].clone())?;
    let job = Attempt::of(serde_json::from_str(&raw.to_string())?, attempt);
    match called(&run(function), &job, job.clone()).await {
        Produced::Result(result) => Ok(serde_json::from_str(result.get())?),
        Produced::Unusable(what, err) => Err(PermanentError::new(format!("{what}: {err}")).into()),
        Produced::Failed(err, _) => Err(err),
    }
}

/// Whether `wanted` is within `actual`.
fn contains(actual: &Value, wanted: &Value) -> bool {
    match wanted {
        Value::Object(fields) => {
            fields.iter().all(|(name, value)| actual.get(name).is_some_and(|a| contains(a, value)))
        }
        value => actual == value,
    }
}
