//! `tidegate backup` while a server runs, and a server on the copy.

use std::{
    path::Path,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tidegate_backends::http::Guard;
use tidegate_core::job::{Payload, type_config::TypeConfig};
use tidegate_engine::{request::NewJob, testkit::builders::name};
use tidegate_server::Server;

fn backup(data: &Path, to: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["backup", "--json", "--data"])
        .arg(data)
        .arg(to)
        .output()
        .unwrap()
}

fn job(data: Payload) -> NewJob {
    NewJob::new(name("work"), data)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_during_enqueues_has_every_job_accepted_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (data, to) = (dir.path().join("data"), dir.path().join("copy"));
    let server = Server::open(&data, Guard::On).unwrap().start().await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let large = Payload::json(format!("\"{}\"", "x".repeat(200_000)));
    let mut before = vec![server.enqueue(job(large.clone())).await.unwrap().job];
    for _ in 0..50 {
        before.push(server.enqueue(job(Payload::null())).await.unwrap().job);
    }
    let go_on = Arc::new(AtomicBool::new(true));
    let busy = tokio::spawn({
        let (server, go_on, large) = (server.clone(), Arc::clone(&go_on), large.clone());
        async move {
            while go_on.load(Ordering::SeqCst) {
                server.enqueue(job(large.clone())).await.unwrap();
            }
        }
    });
    let output = tokio::task::spawn_blocking({
        let (data, to) = (data.clone(), to.clone());
        move || backup(&data, &to)
    });
    let output = output.await.unwrap();
    go_on.store(false, Ordering::SeqCst);
    busy.await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["missing_bodies"], 0);
    let names: Vec<_> =
        std::fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "the database and the bodies, and nothing else: {names:?}");
    server.stop().await;

    let copy = Server::open(&to, Guard::On).unwrap().start().await.unwrap();
    for job in &before {
        assert!(copy.job(&job.id, None).await.is_ok(), "{} is in the copy", job.id);
    }
    let whole = copy.load(vec![copy.job(&before[0].id, None).await.unwrap()]).await.unwrap();
    assert_eq!(whole[0].data.inline().unwrap().bytes, large.bytes, "large bodies are in the copy");
    copy.stop().await;
}

#[test]
fn a_copy_never_overwrites_anything() {
    let dir = tempfile::tempdir().unwrap();
    let none = backup(dir.path(), &dir.path().join("copy"));
    assert_eq!(none.status.code(), Some(2), "{none:?}");
    std::fs::write(dir.path().join("tidegate.db"), "").unwrap();
    std::fs::create_dir(dir.path().join("taken")).unwrap();
    let taken = backup(dir.path(), &dir.path().join("taken"));
    assert_eq!(taken.status.code(), Some(2), "{taken:?}");
    assert!(String::from_utf8_lossy(&taken.stderr).contains("exists already"), "{taken:?}");
}
