//! The client against a real server: `TIDEGATE_PROGRAM`, or the one that Cargo has built next to
//! this test.

use std::{env, ffi::OsString, sync::Arc, time::Duration};

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_client::{
    AbortReason, Attempt, BoxError, Client, Error, ErrorKind, FOREVER, Handler, JobType, Push,
    PushJob, Worker, WorkerOptions, api,
    testing::{DevServer, run_in_place},
};
use tower::ServiceExt as _;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Letter {
    to: String,
    pages: u32,
}

const LETTER: JobType<Letter> = JobType::new("letter");

async fn server() -> DevServer {
    let program = env::var_os("TIDEGATE_PROGRAM").unwrap_or_else(|| {
        let test = env::current_exe().expect("the test has a path");
        test.parent().expect("it is in a folder").with_file_name("tidegate").into()
    });
    DevServer::start_program(OsString::from(&program)).await
}

async fn print(letter: Letter, job: Attempt) -> Result<Letter, BoxError> {
    job.log(api::LogLevel::Debug, "printed", json!({ "pages": letter.pages }));
    Ok(Letter { pages: letter.pages * 2, ..letter })
}

#[tokio::test]
async fn a_worker_runs_typed_jobs() {
    let server = server().await;
    let client = server.client();
    let options = WorkerOptions::default().wait(Duration::from_secs(5));
    let mut worker = Worker::with(client.clone(), options);
    worker.config.queue("mail", json!({ "concurrency": 3 })).unwrap();
    worker.handle(Handler::new(LETTER.name(), print).concurrency(3).queue("mail")).unwrap();
    let plan = client.plan(&worker.config, true).await.unwrap();
    assert_eq!(
        plan.to_string(),
        "+ queue mail\n    concurrency: 3\n+ job type letter\n    queue: \"mail\""
    );
    server.apply(&worker).await;
    let stop = worker.stop_token();
    let running = tokio::spawn(async move { worker.run().await });
    let job = LETTER.enqueue(client, &Letter { to: "ann".into(), pages: 2 }).await.unwrap();
    let result: Letter = job.result(FOREVER).await.unwrap();
    assert_eq!((result.pages, job.queue()), (4, "mail"));
    let wrong = client.enqueue("letter", &json!({ "to": 7 })).await.unwrap();
    let failed = wrong.result::<Value>(FOREVER).await.unwrap_err();
    assert_eq!((failed.kind(), failed.job_state()), (ErrorKind::JobFailed, Some("failed")));
    assert!(failed.job_message().unwrap().starts_with("the data cannot be read: "), "{failed}");
    assert_eq!(wrong.refresh().await.unwrap().attempt(), 1);
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_view_of_a_job_has_all_fields() {
    let server = server().await;
    let mut worker = Worker::new(server.client().clone());
    worker.handle(Handler::new(LETTER.name(), print)).unwrap();
    server.apply(&worker).await;
    let letter = Letter { to: "ann".into(), pages: 1 };
    let enqueue = LETTER.enqueue(server.client(), &letter).id("one").priority(7);
    let job = enqueue.attribute("tenant", "shop").attribute("size", 3).await.unwrap();
    let view = job.view().unwrap();
    assert_eq!((view.priority, view.attributes.len()), (7, 2));
    assert_eq!(job.data::<Letter>().unwrap(), letter);
    assert!(
        !LETTER
            .enqueue(server.client(), &letter)
            .id("one")
            .priority(7)
            .await
            .is_ok_and(|job| job.is_new())
    );
    let missing = server.client().job("none").await.unwrap_err();
    assert_eq!((missing.kind(), missing.code()), (ErrorKind::NotFound, "job_not_found"));
}

#[tokio::test]
async fn a_panic_is_a_failure_that_the_job_shows() {
    async fn fails(_: Value, _: Attempt) -> Result<(), BoxError> {
        panic!("no paper")
    }
    let server = server().await;
    let mut worker = Worker::new(server.client().clone());
    worker.handle(Handler::new("panics", fails).config(json!({ "max_attempts": 1 }))).unwrap();
    server.apply(&worker).await;
    let job = server.client().enqueue("panics", &()).await.unwrap();
    let runs = server.drain(&worker).await;
    assert_eq!(runs.len(), 1);
    assert_eq!(
        (runs[0].status, runs[0].message.as_deref()),
        (api::Status::Failed, Some("panic: no paper"))
    );
    assert_eq!(job.refresh().await.unwrap().state(), "failed");
}

#[tokio::test]
async fn a_handler_in_place_gets_and_returns_json() {
    async fn handle(letter: Letter, job: Attempt) -> Result<(String, u16, Option<String>), Error> {
        Ok((letter.to, job.number(), tidegate_client::traceparent()))
    }
    let letter = Letter { to: "ann".into(), pages: 1 };
    let job = json!({ "attempt": 2, "headers": { "traceparent": "00-1-2-01" } });
    let result = run_in_place(handle, &letter, job).await.unwrap();
    assert_eq!(result, json!(["ann", 2, "00-1-2-01"]));
    let refused = run_in_place(handle, "ann", json!({})).await.unwrap_err();
    assert!(refused.to_string().starts_with("the data cannot be read: "), "{refused}");
    let fails = async |(): (), _: Attempt| Err::<(), _>(Error::Refused("no".to_owned()));
    let failed = run_in_place(fails, (), Value::Null).await.unwrap_err();
    assert!(failed.downcast_ref::<Error>().is_some(), "{failed}");
    let first = run_in_place(handle, &letter, Value::Null).await.unwrap();
    assert_eq!(first, json!(["ann", 1, null]));
    for wrong in [json!([]), json!({ "attempt": 70_000 })] {
        run_in_place(handle, &letter, wrong).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_worker_with_a_mistake_does_not_start() {
    let client = Client::builder().url("http://127.0.0.1:9").build().unwrap();
    let mut worker = Worker::new(client);
    let none = worker.run().await.unwrap_err();
    assert!(none.to_string().contains("no handler"), "{none}");
    worker.handle(Handler::new("letter", print)).unwrap();
    for (handler, text) in [
        (Handler::new("letter", print), "has a handler already"),
        (Handler::new(Vec::<String>::new(), print), "at least one job type"),
        (Handler::new(["b", "b"], print), "the job type b has a handler already"),
        (Handler::new("a", print).concurrency(0), "concurrency must be"),
        (Handler::new("a", print).concurrency(1001), "concurrency must be"),
        (Handler::new("a", print).concurrency(4).min(5), "min must be"),
        (Handler::new("a", print).config("text"), "not an object"),
    ] {
        let refused = worker.handle(handler).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
        assert!(refused.to_string().contains(text), "{refused}");
    }
}

#[tokio::test]
async fn a_worker_that_stops_aborts_after_its_grace() {
    let (began, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let waits = move |_: Value, job: Attempt| {
        let began = began.clone();
        async move {
            began.send(())?;
            job.sleep(Duration::from_hours(1)).await?;
            Ok::<_, BoxError>(())
        }
    };
    let server = server().await;
    let options = WorkerOptions::default().grace(Duration::from_millis(10));
    let mut worker = Worker::with(server.client().clone(), options);
    worker.handle(Handler::new("waits", waits).config(json!({ "max_attempts": 1 }))).unwrap();
    server.apply(&worker).await;
    let stop = worker.stop_token();
    let running = tokio::spawn(async move { worker.run().await });
    let job = server.client().enqueue("waits", &()).await.unwrap();
    begun.recv().await.unwrap();
    stop.cancel();
    running.await.unwrap().unwrap();
    let failed = job.result::<Value>(FOREVER).await.unwrap_err();
    assert_eq!(failed.job_message(), Some("its worker stopped before it ended"));
    assert_eq!(AbortReason::Stopping.as_str(), "stopping");
}

#[tokio::test]
async fn pushes_are_answered_below_a_path_of_axum() {
    let push = Push::unsigned()
        .handle("resize", |width: u32, _: PushJob| async move { Ok::<_, BoxError>(width / 2) });
    let app = axum::Router::new().nest("/jobs", Arc::new(push).router());
    let body = json!({
        "id": "1", "type": "resize", "attempt": 1, "max_attempts": 3, "data": 8, "attributes": {},
        "callback": { "url": "http://127.0.0.1:9/v1/jobs/resize/1", "token": "t" },
    });
    for path in ["/jobs", "/jobs/resize/1"] {
        let request = http::Request::post(path).body(axum::body::Body::from(body.to_string()));
        let answer = app.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert_eq!(axum::body::to_bytes(answer.into_body(), 10).await.unwrap(), "4");
    }
}
