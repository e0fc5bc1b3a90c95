//! Projects in TypeScript.

use super::{done, governs_as_the_readme_says, retries, tidegate};

#[tokio::test]
#[ignore = "needs Node.js, and fetches its tools; cargo xtask check --full runs it"]
async fn a_typescript_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("ts", &[]).await;
}

#[test]
#[ignore = "needs Node.js, and fetches its tools; cargo xtask check --full runs it"]
fn a_new_typescript_retry_strategy_builds_and_its_cases_hold() {
    retries("ts");
}

/// The types of the SDK are those of the contract: the compiler finds a name that it does not have.
#[test]
#[ignore = "needs Node.js, and fetches its tools; cargo xtask check --full runs it"]
fn a_typescript_project_with_a_wrong_type_is_not_built() {
    let dir = tempfile::tempdir().unwrap();
    done(tidegate(dir.path(), &["new", "--lang", "ts", "mine"]));
    let file = dir.path().join("mine/plugin.ts");
    let source = std::fs::read_to_string(&file).unwrap();
    for (right, wrong, error) in [
        ("job.jobType", "job.type", "Property 'type' does not exist on type 'Job'"),
        ("return run();", "return 'run';", "is not assignable to type"),
        ("limit: number;", "limit: string;", "'number' and 'string'"),
    ] {
        assert!(source.contains(right), "{source}");
        std::fs::write(&file, source.replace(right, wrong)).unwrap();
        let failed = tidegate(&dir.path().join("mine"), &["build"]);
        assert_eq!(failed.status.code(), Some(1), "{failed:?}");
        let shown = String::from_utf8_lossy(&failed.stderr);
        assert!(shown.contains(error) && shown.contains("plugin.ts"), "{error} in {shown}");
        assert!(!dir.path().join("mine/mine.wasm").exists());
    }
}
