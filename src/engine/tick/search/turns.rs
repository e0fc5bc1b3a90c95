//! Jobs of several partitions in turn, and where a scan of them leaves off.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tidegate_core::{
    job::Job,
    queue::order::{Order, Position},
};

/// Takes one job of each partition in turn, until all are empty.
pub(crate) struct Turns<'a> {
    partitions: &'a mut [std::vec::IntoIter<Job>],
    next: usize,
}

impl<'a> Turns<'a> {
    pub(crate) fn of(partitions: &'a mut [std::vec::IntoIter<Job>]) -> Self {
        Self { partitions, next: 0 }
    }
}

impl Iterator for Turns<'_> {
    type Item = Job;
    fn next(&mut self) -> Option<Job> {
        (0..self.partitions.len()).find_map(|_| {
            let partition = self.next % self.partitions.len();
            self.next += 1;
            self.partitions[partition].next()
        })
    }
}

/// Records in `reached` the last position of each partition among `decided`.
pub(super) fn record_reached<'a>(
    reached: &mut HashMap<&'a str, &'a Position>,
    order: Order,
    decided: &'a [Position],
) {
    for next in decided {
        let last = reached.entry(&next.partition).or_insert(next);
        if is_behind(next, last, order) {
            *last = next;
        }
    }
}

/// Where each partition continues that has candidates among `undecided`: behind the last candidate
/// that was decided on.
pub(super) fn left_off(
    undecided: &[Position],
    reached: &HashMap<&str, &Position>,
    order: Order,
) -> BTreeMap<String, Position> {
    let mut left_off = BTreeMap::new();
    for next in undecided {
        match reached.get(next.partition.as_str()) {
            Some(last) if is_behind(next, last, order) => {
                drop(left_off.insert(next.partition.clone(), (*last).clone()));
            }
            Some(_) => {}
            // None of its candidates was decided on. No job is due a millisecond before the first.
            None => {
                let before =
                    || Position { run_at: next.run_at - Duration::from_millis(1), ..next.clone() };
                left_off.entry(next.partition.clone()).or_insert_with(before);
            }
        }
    }
    left_off
}

/// Whether `position` comes after `other`, which is in the same partition.
pub(super) fn is_behind(position: &Position, other: &Position, order: Order) -> bool {
    let key = |position: &Position| order.key(position.priority, position.run_at, &position.id);
    position.partition == other.partition && key(position) > key(other)
}
