//! Commands that were interrupted, failed or declined, and are repeated.

use super::*;

/// Deploys and upgrades to three releases; their names.
async fn three_releases(harness: &Harness) -> Vec<String> {
    harness.good(DEPLOY).await;
    let mut names = Vec::new();
    for content in ["2", "3", "4"] {
        names.push(harness.aws.parameter("CodePrefix").rsplit('/').next().unwrap().to_owned());
        if content != "4" {
            write_zips(harness.folder.path(), content);
            harness.good("upgrade --functions FOLDER --yes").await;
        }
    }
    names
}

#[tokio::test]
async fn a_repeated_rollback_goes_no_further_back() {
    let harness = Harness::new().await;
    let names = three_releases(&harness).await;
    let runs = || harness.aws.parameter("CodePrefix").rsplit('/').next().unwrap().to_owned();
    // The first one fails after the change.
    harness.aws.account.lock().refuses = Some("v1/jobs");
    harness.bad("rollback --yes").await;
    assert_eq!(runs(), names[1]);
    harness.aws.account.lock().refuses = None;
    let changes = harness.aws.count("ExecuteChangeSet");
    let output = harness.good("rollback --yes").await;
    assert_eq!(runs(), names[1]);
    assert_eq!(harness.aws.count("ExecuteChangeSet"), changes);
    assert!(output.contains("a job was enqueued, leased and completed"), "{output}");
    assert!(output.contains(&format!("rollback --to {}`", names[0])), "{output}");
    let error = harness.bad(&format!("rollback --yes --to {}", names[2])).await;
    assert!(error.starts_with("Usage"), "{error}");
    harness.good(&format!("rollback --yes --to {}", names[0])).await;
    assert_eq!(runs(), names[0]);
    assert!(harness.bad(&format!("rollback --yes --to {}", names[1])).await.starts_with("Usage"));
}

#[tokio::test]
async fn a_failed_check_does_not_lose_the_token() {
    let harness = Harness::new().await;
    for (line, fails) in [(DEPLOY, Some(("Tick", "no"))), (DEPLOY, None)] {
        harness.aws.account.lock().fails = fails;
        harness.aws.account.lock().refuses = Some("v1/jobs");
        let (ran, output) = harness.run_with(&format!("{line} --json"), None, None).await;
        let error = ran.unwrap_err();
        let printed: serde_json::Value = serde_json::from_str(&output).unwrap();
        assert!(printed["token"].as_str().unwrap().starts_with("tg_"), "{printed}");
        let failure = printed["failure"].as_str().unwrap();
        assert!(!failure.is_empty() && error.ends_with(failure), "{error}: {failure}");
        assert_eq!(printed["url"].is_string(), fails.is_none());
    }
}

#[tokio::test]
async fn a_rollback_that_cannot_be_repaired_names_the_reason() {
    let harness = Harness::new().await;
    harness.good(DEPLOY).await;
    let break_it = |fails| {
        let mut account = harness.aws.account.lock();
        account.stacks.get_mut("tidegate").unwrap().status = "UPDATE_ROLLBACK_FAILED".into();
        account.fails = fails;
    };
    break_it(Some(("Tick", "a role is missing")));
    let error = harness.bad("upgrade --functions FOLDER --yes").await;
    assert!(error.contains("UPDATE_ROLLBACK_FAILED: Tick"), "{error}");
    assert!(error.contains("a role is missing"), "{error}");
    break_it(None);
    harness.good("upgrade --functions FOLDER --yes").await;
    let repairs = harness.aws.count("ContinueUpdateRollback");
    break_it(None);
    harness.good("destroy --confirm tidegate").await;
    assert_eq!(harness.aws.count("ContinueUpdateRollback"), repairs, "it can be deleted as it is");
}

#[tokio::test]
async fn a_failed_deletion_names_the_reason_and_is_repeated() {
    let harness = Harness::new().await;
    harness.good(DEPLOY).await;
    harness.aws.account.lock().fails = Some(("Topic", "it is in use"));
    let error = harness.bad("destroy --confirm tidegate").await;
    assert!(error.contains("cannot be deleted: Topic") && error.contains("in use"), "{error}");
    harness.aws.account.lock().fails = None;
    harness.good("destroy --confirm tidegate").await;
    assert!(harness.aws.account.lock().stacks.is_empty());
}

#[tokio::test]
async fn a_declined_change_leaves_no_change_set() {
    let harness = Harness::new().await;
    harness.good(DEPLOY).await;
    write_zips(harness.folder.path(), "2");
    for typed in [Some("n\n"), None] {
        let line = "upgrade --functions FOLDER";
        let (ran, _) = harness.run_with(line, Some("tg_ops_secret"), typed).await;
        assert_eq!(ran.ok(), typed.map(|_| ExitCode::Refused));
        assert!(!harness.aws.stack("tidegate").has_change_set());
    }
}
