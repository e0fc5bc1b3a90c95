//! `tidegate bench` as a program: small measures, whose figures a script can read.

use std::{
    os::unix::fs::PermissionsExt as _,
    process::{Command, Output, Stdio},
    sync::Arc,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tidegate_backends::{
    postgres::{PostgresStore, test_server},
    system::SystemClock,
};

/// The schemas of measurements.
const SCHEMAS: &str = "SELECT FROM pg_namespace WHERE nspname LIKE 'tidegate%'";

/// Runs `tidegate bench` with these arguments.
fn run(arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "--json", "--seconds", "0.3", "--dir"])
        .arg(dir.path())
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "what the servers wrote is gone");
    output
}

fn figures(arguments: &[&str]) -> Vec<Value> {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn figure<'a>(figures: &'a [Value], what: &str) -> &'a Value {
    let found = figures.iter().find(|figure| figure["what"].as_str().unwrap().starts_with(what));
    found.unwrap_or_else(|| panic!("{what} is none of {figures:?}"))
}

/// Runs small measurements on servers that share an empty database, which is empty afterwards.
fn figures_on_postgres(measures: &[&str]) -> Vec<Value> {
    let name = new_database();
    let store = test_server::address(&name);
    let small = ["--store", &store, "--drain", "300", "--clients", "7", "--waiting", "1000"];
    let figures = figures(&[&small[..], measures].concat());
    assert_eq!(query(&name, SCHEMAS), 0, "the schemas are gone");
    figures
}

/// A new database on the server that the tests share.
fn new_database() -> String {
    let name = test_server::new_name();
    query("postgres", &format!("CREATE DATABASE {name}"));
    name
}

/// The number of rows of `sql` in a database.
fn query(database: &str, sql: &str) -> usize {
    let config: tokio_postgres::Config = test_server::address(database).parse().unwrap();
    runtime().block_on(async {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.query(sql, &[]).await.unwrap().len()
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The goal of a figure, and the part of its baseline that is a goal.
fn goals(figure: &Value) -> (Option<f64>, Option<f64>) {
    assert!(figure["ours"].as_f64().unwrap() > 0.0, "{figure}");
    if let Some(baseline) = figure.get("baseline") {
        assert!(baseline["value"].as_f64().unwrap() > 0.0, "{figure}");
    }
    (figure["reach"].as_f64(), figure["baseline"]["reach"].as_f64())
}

#[test]
fn an_enqueue_is_compared_with_the_bare_handler() {
    let figures = figures(&["enqueue"]);
    assert_eq!(goals(figure(&figures, "enqueue, 64")), (Some(15_000.0), Some(0.5)));
}

#[test]
fn twenty_workers_do_not_get_past_a_limit_of_ten() {
    let figures = figures(&["limit"]);
    let most = figure(&figures, "most at once")["ours"].as_f64().unwrap();
    assert!((1.0..=10.0).contains(&most), "{most}");
}

#[test]
fn rickovers_method_drains_what_it_enqueued() {
    let figures = figures(&["--drain", "300", "--clients", "7"]);
    assert!(figure(&figures, "drain 300 with 7 workers")["ours"].as_f64().unwrap() > 0.0);
}

#[test]
fn events_are_compared_with_enqueues() {
    let figures = figures(&["events"]);
    let rate = figure(&figures, "events, batches of 1000");
    assert!(goals(rate).0.is_some() && rate["baseline"]["value"].as_f64().is_some(), "{rate}");
}

#[test]
#[ignore = "takes half a minute; cargo xtask check --full runs it"]
fn a_server_with_a_log_is_measured_at_three_delays() {
    let figures = figures(&["log", "--drain", "300"]);
    for (delay, most) in [(0, 15.0), (20, 35.0), (60, 75.0)] {
        let p50 = figure(&figures, &format!("enqueue with a log, {delay} ms, 16 connections: p50"));
        assert_eq!(goals(p50), (Some(most), None), "{delay} ms");
    }
    for (what, goal) in [
        ("enqueue with a log, 60 ms, 256 connections", 3000.0),
        ("enqueue with a log, 60 ms, 512 connections", 5000.0),
        ("batch of 1000 with a log, 60 ms", 10_000.0),
        ("drain 300 with a log, 60 ms", 5000.0),
    ] {
        assert_eq!(goals(figure(&figures, what)), (Some(goal), None), "{what}");
    }
}

#[test]
fn a_restore_of_a_log_is_measured_at_three_delays() {
    let figures = figures(&["restore", "--waiting", "2000"]);
    for delay in [0, 20, 60] {
        let took = figure(&figures, &format!("restore of 2000 jobs, {delay} ms"));
        assert_eq!(goals(took), (Some(60.0), None), "{delay} ms");
    }
}

#[test]
fn rates_on_postgres_are_compared_with_raw_postgres() {
    let figures = figures_on_postgres(&["enqueue", "batch", "drain", "rickover"]);
    for (what, goal, share) in [
        ("enqueue, 64", 10_000.0, Some(0.5)),
        ("batch of 1000", 40_000.0, Some(0.5)),
        ("drain 300", 15_000.0, Some(0.5)),
        ("drain 300 with 7 workers", 10_000.0, None),
    ] {
        assert_eq!(goals(figure(&figures, what)), (Some(goal), share), "{what}");
    }
}

#[test]
fn servers_on_postgres_are_measured_in_pairs() {
    let figures = figures_on_postgres(&["latency", "lateness"]);
    for (way, reach) in [
        ("worker over HTTP", 3.0),
        ("worker over HTTP at another server", 3.0),
        ("handler in the process", 3.0),
        ("worker at another server, by polling alone", 30.0),
        ("a transaction of an application, worker over HTTP", 30.0),
    ] {
        let p50 = figure(&figures, &format!("idle latency, {way}: p50"));
        assert_eq!(goals(p50), (Some(reach), None), "{way}");
    }
    let notified = figure(&figures, "idle latency, a transaction with a notice");
    assert_eq!(goals(notified), (None, None));
    assert_eq!(goals(figure(&figures, "lateness of 300 delayed jobs: p99")).0, Some(20.0));
}

#[test]
fn three_servers_on_postgres_keep_one_limit() {
    let figures = figures_on_postgres(&["limit", "loose-limit"]);
    let limited = figure(&figures, "limit 10, jobs of 10 ms, 10 workers of 3 servers");
    assert_eq!(goals(limited), (None, Some(0.9)));
    let most = figure(&figures, "most at once")["ours"].as_f64().unwrap();
    assert!((1.0..=10.0).contains(&most), "{most}");
    for servers in ["one server", "3 servers"] {
        let loose = figure(&figures, &format!("drain with a limit of 10000, {servers}"));
        assert_eq!(goals(loose), (None, Some(0.95)), "{servers}");
    }
    for what in ["limit 10, 10 workers of", "drain with a limit of 10000,"] {
        let racing = figure(&figures, &format!("{what} 3 servers that race"));
        assert_eq!(goals(racing), (None, None), "{what}");
        assert_eq!(racing["baseline"]["what"], "with peer_url", "{what}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn idle_servers_are_measured_by_what_postgres_does() {
    let figures = figures_on_postgres(&["idle"]);
    let idle = figure(&figures, "idle: processor of Postgres per server");
    assert!(idle["ours"].as_f64().unwrap() >= 0.0, "{idle}");
    assert_eq!(idle["reach"].as_f64(), Some(1.0));
}

#[test]
fn a_backlog_on_postgres_is_compared_with_none() {
    let figures = figures_on_postgres(&["backlog", "bulk", "events"]);
    for what in [
        "enqueue",
        "batch",
        "drain",
        "drain over HTTP",
        "drain with a loose limit",
        "limit 10",
        "limit 10 of three servers",
    ] {
        let with = figure(&figures, &format!("{what} with 1000 waiting"));
        assert_eq!(goals(with), (None, Some(0.8)), "{what}");
    }
    let latency = figure(&figures, "idle latency: p50 with 1000 waiting");
    assert_eq!(goals(latency), (None, Some(1.2)));
    if cfg!(target_os = "linux") {
        let idle = figure(&figures, "idle: processor of Postgres per server with 1000 waiting");
        assert_eq!(idle["baseline"]["reach"], 1.2);
    }
    assert_eq!(goals(figure(&figures, "bulk cancel of 1000 jobs")), (None, None));
    assert!(goals(figure(&figures, "events, batches of 1000")).0.is_some());
}

#[test]
fn pushes_memory_and_streams_are_measured_on_postgres() {
    let figures = figures_on_postgres(&["hanging", "memory", "stream"]);
    let p99 = figure(&figures, "push during 256 hanging calls: p99");
    assert_eq!(goals(p99), (None, Some(1.2)));
    assert!(figure(&figures, "memory with 300 workers")["reach"].is_null());
    let streams = figure(&figures, "enqueue with 1000 streams: server's processor per job");
    assert_eq!(goals(streams), (None, Some(1.05)));
}

#[test]
fn peers_are_compared_in_the_same_run() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("peers");
    let script = "#!/bin/sh\n[ -n \"$TIDEGATE_BENCH_STORE\" ] && [ \"$*\" = \"batch drain\" ] || exit 1\n\
        echo '{\"peer\":\"queue 1.2\",\"measure\":\"drain\",\"jobs_per_second\":100}'\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let figures = figures_on_postgres(&["batch", "drain", "--peers", program.to_str().unwrap()]);
    let (ours, peer) = (figure(&figures, "drain 300"), figures.last().unwrap());
    assert_eq!((&peer["what"], &peer["ours"]), (&ours["what"], &ours["ours"]));
    assert_eq!(peer["baseline"], serde_json::json!({"what": "queue 1.2", "value": 100.0}));
}

#[test]
fn an_interrupted_measurement_leaves_nothing_behind() {
    let name = new_database();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "batch", "--seconds", "600", "--store", &test_server::address(&name)])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while query(&name, SCHEMAS) == 0 {
        assert_eq!(bench.try_wait().unwrap(), None, "it has ended");
    }
    kill(Pid::from_raw(bench.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert_eq!(query(&name, SCHEMAS), 0);
}

#[test]
fn a_database_with_a_deployment_is_not_measured() {
    let store = test_server::address(&new_database());
    let settings = format!("{store}&schema=jobs").parse().unwrap();
    runtime().block_on(PostgresStore::open(settings, Arc::new(SystemClock))).unwrap();
    let output = run(&["drain", "--store", &store]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && message.contains("deployment in the schema jobs"),
        "{message}"
    );
}

#[test]
fn a_measurement_that_does_not_apply_is_refused() {
    let store = test_server::address(&new_database());
    for (arguments, reason) in [
        (&["loose-limit"][..], "loose-limit: it needs --store"),
        (&["idle"][..], "idle: it needs --store"),
        (&["log", "--store", &store][..], "log: servers with --store have no log"),
        (&["restore", "--store", &store][..], "restore: servers with --store have no log"),
    ] {
        let output = run(arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(reason), "{message}");
    }
}
