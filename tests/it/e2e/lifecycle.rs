//! Starts, stops and settings.

use std::fs;

use rusqlite::Connection;
use serde_json::json;

use super::{
    serve::{Setup, Tidegate, program, text},
    target::Target,
};

#[tokio::test]
async fn a_stop_lets_a_running_push_finish_and_admits_nothing_more() {
    let tide = Tidegate::start().await;
    let (target, go) = Target::held("finished").await;
    tide.queue("q", json!({"concurrency": 1})).await;
    tide.job_type("t", json!({"queue": "q", "target": {"url": target.url}})).await;
    tide.job_type("pull", json!({})).await;
    let (first, second) = (tide.enqueue_a("t").await, tide.enqueue_a("t").await);
    target.call(1).await;
    let api = tide.api.clone();
    let polling =
        tokio::spawn(
            async move { api.lease(json!({"types": ["pull"], "wait_seconds": 60})).await },
        );
    super::wait::eventually("the poll has begun", || async {
        let explained = tide.get("/metrics").await;
        String::from_utf8_lossy(&explained.body)
            .contains("tidegate_tick_duration_seconds_count{queue=\"default\"}")
            .then_some(())
    })
    .await;
    tide.terminate();
    assert_eq!(polling.await.unwrap().len(), 0, "a long poll is answered at the stop");
    go.send_replace(true);
    let tide = tide.stop().await.start().await;
    let job = tide.job(&first).await;
    assert_eq!((&job["state"], &job["result"]), (&json!("succeeded"), &json!("finished")));
    tide.job_in(&second, "succeeded").await;
    assert_eq!(target.calls().len(), 2);
}

#[tokio::test]
async fn a_stop_takes_no_longer_than_its_setting() {
    let target = Target::start(|_| std::future::pending::<axum::http::StatusCode>()).await;
    let mut tide = Setup::new().env("TIDEGATE_SHUTDOWN_SECONDS", "0.5").start().await;
    tide.job_type("t", json!({"target": {"url": target.url}})).await;
    tide.enqueue_a("t").await;
    target.call(1).await;
    let began = tokio::time::Instant::now();
    tide.terminate();
    assert!(tide.ended().await.success());
    let took = began.elapsed().as_secs_f64();
    assert!((0.4..8.0).contains(&took), "{took}");
    let log = tide.log();
    assert!(log.contains("stopping") && !log.contains('\u{1b}'), "a file is no terminal: {log:?}");
}

#[tokio::test]
async fn a_service_manager_is_notified_of_start_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
    let next = async || {
        let mut message = vec![0; 4096];
        let bytes = socket.recv(&mut message).await.unwrap();
        message.truncate(bytes);
        String::from_utf8(message).unwrap()
    };
    let mut tide = Setup::new().env("NOTIFY_SOCKET", text(&path)).start().await;
    let address = tide.base.trim_start_matches("http://");
    assert_eq!(next().await, format!("READY=1\nSTATUS=serves on http://{address}\n"));
    tide.terminate();
    let stopping = next().await;
    assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
    assert!(tide.ended().await.success());

    // Without a manager at the socket, it serves all the same.
    drop(socket);
    let tide = Setup::new().env("NOTIFY_SOCKET", text(&path)).start().await;
    tide.get("/readyz").await.is(200);
    assert!(tide.log().contains("the service manager was not notified"), "{}", tide.log());
}

#[tokio::test]
async fn what_was_under_way_goes_on_after_a_restart() {
    let tide = Tidegate::start().await;
    tide.queue("q", json!({"concurrency": 3, "constraints": [{"name": "c", "concurrency": 2}]}))
        .await;
    tide.job_type("t", json!({"queue": "q"})).await;
    let leased = tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    let later =
        tide.enqueue(json!({"type": "t", "data": "x".repeat(100_000), "delay_seconds": 0.5})).await;
    let tide = tide.kill().start().await;
    assert_eq!(tide.get("/v1/queues/q").await.is(200)["constraints"][0]["name"], "c");
    tide.with_token(&lease.token)
        .post(&lease.path, json!({"attempt": 1, "status": "succeeded", "result": 1}))
        .await
        .is(200);
    assert_eq!(tide.job(&leased).await["state"], "succeeded");
    let next = tide.lease_one("t").await;
    assert_eq!(
        (next.id.as_str(), next.whole["job"]["data"].as_str().unwrap().len()),
        (later.as_str(), 100_000)
    );
}

#[tokio::test]
async fn a_second_server_on_the_same_directory_is_refused_by_name() {
    let tide = Tidegate::start().await;
    let (status, said) = Setup::new().flag("--data", text(&tide.data())).refused().await;
    assert!(
        !status.success()
            && said.contains("held by process ")
            && said.contains("another directory"),
        "{said}"
    );
    tide.get("/readyz").await.is(200);
}

#[tokio::test]
async fn a_directory_is_refused_if_the_settings_name_a_database() {
    let store = "postgres://127.0.0.1:1/jobs";
    let setup = Setup::new().env("TIDEGATE_STORE", store).flag("--data", "somewhere");
    let (status, said) = setup.refused().await;
    assert!(!status.success() && said.contains("--data: the setting `store`"), "{said}");
}

#[tokio::test]
async fn a_file_that_cannot_be_used_stops_the_start_with_what_to_do() {
    let damaged = |setup: &Setup| {
        fs::create_dir_all(setup.data()).unwrap();
        fs::write(
            setup.data().join("tidegate.db"),
            "this is no database, and it is long enough to look like one".repeat(100),
        )
        .unwrap();
    };
    let foreign = |setup: &Setup| {
        fs::create_dir_all(setup.data()).unwrap();
        Connection::open(setup.data().join("tidegate.db"))
            .unwrap()
            .execute_batch("CREATE TABLE recipes (name TEXT)")
            .unwrap();
    };
    let cases = [
        (damaged as fn(&Setup), "restore it from a backup"),
        (foreign, "is a database of another program"),
    ];
    for (spoil, wanted) in cases {
        let setup = Setup::new();
        spoil(&setup);
        let (status, said) = setup.refused().await;
        assert!(!status.success() && said.contains(wanted), "{said}");
    }
    let setup = Tidegate::start().await.stop().await;
    Connection::open(setup.data().join("tidegate.db"))
        .unwrap()
        .execute_batch("PRAGMA user_version = 99")
        .unwrap();
    let (status, said) = setup.refused().await;
    assert!(
        !status.success()
            && said.contains("format 99")
            && said.contains("run the release that wrote it"),
        "{said}"
    );

    // Damage in the middle, behind a good beginning.
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let jobs: Vec<_> = (0..500).map(|_| json!({"type": "t", "data": "x".repeat(500)})).collect();
    tide.post("/v1/jobs/batch", json!({"jobs": jobs})).await.is(200);
    let setup = tide.stop().await;
    let file = setup.data().join("tidegate.db");
    let mut bytes = fs::read(&file).unwrap();
    let middle = 4096..bytes.len();
    bytes[middle].fill(0x5a);
    fs::write(&file, bytes).unwrap();
    let (status, said) = setup.refused().await;
    assert!(!status.success() && said.contains("damaged") && said.contains("backup"), "{said}");
}

#[tokio::test]
async fn flags_win_over_the_environment_and_that_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.toml");
    fs::write(&file, "push_slots = 7\nmax_data_bytes = 5000\npublic_url = \"http://from.file/\"\n")
        .unwrap();
    let printed = |env: &[(&str, &str)], args: &[&str]| {
        let mut command = program(["serve", "--print-settings", "--config", text(&file)]);
        let output = command.args(args).envs(env.iter().copied()).output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (_, settings) = printed(
        &[("TIDEGATE_MAX_DATA_BYTES", "6000"), ("TIDEGATE_PUBLIC_URL", "http://from.env/")],
        &["--public-url", "http://from.flag/"],
    );
    for line in [
        "push_slots = 7",
        "max_data_bytes = 6000",
        "public_url = \"http://from.flag/\"",
        "log_format = \"text\"",
    ] {
        assert!(settings.contains(line), "{line} in {settings}");
    }
    let secret = [
        ("TIDEGATE_DEFAULT_TARGET__URL", "http://127.0.0.1:1/"),
        ("TIDEGATE_DEFAULT_TARGET__SIGNING_SECRET", "hush-hush"),
    ];
    assert!(!printed(&secret, &[]).1.contains("hush-hush"));
    let wrong = [
        (("TIDEGATE_PUSH_SLOTS", "0"), "push_slots"),
        (("TIDEGATE_PUSH_SLOTS", "many"), "push_slots"),
        (("TIDEGATE_LISTEN", "nowhere"), "listen"),
        (("TIDEGATE_SHUTDOWN_SECONDS", "-1"), "shutdown_seconds"),
        (("TIDEGATE_LOG_LEVEL", "loud"), "log_level"),
        (("TIDEGATE_PUBLIC_URL", "ftp://x/"), "public_url"),
        (("TIDEGATE_JWT__ISSUER", "me"), "jwt.jwks_url"),
    ];
    for (env, setting) in wrong {
        let (good, said) = printed(&[env], &[]);
        assert!(!good && said.contains(setting), "{env:?}: {said}");
    }
    fs::write(&file, "push_slotz = 7\n").unwrap();
    let (good, said) = printed(&[], &[]);
    assert!(!good && said.contains("push_slotz") && said.contains("tidegate.toml"), "{said}");
}

#[tokio::test]
async fn a_dry_run_lists_what_would_change() {
    let tide = Tidegate::start().await;
    tide.queue("q", json!({"concurrency": 3})).await;
    tide.job_type("t", json!({"queue": "q"})).await;
    let before = tide.get("/v1/queues/q").await.is(200);
    let dry = async |command: &[&str]| tide.cli(&[command, &["--dry-run"]].concat()).await;
    let shown = dry(&["queues", "patch", "q", "--config", "{\"concurrency\": 5}"]).await.ok();
    let rows: Vec<Vec<&str>> =
        shown.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [["setting", "now", "then"], ["concurrency", "3", "5"]], "{shown}");
    let put = ["queues", "put", "q", "--config", "{\"concurrency\": 3}"];
    assert_eq!(dry(&put).await.ok(), "q would stay as it is\n");
    let new = dry(&["types", "put", "new", "--config", "{\"max_attempts\": 7}"]).await.ok();
    assert!(new.starts_with("new would be created:\n"), "{new}");
    let patch = ["types", "patch", "t", "--config", "{\"queue\": \"none\"}"];
    assert_eq!(dry(&patch).await.code, Some(4));
    let put = ["schedule", "put", "s", "--type", "t", "--cron", "0 3 * * *"];
    assert!(dry(&put).await.ok().starts_with("s would be created:\n"));
    assert_eq!(tide.cli(&["schedule", "get", "s"]).await.code, Some(4), "nothing was stored");
    tide.cli(&put).await.ok();
    let shown =
        dry(&["schedule", "patch", "s", "--config", "{\"cron\": \"0 4 * * *\"}"]).await.ok();
    assert!(shown.contains("0 3 * * *") && shown.contains("next"), "{shown}");
    let queue = tide.get("/v1/queues/q").await.is(200);
    assert_eq!((&queue["concurrency"], &queue["version"]), (&json!(3), &before["version"]));
    assert_eq!(tide.get("/v1/job-types/new").await.status, 404);
}

#[tokio::test]
async fn commands_show_what_the_server_says() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.job_type("hook", json!({"target": {"url": "http://127.0.0.1:9/x"}})).await;
    let types = tide.cli(&["types", "list"]).await.ok();
    assert!(types.contains("pull") && types.contains("http://127.0.0.1:9/x"), "{types}");
    assert!(tide.cli(&["types", "get", "t"]).await.ok().contains("at_least_once"));
    assert!(
        tide.cli(&["queues", "put", "q", "--config", "{\"concurrency\": 3}"])
            .await
            .ok()
            .contains('q')
    );
    assert!(tide.cli(&["queues", "list"]).await.ok().contains("0/3"));
    let id =
        tide.cli(&["enqueue", "--type", "t", "--data", "{\"a\": 1}"]).await.ok().trim().to_owned();
    assert!(tide.cli(&["jobs", "list"]).await.ok().contains(&id));
    let shown: serde_json::Value =
        serde_json::from_str(&tide.cli(&["--json", "jobs", "get", &id]).await.ok()).unwrap();
    assert_eq!(shown["data"], json!({"a": 1}));
    assert_eq!(
        tide.cli(&["enqueue", "--type", "t", "--count", "50", "--spread", "20s"]).await.code,
        Some(0)
    );
    assert_eq!(tide.get("/v1/queues/default").await.is(200)["status"]["depth"]["scheduled"], 51);
    assert_eq!(tide.cli(&["jobs", "get", "none"]).await.code, Some(4));
    assert_eq!(tide.cli(&["enqueue", "--type", "none"]).await.code, Some(4));
    assert_eq!(tide.cli(&["enqueue"]).await.code, Some(2));
    let base = tide.base.clone();
    tide.stop().await;
    let away = program(["--url", &base, "queues", "list"]).output().unwrap();
    assert_eq!(away.status.code(), Some(3));
}
