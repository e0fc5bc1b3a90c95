//! The applications in Rust against a server whose clock the tests move: `TIDEGATE_PROGRAM`, or the
//! program that Cargo has built next to this one.

#[allow(dead_code, reason = "a test calls the parts of a program, and not its start")]
#[path = "mailer/mailer.rs"]
mod mailer;
#[allow(dead_code, reason = "a test calls the parts of a program, and not its start")]
#[path = "reports/reports.rs"]
mod reports;
#[allow(dead_code, reason = "a test calls the parts of a program, and not its start")]
#[path = "tenants/tenants.rs"]
mod tenants;

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use axum::http::StatusCode;
use mailer::Mail;
use tenants::{File, IMPORT};
use tidegate_client::{StreamOptions, api::Status, testing::DevServer};

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
