//! Stacks that are none of tidegate's stay as they are.

use super::*;

fn add(harness: &Harness, name: &str, parameters: &[(&str, &str)]) {
    let stack = FakeStack::deployed(parameters);
    harness.aws.account.lock().stacks.insert(name.into(), stack);
}

#[tokio::test]
async fn a_foreign_stack_with_the_name_of_the_code_stays() {
    let harness = Harness::new().await;
    let deployment =
        [("CodeBucket", "mine"), ("CodePrefix", "1"), ("AlarmEmail", "a@b.c"), ("K", "k")];
    for is_deployed in [false, true] {
        // A deployment has an output with its data bucket.
        add(&harness, "tidegate-code", &deployment);
        let data = "tidegate-code-bucket/bodies/1".to_owned();
        harness.aws.account.lock().objects.insert(data.clone(), "1".into());
        let mut lines = vec![DEPLOY];
        if is_deployed {
            add(&harness, "tidegate", &deployment);
            let rest = ["upgrade --functions FOLDER --yes", "rollback --yes"];
            lines = rest.into_iter().chain(["destroy --confirm tidegate"]).collect();
        }
        for line in lines {
            let error = harness.bad(line).await;
            assert!(error.starts_with("Usage the stack tidegate-code is not one"), "{error}");
        }
        for action in ["CreateChangeSet", "DeleteStack", "PUT", "DELETE"] {
            assert_eq!(harness.aws.count(action), 0, "{action}");
        }
        assert!(harness.aws.account.lock().objects.contains_key(&data));
    }
}

#[tokio::test]
async fn a_stack_that_is_no_deployment_stays() {
    let harness = Harness::new().await;
    add(&harness, "payments", &[("CodeBucket", "x")]);
    for line in [
        "deploy --functions FOLDER --alarm-email a@b.c --yes --stack payments",
        "upgrade --functions FOLDER --yes --stack payments",
        "rollback --yes --stack payments",
        "destroy --stack payments --confirm payments",
    ] {
        let error = harness.bad(line).await;
        assert!(error.starts_with("Usage the stack payments is no deployment"), "{error}");
    }
    let account = harness.aws.account.lock();
    assert_eq!(account.stacks.len(), 1);
    assert!(account.objects.is_empty() && account.secrets.is_empty());
}

#[test]
fn the_name_of_a_code_stack_is_no_name_of_a_deployment() {
    let parse = |name| Cli::try_parse_from(["tidegate", "aws", "rollback", "--stack", name]);
    assert!(parse("orders").is_ok());
    let error = parse("orders-code").unwrap_err().to_string();
    assert!(error.contains("the deployment orders has this stack"), "{error}");
}
