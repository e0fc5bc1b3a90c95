//! `tidegate move`: from a directory to Postgres and back, with what was under way.

use std::{path::Path, process::Output};

use serde_json::{Value, json};
use tidegate_backends::{postgres::test_server, sqlite::database};

use super::serve::{Setup, Tidegate, program, text};

/// A database that no command uses, because both places are named.
const UNUSED: &str = "postgres://db.example/unused";

/// Runs `tidegate move` with the database and the key in its environment.
async fn run(store: &str, key: &Path, args: &[&str]) -> Output {
    let mut command = program([&["move"], args].concat());
    command.env("TIDEGATE_STORE", store).env("TIDEGATE_ENCRYPTION_KEY_FILE", key);
    tokio::process::Command::from(command).kill_on_drop(true).output().await.unwrap()
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// What a server has, as callers see it.
async fn seen(tide: &Tidegate) -> Value {
    let jobs = tide.get("/v1/jobs?limit=100").await.is(200);
    let types = tide.get("/v1/job-types").await.is(200);
    let schedules = tide.get("/v1/schedules").await.is(200);
    json!({"jobs": jobs["jobs"], "types": types, "schedules": schedules})
}

/// A server on a directory, with jobs in several states.
async fn filled() -> Tidegate {
    let tide = Setup::new().start().await;
    tide.queue("mail", json!({"concurrency": 2})).await;
    tide.job_type("letter", json!({"queue": "mail"})).await;
    let target = json!({"url": "http://127.0.0.1:9/", "headers": {"x-key": "secret"}});
    tide.queue("held", json!({})).await;
    tide.job_type("push", json!({"queue": "held", "target": target})).await;
    tide.post("/v1/queues/held/pause", Value::Null).await.is(200);
    tide.put("/v1/schedules/yearly", json!({"type": "push", "cron": "0 0 1 1 *"})).await.good();
    tide.enqueue_a("push").await;
    for n in 0..30 {
        tide.enqueue(json!({"type": "letter", "id": format!("letter-{n:02}"), "data": n})).await;
    }
    tide.enqueue(json!({"type": "letter", "data": "x".repeat(200_000)})).await;
    let done = tide.lease_one("letter").await;
    tide.report(&done, "succeeded").await.good();
    tide
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_moves_to_postgres_and_back() {
    let store = format!("{}&schema={}", test_server::address("postgres"), test_server::new_name());
    let tide = filled().await;
    let lease = tide.lease_one("letter").await;
    let before = seen(&tide).await;
    let data = tide.data();
    let key = data.join("key");
    let served = refused(&run(&store, &key, &["--from", text(&data)]).await);
    assert!(served.contains("is held by"), "{served}");
    let on_directory = tide.stop().await;

    let output = run(&store, &key, &["--from", text(&data), "--json"]).await;
    let answer: Value = serde_json::from_str(&succeeded(&output)).unwrap();
    assert_eq!(answer["equal"], true, "{answer}");
    let jobs = answer["parts"].as_array().unwrap().iter().find(|part| part["part"] == "jobs");
    let (jobs, count) = (jobs.unwrap(), before["jobs"].as_array().unwrap().len());
    assert_eq!((&jobs["copied"], &jobs["target"]), (&json!(count), &json!(count)));
    let (_, said) = on_directory.refused().await;
    assert!(said.contains("it was moved to postgres://"), "{said}");

    let on_postgres = || {
        let setup = Setup::new().env("TIDEGATE_STORE", &store);
        setup.env("TIDEGATE_ENCRYPTION_KEY_FILE", text(&key))
    };
    let tide = on_postgres().start().await;
    assert_eq!(seen(&tide).await, before);
    tide.report(&lease, "succeeded").await.good();
    assert_eq!(tide.job(&lease.id).await["state"], "succeeded", "its attempt went on");
    let back = on_directory.data().with_extension("back");
    let served = refused(&run(&store, &key, &["--to", text(&back)]).await);
    assert!(served.contains("a server runs on postgres://"), "{served}");
    let before = seen(&tide).await;
    tide.stop().await;

    let table = succeeded(&run(&store, &key, &["--to", text(&back)]).await);
    assert!(table.contains("jobs") && table.contains("items: type"), "{table}");
    let compared = succeeded(&run(&store, &key, &["--to", text(&back), "--check"]).await);
    assert!(compared.contains("jobs"), "{compared}");
    let (_, said) = on_postgres().refused().await;
    assert!(said.contains("it was moved to"), "{said}");
    std::fs::copy(&key, back.join("key")).unwrap();
    let tide = Setup::new().flag("--data", text(&back)).start().await;
    assert_eq!(seen(&tide).await, before);
    // Of 31 letters, two have succeeded.
    let mut sizes = Vec::new();
    while sizes.len() < 29 {
        for lease in tide.lease(json!({"types": ["letter"], "wait_seconds": 20})).await {
            sizes.push(lease.whole["job"]["data"].to_string().len());
            tide.report(&lease, "succeeded").await.good();
        }
    }
    assert_eq!(
        sizes.iter().filter(|size| **size > 200_000).count(),
        1,
        "the large body: {sizes:?}"
    );
    tide.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_without_the_key_of_the_source_is_refused() {
    let store = format!("{}&schema={}", test_server::address("postgres"), test_server::new_name());
    let tide = filled().await;
    let data = tide.data();
    let setup = tide.stop().await;
    let other = data.with_extension("key");
    std::fs::write(&other, "bmV3IGtleSBvZiB0aGlydHktdHdvIGJ5dGVzLCB5ZXM=").unwrap();
    let said = refused(&run(&store, &other, &["--from", text(&data)]).await);
    assert!(said.contains("type push") && said.contains("encryption_key_command"), "{said}");
    let to = data.with_extension("to");
    let said = refused(&run(UNUSED, &other, &["--from", text(&data), "--to", text(&to)]).await);
    assert!(said.contains("type push") && said.contains("encryption_key_command"), "{said}");
    assert!(said.contains(text(&to.join("key"))), "{said}");
    setup.start().await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_that_is_given_up_leaves_the_source_in_use() {
    let store = format!("{}&schema={}", test_server::address("postgres"), test_server::new_name());
    let tide = filled().await;
    let (data, before) = (tide.data(), seen(&tide).await);
    let setup = tide.stop().await;
    let key = data.join("key");
    succeeded(&run(&store, &key, &["--from", text(&data)]).await);
    let said = succeeded(&run(&store, &key, &["--from", text(&data), "--abort"]).await);
    assert!(said.contains("may use"), "{said}");
    let tide = setup.start().await;
    assert_eq!(seen(&tide).await, before);
    let _setup = tide.stop().await;
    let again = refused(&run(&store, &key, &["--from", text(&data)]).await);
    assert!(again.contains("is not empty"), "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_is_named_by_a_move() {
    let tide = filled().await;
    let data = tide.data();
    let _setup = tide.stop().await;
    let db = rusqlite::Connection::open(database(&data)).unwrap();
    let first = "WHERE n = (SELECT min(n) FROM records WHERE kind = 'audit')";
    let read = format!("SELECT name FROM records {first}");
    let name: String = db.query_row(&read, [], |row| row.get(0)).unwrap();
    let damage = format!("UPDATE records SET bytes = x'00' {first}");
    assert_eq!(db.execute(&damage, []).unwrap(), 1);
    drop(db);
    let (to, key) = (data.with_extension("to"), data.join("key"));
    let args = ["--from", text(&data), "--to", text(&to)];
    let output = run(UNUSED, &key, &args).await;
    let table = succeeded(&output);
    let line = format!("records: audit: {name} is damaged in the source, and left out");
    assert!(table.contains("DAMAGED") && table.contains(&line), "{table}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("that are not in") && said.contains(": 1"), "{said}");
    let args = [&args[..], &["--check", "--json"]].concat();
    let compared: Value =
        serde_json::from_str(&succeeded(&run(UNUSED, &key, &args).await)).unwrap();
    assert_eq!((&compared["equal"], &compared["damaged"]), (&json!(true), &json!(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_without_data_is_refused_and_stays_as_it_is() {
    let address = test_server::address("postgres");
    let schema = test_server::new_name();
    let store = format!("{address}&schema={schema}");
    let tide = filled().await;
    let data = tide.data();
    let _setup = tide.stop().await;
    let other = data.with_extension("other");
    let key = data.join("key");
    for args in [&["--from", text(&data), "--check"][..], &["--to", text(&other)]] {
        let output = run(&store, &key, args).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("has no data"), "{said}");
    }
    assert!(!other.exists());
    let config: tokio_postgres::Config = address.parse().unwrap();
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let made = client
        .query("SELECT FROM pg_namespace WHERE nspname = $1::text", &[&schema])
        .await
        .unwrap();
    assert!(made.is_empty(), "the schema was made");
}
