//! The checks of queues and clocks as tables, and the remedies.

use super::{
    clock::compare,
    queues::{EMPTY_HINT, EMPTY_WORK, QueueAttributes, check_backlog, check_settings},
    refusal::remedy,
};
use aws_sdk_sqs::types::QueueAttributeName as Name;
use tidegate_backends::sqs::Message;
use tidegate_core::port::health_check::CheckLevel;
use tidegate_engine::testkit::builders::at;

fn queue(change: &[(&str, Option<&str>)], fifo: bool) -> QueueAttributes {
    let redrive =
        r#"{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:1:work-dead", "maxReceiveCount": 5}"#;
    let mut found: QueueAttributes = [("VisibilityTimeout", "1800"), ("RedrivePolicy", redrive)]
        .map(|(name, value)| (name.into(), value.to_owned()))
        .into();
    if fifo {
        found.extend(
            [("FifoQueue", "true"), ("FifoThroughputLimit", "perMessageGroupId")]
                .map(|(name, value)| (name.into(), value.to_owned())),
        );
    }
    for (name, value) in change {
        match value {
            Some(value) => drop(found.insert((*name).into(), (*value).to_owned())),
            None => drop(found.remove(&Name::from(*name))),
        }
    }
    found
}

#[test]
fn each_wrong_setting_of_a_queue_is_reported() {
    for (change, fifo, level, word) in [
        (&[][..], false, CheckLevel::Ok, "1800 s"),
        (&[], true, CheckLevel::Ok, "5 receives"),
        (&[("FifoQueue", Some("true"))], false, CheckLevel::Error, "it is FIFO"),
        (&[("FifoQueue", None)], true, CheckLevel::Error, "a standard queue"),
        (
            &[("VisibilityTimeout", Some("30"))],
            false,
            CheckLevel::Error,
            "30 s, and the minimum is 1800 s",
        ),
        (&[("RedrivePolicy", None)], false, CheckLevel::Error, "no dead-letter queue"),
        (
            &[("RedrivePolicy", Some(r#"{"deadLetterTargetArn": "a", "maxReceiveCount": "1"}"#))],
            false,
            CheckLevel::Warning,
            "after 1 receives",
        ),
        (
            &[("ContentBasedDeduplication", Some("true"))],
            true,
            CheckLevel::Error,
            "deduplication is on",
        ),
        (&[("FifoThroughputLimit", Some("perQueue"))], true, CheckLevel::Warning, "perQueue"),
    ] {
        let check = check_settings("work queue", &queue(change, fifo), fifo, 1800);
        assert_eq!(check.level, level, "{change:?}: {check:?}");
        assert!(check.found.contains(word), "{change:?}: {check:?}");
        assert_eq!(check.advice.is_empty(), level == CheckLevel::Ok, "{check:?}");
    }
}

#[test]
fn a_backlog_that_no_function_receives_is_a_warning() {
    let of = |waiting: &str, in_flight: &str| {
        let counts = [
            ("ApproximateNumberOfMessages", Some(waiting)),
            ("ApproximateNumberOfMessagesNotVisible", Some(in_flight)),
        ];
        check_backlog("backlog", &queue(&counts, false), "tick")
    };
    assert_eq!(
        [of("0", "0"), of("10", "0"), of("5000", "20")].map(|check| check.level),
        [CheckLevel::Ok; 3]
    );
    let check = of("11", "0");
    assert!(
        check.level == CheckLevel::Warning
            && check.found.starts_with("11 wait")
            && check.advice.contains("mapping of `tick`"),
        "{check:?}"
    );
}

#[test]
fn the_probe_messages_carry_no_work_and_no_hint() {
    assert_eq!(Message::parse(EMPTY_WORK).unwrap(), Message::Work(Vec::new()));
    assert_eq!(Message::parse(EMPTY_HINT).unwrap(), Message::Hints(Vec::new()));
}

#[test]
fn clock_skew_is_a_warning_over_3_s_and_an_error_over_6_s() {
    let level = |there: u64| compare(at(there as i64), at(100_000), at(100_050)).level;
    assert_eq!(
        [level(99_000), level(103_000), level(105_000), level(120_000), level(80_000)],
        [CheckLevel::Ok, CheckLevel::Ok, CheckLevel::Warning, CheckLevel::Error, CheckLevel::Error]
    );
}

#[test]
fn each_error_of_a_service_has_a_remedy() {
    let remedies = [
        "AccessDeniedException: no",
        "AWS.SimpleQueueService.NonExistentQueue: no",
        "ResourceNotFoundException: no",
        "dispatch failure",
    ]
    .map(remedy);
    let words =
        ["role lacks", "deploy the stack again", "TIDEGATE_TABLE", "connect to the service"];
    for (remedy, word) in remedies.iter().zip(words) {
        assert!(remedy.contains(word), "{remedy}");
    }
}
