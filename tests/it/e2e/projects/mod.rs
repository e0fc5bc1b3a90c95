//! `tidegate plugin new` and `build`: the projects that authors get, built by the tools of their
//! language.

mod assemblyscript;
mod c;
mod conformance;
mod cpp;
mod go;
mod javascript;
mod python;
mod rust;
mod typescript;
mod watched;
mod zig;

use std::{
    path::Path,
    process::{Output, Stdio},
};

use serde_json::Value;

use super::{
    serve::{Tidegate, program, text},
    wait::{eventually, until},
};

pub fn tidegate(dir: &Path, args: &[&str]) -> Output {
    program([&["plugin"], args].concat()).current_dir(dir).output().unwrap()
}

#[track_caller]
pub fn done(output: Output) -> String {
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A new retry strategy: it builds, is a plugin, and its cases hold.
fn retries(lang: &str) {
    let dir = tempfile::tempdir().unwrap();
    let made = done(tidegate(dir.path(), &["new", "--lang", lang, "--role", "retry", "mine"]));
    assert!(made.contains("tidegate plugin build"), "{made}");
    let project = dir.path().join("mine");
    assert!(done(tidegate(&project, &["build"])).contains("mine.wasm"));
    let checked = done(tidegate(&project, &["check", "mine.wasm"]));
    assert!(checked.contains("imports tidegate:plugin/"), "{checked}");
    let tested = done(tidegate(&project, &["test", "mine.wasm"]));
    assert!(tested.ends_with(" cases, 0 failed\n"), "{tested}");
}

/// The sessions of the plugins' README, each command by itself.
fn sessions() -> Vec<Vec<String>> {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/README.md")).unwrap();
    let blocks = text.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks
        .map(|block| {
            block.lines().map(|line| line.strip_prefix("$ ").unwrap().to_owned()).collect()
        })
        .collect()
}

/// A line of a session, as a reader types it.
fn typed(line: &str, dir: &Path, url: &str) -> tokio::process::Command {
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let mut command = tokio::process::Command::new("bash");
    let line = format!("PATH={}:$PATH; {line}", program.display());
    command
        .args(["-c", &line])
        .current_dir(dir)
        .env("TIDEGATE_URL", url)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn said(line: &str, dir: &Path, url: &str) -> String {
    done(typed(line, dir, url).output().await.unwrap())
}

/// What the issue of plugins is done when: a throttler that is made as the README says, word for
/// word, governs a live queue, and its simulation agrees with what then ran. Commands that a
/// language takes too long for are left out.
async fn governs_as_the_readme_says(lang: &str, left_out: &[&str]) {
    let [make, serve, follow, again] = <[Vec<String>; 4]>::try_from(sessions()).unwrap();
    let (tide, dir) = (Tidegate::start().await, tempfile::tempdir().unwrap());
    let mut place = dir.path().to_owned();
    for line in make.iter().filter(|line| !left_out.iter().any(|part| line.contains(part))) {
        match line.strip_prefix("cd ") {
            Some(folder) => place.push(folder),
            None => drop(
                said(&line.replace("--lang rust", &format!("--lang {lang}")), &place, &tide.base)
                    .await,
            ),
        }
    }
    let (work, serve) = serve.split_last().unwrap();
    for line in serve {
        said(line, &place, &tide.base).await;
    }
    // Shorter than printed, to save time.
    let _worker =
        typed(&format!("exec {}", work.replace("sleep 2", "sleep 0.5")), &place, &tide.base)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
    eventually("the worker asks for jobs", || async {
        let workers = tide.get("/v1/workers").await.is(200);
        (!workers["workers"].as_array().unwrap().is_empty()).then_some(())
    })
    .await;
    for line in &follow {
        if !line.contains("ID-OF-THAT-JOB") {
            said(line, &place, &tide.base).await;
            continue;
        }
        eventually("a job says what holds it", || async {
            let waiting = tide.get("/v1/jobs?queue=mail&state=scheduled&limit=1000").await.is(200);
            let waiting = waiting["jobs"].as_array().unwrap();
            // One that does not start just now.
            let id = waiting[waiting.len() / 2]["id"].as_str().unwrap();
            let why = said(&line.replace("ID-OF-THAT-JOB", id), &place, &tide.base).await;
            (why.contains("held by throttler my-throttler") && why.contains("jobs is reached"))
                .then_some(())
        })
        .await;
    }
    until(|| async {
        let ended =
            tide.get("/v1/jobs?queue=mail&state=succeeded&limit=1000").await.is(200)["jobs"]
                .as_array()
                .unwrap()
                .len();
        (ended == 200, ended)
    })
    .await;
    assert_eq!(tide.get("/v1/plugins/my-throttler").await.is(200)["health"]["faults"], 0);

    let mut output = String::new();
    for line in &again {
        output = said(
            &line.replace("--picture trace.svg", "--picture trace.svg --json"),
            &place,
            &tide.base,
        )
        .await;
    }
    let out: Value = serde_json::from_str(&output).unwrap();
    for side in ["real", "simulated"] {
        assert_eq!(out[side]["all"]["succeeded"], 200, "{out:#}");
        for group in out[side]["groups"].as_array().unwrap() {
            assert_eq!(group["most_running"], 5, "{side}: {group:#}");
        }
    }
    let agreement = &out["agreement"];
    assert_eq!(agreement["jobs"], 200);
    for name in ["letter", "report"] {
        // What is between them is what the live queue needs from a result to the next start.
        assert!(agreement["overlap"][name].as_f64().unwrap() > 0.5, "{agreement:#}");
    }
    assert!(
        std::fs::read_to_string(place.join("trace.svg"))
            .unwrap()
            .contains("what the queue really did")
    );
}

/// A new project whose rule begins with `trouble`, in place of `rule`: what `tidegate plugin test`
/// says of it.
fn in_trouble(lang: &str, role: &str, source: &str, rule: &str, trouble: &str) -> String {
    changed(lang, role, source, &[(rule, trouble)])
}

/// A new project with changes to its source, each a text and its replacement: what `tidegate plugin
/// test` says of it.
fn changed(lang: &str, role: &str, source: &str, changes: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    done(tidegate(dir.path(), &["new", "--lang", lang, "--role", role, "mine"]));
    let project = dir.path().join("mine");
    let mut text = std::fs::read_to_string(project.join(source)).unwrap();
    for (old, new) in changes {
        assert!(text.contains(old), "{old} in {text}");
        text = text.replace(old, new);
    }
    std::fs::write(project.join(source), text).unwrap();
    done(tidegate(&project, &["build"]));
    let tested = tidegate(&project, &["test", "mine.wasm"]);
    assert_eq!(tested.status.code(), Some(1));
    String::from_utf8(tested.stdout).unwrap()
}

#[test]
fn a_folder_that_is_there_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    let refused = tidegate(dir.path(), &["new", "--lang", "js", "mine"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mine exists already"));
    assert_eq!(std::fs::read_dir(dir.path().join("mine")).unwrap().count(), 0);
}

#[test]
fn a_failed_build_of_a_project_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let nothing = tidegate(dir.path(), &["build"]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("tidegate plugin new"));
    done(tidegate(dir.path(), &["new", "--lang", "js", "mine"]));
    let mut command = program(["plugin", "build", text(&dir.path().join("mine"))]);
    let missing = command.env("PATH", dir.path()).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&missing.stderr)
            .contains("npx is not installed: it comes with Node.js"),
        "{missing:?}"
    );
}
