use serde_json::json;

use super::*;
use tidegate_core::port::policy::FaultKind;

/// Returns the differences for a response with two decisions, where the second one holds.
fn wrong(expect: &str) -> Vec<String> {
    let text = format!(
        r#"{{"name": "a", "role": "throttler", "candidates": [{{}}, {{}}], "state": {{"n": 1}},
            "expect": {expect}}}"#
    );
    let case = Case::read(&text).unwrap().pop().unwrap();
    let hold = Decision {
        action: Action::Hold(Some(Timestamp::from_millis(5000))),
        reason: Some("east is full".into()),
    };
    let decisions = vec![Decision { action: Action::Run, reason: None }, hold];
    let answer = ThrottleAnswer { decisions, more: true, state: None };
    case.expect.of(&case, &case.call().unwrap(), &Ok(Answer::Throttle(answer)))
}

#[test]
fn an_expected_answer_has_no_differences() {
    for expect in [
        "{}",
        r#"{"runs": 1, "more": true, "state": {"n": 1}}"#,
        r#"{"decisions": [{"action": "run"},
            {"action": "hold", "until": 5000, "reason": "east"}]}"#,
    ] {
        assert_eq!(wrong(expect), Vec::<String>::new(), "{expect}");
    }
}

#[test]
fn a_difference_is_shown_with_both_sides() {
    for (expect, difference) in [
        (r#"{"runs": 2}"#, "1 of 2 candidates run; expected 2"),
        (r#"{"more": false}"#, "more is true; expected false"),
        (r#"{"state": {}}"#, r#"the state is {"n":"1"}; expected {}"#),
        (r#"{"decisions": [{"action": "run"}]}"#, "2 decisions; expected 1"),
        (
            r#"{"decisions": [{"action": "run"}, {"action": "hold", "reason": "west"}]}"#,
            "decision 2 is hold until 1970-01-01T00:00:05.000Z (east is full); \
             expected hold (west...)",
        ),
        (r#"{"error": "no"}"#, "it did not fail; expected \"no\""),
    ] {
        assert_eq!(wrong(expect), [difference], "{expect}");
    }
}

#[test]
fn an_unexpected_fault_is_a_difference() {
    let case = |expect: &str| {
        Case::read(&format!(r#"{{"name": "a", "role": "throttler", "expect": {expect}}}"#))
            .unwrap()
            .pop()
            .unwrap()
    };
    let fault = || Err(Fault { kind: FaultKind::Rejected, message: "no region".into() });
    let differences = |case: &Case| case.expect.of(case, &case.call().unwrap(), &fault());
    assert!(differences(&case(r#"{"error": "no"}"#)).is_empty());
    assert_eq!(differences(&case("{}")), ["it failed (rejected): no region"]);
    assert_eq!(
        differences(&case(r#"{"error": "yes"}"#)),
        ["it failed (rejected): no region; expected \"yes\""]
    );
}

#[test]
fn a_retry_is_compared_in_time_data_and_priority() {
    let differences = |expect: &str, answer: RetryAnswer| {
        let text = format!(r#"{{"name": "a", "role": "retry", "now": 1000, "expect": {expect}}}"#);
        let case = Case::read(&text).unwrap().pop().unwrap();
        case.expect.of(&case, &case.call().unwrap(), &Ok(Answer::Retry(answer.into())))
    };
    let retry = |millis, data: Option<&str>| {
        RetryAnswer::Retry(RetryPlan {
            data: data.map(str::to_owned),
            ..RetryPlan::new(Timestamp::from_millis(millis))
        })
    };
    assert!(differences(r#"{"retry": {"after_seconds": 2.5}}"#, retry(3500, None)).is_empty());
    assert!(
        differences(r#"{"retry": {"data": {"a": 1}}}"#, retry(3500, Some(r#"{"a":1}"#))).is_empty()
    );
    assert!(differences(r#"{"give_up": null}"#, RetryAnswer::GiveUp(None)).is_empty());
    assert_eq!(
        differences(r#"{"retry": {"after_seconds": 2}}"#, retry(3500, None)),
        ["it retries at 1970-01-01T00:00:03.500Z, 2.5 s from now; \
             expected a retry after 2 s, the same data"]
    );
    assert_eq!(
        differences(r#"{"give_up": "why"}"#, RetryAnswer::GiveUp(None)),
        ["it gives up (no message); expected that it gives up with \"why\""]
    );
    assert_eq!(differences(r#"{"retry": {}}"#, retry(0, Some("1"))).len(), 1);
    let plan = RetryPlan {
        weight: Some(2),
        attempts_left: Some(3),
        timeout: Some(Seconds::new(4)),
        ..RetryPlan::new(Timestamp::EPOCH)
    };
    let expected = |timeout: u64| {
        let expect = json!({
            "retry": {"weight": 2, "attempts_left": 3, "timeout_seconds": timeout}
        });
        differences(&expect.to_string(), RetryAnswer::Retry(plan.clone()))
    };
    assert!(expected(4).is_empty());
    assert_eq!(
        expected(5),
        ["it retries at 1970-01-01T00:00:00.000Z, 0 s from now, weight 2, attempts left 3, \
             timeout 4 s; expected a retry the same data, weight 2, attempts left 3, timeout 5 s"]
    );
}

#[test]
fn problems_are_compared_by_path_and_beginning() {
    let expect: Expect =
        serde_json::from_str(r#"{"problems": [{"path": "/limit", "message": "must"}]}"#).unwrap();
    let found =
        |path: &str, message: &str| [Problem { path: path.into(), message: message.into() }];
    assert!(expect.problems(&found("/limit", "must be positive")).is_empty() && !expect.decides());
    assert_eq!(expect.problems(&found("/share", "is none")).len(), 2);
    assert_eq!(
        Expect::default().problems(&found("/limit", "must be positive")),
        ["the configuration at \"/limit\": must be positive"]
    );
    assert_eq!(
        Expect::default().problems(&found("", "missing field")),
        ["the configuration: missing field"]
    );
}
