//! How many due jobs wait, by partition: estimates, on which no limit depends.
//!
//! ```text
//!   sweep ─▶ the store counts partitions ─▶ estimate ─┐
//!   tick  ─▶ first page of each partition in turn ────┴▶ corrected ─▶ groups by attribute
//! ```
//!
//! A tick corrects the estimate by what it has read itself, so that the groups of its candidates
//! are always among those that a throttler sees.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::AddAssign,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::QueueConfig;
use crate::{
    job::{Attributes, Job, Value},
    time::Timestamp,
};

/// Most partitions of an estimate. The others are one sum.
pub const MAX_WAITING_PARTITIONS: usize = 1000;
/// Most bytes of the names of an estimate's partitions.
const MAX_NAME_BYTES: usize = 128 << 10;
/// What separates the two values of a partition's name.
const SEPARATOR: char = '\u{1f}';

/// How many due jobs wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingCount {
    /// Their number.
    pub jobs: u32,
    /// Their weight.
    pub weight: u64,
    /// The earliest instant at which one of them was due.
    pub oldest_due_at: Timestamp,
    /// Whether there may be more, because counting stopped at a bound.
    pub at_least: bool,
}

impl WaitingCount {
    /// The count of `jobs`; none if there are none.
    pub fn of<'a>(jobs: impl IntoIterator<Item = &'a Job>) -> Option<Self> {
        let mut count: Option<Self> = None;
        for job in jobs {
            let Some(oldest_due_at) = job.life.run_at() else { continue };
            let weight = job.spec.weight.into();
            add(&mut count, Self { jobs: 1, weight, oldest_due_at, at_least: false });
        }
        count
    }

    /// This count, if at least the jobs of `seen` wait.
    fn covering(self, seen: Self) -> Self {
        Self {
            jobs: self.jobs.max(seen.jobs),
            weight: self.weight.max(seen.weight),
            oldest_due_at: self.oldest_due_at.min(seen.oldest_due_at),
            at_least: self.at_least || seen.at_least,
        }
    }
}

impl AddAssign for WaitingCount {
    fn add_assign(&mut self, other: Self) {
        self.jobs = self.jobs.saturating_add(other.jobs);
        self.weight = self.weight.saturating_add(other.weight);
        self.oldest_due_at = self.oldest_due_at.min(other.oldest_due_at);
        self.at_least = self.at_least || other.at_least;
    }
}

fn add(sum: &mut Option<WaitingCount>, count: WaitingCount) {
    match sum {
        Some(sum) => *sum += count,
        None => *sum = Some(count),
    }
}

/// The due jobs of a queue by partition, as they were counted.
///
/// A count of all partitions takes one pass over them, or several: a pass that ends early leaves
/// the partitions behind its [end](UnfinishedCount::end) to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingEstimate {
    /// When the count began that has the oldest of these numbers; none if the queue was not counted
    /// yet.
    pub counted_at: Option<Timestamp>,
    /// The partitions with most jobs: at most [`MAX_WAITING_PARTITIONS`].
    pub partitions: BTreeMap<String, WaitingCount>,
    /// The others together. Until a first count has reached the last partition, it states that
    /// there may be more of them ([`WaitingCount::at_least`]).
    pub others: Option<WaitingCount>,
    /// The count that the next pass continues; none if the last pass reached the last partition.
    pub unfinished: Option<UnfinishedCount>,
}

/// A count whose passes have not reached the last partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedCount {
    /// When its first pass began.
    pub began_at: Timestamp,
    /// The last partition that was looked at. The next pass continues behind it.
    pub end: String,
    /// The sum of the partitions that it has counted and that the estimate does not keep.
    pub others: Option<WaitingCount>,
}

/// What a tick has read of the partitions of a queue.
#[derive(Debug)]
pub struct SeenPartitions<'a> {
    /// The due jobs of the first page of each visited partition, and whether it has more.
    pub pages: Vec<(&'a str, Option<WaitingCount>, bool)>,
    /// The partition after which the tick began; none at the first one.
    pub from: Option<&'a str>,
    /// The last partition that was looked at; none if all were.
    pub end: Option<&'a str>,
}

impl SeenPartitions<'_> {
    /// Whether the tick has looked at `partition`. It goes around, from the last to the first.
    fn has_looked_at(&self, partition: &str) -> bool {
        match (self.from, self.end) {
            (_, None) => true,
            (None, Some(end)) => partition <= end,
            (Some(from), Some(end)) if from < end => from < partition && partition <= end,
            (Some(from), Some(end)) => from < partition || partition <= end,
        }
    }
}

impl WaitingEstimate {
    /// The estimate after one more pass, which began at `began_at`. It has counted the partitions
    /// behind [`Self::unfinished`] and up to `end`, or up to the last one. Of the others, this
    /// estimate is kept.
    #[must_use]
    pub fn after_pass(
        &self,
        mut counts: Vec<(String, WaitingCount)>,
        end: Option<String>,
        began_at: Timestamp,
    ) -> Self {
        let before = self.unfinished.as_ref();
        let began_at = before.map_or(began_at, |count| count.began_at);
        let is_before_end = |name: &str| end.as_deref().is_none_or(|end| name <= end);
        let in_pass = |name: &str| {
            before.is_none_or(|count| count.end.as_str() < name) && is_before_end(name)
        };
        let kept = self.partitions.iter().filter(|(name, _)| !in_pass(name));
        counts.extend(kept.map(|(name, count)| (name.clone(), *count)));
        counts.sort_by(|(a, one), (b, other)| other.jobs.cmp(&one.jobs).then_with(|| a.cmp(b)));
        let (mut partitions, mut bytes) = (BTreeMap::new(), 0);
        let mut counted = before.and_then(|count| count.others);
        let mut older = None;
        for (name, count) in counts {
            bytes += name.len();
            if partitions.len() < MAX_WAITING_PARTITIONS && bytes <= MAX_NAME_BYTES {
                partitions.insert(name, count);
            } else {
                add(if is_before_end(&name) { &mut counted } else { &mut older }, count);
            }
        }
        let Some(end) = end else {
            let counted_at = Some(began_at);
            return Self { counted_at, partitions, others: counted, unfinished: None };
        };
        // The old sum also has partitions that this count has counted since. Their part of it is
        // unknown. So the larger one of the old and the new sum is taken.
        let mut others = older;
        if let Some(count) = counted {
            add(&mut others, count);
        }
        let counted_at = self.counted_at.unwrap_or(began_at);
        if counted_at == began_at {
            let unknown =
                WaitingCount { jobs: 0, weight: 0, oldest_due_at: began_at, at_least: true };
            add(&mut others, unknown);
        }
        let others = match (self.others, others) {
            (Some(one), Some(other)) => Some(one.covering(other)),
            (one, other) => one.or(other),
        };
        let unfinished = Some(UnfinishedCount { began_at, end, others: counted });
        Self { counted_at: Some(counted_at), partitions, others, unfinished }
    }

    /// Corrects the estimate by what a tick has `seen`. `is_all` states whether the tick read the
    /// jobs of all types; otherwise what it did not see may be of another type.
    pub fn correct(&mut self, seen: &SeenPartitions<'_>, is_all: bool) {
        if is_all {
            let visited: BTreeSet<&str> = seen.pages.iter().map(|(name, ..)| *name).collect();
            self.partitions
                .retain(|name, _| !seen.has_looked_at(name) || visited.contains(name.as_str()));
        }
        for (name, page, has_more) in &seen.pages {
            let Some(page) = *page else {
                if is_all && !has_more {
                    self.partitions.remove(*name);
                }
                continue;
            };
            let old = self.partitions.get(*name).copied();
            let count = match old {
                _ if is_all && !has_more => page,
                Some(old) => old.covering(page),
                // It is among the others, or its jobs are newer than the count.
                None => WaitingCount { at_least: true, ..page },
            };
            self.partitions.insert((*name).to_owned(), count);
        }
    }

    /// Makes sure that at least `jobs` wait.
    pub fn cover<'a>(&mut self, jobs: impl IntoIterator<Item = &'a Job>) {
        let mut by_partition: BTreeMap<&str, Vec<&Job>> = BTreeMap::new();
        for job in jobs {
            by_partition.entry(&job.spec.partition).or_default().push(job);
        }
        for (name, jobs) in by_partition {
            let Some(seen) = WaitingCount::of(jobs) else { continue };
            let count = self.partitions.get(name).map_or(seen, |old| old.covering(seen));
            self.partitions.insert(name.to_owned(), count);
        }
    }

    /// Records that a job of `partition` with this weight waits no longer. Returns whether it was among
    /// the jobs that [`Self::partitions`] count, and so among those of the groups.
    pub fn started(&mut self, partition: &str, weight: u32) -> bool {
        started(&mut self.partitions, partition, weight)
    }

    /// The groups by each attribute that makes partitions of `queue`.
    pub fn groups(&self, queue: &QueueConfig) -> Waiting {
        let mut attributes = queue.partition_attributes();
        if let (Some(name), None) = (attributes.next(), attributes.next()) {
            // The name of a partition is its value. A sorted list becomes a map in one pass.
            let groups = self.partitions.iter().filter(|(value, _)| !value.is_empty());
            let groups: BTreeMap<String, WaitingCount> =
                groups.map(|(value, count)| (value.clone(), *count)).collect();
            return Waiting {
                counted_at: self.counted_at,
                groups: BTreeMap::from([(name.to_owned(), groups)]),
                others: self.others,
            };
        }
        let mut groups: BTreeMap<String, BTreeMap<String, WaitingCount>> =
            queue.partition_attributes().map(|name| (name.to_owned(), BTreeMap::new())).collect();
        for (partition, count) in &self.partitions {
            for (name, value) in queue.partition_values(partition) {
                let Some(groups) = groups.get_mut(name) else { continue };
                match groups.get_mut(value) {
                    Some(sum) => *sum += *count,
                    None => drop(groups.insert(value.to_owned(), *count)),
                }
            }
        }
        Waiting { counted_at: self.counted_at, groups, others: self.others }
    }
}

/// What waits in a queue, as its throttler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// When the queue was counted; none if that has not happened yet.
    pub counted_at: Option<Timestamp>,
    /// The groups by attribute and value.
    pub groups: BTreeMap<String, BTreeMap<String, WaitingCount>>,
    /// The jobs of the partitions that are in no group, because there are too many.
    pub others: Option<WaitingCount>,
}

/// Subtracts a job with this weight from the count of `name`. Returns whether the count had one.
fn started(counts: &mut BTreeMap<String, WaitingCount>, name: &str, weight: u32) -> bool {
    let Some(count) = counts.get_mut(name) else { return false };
    let had_one = count.jobs > 0;
    count.jobs = count.jobs.saturating_sub(1);
    count.weight = count.weight.saturating_sub(weight.into());
    if count.jobs == 0 && !count.at_least {
        counts.remove(name);
    }
    had_one
}

impl Waiting {
    /// Records that a job of `partition` of `queue` with this weight waits no longer. The oldest instants
    /// stay as they are.
    pub fn started(&mut self, queue: &QueueConfig, partition: &str, weight: u32) {
        for (name, value) in queue.partition_values(partition) {
            if let Some(groups) = self.groups.get_mut(name) {
                started(groups, value, weight);
            }
        }
    }

    /// The groups of `jobs` by each of their attributes: nothing else waits.
    pub fn of(jobs: &[Job]) -> Self {
        let mut waiting = Self::default();
        let names: BTreeSet<&String> =
            jobs.iter().flat_map(|job| job.spec.attributes.keys()).collect();
        for name in names {
            waiting.groups.insert(name.clone(), BTreeMap::new());
        }
        waiting.cover(jobs);
        waiting
    }

    /// These groups with one of each of `jobs`. A partition may have the name of other values than
    /// those that its jobs have, for example after a change of `partition_by`.
    pub fn covering(self: Arc<Self>, jobs: &[Job]) -> Arc<Self> {
        let has = |(name, groups): (&String, &BTreeMap<String, WaitingCount>)| {
            let values = jobs.iter().filter_map(|job| job.spec.attributes.get(name));
            values.map(Value::as_text).all(|value| groups.contains_key(value.as_ref()))
        };
        if self.groups.iter().all(has) {
            return self;
        }
        let mut covering = Self::clone(&self);
        covering.cover(jobs);
        Arc::new(covering)
    }

    /// Makes sure that at least `jobs` wait in each of the groups.
    pub fn cover(&mut self, jobs: &[Job]) {
        for (name, groups) in &mut self.groups {
            let mut by_value: BTreeMap<String, Vec<&Job>> = BTreeMap::new();
            for job in jobs {
                if let Some(value) = job.spec.attributes.get(name) {
                    by_value.entry(value.text()).or_default().push(job);
                }
            }
            for (value, jobs) in by_value {
                let Some(seen) = WaitingCount::of(jobs) else { continue };
                let count = groups.get(&value).map_or(seen, |old| old.covering(seen));
                groups.insert(value, count);
            }
        }
    }
}

impl QueueConfig {
    /// The attributes whose values make partitions: at most two.
    pub fn partition_attributes(&self) -> impl Iterator<Item = &str> {
        let second = self.partition_then_by.as_deref().filter(|_| self.partition_by.is_some());
        self.partition_by.as_deref().into_iter().chain(second)
    }

    /// The partition of a job with `attributes`. Empty if the queue has no partitions, or if the job
    /// has none of the attributes that make them.
    pub fn partition_of(&self, attributes: &Attributes) -> String {
        let value = |name: &str| attributes.get(name).map(Value::text).unwrap_or_default();
        let mut names = self.partition_attributes();
        let Some(first) = names.next().map(value) else { return String::new() };
        let Some(second) = names.next().map(value) else { return first };
        if first.is_empty() && second.is_empty() {
            return String::new();
        }
        // The first separator of the name is the one between the values.
        format!("{}{SEPARATOR}{second}", first.replace(SEPARATOR, " "))
    }

    /// The attributes of `partition` and their values. A job without one is not among them.
    pub fn partition_values<'a>(
        &'a self,
        partition: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let (first, second) = match &self.partition_then_by {
            Some(_) => partition.split_once(SEPARATOR).unwrap_or((partition, "")),
            None => (partition, ""),
        };
        self.partition_attributes().zip([first, second]).filter(|(_, value)| !value.is_empty())
    }
}
