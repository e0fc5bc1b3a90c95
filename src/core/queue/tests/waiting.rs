//! Estimates of what waits: their bounds, corrections and groups.

use rstest::rstest;

use crate::{
    job::{Attributes, Value},
    queue::{
        QueueConfig,
        waiting::{MAX_WAITING_PARTITIONS, SeenPartitions, WaitingCount, WaitingEstimate},
    },
    time::Timestamp,
};

fn count(jobs: u32) -> WaitingCount {
    WaitingCount {
        jobs,
        weight: jobs.into(),
        oldest_due_at: Timestamp::from_millis(jobs.into()),
        at_least: false,
    }
}

fn estimate(counts: &[(&str, u32)]) -> WaitingEstimate {
    let counts = counts.iter().map(|(name, jobs)| ((*name).to_owned(), count(*jobs)));
    WaitingEstimate::of(counts.collect(), Timestamp::EPOCH)
}

fn by(first: &str, second: Option<&str>) -> QueueConfig {
    QueueConfig {
        partition_by: Some(first.into()),
        partition_then_by: second.map(Into::into),
        ..QueueConfig::default()
    }
}

/// The partitions of an estimate with their numbers, `+` where there may be more.
fn shown(estimate: &WaitingEstimate) -> String {
    let shown = |(name, count): (&String, &WaitingCount)| {
        format!("{name}{}{}", count.jobs, if count.at_least { "+" } else { "" })
    };
    estimate.partitions.iter().map(shown).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_largest_partitions_are_kept_and_the_rest_is_one_sum() {
    let names: Vec<String> = (0..1500).map(|n| format!("t{n:04}")).collect();
    let counts: Vec<_> = names.iter().zip(1..).map(|(name, n)| (name.as_str(), n)).collect();
    let estimate = estimate(&counts);
    assert_eq!(estimate.partitions.len(), MAX_WAITING_PARTITIONS);
    assert!(!estimate.partitions.contains_key("t0499"));
    assert_eq!(estimate.partitions["t0500"], count(501));
    let others = estimate.others.unwrap();
    assert_eq!((others.jobs, others.oldest_due_at), (500 * 501 / 2, Timestamp::from_millis(1)));
}

#[rstest]
#[case::all_were_looked_at(&[("a", 2, false), ("c", 9, true)], None, None, true, "a2 c30")]
#[case::more_than_were_counted(&[("c", 90, true)], None, None, true, "c90")]
#[case::new_ones(&[("d", 2, true), ("e", 3, false)], None, Some("e"), true, "d2+ e3")]
#[case::behind_the_last(&[("b", 1, false)], Some("a"), Some("b"), true, "a10 b1 c30")]
#[case::around(&[("c", 2, false)], Some("b"), Some("a"), true, "b20 c2")]
#[case::other_types_may_wait(&[("a", 2, false), ("c", 40, false)], None, None, false, "a10 b20 c40")]
fn a_tick_corrects_what_it_has_looked_at(
    #[case] pages: &[(&str, u32, bool)],
    #[case] from: Option<&str>,
    #[case] end: Option<&str>,
    #[case] is_all: bool,
    #[case] expected: &str,
) {
    let mut estimate = estimate(&[("a", 10), ("b", 20), ("c", 30)]);
    let pages = pages.iter().map(|(name, jobs, more)| (*name, Some(count(*jobs)), *more));
    estimate.correct(&SeenPartitions { pages: pages.collect(), from, end }, is_all);
    assert_eq!(shown(&estimate), expected);
}

#[test]
fn a_partition_without_candidates_is_removed() {
    let mut estimate = estimate(&[("a", 10), ("b", 20)]);
    let pages = vec![("a", None, false), ("b", None, true)];
    estimate.correct(&SeenPartitions { pages, from: None, end: None }, true);
    assert_eq!(shown(&estimate), "b20");
}

#[test]
fn a_started_job_does_not_wait() {
    let mut estimate = estimate(&[("a", 1), ("b", 2)]);
    estimate.started("a", 1);
    estimate.started("b", 1);
    estimate.started("c", 1);
    assert_eq!(shown(&estimate), "b1");
}

#[test]
fn two_attributes_have_their_own_groups() {
    let queue = by("tenant", Some("user"));
    let job = |values: &[(&str, &str)]| {
        let values = values.iter();
        let attribute =
            |(name, value): &(&str, &str)| ((*name).to_owned(), Value::Text((*value).into()));
        queue.partition_of(&values.map(attribute).collect::<Attributes>())
    };
    let names = [
        job(&[("tenant", "a"), ("user", "ann")]),
        job(&[("tenant", "a"), ("user", "bob")]),
        job(&[("tenant", "b\u{1f}c"), ("user", "ann")]),
        job(&[("tenant", "a")]),
        job(&[("user", "ann")]),
        job(&[("other", "x")]),
    ];
    assert_eq!(names[5], "");
    let counts: Vec<_> = names.iter().zip(1..).map(|(name, n)| (name.as_str(), n)).collect();
    let groups = estimate(&counts).groups(&queue).groups;
    let shown = |by: &str| {
        groups[by]
            .iter()
            .map(|(value, count)| format!("{value}={}", count.jobs))
            .collect::<Vec<_>>()
    };
    assert_eq!(shown("tenant"), ["a=7", "b c=3"]);
    assert_eq!(shown("user"), ["ann=9", "bob=2"]);
}

#[test]
fn one_attribute_keeps_every_value_as_it_is() {
    let queue = by("tenant", None);
    let value = Value::Text("a\u{1f}b".into());
    let name = queue.partition_of(&[("tenant".to_owned(), value)].into());
    assert_eq!(queue.partition_values(&name).collect::<Vec<_>>(), [("tenant", "a\u{1f}b")]);
    assert_eq!(QueueConfig::default().partition_attributes().count(), 0);
}
