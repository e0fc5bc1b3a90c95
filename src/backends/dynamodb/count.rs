//! The numbers of jobs, as the sweep keeps them. No decision depends on them.
//!
//! Nothing is added to a stored number. Each queue has one item with its [`QueueCounts`], which a
//! sweep derives from what the last one left and from what it reads itself ([`super::recount`]). So
//! of two sweeps at once either result is right, and a sweep that is lost makes the numbers older,
//! not wrong.
//!
//! A queue without an open bucket has no live job. What is kept of its live jobs does not count
//! then, and the numbers are those of the moment.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    DynamoStore,
    key::{self, Key},
    row,
    table::{Item, Val},
};
use crate::blob::{decode, encode};
use tidegate_core::{
    job::{Phase, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{Depth, Depths, KeptCounts, ScheduledPhases, StateFilter},
    },
    record,
    stored::UnknownFields,
    time::Timestamp,
};

/// How many jobs of a type are in a phase, by the phase's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    pub job_type: TypeName,
    pub phase: String,
    pub jobs: u64,
}

/// Numbers of jobs by type and phase.
pub(super) type Tallies = BTreeMap<(TypeName, Phase), u64>;

/// The stored form of `tallies`.
pub(super) fn stored(tallies: Tallies) -> Vec<Tally> {
    let tally = |((job_type, phase), jobs): ((TypeName, Phase), u64)| Tally {
        job_type,
        phase: phase.as_str().to_owned(),
        jobs,
    };
    tallies.into_iter().map(tally).collect()
}

/// Adds `stored` to `tallies`. A phase of a newer release is left out.
pub(super) fn add(tallies: &mut Tallies, stored: &[Tally]) {
    for Tally { job_type, phase, jobs } in stored {
        if let Ok(phase) = phase.parse() {
            *tallies.entry((job_type.clone(), phase)).or_default() += jobs;
        }
    }
}

/// The scheduled jobs of an open bucket of a later hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LaterCount {
    /// The registered sort key of the bucket.
    pub bucket: String,
    pub at: Timestamp,
    /// How many entries were read.
    pub read: u64,
    pub tallies: Vec<Tally>,
}

/// The ended jobs whose rows are in a bucket, as far as they were counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HomeCount {
    /// The registered sort key of the bucket.
    pub bucket: String,
    /// The sort key up to which the rows were counted; empty at the start.
    pub cursor: String,
    pub ended: Vec<Tally>,
    /// How many jobs had not ended when their rows were counted.
    pub live: u64,
    /// When the last of the rows is hidden, in seconds; `u64::MAX` if one never is.
    pub until: u64,
    /// What an earlier pass counted, until this one has counted more.
    pub before: Vec<Tally>,
    /// When another pass may begin, if a job had not ended in this one.
    pub again_at: Timestamp,
    /// How long the one after that waits.
    pub wait_minutes: u64,
    /// When it is counted next.
    pub next_at: Timestamp,
}

impl HomeCount {
    /// The ended jobs, as far as they are known.
    pub fn known(&self) -> &[Tally] {
        let sum = |tallies: &[Tally]| tallies.iter().map(|tally| tally.jobs).sum::<u64>();
        if sum(&self.ended) < sum(&self.before) { &self.before } else { &self.ended }
    }
}

/// The numbers of the jobs of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueCounts {
    pub at: Timestamp,
    /// When the live jobs that are not due in a later hour were counted, and what that read.
    pub live_at: Timestamp,
    pub live_read: u64,
    pub live: Vec<Tally>,
    /// The weight of the running ones, without critical ones.
    pub running_weight: u64,
    /// The jobs that are due later.
    pub later: Vec<LaterCount>,
    /// Whether there are more of these live jobs, more that are due later, or more buckets with ended
    /// ones, than were read.
    pub at_least: [bool; 3],
    /// The ended jobs of the buckets that do not change any more.
    pub ended: Vec<Tally>,
    /// When they were last summed from the sums of the buckets.
    pub summed_at: Timestamp,
    /// The other buckets of hours that have begun.
    pub homes: Vec<HomeCount>,
    unknown: UnknownFields,
}

record!(QueueCounts {
    at,
    live_at,
    live_read,
    live,
    running_weight,
    later,
    at_least,
    ended,
    summed_at,
    homes
});

impl QueueCounts {
    /// Those of a queue that was never counted.
    pub fn new() -> Self {
        Self {
            at: Timestamp::EPOCH,
            live_at: Timestamp::EPOCH,
            live_read: 0,
            live: Vec::new(),
            running_weight: 0,
            later: Vec::new(),
            at_least: [false; 3],
            ended: Vec::new(),
            summed_at: Timestamp::EPOCH,
            homes: Vec::new(),
            unknown: UnknownFields::default(),
        }
    }

    /// Those that `item` has; those of a queue that was never counted if they cannot be read.
    pub fn read(item: &Item) -> Self {
        let blob = item.bytes(row::RECORD);
        let read = blob.and_then(|blob| {
            let what = || format!("the counts of queue {}", item.key.s);
            decode(blob, &item.key.s, what)
                .inspect_err(
                    |error| tracing::warn!(error = %error.chain(), "counting a queue again"),
                )
                .ok()
        });
        read.unwrap_or_else(Self::new)
    }

    pub fn item(&self, key: Key) -> Result<Item, StoreError> {
        let record = (row::RECORD, Val::B(encode(self, &key.s)?.into()));
        Ok(Item::new(key, [record]))
    }

    /// All numbers. `is_open` states whether the queue has open buckets.
    fn tallies(&self, is_open: bool) -> Tallies {
        let mut tallies = Tallies::new();
        add(&mut tallies, &self.ended);
        for home in &self.homes {
            add(&mut tallies, home.known());
        }
        if is_open {
            add(&mut tallies, &self.live);
            for later in &self.later {
                add(&mut tallies, &later.tallies);
            }
        }
        tallies
    }
}

/// The numbers of the jobs of `queue` by state, from those by phase.
fn by_state(queue: &QueueName, tallies: Tallies) -> Vec<Depth> {
    let mut sums: BTreeMap<(TypeName, StateFilter), (u64, ScheduledPhases)> = BTreeMap::new();
    for ((job_type, phase), jobs) in tallies {
        let (sum, phases) = sums.entry((job_type, StateFilter::from(phase))).or_default();
        *sum += jobs;
        match phase {
            Phase::Ready => phases.ready += jobs,
            Phase::Retrying => phases.retrying += jobs,
            Phase::Scheduled | Phase::Running | Phase::Ended(_) => {}
        }
    }
    let depth = |((job_type, state), (jobs, phases))| Depth {
        queue: queue.clone(),
        job_type,
        state,
        jobs,
        phases: (state == StateFilter::Scheduled).then_some(phases),
    };
    sums.into_iter().map(depth).collect()
}

impl DynamoStore {
    /// The queues that have had jobs.
    pub(super) async fn queues(&self) -> Result<Vec<QueueName>, StoreError> {
        let items = self.whole(key::QUEUES).await?;
        Ok(items.iter().filter_map(|item| item.key.s.parse().ok()).collect())
    }

    /// The queues with open buckets.
    pub(super) async fn open_queues(&self) -> Result<BTreeSet<QueueName>, StoreError> {
        self.complete_list().await?;
        let listed = self.whole(key::ACTIVE).await?;
        let queues = listed.iter().filter_map(|item| key::active_of(&item.key.s));
        Ok(queues.map(|(_, queue)| queue).collect())
    }

    /// The numbers of jobs as they are kept.
    pub(super) async fn kept_counts(
        &self,
        queue: Option<&QueueName>,
    ) -> Result<Depths, StoreError> {
        let (items, open) = match queue {
            Some(queue) => {
                let item = self.table.get(&[key::counts(queue)]).await?.into_iter().flatten();
                let open = self.has_any_open(queue).await?.then(|| queue.clone());
                (item.collect(), open.into_iter().collect())
            }
            None => (self.whole(key::COUNTS).await?, self.open_queues().await?),
        };
        let now = self.now();
        let (mut counts, mut kept) = (Vec::new(), BTreeMap::new());
        let mut uncounted = open.clone();
        for item in items {
            let Ok(name) = item.key.s.parse::<QueueName>() else { continue };
            uncounted.remove(&name);
            let (stored, is_open) = (QueueCounts::read(&item), open.contains(&name));
            counts.extend(by_state(&name, stored.tallies(is_open)));
            if is_open {
                let at_least = stored.at_least.contains(&true);
                let QueueCounts { live_at: at, running_weight, .. } = stored;
                kept.insert(name, KeptCounts { at, at_least, running_weight });
            }
        }
        // Its jobs are newer than the last sweep.
        for name in uncounted {
            kept.insert(name, KeptCounts { at: now, at_least: true, running_weight: 0 });
        }
        Ok(Depths { counts, kept: Some(kept) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::job::Outcome;

    #[test]
    fn counts_by_phase_are_summed_by_state() {
        let of = |phase| ("t".parse().unwrap(), phase);
        let tallies = Tallies::from([
            (of(Phase::Scheduled), 5),
            (of(Phase::Ready), 3),
            (of(Phase::Retrying), 2),
            (of(Phase::Running), 7),
            (of(Phase::Ended(Outcome::Failed)), 1),
        ]);
        let shown: Vec<_> = by_state(&"q".parse().unwrap(), tallies)
            .into_iter()
            .map(|depth| (depth.state.as_str(), depth.jobs, depth.phases))
            .collect();
        let waiting = ScheduledPhases { ready: 3, retrying: 2 };
        let expected =
            [("scheduled", 10, Some(waiting)), ("running", 7, None), ("failed", 1, None)];
        assert_eq!(shown, expected);
    }
}
