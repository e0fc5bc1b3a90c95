//! The applications in Rust against a server whose clock the tests move: `TIDEGATE_PROGRAM`, or the
//! program that Cargo has built next to this one.

#[allow(dead_code, reason = "the tests of a program's start run the program")]
#[path = "mailer/mailer.rs"]
mod mailer;
#[allow(dead_code, reason = "the tests of a program's start run the program")]
#[path = "reports/reports.rs"]
mod reports;
#[allow(dead_code, reason = "the tests of a program's start run the program")]
#[path = "tenants/tenants.rs"]
mod tenants;

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use axum::http::StatusCode;
use mailer::Mail;
use serde_json::Value;
use tenants::{File, IMPORT};
use tidegate_client::{ErrorKind, Request, StreamOptions, api::Status, testing::DevServer};
use tokio::time::{interval, timeout};

async fn server() -> DevServer {
    let program = env::var_os("TIDEGATE_PROGRAM").unwrap_or_else(|| {
        let test = env::current_exe().expect("the test has a path");
        test.parent().expect("it is in a folder").with_file_name("tidegate").into()
    });
    DevServer::start_program(OsString::from(&program)).await
}

/// A provider that refuses two addresses. Returns its URL, and what it was sent.
async fn provider() -> (String, Arc<Mutex<Vec<String>>>) {
    let sent: Arc<Mutex<Vec<String>>> = Arc::default();
    let of_provider = Arc::clone(&sent);
    let send = async move |body: String| {
        let mail: Mail = serde_json::from_str(&body).expect("a mail");
        let mut sent = of_provider.lock().expect("no panic");
        match mail.to.as_str() {
            "unknown@example.com" => StatusCode::UNPROCESSABLE_ENTITY,
            "away@example.com" if sent.is_empty() => StatusCode::SERVICE_UNAVAILABLE,
            _ => {
                sent.push(mail.to);
                StatusCode::OK
            }
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let app = axum::Router::new().route("/", axum::routing::post(send));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, sent)
}

fn mail_to(address: &str) -> Mail {
    Mail { to: address.into(), subject: "Your order".into(), text: "Thank you!".into() }
}

/// An hour of 2 January 2040.
fn at(hour: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(2_209_075_200 + hour * 3600)
}

/// A program of this package that was started, which ends with this value.
struct Program(Child);

impl Program {
    fn start(path: &str, server: &DevServer, arguments: &[&str]) -> Self {
        let mut command = Command::new(path);
        command.args(arguments).env("TIDEGATE_URL", server.client().url());
        Self(command.env("TIDEGATE_TOKEN", "").spawn().expect("the program starts"))
    }

    fn terminate(&self) {
        let mut kill = Command::new("kill");
        let sent = kill.args(["-TERM", &self.0.id().to_string()]).status();
        assert!(sent.expect("kill is there").success());
    }

    async fn end(mut self) -> ExitStatus {
        eventually("the program ends", async || self.0.try_wait().expect("the program is a child"))
            .await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `look` returns at last. `what` names what was awaited if it returns nothing for a minute.
async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut looks = interval(Duration::from_millis(50));
    let found = async {
        loop {
            looks.tick().await;
            if let Some(found) = look().await {
                return found;
            }
        }
    };
    timeout(Duration::from_mins(1), found)
        .await
        .unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

/// Returns when a worker runs.
async fn worker_listed(server: &DevServer) {
    eventually("a worker is there", async || {
        let workers = server.client().request(Request::get("/v1/workers")).await;
        let workers: Value = workers.and_then(|answer| answer.read()).expect("the list of workers");
        workers["workers"][0].is_object().then_some(())
    })
    .await;
}

#[test]
fn every_application_has_less_than_60_lines() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    for name in ["mailer", "reports", "tenants"] {
        for entry in fs::read_dir(folder.join(name)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_program = [".go", ".py", ".rs", ".ts"].iter().any(|end| name.ends_with(end));
            if is_program && !name.contains("test") {
                let lines = fs::read_to_string(&path).unwrap().lines().count();
                assert!(lines < 60, "{} has {lines} lines", path.display());
                found += 1;
            }
        }
    }
    assert_eq!(found, 6);
}

#[tokio::test]
async fn the_mailer_works_until_sigterm() {
    let (server, (url, sent)) = (server().await, provider().await);
    let program = Program::start(env!("CARGO_BIN_EXE_mailer"), &server, &[&url]);
    worker_listed(&server).await;
    let job = server.client().enqueue("receipt", &mail_to("ann@example.com")).await.unwrap();
    job.result::<Value>(Duration::from_mins(1)).await.unwrap();
    assert_eq!(*sent.lock().unwrap(), ["ann@example.com"]);
    program.terminate();
    assert!(program.end().await.success());
}

#[tokio::test]
async fn the_reports_are_enqueued_and_worked_off() {
    let server = server().await;
    let path = env!("CARGO_BIN_EXE_reports");
    assert!(Program::start(path, &server, &["june"]).end().await.success());
    let program = Program::start(path, &server, &[]);
    let client = server.client();
    let wait = Duration::from_mins(1);
    let states: BTreeMap<String, u32> =
        eventually("the summary is enqueued and ends", async || {
            match client.result("summary", "june", wait).await {
                Err(err) if err.kind() == ErrorKind::NotFound => None,
                states => Some(states.unwrap()),
            }
        })
        .await;
    assert_eq!(states, [("succeeded".to_owned(), 500)].into());
    program.terminate();
    assert!(program.end().await.success());
}

#[tokio::test]
async fn the_importer_enqueues_and_works_until_sigterm() {
    let server = server().await;
    let path = env!("CARGO_BIN_EXE_tenants");
    let program = Program::start(path, &server, &[]);
    worker_listed(&server).await;
    assert!(Program::start(path, &server, &["small", "one"]).end().await.success());
    let job = server.jobs("import").await.remove(0);
    let result: Value = job.result(Duration::from_mins(1)).await.unwrap();
    assert_eq!(result["rows"], 3);
    program.terminate();
    assert!(program.end().await.success());
}

#[tokio::test]
async fn mails_keep_the_rate_and_the_window() {
    let (server, (url, sent)) = (server().await, provider().await);
    let worker = mailer::mailer(server.client().clone(), &url).unwrap();
    server.freeze().await;
    server.set_time(at(3)).await;
    server.apply(&worker).await;
    for number in 0..8 {
        let mail = mail_to(&format!("{number}@example.com"));
        server.client().enqueue("receipt", &mail).await.unwrap();
    }
    server.client().enqueue("newsletter", &mail_to("reader@example.com")).await.unwrap();
    assert_eq!(server.drain(&worker).await.len(), 5); // five a second
    server.advance(Duration::from_secs(1)).await;
    assert_eq!(server.drain(&worker).await.len(), 3); // at night no newsletter
    server.set_time(at(7)).await;
    let runs = server.drain(&worker).await;
    assert_eq!(runs.iter().map(|run| run.job_type.as_str()).collect::<Vec<_>>(), ["newsletter"]);
    assert_eq!(sent.lock().unwrap().len(), 9);
}

#[tokio::test]
async fn a_wrong_address_fails_and_an_outage_waits() {
    let (server, (url, sent)) = (server().await, provider().await);
    let worker = mailer::mailer(server.client().clone(), &url).unwrap();
    server.freeze().await;
    server.apply(&worker).await;
    for name in ["unknown", "away"] {
        let mail = mail_to(&format!("{name}@example.com"));
        server.client().enqueue("receipt", &mail).id(name).await.unwrap();
    }
    let runs = server.drain(&worker).await;
    let statuses: BTreeMap<&str, Status> =
        runs.iter().map(|run| (run.id.as_str(), run.status)).collect();
    assert_eq!(statuses, [("unknown", Status::Failed), ("away", Status::Snoozed)].into());
    assert_eq!(server.client().job("unknown").await.unwrap().state(), "failed");
    sent.lock().unwrap().push("another one".to_owned());
    server.advance(Duration::from_mins(1)).await;
    let runs = server.drain(&worker).await;
    assert_eq!(runs.iter().map(|run| run.status).collect::<Vec<_>>(), [Status::Succeeded]);
}

#[tokio::test]
async fn five_hundred_reports_end_with_one_summary() {
    let server = server().await;
    let client = server.client();
    let worker = reports::reports(client).unwrap();
    server.apply(&worker).await;
    let job_type = Some(reports::SUMMARY.name().to_owned());
    let mut changes = client.stream(StreamOptions { job_type, ..StreamOptions::default() });
    assert_eq!(changes.next().await.unwrap().name, "ready");
    let stop = worker.stop_token();
    let running = tokio::spawn(async move { worker.run().await });
    for _ in 0..2 {
        reports::start(client, "may").await.unwrap();
    }
    while changes.next().await.unwrap().name != "job" {}
    let wait = Duration::from_mins(1);
    let states: BTreeMap<String, u32> = client.result("summary", "may", wait).await.unwrap();
    assert_eq!(states, [("succeeded".to_owned(), 500)].into());
    stop.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(server.jobs("summary").await.len(), 1);
}

#[tokio::test]
async fn a_small_tenant_does_not_wait_for_a_large_one() {
    let server = server().await;
    let worker = tenants::importer(server.client().clone()).unwrap();
    server.apply(&worker).await;
    let of_large = |number: u32| File { tenant: "large".into(), name: number.to_string() };
    let files = (0..100).map(|number| IMPORT.job(&of_large(number)));
    server.client().enqueue_many(files, None).await.unwrap();
    let small = File { tenant: "small".into(), name: "one".into() };
    tenants::enqueue(server.client(), &small).await.unwrap();
    let runs = server.drain(&worker).await;
    assert_eq!(runs.len(), 101);
    let place = runs.iter().position(|run| run.data["tenant"] == "small");
    assert!(place.is_some_and(|place| place < 2), "it is number {place:?}");
}
