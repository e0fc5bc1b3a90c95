//! Estimates of what waits: their bounds, corrections and groups.

use rstest::rstest;

use crate::{
    job::{Attributes, Value},
    queue::{
        QueueConfig,
        waiting::{MAX_WAITING_PARTITIONS, SeenPartitions, Waiting, WaitingCount, WaitingEstimate},
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
    after(&WaitingEstimate::default(), counts, None, 0)
}

/// `estimate` after a pass that began at `began_at` and counted these partitions, up to `end`.
fn after(
    estimate: &WaitingEstimate,
    counts: &[(&str, u32)],
    end: Option<&str>,
    began_at: i64,
) -> WaitingEstimate {
    let counts = counts.iter().map(|(name, jobs)| ((*name).to_owned(), count(*jobs)));
    let began_at = Timestamp::from_millis(began_at);
    estimate.after_pass(counts.collect(), end.map(str::to_owned), began_at)
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

#[test]
fn a_pass_that_ended_early_keeps_what_is_behind_its_end() {
    let all = after(&WaitingEstimate::default(), &[("a", 1), ("c", 3), ("e", 5)], None, 10);
    assert_eq!((all.counted_at, &all.unfinished), (Some(Timestamp::from_millis(10)), &None));
    // The jobs of a have started, and b and d have new ones.
    let first = after(&all, &[("b", 2), ("c", 4)], Some("c"), 20);
    assert_eq!(shown(&first), "b2 c4 e5");
    assert_eq!(first.counted_at, Some(Timestamp::from_millis(10)), "e is as old as that");
    assert_eq!(first.others, None, "every partition was counted before");
    let second = after(&first, &[("d", 4)], None, 30);
    assert_eq!(shown(&second), "b2 c4 d4");
    assert_eq!(second.counted_at, Some(Timestamp::from_millis(20)), "its first pass began then");
    assert_eq!((second.others, second.unfinished), (None, None));
}

#[test]
fn a_first_count_states_that_more_may_wait_until_its_end() {
    let first = after(&WaitingEstimate::default(), &[("a", 1)], Some("b"), 10);
    let unknown =
        WaitingCount { at_least: true, oldest_due_at: Timestamp::from_millis(10), ..count(0) };
    assert_eq!((shown(&first), first.others), ("a1".into(), Some(unknown)));
    let second = after(&first, &[("c", 3)], Some("d"), 20);
    assert_eq!((shown(&second), second.others), ("a1 c3".into(), Some(unknown)));
    let last = after(&second, &[("e", 5)], None, 30);
    assert_eq!((shown(&last), last.others), ("a1 c3 e5".into(), None));
    assert_eq!(last.counted_at, Some(Timestamp::from_millis(10)));
}

#[rstest]
#[case::of_unlike_sizes(|n| n * 37 % 1009)]
#[case::large_ones_first(|n| 5000 - n)]
#[case::large_ones_last(|n| n)]
fn several_passes_count_what_one_counts(#[case] size: fn(u32) -> u32) {
    let names: Vec<String> = (0..2500).map(|n| format!("t{n:04}")).collect();
    let counts: Vec<(&str, u32)> =
        names.iter().zip(0..).map(|(name, n)| (name.as_str(), 1 + size(n))).collect();
    let whole = estimate(&counts);
    let sum = whole.others.unwrap().jobs;
    for of_pass in [400, 700, 1250] {
        let mut estimate = WaitingEstimate::default();
        for round in 0..2 {
            for counted in counts.chunks(of_pass) {
                let last = counted.last().unwrap().0;
                let end = Some(last).filter(|last| *last != "t2499");
                estimate = after(&estimate, counted, end, round);
                assert!(estimate.partitions.len() <= MAX_WAITING_PARTITIONS);
                assert_eq!(estimate.unfinished.as_ref().map(|count| count.end.as_str()), end);
                let others = estimate.others.map_or(0, |count| count.jobs);
                assert!(round == 0 || others >= sum, "{others} of {sum} others");
            }
            assert_eq!(estimate.counted_at, Some(Timestamp::from_millis(round)));
            assert_eq!((&estimate.partitions, estimate.others), (&whole.partitions, whole.others));
        }
    }
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
    assert!(estimate.started("a", 1));
    assert!(estimate.started("b", 1));
    assert!(!estimate.started("c", 1));
    assert_eq!(shown(&estimate), "b1");
}

#[test]
fn groups_without_started_jobs_are_those_of_the_estimate() {
    for then_by in [None, Some("user")] {
        let queue = by("tenant", then_by);
        let names = ["a", "b", "c"].map(|tenant| {
            let values = [("tenant", tenant), ("user", "ann")];
            let attribute = |(name, value): (&str, &str)| (name.into(), Value::Text(value.into()));
            queue.partition_of(&values.map(attribute).into_iter().collect::<Attributes>())
        });
        let counts: Vec<(&str, u32)> = names.iter().map(String::as_str).zip([1, 2, 30]).collect();
        let mut estimate = estimate(&counts);
        // More jobs may wait there than were counted, and one more starts.
        estimate.partitions.get_mut(&names[0]).unwrap().at_least = true;
        let mut groups = estimate.groups(&queue);
        for (name, times) in names.iter().zip([2, 1, 5]) {
            for _ in 0..times {
                if estimate.started(name, 1) {
                    groups.started(&queue, name, 1);
                }
            }
        }
        // The oldest instant of a group is a bound.
        let numbers = |waiting: &Waiting| {
            let of = |(value, count): (&String, &WaitingCount)| {
                (value.clone(), count.jobs, count.weight)
            };
            let groups = waiting.groups.iter();
            let numbers = groups
                .map(|(name, groups)| (name.clone(), groups.iter().map(of).collect::<Vec<_>>()));
            numbers.collect::<Vec<_>>()
        };
        assert_eq!(numbers(&groups), numbers(&estimate.groups(&queue)), "{then_by:?}");
    }
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
    let groups = estimate(&[(&name, 3), ("", 1), ("c", 2)]).groups(&queue).groups;
    assert_eq!(groups["tenant"].keys().collect::<Vec<_>>(), ["a\u{1f}b", "c"]);
    assert_eq!(groups["tenant"]["c"].jobs, 2);
    assert_eq!(QueueConfig::default().partition_attributes().count(), 0);
}
