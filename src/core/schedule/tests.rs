//! What a schedule does next, and what it is stored as.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use rstest::rstest;

use crate::{
    job::{Encoding, JobId, Payload},
    schedule::{
        COUNTED, GRACE, Missed, ScheduleConfig, ScheduleItem, ScheduleState, Step, occurrence_id,
        run_id,
    },
    time::{Seconds, Timestamp},
    validate::check_schedule,
};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn second(second: u64) -> Timestamp {
    at("2026-01-01T00:00:00Z") + Duration::from_secs(second)
}

/// A schedule every ten seconds.
fn item(missed: Missed, max_missed: u32) -> ScheduleItem {
    let config = ScheduleConfig {
        missed,
        max_missed,
        ..ScheduleConfig::every("work".parse().unwrap(), Seconds::new(10))
    };
    ScheduleItem {
        config,
        data: Payload::null(),
        version: 1,
        rule: 1,
        since: second(0),
        replaced: None,
    }
}

fn step(occurrence: Option<u64>, skipped: u64, upto: Timestamp) -> Step {
    Step { occurrence: occurrence.map(second), skipped, upto }
}

#[test]
fn what_is_not_due_waits_and_what_is_due_is_one_step() {
    let item = item(Missed::One, 1);
    assert_eq!(item.step(second(0), second(9), second(9)), None);
    assert_eq!(item.step(second(0), second(10), second(10)), Some(step(Some(10), 0, second(10))));
    assert_eq!(item.step(second(10), second(10), second(10)), None, "once");
    assert_eq!(
        item.step(second(10), second(10), second(40)),
        Some(step(Some(20), 0, second(20))),
        "ahead, one after the other",
    );
}

#[test]
fn what_is_late_within_the_grace_is_not_missed() {
    for missed in [Missed::Skip, Missed::One, Missed::All] {
        assert_eq!(
            item(missed, 5).step(second(0), second(70), second(70)),
            Some(step(Some(10), 0, second(10))),
            "{missed:?}",
        );
    }
}

#[rstest]
#[case::skipped(Missed::Skip, 9, Some(940), 93)]
#[case::one_for_all(Missed::One, 9, Some(930), 92)]
#[case::each_of_the_latest(Missed::All, 9, Some(850), 84)]
#[case::each(Missed::All, 1000, Some(10), 0)]
fn what_is_later_is_missed(
    #[case] missed: Missed,
    #[case] most: u32,
    #[case] occurrence: Option<u64>,
    #[case] skipped: u64,
) {
    let made = item(missed, most).step(second(0), second(1000), second(1000));
    assert_eq!(made, Some(step(occurrence, skipped, second(occurrence.unwrap()))));
}

#[test]
fn missed_ones_that_nothing_follows_are_passed_over() {
    let mut item = item(Missed::Skip, 1);
    item.config.every_seconds = Some(Seconds::new(3600));
    let now = at("2026-01-01T05:30:00Z");
    let upto = now - GRACE - Duration::from_millis(1);
    assert_eq!(item.step(second(0), now, now), Some(step(None, 5, upto)));
    assert_eq!(item.step(upto, now, now), None);
}

#[test]
fn a_year_of_seconds_is_passed_over_at_once() {
    let mut item = item(Missed::All, 3);
    item.config.every_seconds = Some(Seconds::new(1));
    let now = at("2027-01-01T00:00:00Z");
    let made = item.step(second(0), now, now).unwrap();
    assert_eq!(
        made,
        Step {
            occurrence: Some(now - Duration::from_secs(63)),
            skipped: COUNTED as u64,
            upto: now - Duration::from_secs(63),
        }
    );
}

#[test]
fn nothing_occurs_while_it_is_paused() {
    let mut item = item(Missed::All, 5);
    item.config.paused = true;
    assert_eq!(item.step(second(0), second(1000), second(1000)), None);
}

#[test]
fn another_rule_begins_when_it_was_made() {
    let item = ScheduleItem { rule: 4, version: 7, since: second(500), ..item(Missed::One, 1) };
    let of =
        |rule: u64| ScheduleState { rule, upto: second(90), missed: 3, ..ScheduleState::default() };
    assert_eq!(item.state(of(4)).upto, second(90));
    let restarted = item.state(of(3));
    assert_eq!((restarted.upto, restarted.rule, restarted.missed), (second(500), 4, 3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// However a schedule is called, each occurrence makes one job or is passed over, and both only
    /// once.
    #[test]
    fn steps_deal_with_every_occurrence_once(
        missed in prop::sample::select(vec![Missed::Skip, Missed::One, Missed::All]),
        most in 1u32..5,
        calls in prop::collection::vec((0u64..400, 0u64..100), 1..12),
    ) {
        let item = item(missed, most);
        let (mut now, mut upto, mut horizon) = (second(0), second(0), second(0));
        let mut made = Vec::new();
        let mut passed = 0;
        for (wait, ahead) in calls {
            now = now + Duration::from_secs(wait);
            horizon = horizon.max(now + Duration::from_secs(ahead));
            while let Some(step) = item.step(upto, now, now + Duration::from_secs(ahead)) {
                prop_assert!(step.upto > upto);
                upto = step.upto;
                passed += step.skipped;
                made.extend(step.occurrence);
            }
        }
        prop_assert!(made.is_sorted_by(|a, b| a < b), "{:?}", made);
        prop_assert!(made.iter().all(|at| at.since(second(0)).as_secs() % 10 == 0));
        let until = made.last().copied().unwrap_or(second(0)).max(upto);
        prop_assert_eq!(made.len() as u64 + passed, until.since(second(0)).as_secs() / 10);
    }
}

#[rstest]
#[case::short("nightly", "2026-03-29T01:00:00Z", "nightly:20260329T010000Z")]
#[case::to_the_millisecond("nightly", "2026-03-29T01:00:00.25Z", "nightly:20260329T010000.250Z")]
#[case::forty(
    &"n".repeat(40),
    "2026-03-29T01:00:00.25Z",
    &format!("{}:20260329T010000.250Z", "n".repeat(40)),
)]
fn an_occurrence_s_id_is_the_schedule_and_the_instant(
    #[case] name: &str,
    #[case] instant: &str,
    #[case] id: &str,
) {
    assert_eq!(occurrence_id(&name.parse().unwrap(), at(instant)).as_str(), id);
}

#[test]
fn long_names_that_begin_alike_make_different_ids() {
    let id = |last: &str| {
        occurrence_id(&format!("{}{last}", "n".repeat(63)).parse().unwrap(), second(0))
    };
    assert_ne!(id("a"), id("b"));
    assert_eq!(id("a"), id("a"));
    let run: JobId = run_id(&"n".repeat(64).parse().unwrap(), "key");
    assert_ne!(run, run_id(&"n".repeat(64).parse().unwrap(), "other key"));
}

/// Ids are stored. A client that repeats a run after an upgrade must find the job of the first one.
#[test]
fn the_ids_of_runs_are_the_same_in_every_release() {
    let id = |schedule: &str| run_id(&schedule.parse().unwrap(), "key").to_string();
    assert_eq!(id("nightly"), "nightly:run.2c70e12b7a0646f9");
    let long = "n".repeat(64);
    assert_eq!(id(&long), format!("{}.ce068a195ab3:run.2c70e12b7a0646f9", &long[..27]));
}

#[test]
fn a_schedule_reads_as_it_was_stored() {
    for data in [
        Payload::json("{\"n\": 1.0e2}"),
        Payload { encoding: Encoding::MessagePack, bytes: Bytes::from_static(&[0xc4, 1, 0xff]) },
    ] {
        let stored = ScheduleItem { data, ..item(Missed::All, 7) };
        let bytes = serde_json::to_vec(&stored).unwrap();
        assert_eq!(serde_json::from_slice::<ScheduleItem>(&bytes).unwrap(), stored);
    }
}

fn config(json: &str) -> ScheduleConfig {
    serde_json::from_str(json).unwrap()
}

#[rstest]
#[case::no_rule("{}", "cron must be given, unless `every_seconds` is")]
#[case::two_rules(
    r#"{"cron": "* * * * *", "every_seconds": 5}"#,
    "every_seconds must not be given together with `cron`"
)]
#[case::too_often(r#"{"every_seconds": 0.999}"#, "every_seconds must be 1 to 31536000")]
#[case::too_seldom(r#"{"every_seconds": 31536001}"#, "every_seconds must be 1 to 31536000")]
#[case::anchor_of_a_pattern(
    r#"{"cron": "* * * * *", "anchor": "2026-01-01T00:00:00Z"}"#,
    "anchor must be given only with `every_seconds`"
)]
#[case::zone_of_a_span(r#"{"every_seconds": 5, "tz": "UTC"}"#, "tz must be given only with `cron`")]
#[case::never(r#"{"cron": "0 0 30 2 *"}"#, "cron matches no day of the calendar")]
#[case::an_empty_list(r#"{"cron": "0 0 , * *"}"#, "cron matches no day of the calendar")]
#[case::backward(
    r#"{"every_seconds": 5, "starts_at": "2026-01-02T00:00:00Z",
        "ends_at": "2026-01-01T00:00:00Z"}"#,
    "ends_at must not be before `starts_at`"
)]
#[case::no_missed(r#"{"every_seconds": 5, "max_missed": 0}"#, "max_missed must be 1 to 1000")]
#[case::many_missed(r#"{"every_seconds": 5, "max_missed": 1001}"#, "max_missed must be 1 to 1000")]
#[case::expires_at_once(
    r#"{"every_seconds": 5, "expires_after_seconds": 0}"#,
    "expires_after_seconds must be 0.001 to 315360000"
)]
fn a_schedule_that_makes_no_sense_is_refused(#[case] json: &str, #[case] why: &str) {
    let fault =
        check_schedule(&config(&json.replacen('{', r#"{"type": "work", "#, 1).replace(", }", "}")))
            .unwrap_err();
    assert_eq!((fault.code.as_str(), fault.to_string().as_str()), ("invalid_schedule", why));
}

#[test]
fn a_schedule_that_is_over_may_be_kept() {
    let over = config(r#"{"type": "work", "every_seconds": 1, "ends_at": "2001-01-01T00:00:00Z"}"#);
    assert_eq!(check_schedule(&over), Ok(()));
}
