use super::*;

fn call(text: &str) -> Call {
    Case::read(text).unwrap()[0].call().unwrap()
}

#[test]
fn absent_fields_of_a_case_have_defaults() {
    let Call::Throttle(call) = call(
        r#"{"name": "a", "role": "throttler",
            "running": [{"times": 2, "attributes": {"region": "east", "size": 2, "big": true}}],
            "candidates": [{"data": {"rows": 1}}, {"id": "b", "weight": 3, "attempt": 2}],
            "state": {"n": 1, "s": "x"}}"#,
    ) else {
        panic!("a throttler's call")
    };
    let ids: Vec<&str> = call.candidates.iter().map(|job| job.id.as_str()).collect();
    assert_eq!((ids.as_slice(), call.room, &*call.config), (&["job-1", "b"][..], 1000, "{}"));
    assert_eq!((call.candidates[1].spec.weight, call.candidates[1].life.attempt), (3, 1));
    assert_eq!(call.now.to_string(), "2026-01-01T00:00:00.000Z");
    assert_eq!(
        call.running.iter().map(|grant| grant.job.as_str()).collect::<Vec<_>>(),
        ["running-1-1", "running-1-2"]
    );
    assert_eq!(
        serde_json::to_value(&call.running.iter().next().unwrap().attributes).unwrap(),
        json!({"region": "east", "size": 2, "big": "true"})
    );
    assert_eq!((call.state.text("n"), call.state.text("s")), (Some("1"), Some("x")));
    assert_eq!(call.data.values().collect::<Vec<_>>(), [r#"{"rows":1}"#]);
}

#[test]
fn a_retry_strategy_receives_the_failures_in_order() {
    let Call::Retry(call) = call(
        r#"[{"name": "a", "role": "retry",
             "job": {"attempt": 3, "data": [1], "earlier": [{"reason": "timeout"}, {}]},
             "failure": {"status": 503, "details": {"code": 7},
                         "not_before": "2026-01-01T00:01:00Z"}}]"#,
    ) else {
        panic!("a retry strategy's call")
    };
    assert_eq!(
        call.job.life.history.iter().map(|entry| entry.attempt).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert_eq!(call.job.life.history[2].error.as_ref().unwrap().status, Some(503));
    assert_eq!(
        (call.data.as_deref(), call.not_before.map(Timestamp::millis)),
        (Some("[1]"), Some(1_767_225_660_000))
    );
}

#[test]
fn the_error_of_an_invalid_case_names_its_path() {
    for (text, wanted) in [
        (r#"{"name": "a", "role": "throttler", "candidats": []}"#, "unknown field `candidats`"),
        (
            r#"{"name": "a", "role": "throttler", "candidates": [{"weight": -1}]}"#,
            "candidates[0].weight",
        ),
        (r#"{"name": "a", "role": "throttler", "now": "soon"}"#, "an instant like"),
    ] {
        let error = Case::read(text).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
    let strange =
        Case::read(r#"{"name": "a", "role": "retry", "failure": {"reason": "bored"}}"#).unwrap();
    assert!(strange[0].call().unwrap_err().contains("bored"));
}
