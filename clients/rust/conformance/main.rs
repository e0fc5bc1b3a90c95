//! The agent of the conformance kit: it does with this client what the driver requests. See
//! `clients/conformance/README.md` for the requests. With the argument `bench` it compares requests
//! per second instead.

// An agent is a program of its own, and none of the server's ports are there.
#![allow(clippy::disallowed_methods, reason = "an agent waits as the driver requests")]

mod behaviour;
mod bench;

use std::{
    collections::BTreeMap,
    io::{BufRead as _, Write as _},
    process::ExitCode,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, SystemTime},
};

use behaviour::behave;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_client::{
    Attempt, BoxError, Callback, CancellationToken, Client, Config, Error, ErrorKind, Handler, Job,
    Later, Method, NewEvent, NewJob, Plan, Push, PushJob, Request, StreamOptions, Worker,
    WorkerOptions,
    api::Status,
    testing::{DevServer, run_in_place},
    verify,
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle, time::sleep};

/// One request of the driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    id: u64,
    op: String,
    r#type: String,
    job: String,
    data: Value,
    options: Options,
    key: Option<String>,
    jobs: Vec<BatchJob>,
    repeat: usize,
    bytes: usize,
    wait: f64,
    state: Option<String>,
    source: String,
    event: Option<String>,
    names: usize,
    secrets: Value,
    config: BTreeMap<String, BTreeMap<String, Value>>,
    types: Vec<String>,
    concurrency: Option<usize>,
    min: Option<usize>,
    auto: bool,
    name: Option<String>,
    seconds: f64,
    grace: Option<f64>,
    headers: BTreeMap<String, String>,
    body: String,
    background: bool,
    later: bool,
    port: u16,
    result: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct BatchJob {
    r#type: String,
    data: Value,
    options: Options,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Options {
    id: Option<String>,
    delay_seconds: Option<f64>,
    priority: Value,
    max_attempts: Option<u16>,
    attributes: BTreeMap<String, Value>,
    headers: BTreeMap<String, String>,
}

impl Options {
    fn of(self, mut job: NewJob) -> NewJob {
        if let Some(id) = self.id {
            job = job.id(id);
        }
        if let Some(delay) = self.delay_seconds {
            job = job.delay(Duration::from_secs_f64(delay));
        }
        if let Some(priority) = self.priority.as_i64() {
            job = job.priority(priority as i32);
        }
        if let Some(attempts) = self.max_attempts {
            job = job.max_attempts(attempts);
        }
        for (name, value) in self.attributes {
            job = job.attribute(name, value);
        }
        for (name, value) in self.headers {
            job = job.job_header(name, value);
        }
        job
    }
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The worker that was started: what stops it, and its end.
type Running = (CancellationToken, JoinHandle<Result<(), Error>>);

/// What the requests have in common.
struct Agent {
    client: Client,
    callbacks: Mutex<Vec<Callback>>,
    worker: Mutex<Option<Running>>,
    held: tokio::sync::Mutex<Option<Plan>>,
    servers: Mutex<Vec<oneshot::Sender<()>>>,
}

static AGENT: OnceLock<Agent> = OnceLock::new();

fn agent() -> &'static Agent {
    AGENT.get().expect("it is set when the agent starts")
}

fn span(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn job_of(job: &Job) -> Value {
    json!({
        "id": job.id(), "type": job.job_type(), "state": job.state(), "phase": job.phase(),
        "is_new": job.is_new(),
    })
}

fn shown(plan: &Plan) -> Value {
    let steps = plan.steps.iter().map(|step| {
        let fields: Vec<&String> = step.differences.iter().map(|one| &one.field).collect();
        json!({
            "action": step.action.as_str(), "kind": step.kind.as_str(), "name": step.name,
            "fields": fields,
        })
    });
    json!({ "text": plan.to_string(), "steps": steps.collect::<Vec<_>>() })
}

fn config_of(asked: &Asked) -> Result<Config, Error> {
    let mut config = Config::default();
    for (kind, resources) in &asked.config {
        for (name, settings) in resources {
            match kind.as_str() {
                "queues" => config.queue(name, settings)?,
                "job_types" => config.job_type(name, settings)?,
                "schedules" => config.schedule(name, settings)?,
                _ => config.trigger(name, settings)?,
            };
        }
    }
    Ok(config)
}

fn worker_of(asked: &Asked) -> Result<Worker, Error> {
    let mut options = WorkerOptions::default().wait(Duration::from_secs(10));
    if let Some(name) = &asked.name {
        options = options.name(name);
    }
    if let Some(grace) = asked.grace {
        options = options.grace(span(grace));
    }
    let mut worker = Worker::with(agent().client.clone(), options);
    let mut handler = Handler::new(&asked.types[..], behave)
        .concurrency(asked.concurrency.unwrap_or(1))
        .min(asked.min.unwrap_or(1));
    if asked.auto {
        handler = handler.auto();
    }
    worker.handle(handler)?;
    Ok(worker)
}

fn secrets_of(asked: &Asked) -> Vec<String> {
    match &asked.secrets {
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Value::String(text) => vec![text.clone()],
        _ => Vec::new(),
    }
}

async fn push_start(asked: Asked) -> Result<Value, BoxError> {
    let push = Push::new(secrets_of(&asked))?;
    let is_later = asked.later;
    let handle = move |data: behaviour::Task, job: PushJob| async move {
        if is_later {
            agent().callbacks.lock().expect("no panic").push(job.callback().clone());
            return Err(Later.into());
        }
        behave(data, Attempt::clone(&job)).await
    };
    let types = &asked.types[..];
    let push =
        if asked.background { push.background(types, handle) } else { push.handle(types, handle) };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let app = axum::Router::new().merge(Arc::new(push).router());
    let (stop, stopped) = oneshot::channel::<()>();
    agent().servers.lock().expect("no panic").push(stop);
    tokio::spawn(async move {
        tokio::select! {
            _ = axum::serve(listener, app) => {}
            _ = stopped => {}
        }
    });
    Ok(json!({ "port": port }))
}

fn verified(asked: &Asked) -> Result<Value, BoxError> {
    let mut headers = http::HeaderMap::new();
    for (name, value) in &asked.headers {
        headers.insert(http::HeaderName::try_from(name)?, value.parse()?);
    }
    let (body, now) = (asked.body.as_bytes(), SystemTime::now());
    match verify(&secrets_of(asked), &headers, body, now, Duration::from_mins(5)) {
        Err(err) if err.kind() == ErrorKind::Refused => Ok(json!(false)),
        verified => Ok(verified.map(|()| json!(true))?),
    }
}

async fn forged(port: u16) -> Result<Value, BoxError> {
    let client = Client::builder().url(format!("http://127.0.0.1:{port}")).build()?;
    let request = Request::post("/").json(&json!({ "id": "x", "type": "resize" }));
    Ok(json!(
        client.request(request).await.map_or_else(|err| err.status(), |answer| Some(answer.status))
    ))
}

async fn remind(to: String, job: Attempt) -> Result<String, BoxError> {
    if to == "bob" && job.number() == 1 {
        return Err("no answer".into());
    }
    Ok(format!("{to} {}", job.number()))
}

/// Uses the test kit as an application's test does.
async fn kit() -> Result<Value, BoxError> {
    let server = Arc::new(DevServer::start().await);
    let mut worker = Worker::new(server.client().clone());
    let retry = json!({ "strategy": "exponential", "config": { "base_seconds": 5 } });
    worker.handle(Handler::new("reminder", remind).config(json!({ "retry": retry })))?;
    let began = server.freeze().await;
    server.apply(&worker).await;
    let week = Duration::from_hours(7 * 24);
    for (to, priority) in [("ann", 7), ("bob", 0)] {
        server.client().enqueue("reminder", to).delay(week).priority(priority).await?;
    }
    let wanted = json!({ "data": "ann", "priority": 7 });
    let enqueued = server.assert_enqueued("reminder", Some(1), wanted).await.len();
    let other = Arc::clone(&server);
    let missing = tokio::spawn(async move {
        let wanted = json!({ "data": "ann", "priority": 6 });
        other.assert_enqueued("reminder", None, wanted).await;
    });
    let missing = match missing.await {
        Ok(()) => "nothing".to_owned(),
        Err(panic) => panic.into_panic().downcast_ref::<String>().cloned().unwrap_or_default(),
    };
    let statuses = async || -> Vec<Status> {
        server.drain(&worker).await.iter().map(|run| run.status).collect()
    };
    let before = statuses().await;
    let moved = server.advance(week).await.duration_since(began)?.as_secs();
    let mut after = statuses().await;
    after.sort_by_key(|status| std::cmp::Reverse(status.as_str()));
    server.advance(Duration::from_mins(1)).await;
    let retried = statuses().await;
    let in_place = run_in_place(remind, "ann", json!({ "attempt": 2 })).await?;
    let client = server.client().clone();
    let note = move |(): (), job: Attempt| {
        let client = client.clone();
        async move {
            client.enqueue("reminder", "eve").id("noted").delay(week).await?;
            let stored: Option<Value> = job.checkpoint()?;
            let page = stored.map(|stored| stored["page"].clone());
            Ok::<_, BoxError>(json!({ "attempt": job.number(), "page": page }))
        }
    };
    let headers = json!({ "traceparent": TRACE });
    let job = json!({ "attempt": 3, "headers": headers, "checkpoint": { "page": 4 } });
    let noted = run_in_place(note, (), job).await?;
    server.assert_enqueued("reminder", Some(1), json!({ "headers": headers })).await;
    Ok(json!({
        "enqueued": enqueued, "missing": missing, "before": before, "after": after,
        "retried": retried, "moved_seconds": moved, "in_place": in_place,
        "noted": noted,
    }))
}

/// How many jobs of a type there are, and the most attempts of one.
async fn count(asked: &Asked) -> Result<(usize, u16), Error> {
    let mut filters = vec![("type", asked.r#type.as_str()), ("limit", "1000")];
    filters.extend(asked.state.as_deref().map(|state| ("state", state)));
    let jobs = agent().client.jobs(filters).all().await?;
    Ok((jobs.len(), jobs.iter().map(Job::attempt).max().unwrap_or_default()))
}

async fn enqueue(asked: Asked) -> Result<Value, BoxError> {
    let client = &agent().client;
    if let Value::String(text) = &asked.options.priority {
        // The types of Rust do not let this through: send it by hand.
        let body = json!({ "type": asked.r#type, "data": null, "priority": text });
        client.request(Request::new(Method::POST, "/v1/jobs").json(&body)).await?;
        return Ok(Value::Null);
    }
    let mut enqueue = client.enqueue_job(asked.options.of(NewJob::new(asked.r#type, &asked.data)));
    if let Some(key) = asked.key {
        enqueue = enqueue.idempotency_key(key);
    }
    Ok(job_of(&enqueue.await?))
}

async fn enqueue_many(asked: Asked) -> Result<Value, BoxError> {
    let mut jobs: Vec<NewJob> = asked
        .jobs
        .into_iter()
        .map(|job| job.options.of(NewJob::new(job.r#type, &job.data)))
        .collect();
    let data = if asked.bytes > 0 { json!("x".repeat(asked.bytes)) } else { asked.data };
    jobs.extend(vec![NewJob::new(asked.r#type, &data); asked.repeat]);
    let outcomes = agent().client.enqueue_many(jobs, asked.key.as_deref()).await?;
    let shown = outcomes.iter().map(|outcome| match outcome {
        Ok(job) => job_of(job),
        Err(err) => json!({ "code": err.code() }),
    });
    Ok(shown.collect())
}

async fn perform(asked: Asked) -> Result<Value, BoxError> {
    let (agent, client) = (agent(), &agent().client);
    let (kind, id) = (asked.r#type.as_str(), asked.job.as_str());
    Ok(match asked.op.as_str() {
        "enqueue" => enqueue(asked).await?,
        "enqueue_many" => enqueue_many(asked).await?,
        "job" => job_of(&client.job(id).await?),
        "result" => client.result(kind, id, span(asked.wait)).await?,
        "cancel" => job_of(&client.cancel(kind, id, false).await?),
        "replay" => job_of(&client.replay(kind, id, json!({})).await?),
        "count" => json!(count(&asked).await?.0),
        "attempts" => json!({ "most": count(&asked).await?.1 }),
        "log" => json!(client.log(kind, id).await?),
        "send_event" => {
            let mut event = NewEvent::new(kind, &asked.source).data(asked.data);
            if let Some(id) = asked.event {
                event = event.id(id);
            }
            json!(client.send_event(event).await?)
        }
        "stream" => {
            let job_type = Some(kind.to_owned());
            let options = StreamOptions { job_type, ..StreamOptions::default() };
            let (mut stream, mut names) = (client.stream(options), Vec::new());
            while names.len() < asked.names {
                names.push(stream.next().await?.name);
            }
            json!(names)
        }
        "plan" => shown(&client.plan(&config_of(&asked)?, asked.secrets != false).await?),
        "apply" => shown(&client.apply(&config_of(&asked)?, asked.secrets != false).await?),
        "plan_hold" => {
            *agent.held.lock().await = Some(client.plan(&config_of(&asked)?, true).await?);
            Value::Null
        }
        "plan_apply" => {
            agent.held.lock().await.as_ref().ok_or("no plan is held")?.apply().await?;
            Value::Null
        }
        "worker_start" => {
            let worker = worker_of(&asked)?;
            let token = worker.stop_token();
            let running = tokio::spawn(async move { worker.run().await });
            *agent.worker.lock().expect("no panic") = Some((token, running));
            Value::Null
        }
        "worker_stop" | "worker_wait" => {
            let worker = agent.worker.lock().expect("no panic").take();
            let (token, running) = worker.ok_or("no worker was started")?;
            if asked.op == "worker_stop" {
                token.cancel();
            }
            running.await??;
            Value::Null
        }
        "runs" => behaviour::runs(),
        "runs_count" => json!(behaviour::runs().as_array().map_or(0, Vec::len)),
        "sleep" => {
            sleep(span(asked.seconds)).await;
            Value::Null
        }
        "verify" => verified(&asked)?,
        "push_start" => push_start(asked).await?,
        "push_stop" => {
            agent.servers.lock().expect("no panic").clear();
            Value::Null
        }
        "push_forged" => forged(asked.port).await?,
        "callbacks" => json!(*agent.callbacks.lock().expect("no panic")),
        "callback_succeed" => {
            let stored = json!(agent.callbacks.lock().expect("no panic").first());
            let callback: Callback = serde_json::from_value(stored)?;
            callback.succeed(&asked.result).await?;
            Value::Null
        }
        "kit" => kit().await?,
        op => return Err(format!("no such request: {op}").into()),
    })
}

fn kind_of(kind: ErrorKind) -> String {
    // InvalidRequest is invalid_request.
    let mut word = String::new();
    for letter in format!("{kind:?}").chars() {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.extend(letter.to_lowercase());
    }
    word
}

fn error_of(error: &BoxError) -> Value {
    let mut found = json!({ "kind": "", "text": error.to_string() });
    if let Some(error) = error.downcast_ref::<Error>() {
        found["kind"] = kind_of(error.kind()).into();
        found["code"] = error.code().into();
        found["status"] = error.status().into();
        found["field"] = error.field().into();
        found["state"] = error.job_state().into();
        found["reason"] = error.job_reason().into();
        found["message"] = error.job_message().into();
        found["retryable"] = error.is_retryable().into();
        found["retry_after"] = error.retry_after().map(|after| after.as_secs_f64()).into();
    }
    found
}

async fn answer(asked: Asked) {
    let id = asked.id;
    let reply = match perform(asked).await {
        Ok(value) => json!({ "id": id, "ok": value }),
        Err(error) => json!({ "id": id, "error": error_of(&error) }),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{reply}").and_then(|()| out.flush()).expect("the driver reads the answers");
}

/// Answers requests until the input ends, or until a worker that `worker_run` started has stopped.
async fn serve() -> Result<(), BoxError> {
    let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let asked: Asked = serde_json::from_str(&line).expect("the driver sends requests");
            if sender.send(asked).is_err() {
                return;
            }
        }
    });
    let (done, mut ended) = oneshot::channel();
    let mut done = Some(done);
    loop {
        tokio::select! {
            next = asked.recv() => match next {
                Some(next) if next.op == "worker_run" => {
                    let (worker, done) = (worker_of(&next)?, done.take());
                    tokio::spawn(async move {
                        let ended = worker.run().await;
                        done.map(|done| done.send(ended))
                    });
                }
                Some(next) => drop(tokio::spawn(answer(next))),
                None => return Ok(()),
            },
            result = &mut ended, if done.is_none() => return Ok(result??),
        }
    }
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("the runtime can be set up");
    let ended = runtime.block_on(async {
        let mut client = Client::builder();
        if let Ok(seconds) = std::env::var("CONFORMANCE_CLIENT_TIMEOUT") {
            client = client.timeout(span(seconds.parse()?));
        }
        let client = client.build()?;
        if std::env::args().nth(1).as_deref() == Some("bench") {
            return bench::compare(client).await;
        }
        let agent = Agent {
            client,
            callbacks: Mutex::default(),
            worker: Mutex::default(),
            held: tokio::sync::Mutex::default(),
            servers: Mutex::default(),
        };
        AGENT.set(agent).map_err(|_| "an agent starts once")?;
        serve().await
    });
    // A handler may run on, and must not keep the process.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
