//! `tidegate plugin new` and `build`: projects as authors get them, built by their language's own tools.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use serde_json::{Value, json};

use super::serve::{Tidegate, eventually, program, text};

fn tidegate(dir: &Path, args: &[&str]) -> Output {
    program([&["plugin"], args].concat()).current_dir(dir).output().unwrap()
}

#[track_caller]
fn done(output: Output) -> String {
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A new project of each role: it builds, is a plugin, and its cases hold.
fn works(lang: &str) {
    let dir = tempfile::tempdir().unwrap();
    for role in ["throttler", "retry"] {
        let name = format!("my-own-{role}");
        let made = done(tidegate(dir.path(), &["new", "--lang", lang, "--role", role, &name]));
        assert!(made.contains("tidegate plugin build"), "{made}");
        let project = dir.path().join(&name);
        let file = format!("{name}.wasm");
        assert!(done(tidegate(&project, &["build"])).contains(&file));
        assert!(project.join(&file).is_file());
        let checked = done(tidegate(&project, &["check", &file]));
        assert!(checked.contains("imports tidegate:plugin/"), "{checked}");
        let tested = done(tidegate(&project, &["test", &file]));
        assert!(tested.ends_with(" cases, 0 failed\n"), "{tested}");
    }
}

#[test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it where it can"]
fn a_new_rust_project_builds_and_its_cases_hold() {
    works("rust");
}

/// What the issue of plugins is done when: a throttler as an author starts it governs a live queue, and its simulation agrees with what then ran.
#[tokio::test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it where it can"]
async fn a_throttler_of_a_new_rust_project_governs_a_live_queue_as_its_simulation_says() {
    let dir = tempfile::tempdir().unwrap();
    done(tidegate(dir.path(), &["new", "--lang", "rust", "mine"]));
    let project = dir.path().join("mine");
    done(tidegate(&project, &["build"]));
    let component = project.join("mine.wasm");

    let tide = Tidegate::start().await;
    tide.cli(&["plugin", "push", "mine", text(&component)]).await.ok();
    tide.queue("q", json!({"throttler": {"plugin": "mine", "config": {"limit": 2}}})).await;
    for name in ["mail", "report"] {
        tide.job_type(name, json!({"queue": "q"})).await;
    }
    let mut workers = Vec::new();
    for name in ["mail", "report"] {
        let mut command = program(["work", "--type", name, "--concurrency", "8", "--", "sleep", "0.5"]);
        command.env("TIDEGATE_URL", &tide.base).stdout(Stdio::null()).stderr(Stdio::null());
        workers.push(tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap());
    }
    eventually("both workers ask for jobs", || async {
        let workers = tide.get("/v1/workers").await.is(200);
        (workers["workers"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    let mut ids = Vec::new();
    for (name, count) in [("mail", 12), ("report", 4)] {
        for _ in 0..count {
            ids.push(tide.enqueue_a(name).await);
        }
    }
    for id in &ids {
        tide.job_in(id, "succeeded").await;
    }
    assert_eq!(tide.get("/v1/plugins/mine").await.is(200)["health"]["faults"], 0);

    let (trace, picture) = (dir.path().join("trace.json"), dir.path().join("out.svg"));
    std::fs::write(&trace, tide.cli(&["plugin", "trace", "q"]).await.ok()).unwrap();
    let args = ["plugin", "simulate", text(&trace), "--plugin", text(&component), "--by", "type", "--picture", text(&picture), "--json"];
    let out: Value = serde_json::from_str(&tide.cli(&args).await.ok()).unwrap();
    for side in ["real", "simulated"] {
        assert_eq!(out[side]["all"]["succeeded"], ids.len(), "{out:#}");
        for group in out[side]["groups"].as_array().unwrap() {
            assert_eq!(group["most_running"], 2, "{side}: {group:#}");
        }
    }
    let agreement = &out["agreement"];
    assert_eq!(agreement["jobs"], ids.len());
    for name in ["mail", "report"] {
        // What is between them is what the live queue needs from a result to the next start.
        assert!(agreement["overlap"][name].as_f64().unwrap() > 0.5, "{agreement:#}");
    }
    assert!(std::fs::read_to_string(picture).unwrap().contains("what the queue really did"));
}

#[test]
#[ignore = "needs Node.js, and fetches its tool; ./test runs it where it can"]
fn a_new_javascript_project_builds_and_its_cases_hold() {
    works("js");
}

/// A new project whose rule begins with `trouble`, in place of `rule`: what `tidegate plugin test` says of it.
fn in_trouble(lang: &str, source: &str, rule: &str, trouble: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    done(tidegate(dir.path(), &["new", "--lang", lang, "mine"]));
    let project = dir.path().join("mine");
    let text = std::fs::read_to_string(project.join(source)).unwrap();
    assert!(text.contains(rule), "{text}");
    std::fs::write(project.join(source), text.replace(rule, trouble)).unwrap();
    done(tidegate(&project, &["build"]));
    let tested = tidegate(&project, &["test", "mine.wasm"]);
    assert_eq!(tested.status.code(), Some(1));
    String::from_utf8(tested.stdout).unwrap()
}

#[test]
#[ignore = "needs Node.js, and fetches its tool; ./test runs it where it can"]
fn what_a_javascript_plugin_throws_is_logged_and_what_it_logs_never_breaks_a_call() {
    let trouble = "console.log({ big: 1n }); throw new Error('no idea'); return candidates.map";
    let said = in_trouble("js", "plugin.js", "return candidates.map", trouble);
    for part in
        ["log: info: [object Object]\n", "it failed (declined): no idea\n", "log: error: Error: no idea\n    at decide (/plugin.js:"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
}

/// One plugin does it all: a component from Python takes most of a minute to build and to compile.
#[test]
#[ignore = "needs Python, and fetches its tool; ./test runs it where it can"]
fn what_a_python_plugin_prints_and_raises_is_logged() {
    let trouble = "from sdk.throttler import hold_until
        print('one', 2)
        for wrong in [
            lambda: round.state.save('k' * 200, 1),
            lambda: round.state.save('k', 'x' * 20000),
            lambda: hold_until(-1),
        ]:
            try:
                wrong()
            except ValueError as error:
                print(error)
        hold(5)
        raise KeyError('region')";
    let said = in_trouble("python", "plugin.py", "decisions = []", trouble);
    for part in [
        "log: info: one 2\n",
        "log: info: 'kkk",
        "log: info: 'k' cannot be kept: the state is full",
        "log: info: until must be milliseconds since 1970, not -1\n",
        "it failed (declined): KeyError: 'region'\n",
        "log: error: KeyError: 'region'\n    at ",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
#[ignore = "needs Python, and fetches its tool; ./test runs it where it can"]
fn a_new_python_project_builds_and_its_cases_hold() {
    works("python");
}

#[test]
fn a_folder_that_is_there_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    let refused = tidegate(dir.path(), &["new", "--lang", "js", "mine"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mine is there already"));
    assert_eq!(std::fs::read_dir(dir.path().join("mine")).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_built_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let nothing = tidegate(dir.path(), &["build"]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("tidegate plugin new"));
    done(tidegate(dir.path(), &["new", "--lang", "js", "mine"]));
    let mut command = program(["plugin", "build", text(&dir.path().join("mine"))]);
    let missing = command.env("PATH", dir.path()).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("npx is not installed: it comes with Node.js"), "{missing:?}");
}
