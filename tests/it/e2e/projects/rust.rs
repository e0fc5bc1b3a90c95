//! Projects in Rust.

use std::process::Stdio;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{done, governs_as_the_readme_says, in_trouble, retries, tidegate, typed, watched};
use crate::e2e::{serve::Tidegate, wait::eventually};

#[tokio::test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it unless the target cannot be installed"]
async fn a_rust_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("rust", &[]).await;
}

#[test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it unless the target cannot be installed"]
fn a_new_rust_retry_strategy_builds_and_its_cases_hold() {
    retries("rust");
}

#[test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it unless the target cannot be installed"]
fn a_rust_plugin_says_why_its_state_cannot_be_saved() {
    let trouble = "let long = round.state.save(&\"k\".repeat(200), &1).unwrap_err();
        let long = long.trim_start_matches(|letter| letter != ':');
        let full = round.state.save(\"k\", &\"x\".repeat(20_000)).unwrap_err();
        if !full.is_empty() { return Err(format!(\"{full} And{long}\")); }
        // The running jobs";
    let said = in_trouble("rust", "throttler", "src/lib.rs", "// The running jobs", trouble);
    let words = "it failed (rejected): state k: its value has more than 16 KiB And: a key must have 1 \
                 to 128 bytes";
    assert!(said.contains(words), "{said}");
}

#[tokio::test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it unless the target cannot be installed"]
async fn a_change_of_a_rust_project_becomes_a_shadow_version() {
    let (tide, dir) = (Tidegate::start().await, tempfile::tempdir().unwrap());
    done(tidegate(dir.path(), &["new", "--lang", "rust", "mine"]));
    let project = dir.path().join("mine");
    done(tidegate(&project, &["build"]));
    // Not in the project, whose changes the command watches.
    let output = dir.path().join("output");
    let mut watching = typed("exec tidegate plugin dev --push mine", &project, &tide.base)
        .stdout(std::fs::File::create(&output).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let versions = async || {
        let plugin = tide.get("/v1/plugins/mine").await;
        (plugin.status == 200)
            .then(|| plugin.is(200))
            .map(|plugin| (plugin["live"].as_u64(), plugin["shadow"].as_u64()))
    };
    let live = eventually("the first version is live", &versions).await;
    assert_eq!(live, (Some(1), None));
    let file = project.join("src/lib.rs");
    let source = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, source.replace("At most `limit`", "No more than `limit`")).unwrap();
    eventually("the second is the shadow", || async {
        versions().await.filter(|both| *both == (Some(1), Some(2)))
    })
    .await;
    watched::shows_what_is_new(&tide, &file, &output).await;
    // Its cases hold no more: the command reports it, and pushes nothing.
    std::fs::write(&file, source.replace("> config.limit", "> config.limit + 1")).unwrap();
    let failed = tidegate(&project, &["dev", "--once", "--push", "mine"]);
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(versions().await, Some((Some(1), Some(3))));
    // Ctrl-C ends it, and the plugin has no shadow version as before.
    kill(Pid::from_raw(watching.id().unwrap().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(watching.wait().await.unwrap().code(), Some(0));
    assert_eq!(versions().await, Some((Some(1), None)));
}
