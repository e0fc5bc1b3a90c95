//! What a bucket has: it is verified, restored as of an instant, begins a new log, and is encrypted.

use std::{collections::BTreeSet, path::Path, time::Duration};

use serde_json::{Value, json};

use super::{
    super::{
        serve::{Setup, Tidegate, program, text},
        wait::eventually,
    },
    Bucket, KEY, lose, server_of_log,
};

/// The exit code of `tidegate log`, and what it prints.
pub(super) fn log_command(log: &str, args: &[&str]) -> (i32, String) {
    log_command_with(&[], log, args)
}

/// The same, with variables in its environment.
pub(super) fn log_command_with(env: &[(&str, String)], log: &str, args: &[&str]) -> (i32, String) {
    let words = [&["log"], args].concat();
    let mut command = program(&words);
    command.envs(env.iter().map(|(name, value)| (name, value)));
    let done = command.args(["--log", log]).output().unwrap();
    let text = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    (done.status.code().unwrap(), text)
}

/// The files below `dir`, by their names from `root` on.
pub(super) fn files(root: &Path, dir: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(root.join(dir)) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flat_map(|entry| {
            let entry = entry.unwrap();
            let name = format!("{dir}/{}", entry.file_name().to_str().unwrap());
            if entry.path().is_dir() { files(root, &name) } else { vec![name] }
        })
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_log_is_verified_and_what_is_damaged_is_named() {
    let bucket = Bucket::new();
    assert_eq!(log_command(&bucket.address(), &["verify"]).0, 2, "there is no log yet");
    assert!(!bucket.0.path().join("log").exists());
    let server = bucket.server().start().await;
    server.job_type("t", json!({})).await;
    server.enqueue_a("t").await;
    let (code, text) = log_command(&bucket.address(), &["verify", "--json"]);
    let running: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &running["epochs"]), (0, &json!(1)), "{text}");
    server.enqueue_a("t").await;
    drop(server.stop().await);
    let second = bucket.server().start().await;
    second.enqueue_a("t").await;
    eventually("there is a snapshot", || async { (bucket.objects("snap") > 0).then_some(()) })
        .await;
    drop(second.stop().await);

    let (code, text) = log_command(&bucket.address(), &["verify", "--json"]);
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &whole["snapshots"]), (0, &json!(1)), "{text}");
    let (code, text) = log_command(&bucket.address(), &["show", "--json"]);
    let shown: Value = serde_json::from_str(&text).unwrap();
    let last = shown["epochs"].as_array().unwrap().last().unwrap();
    assert!(code == 0 && last["sealed_at"].is_string(), "{text}");
    let (code, text) = log_command(&bucket.address(), &["show", "--epoch", "2"]);
    assert!(code == 0 && text.contains("record") && text.contains("2.0"), "{text}");
    assert_eq!(log_command(&bucket.address(), &["show", "--epoch", "99"]).0, 4);

    let root = bucket.0.path().join("log");
    let slots = files(&root, "log");
    let read: Vec<&String> = slots.iter().filter(|name| name.contains("/0000000002/")).collect();
    for name in read.iter().copied().chain(&files(&root, "snap")) {
        let path = root.join(name);
        let bytes = std::fs::read(&path).unwrap();
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let (code, text) = log_command(&bucket.address(), &["verify"]);
        assert!(code == 1 && text.contains(name), "{name}: {text}");
        std::fs::remove_file(&path).unwrap();
        let (code, text) = log_command(&bucket.address(), &["verify"]);
        // Without its only snapshot, the log is whole: no record was removed yet.
        let is_needed = Some(&name) != read.last() && !name.ends_with("/manifest");
        assert_eq!(code == 1, is_needed, "{name}: {text}");
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(log_command(&bucket.address(), &["verify"]).0, 0);
}

/// When the last object of an epoch of the log was written.
fn last_written(log: &str, epoch: u64) -> String {
    let (code, text) = log_command(log, &["show", "--json", "--epoch", &epoch.to_string()]);
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, 0, "{text}");
    let last = shown["objects"].as_array().unwrap().last().unwrap();
    last["written_at"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_state_of_an_instant_is_restored_and_served() {
    let bucket = Bucket::new();
    let log = bucket.address();
    let server = bucket.server().start().await;
    server.job_type("pull", json!({})).await;
    let early = server.enqueue_a("pull").await;
    let large = "x".repeat(600 << 10);
    let body = server.enqueue(json!({"type": "pull", "data": large})).await;
    let at = last_written(&log, 1);
    // What happens later is not in the restored state.
    let late = server.enqueue_a("pull").await;
    assert_eq!(server.api.lease(json!({"types": ["pull"], "max": 3})).await.len(), 3);
    let objects = files(&bucket.0.path().join("log"), "log");

    let to = bucket.0.path().join("restored");
    let restore = |at: &str| log_command(&log, &["restore", text(&to), "--json", "--at", at]);
    for (instant, problem) in [
        ("2000-01-01T00:00:00Z", "the earliest instant"),
        ("9999-12-31T23:59:59Z", "its newest record"),
    ] {
        let (code, said) = restore(instant);
        assert!(code == 2 && said.contains(problem), "{said}");
        assert!(!to.exists() && !bucket.0.path().join("restored.part").exists());
    }
    let (code, said) = restore(&at);
    let restored: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(code, 0, "{said}");
    assert_eq!((&restored["written_at"], &restored["bodies"]), (&json!(at), &json!(1)), "{said}");
    let (code, said) = restore(&at);
    assert!(code == 2 && said.contains("is not empty"), "{said}");
    assert_eq!(files(&bucket.0.path().join("log"), "log")[..objects.len()], objects);
    assert_eq!(server.api.job(&late).await["state"], "running", "the server goes on");

    let new = format!("file://{}/new", text(bucket.0.path()));
    let seed = || log_command(&new, &["seed", text(&to)]);
    let (code, said) = seed();
    assert!(code == 0 && said.contains("--data NEW --log"), "{said}");
    let (code, said) = seed();
    assert!(code == 2 && said.contains("has a log"), "{said}");
    for setup in [Setup::new().flag("--data", text(&to)), server_of_log(&new)] {
        has_only(&setup.start().await, [&early, &body], &late, &large).await;
    }
    let (code, said) = log_command(&new, &["verify"]);
    assert!(code == 0 && said.contains("is intact"), "{said}");
}

#[tokio::test]
async fn a_log_that_was_closed_has_no_server_again() {
    let bucket = Bucket::new();
    let log = bucket.address();
    let server = bucket.server().start().await;
    server.job_type("t", json!({})).await;
    server.enqueue_a("t").await;
    let (code, said) = log_command(&log, &["close"]);
    assert!(code == 1 && said.contains("stop all servers"), "{said}");
    server.enqueue_a("t").await;
    drop(server.stop().await);
    let (code, said) = log_command(&log, &["close"]);
    assert!(code == 0 && said.contains("is closed"), "{said}");
    for setup in [bucket.server(), bucket.server().switch("--standby")] {
        let (status, said) = setup.refused().await;
        assert!(!status.success() && said.contains("the log was closed"), "{said}");
    }
    let (code, said) = log_command(&log, &["verify"]);
    assert!(code == 0 && said.contains("is intact"), "{said}");
}

#[tokio::test]
async fn parts_without_a_manifest_are_removed_from_a_log() {
    let bucket = Bucket::new();
    let root = bucket.0.path().join("log");
    // Each server ends an epoch. The last one keeps the snapshots of the epochs 2 and 3.
    for epoch in 1..=4 {
        let server = bucket.server().start().await;
        if epoch == 1 {
            server.job_type("t", json!({})).await;
        }
        server.enqueue_a("t").await;
        let before = root.join(format!("snap/{:010}/manifest", epoch - 1));
        eventually("there is a snapshot", || async {
            (epoch == 1 || before.exists()).then_some(())
        })
        .await;
        if epoch == 4 {
            eventually("the first snapshot is removed", || async {
                files(&root, "snap/0000000001").is_empty().then_some(())
            })
            .await;
        }
        drop(server.stop().await);
    }
    let kept = files(&root, "snap");
    let [old, young] = [1, 2].map(|nonce| {
        let path = root.join(format!("snap/0000000001/{nonce:032x}/00000"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "a part").unwrap();
        path
    });
    let clean = |args: &[&str]| {
        let (code, said) = log_command(&bucket.address(), &[&["clean"], args].concat());
        assert_eq!(code, 0, "{said}");
        said
    };
    let two_days = Duration::from_hours(48);
    let make_old = |path: &Path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        let written_at = file.metadata().unwrap().modified().unwrap();
        file.set_modified(written_at - two_days).unwrap();
    };
    make_old(&old);
    let said = clean(&["--yes"]);
    assert!(said.contains("nothing is removed") && old.exists(), "its epoch is young: {said}");
    make_old(&young);
    let said = clean(&[]);
    assert!(said.contains("objects to remove: 2 (12 B)") && said.contains("upload"), "{said}");
    assert!(old.exists() && young.exists(), "nothing was removed");
    let removed: Value = serde_json::from_str(&clean(&["--yes", "--json"])).unwrap();
    assert_eq!((&removed["objects"], &removed["bytes"]), (&json!(2), &json!(12)), "{removed}");
    assert_eq!(files(&root, "snap"), kept);
    assert!(clean(&[]).contains("there is nothing to remove"));
    assert_eq!(log_command(&bucket.address(), &["verify"]).0, 0);
    drop(bucket.server().start().await);
}

/// The server has these two jobs, one with the data `large`, and not the job `late`.
async fn has_only(tide: &Tidegate, jobs: [&String; 2], late: &str, large: &str) {
    assert_eq!(tide.get(&format!("/v1/jobs/{late}")).await.status, 404);
    let leased = tide.api.lease(json!({"types": ["pull"], "max": 3})).await;
    let ids: BTreeSet<&str> = leased.iter().map(|lease| lease.id.as_str()).collect();
    assert_eq!(ids, jobs.map(String::as_str).into());
    let leased = leased.iter().find(|lease| lease.id == *jobs[1]).unwrap();
    assert_eq!(leased.whole["job"]["data"], json!(large));
}

#[tokio::test]
async fn a_restored_directory_says_how_to_serve_it() {
    let bucket = Bucket::new();
    let server = bucket.server().start().await;
    server.job_type("t", json!({})).await;
    drop(server.stop().await);
    let (log, to) = (bucket.address(), bucket.0.path().join("restored"));
    let at = last_written(&log, 1);
    let (code, said) = log_command(&log, &["restore", text(&to), "--at", &at]);
    assert!(code == 0 && said.contains("without --log"), "{said}");
}

/// The objects of a log that have data of jobs: all but its identity and the hints.
fn objects_with_data(bucket: &Bucket) -> Vec<Vec<u8>> {
    let root = bucket.0.path().join("log");
    let names = files(&root, ".");
    let with_data = names.iter().filter(|name| *name != "./log.json" && !name.contains("/hint/"));
    with_data.map(|name| std::fs::read(root.join(name)).unwrap()).collect()
}

#[tokio::test]
async fn an_encrypted_log_is_read_with_its_key_alone() {
    let bucket = Bucket::new();
    let encrypted = || bucket.server().env("TIDEGATE_LOG_ENCRYPTION", "on");
    let server = encrypted().start().await;
    server.job_type("t", json!({})).await;
    let data = json!({"text": "x".repeat(600 << 10)});
    let job = json!({"type": "t", "data": data});
    let id = server.post("/v1/jobs", job).await.is(201)["id"].as_str().unwrap().to_owned();
    lose(server);
    let server = encrypted().start().await;
    assert_eq!(server.job(&id).await["data"], data);
    eventually("there is a snapshot", || async { (bucket.objects("snap") > 0).then_some(()) })
        .await;
    drop(server.stop().await);
    assert!(bucket.objects("objects") > 0, "the data is a large body");
    let objects = objects_with_data(&bucket);
    assert!(objects.iter().all(|bytes| bytes.starts_with(b"TDGE")), "one is clear");

    let verified = |key: Option<&str>| {
        let mut verify = program(["log", "verify", "--log", &bucket.address()]);
        let key = key.map(|key| ("TIDEGATE_ENCRYPTION_KEY", key));
        let done = verify.envs(key).output().unwrap();
        let text = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
        (done.status.code().unwrap(), text)
    };
    let (code, text) = verified(Some(KEY));
    assert!(code == 0 && text.contains("is intact"), "{text}");
    let (code, text) = verified(None);
    assert!(code == 1 && text.contains("it is encrypted with key "), "{text}");
    let other = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";
    let (status, text) = bucket.server().env("TIDEGATE_ENCRYPTION_KEY", other).refused().await;
    assert!(!status.success() && text.contains("it is encrypted with key "), "{text}");

    let clear = bucket.server().start().await;
    assert_eq!(clear.job(&id).await["data"], data);
    clear.enqueue_a("t").await;
    let objects = objects_with_data(&bucket);
    assert!(objects.iter().any(|bytes| bytes.starts_with(b"TDGL")), "none is clear");
    let (code, text) = verified(Some(KEY));
    assert!(code == 0 && text.contains("is intact"), "{text}");
}

#[tokio::test]
async fn a_clear_log_is_refused_where_it_must_be_encrypted() {
    let bucket = Bucket::new();
    lose(bucket.server().start().await);
    let setup = bucket.server().env("TIDEGATE_LOG_ENCRYPTION", "required");
    let (status, said) = setup.refused().await;
    assert!(!status.success() && said.contains("log/0000000001/000000000000"), "{said}");
    assert!(said.contains("it is not encrypted"), "{said}");
}

#[tokio::test]
async fn a_writer_without_the_key_cannot_forge_a_claim() {
    let (bucket, forged) = (Bucket::new(), Bucket::new());
    let server = |encryption| bucket.server().env("TIDEGATE_LOG_ENCRYPTION", encryption);
    let leader = server("required").start().await;
    leader.job_type("t", json!({})).await;
    let id = leader.enqueue_a("t").await;
    drop(leader.stop().await);

    // A clear log with the same identity has a claim of the next epoch.
    let path = |bucket: &Bucket, name: &str| bucket.0.path().join("log").join(name);
    std::fs::create_dir(path(&forged, "")).unwrap();
    std::fs::copy(path(&bucket, "log.json"), path(&forged, "log.json")).unwrap();
    for _ in 0..2 {
        drop(forged.server().start().await.stop().await);
    }
    let claim = "epoch/0000000002";
    std::fs::copy(path(&forged, claim), path(&bucket, claim)).unwrap();
    let (status, said) = server("required").refused().await;
    assert!(!status.success() && said.contains(claim), "{said}");
    assert!(said.contains("it is not encrypted"), "{said}");
    let key = ("TIDEGATE_ENCRYPTION_KEY", KEY.to_owned());
    let verified = |more: &[&str]| {
        let args = [&["verify"], more].concat();
        log_command_with(std::slice::from_ref(&key), &bucket.address(), &args)
    };
    let (code, said) = verified(&["--log-encryption", "required"]);
    assert!(code == 1 && said.contains(claim), "{said}");
    assert_eq!(verified(&[]).0, 0, "nothing else is wrong with it");

    let trusting = server("on").start().await;
    assert_eq!(trusting.job(&id).await["id"], json!(id));
}

#[tokio::test]
async fn doctor_names_what_the_bucket_has_lost() {
    let bucket = Bucket::new();
    let server = bucket.server().start().await;
    let all = server.cli(&["doctor", "--all"]).await.ok();
    assert!(all.contains("its identity and its claims are in the bucket"), "{all}");
    assert!(all.contains("a probe was created once, read and removed"), "{all}");
    assert!(all.contains("there is room"), "{all}");
    std::fs::remove_file(bucket.0.path().join("log/epoch/0000000001")).unwrap();
    let lost = server.cli(&["doctor"]).await;
    assert!(lost.code == Some(1) && lost.out.contains("epoch/0000000001"), "{lost:?}");
}
