//! Damage of a database whose indexes cannot be built again, with the program as operators use it.

use std::path::Path;

use serde_json::{Value, json};

use super::serve::{Setup, Tidegate, program, text};
use crate::sqlite_damage::overwrite;

/// The exit code and the output of a command about `data`.
fn ran(command: &str, data: &Path) -> (Option<i32>, String) {
    let output = program([command, "--data", text(data)]).output().unwrap();
    let all = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(all).unwrap())
}

/// A stopped server with the jobs `job-a`, `job-b` and `job-c`.
async fn stopped() -> Setup {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    for id in ["job-a", "job-b", "job-c"] {
        tide.put(&format!("/v1/jobs/t/{id}"), json!({"data": {"of": id}})).await.is(201);
    }
    tide.stop().await
}

#[tokio::test]
async fn two_rows_with_one_id_are_repaired_by_the_command() {
    let setup = stopped().await;
    let data = setup.data();
    overwrite(&data, "jobs", b"job-b", b"job-a");
    let (code, said) = ran("doctor", &data);
    assert!(code == Some(1) && said.contains("tidegate repair"), "{code:?} {said}");
    let (code, said) = ran("repair", &data);
    assert_eq!(code, Some(0), "{said}");
    for part in [
        "the job does not run: enqueue it again if it must",
        "every index was built again from its table",
        "the removed records: ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let aside = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path());
    let aside = aside.filter(|path| text(path).contains("/repair-")).collect::<Vec<_>>();
    let export = std::fs::read_to_string(aside[0].join("damaged.jsonl")).unwrap();
    let lines: Vec<Value> =
        export.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["row"]["data"]["text"], "{\"of\":\"job-b\"}", "{export}");
    let (code, said) = ran("repair", &data);
    assert!(code == Some(0) && said.contains("nothing is damaged"), "{said}");

    let tide = setup.start().await;
    for id in ["job-a", "job-c"] {
        assert_eq!(tide.job(id).await["data"], json!({"of": id}));
    }
    tide.get("/v1/jobs/job-b").await.problem(404, "job_not_found");
    tide.put("/v1/jobs/t/job-b", json!({"data": 1})).await.is(201);
    assert_eq!(tide.lease(json!({"types": ["t"], "max": 9})).await.len(), 3);
}

#[tokio::test]
async fn a_table_that_cannot_be_read_is_left_as_it_is() {
    let setup = stopped().await;
    let data = setup.data();
    let file = data.join("tidegate.db");
    let db = rusqlite::Connection::open(&file).unwrap();
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'items'";
    let page: usize = db.query_row(root, [], |row| row.get::<_, u32>(0)).unwrap() as usize;
    drop(db);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[(page - 1) * 4096..page * 4096].fill(0x55);
    std::fs::write(&file, &bytes).unwrap();
    let (code, said) = ran("doctor", &data);
    assert_eq!(code, Some(1), "{said}");
    let (code, said) = ran("repair", &data);
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("restore it from a backup"), "{said}");
    assert!(std::fs::read(&file).unwrap() == bytes, "nothing was changed");
    let (status, log) = setup.refused().await;
    assert!(!status.success() && log.contains("backup"), "{status}: {log}");
}
