//! Who goes first: hipq's table, keys, ageing.

use proptest::prelude::*;
use rstest::rstest;

use crate::{
    job::JobId,
    queue::{Order, config::QueueConfig},
    time::Timestamp,
};

/// Minutes after 10:00, and priority.
const TABLE: [(i64, i32); 5] = [(32, 700), (33, 50), (33, 100), (40, 1), (40, 7)];

fn order(json: &str) -> Order {
    Order::of(&serde_json::from_str::<QueueConfig>(json).unwrap())
}

#[rstest]
#[case::time_in_steps_of_a_minute("{}", [700, 50, 100, 1, 7])]
#[case::exact_time(r#"{"order_step_seconds": 0}"#, [700, 50, 100, 1, 7])]
#[case::time_in_steps_of_five_minutes(r#"{"order_step_seconds": 300}"#, [50, 100, 700, 1, 7])]
#[case::priority(r#"{"order": "priority"}"#, [1, 7, 50, 100, 700])]
#[case::priority_ageing_by_the_minute(
    r#"{"order": "priority", "ageing_seconds": 60}"#,
    [1, 7, 50, 100, 700],
)]
#[case::priority_ageing_by_the_second(
    r#"{"order": "priority", "ageing_seconds": 1}"#,
    [50, 100, 1, 7, 700],
)]
fn the_table_of_hipq(#[case] config: &str, #[case] expected: [i32; 5]) {
    let order = order(config);
    let mut jobs = TABLE;
    jobs.reverse();
    jobs.sort_by_key(|(minute, priority)| {
        order.key(*priority, Timestamp::from_millis((600 + minute) * 60_000), &"a".parse().unwrap())
    });
    assert_eq!(jobs.map(|(_, priority)| priority), expected);
}

/// Within a step priority decides, whatever the seconds.
#[test]
fn a_step_hides_seconds_from_priority_but_not_from_equals() {
    let order = order("{}");
    let key = |priority, second: i64, id: &str| {
        order.key(priority, Timestamp::from_millis(second * 1000), &id.parse().unwrap())
    };
    assert!(key(5, 59, "a") < key(6, 0, "a"), "the same minute");
    assert!(key(6, 59, "a") < key(5, 60, "a"), "the next minute");
    assert!(key(5, 10, "b") < key(5, 11, "a"), "then the exact time");
    assert!(key(5, 10, "a") < key(5, 10, "b"), "then the id");
    assert!(key(5, -1, "a") < key(5, 0, "a"), "before the epoch is another minute");
}

fn any_order() -> impl Strategy<Value = Order> {
    prop_oneof![
        (0u64..=300_000).prop_map(|step_millis| Order::Time { step_millis }),
        prop::option::of(1u64..10_000_000)
            .prop_map(|ageing_millis| Order::Priority { ageing_millis }),
    ]
}

proptest! {
    #[test]
    fn among_equals_in_priority_every_order_goes_by_due_time_and_id(
        order in any_order(),
        priority in any::<i32>(),
        a in any::<u32>(),
        b in any::<u32>(),
        ids in ("[a-c]", "[a-c]"),
    ) {
        let (a, b) = (Timestamp::from_millis(a.into()), Timestamp::from_millis(b.into()));
        let ids: (JobId, JobId) = (ids.0.parse().unwrap(), ids.1.parse().unwrap());
        prop_assert_eq!(
            order.key(priority, a, &ids.0).cmp(&order.key(priority, b, &ids.1)),
            (a, &ids.0).cmp(&(b, &ids.1)),
        );
    }

    /// With ageing of s, a job of priority p goes before every job of priority q that falls due
    /// later than (p - q) x s after it: so nothing waits for more than the jobs that fall due in
    /// that time.
    #[test]
    fn a_low_priority_overtakes_after_its_bound(
        ageing in 1u64..100_000,
        low in -1000i32..=1000,
        high in -1000i32..=1000,
        due in 0i64..1_000_000,
        later in 0i64..1_000_000_000,
    ) {
        let order = Order::Priority { ageing_millis: Some(ageing) };
        let id: JobId = "a".parse().unwrap();
        let bound = i64::from(low - high) * ageing as i64;
        let waits = order.key(low, Timestamp::from_millis(due), &id);
        let comes = order.key(high, Timestamp::from_millis(due + later), &id);
        prop_assert_eq!(waits < comes, later > bound || (later == bound && low < high));
    }
}

#[test]
fn ageing_lifts_a_job_by_one_priority_per_step() {
    let order = order(r#"{"order": "priority", "ageing_seconds": 2}"#);
    let id = |id: &str| id.parse().unwrap();
    let waits = order.key(1000, Timestamp::EPOCH, &id("a"));
    assert!(order.key(0, Timestamp::from_millis(1_999_999), &id("b")) < waits);
    assert!(order.key(0, Timestamp::from_millis(2_000_001), &id("b")) > waits);
}
