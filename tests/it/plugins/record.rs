//! Calls as JSON: recorded, read again, and written by hand.

use std::sync::Arc;

use tidegate_backends::wasm::record;
use tidegate_core::port::policy::Call;
use tidegate_core::{
    job::lifecycle::{AttemptRecord, HandBack, HandBacks},
    port::policy::{StateValue, TargetHosts, ThrottleCall},
    time::Seconds,
};
use tidegate_engine::testkit::builders::{at, name};

use super::{NOW, failure, offer};

#[test]
fn a_call_of_a_throttler_comes_back() {
    let mut hosts = TargetHosts::default();
    hosts.insert(&name("work"), None, "a.example");
    let call = ThrottleCall {
        config: r#"{"limit": 2.50}"#.into(),
        ended: Arc::new(vec![super::ended()]),
        state: Arc::new(
            [("k", "v".into()), ("l", StateValue { text: "w".into(), expires_at: Some(at(NOW)) })]
                .into(),
        ),
        hosts: Arc::new(hosts),
        data: [(name("j0"), r#"{"a": [1, null]}"#.to_owned())].into(),
        ..offer(2, 2)
    };
    let json = record::to_json(&Call::Throttle(Arc::new(call.clone())));
    let Call::Throttle(read) = record::from_json(&json).unwrap() else { panic!("{json}") };
    assert_eq!(record::to_json(&Call::Throttle(Arc::clone(&read))), json);
    assert_eq!(
        (read.now, read.seed, &read.config, read.concurrency, read.room),
        (call.now, call.seed, &call.config, Some(100), 10)
    );
    assert_eq!((&read.state, &read.data, &read.ended), (&call.state, &call.data, &call.ended));
    assert_eq!(read.hosts, call.hosts);
    assert_eq!(
        read.running.iter().map(|grant| &grant.attributes).collect::<Vec<_>>(),
        call.running.iter().map(|grant| &grant.attributes).collect::<Vec<_>>()
    );
    for (read, job) in read.candidates.iter().zip(&call.candidates) {
        assert_eq!(
            (&read.id, &read.spec.attributes, read.life.attempt, &read.life.state),
            (&job.id, &job.spec.attributes, job.life.attempt, &job.life.state)
        );
    }
}

#[test]
fn a_call_of_a_retry_strategy_comes_back() {
    let mut call = failure();
    call.data = Some(r#"{"a":1}"#.into());
    call.not_before = Some(at(NOW + 7));
    call.host = Some("a.example".into());
    let last = call.job.life.history[1].error.as_mut().unwrap();
    last.retry_after = Some(Seconds::from_millis(7));
    let json = record::to_json(&Call::Retry(Arc::new(call.clone())));
    let Call::Retry(read) = record::from_json(&json).unwrap() else { panic!("{json}") };
    assert_eq!(record::to_json(&Call::Retry(Arc::clone(&read))), json);
    assert_eq!(read.job.life.history, call.job.life.history);
    assert_eq!(
        (&read.data, read.not_before, &read.host, read.job.life.attempt),
        (&call.data, call.not_before, &call.host, 2)
    );
    assert!(
        json.contains(r#""status":503"#) && json.contains(r#""details":{"busy":true}"#),
        "{json}"
    );
}

#[test]
fn a_retry_strategy_counts_no_attempt_that_was_handed_back() {
    let mut call = failure();
    let life = &mut call.job.life;
    let back = AttemptRecord { hand_back: Some(HandBack::default()), ..life.history[0].clone() };
    life.history.insert(0, back.clone());
    life.history.insert(2, back);
    (0..).zip(&mut life.history).for_each(|(before, entry)| entry.attempt = 38 + before);
    life.attempt = 41;
    life.hand_backs = Some(HandBacks { total: 39, ..HandBacks::default() });
    let json = record::to_json(&Call::Retry(Arc::new(call)));
    let Call::Retry(read) = record::from_json(&json).unwrap() else { panic!("{json}") };
    let failures: Vec<u16> = read.job.life.history.iter().map(|entry| entry.attempt).collect();
    assert_eq!((read.job.life.attempt, &failures[..]), (2, &[1, 2][..]), "{json}");
}

#[test]
fn a_throttler_counts_no_attempt_that_was_handed_back() {
    let mut call = offer(1, 0);
    let life = &mut call.candidates[0].life;
    life.attempt = 5;
    life.hand_backs = Some(HandBacks { total: 4, ..HandBacks::default() });
    let json = record::to_json(&Call::Throttle(Arc::new(call)));
    let Call::Throttle(read) = record::from_json(&json).unwrap() else { panic!("{json}") };
    assert_eq!(read.candidates[0].life.attempt, 1, "the next one is the second: {json}");
}

#[test]
fn two_jobs_of_one_type_can_have_other_hosts() {
    let host = |n: u32| format!(r#"{{"id": "j{n}", "target-host": "h{n}.example"}}"#);
    let (jobs, ended) =
        ([host(1), host(2)].join(","), host(3).replace('}', ",\"succeeded\":true}"));
    let json =
        format!(r#"{{"throttle": {{"candidates": [{jobs}], "round": {{"ended": [{ended}]}}}}}}"#);
    let Call::Throttle(call) = record::from_json(&json).unwrap() else { panic!("{json}") };
    let written = record::to_json(&Call::Throttle(call));
    for n in 1..=3 {
        let host = format!(r#""target-host":"h{n}.example""#);
        assert_eq!(written.matches(&host).count(), 1, "{written}");
    }
}

#[test]
fn a_case_names_only_what_it_is_about() {
    let json = r#"{"throttle": {"candidates": [{"id": "a", "attributes": {"region": "east", "size": 2}}], "context": {"config": {"limit": 1}}}}"#;
    let Call::Throttle(call) = record::from_json(json).unwrap() else { panic!("{json}") };
    assert_eq!(
        (call.candidates.len(), call.room, call.config.as_ref()),
        (1, 1000, r#"{"limit": 1}"#)
    );
    assert_eq!(call.candidates[0].spec.attributes["size"].text(), "2");

    let json = r#"{"retry": {"failed": {"id": "a"}, "last": {"reason": "timeout"}}}"#;
    let Call::Retry(call) = record::from_json(json).unwrap() else { panic!("{json}") };
    assert_eq!(call.job.life.history.len(), 1);
}

#[test]
fn the_fault_of_a_malformed_case_is_reported() {
    for (json, part) in [
        ("{}", "expected value"),
        (r#"{"throttle": {"candidate": []}}"#, "unknown field `candidate`"),
        (r#"{"throttle": {"context": {"now": 5}}}"#, "expected a"),
        (
            r#"{"retry": {"failed": {"id": "a", "attempt": 2}, "last": {"attempt": 3}}}"#,
            "the attempt of the job must be that of its last failure",
        ),
    ] {
        let said = record::from_json(json).unwrap_err().to_string();
        assert!(said.contains(part), "{said}");
    }
}
