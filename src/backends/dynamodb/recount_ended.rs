//! Counting the jobs that have ended, as a part of [`super::recount`].
//!
//! The rows of a bucket are read once, from a cursor on. If a job had not ended then, they are read
//! again: every ten minutes, and after its hour each time after twice as long. A bucket whose jobs
//! have all ended does not change any more. Its sums are stored in its registration, and it is not
//! read again.

use std::{collections::HashSet, time::Duration};

use super::{
    DynamoStore,
    count::{HomeCount, QueueCounts, Tallies, Tally, add, stored},
    due::PAGE_ENTRIES,
    key::{self, Hour, Key},
    recount::Budget,
    row,
    table::{Change, EXPIRES, Item, Page, PageQuery, Val},
};
use crate::blob::{decode, encode};
use tidegate_core::{
    job::{Outcome, Phase, QueueName, TypeName},
    port::StoreError,
    time::Timestamp,
};

/// Buckets of a queue whose ended jobs are counted.
const MAX_HOMES: usize = 500;
/// How far behind the present rows are counted: most jobs have ended by then, and no row is written
/// there any more.
const ENDED_LAG: Duration = Duration::from_mins(1);
/// Age after its hour at which a bucket is final if its jobs have ended.
const MIN_FINAL_AGE: Duration = Duration::from_mins(5);
/// The shortest and the longest wait in minutes before a bucket is counted again, because a job had
/// not ended.
const WAITS: (u64, u64) = (10, 12 * 60);
/// Age at which the sums of all buckets are summed again: those that expired count no more.
const MAX_SUMMED_AGE: Duration = Duration::from_hours(24);
/// How long before the last count a bucket may have been registered without being counted.
const MAX_REGISTER_DELAY: Duration = Duration::from_mins(15);

/// The ended jobs of a bucket that does not change any more.
type Sums = Vec<(QueueName, TypeName, Outcome, u64)>;

/// The sums that are stored in a registration; none if there are none that can be read.
fn sums_of(item: &Item) -> Option<Tallies> {
    let sums: Sums =
        decode(item.bytes(row::LIST)?, &item.key.s, || format!("the sums of {}", item.key.s))
            .inspect_err(|error| tracing::warn!(error = %error.chain(), "counting a bucket again"))
            .ok()?;
    let tally = |(_, job_type, outcome, jobs)| ((job_type, Phase::Ended(outcome)), jobs);
    Some(sums.into_iter().map(tally).collect())
}

impl DynamoStore {
    /// Counts the jobs that have ended.
    pub(super) async fn count_ended(
        &self,
        queue: &QueueName,
        counts: &mut QueueCounts,
        budget: &Budget,
    ) -> Result<(), StoreError> {
        let now = self.now();
        let sums_all = counts.summed_at + MAX_SUMMED_AGE <= now;
        let from = if sums_all {
            key::FIRST.to_string()
        } else {
            Hour::of(counts.at.min(now) - MAX_REGISTER_DELAY).text()
        };
        let to = format!("{}{}", Hour::of(now).text(), key::LAST);
        let registered = self.all(key::all(queue), from, to).await?;
        let known: HashSet<String> = counts.homes.iter().map(|home| home.bucket.clone()).collect();
        let mut sums = Tallies::new();
        counts.at_least[2] &= !sums_all;
        for item in registered.iter().filter(|item| !row::is_over(item, now)) {
            if known.contains(&item.key.s) || key::registered_of(&item.key.s).is_none() {
                continue;
            }
            match sums_of(item) {
                Some(of_bucket) => of_bucket
                    .into_iter()
                    .for_each(|(which, jobs)| *sums.entry(which).or_default() += jobs),
                None if counts.homes.len() < MAX_HOMES => {
                    counts.homes.push(HomeCount::new(item.key.s.clone(), now));
                }
                None => counts.at_least[2] = true,
            }
        }
        if sums_all {
            (counts.ended, counts.summed_at) = (stored(sums), now);
        }
        counts.homes.sort_by_key(|home| home.next_at);
        let mut homes = Vec::with_capacity(counts.homes.len());
        for mut home in std::mem::take(&mut counts.homes) {
            if home.next_at <= now
                && !budget.is_spent()
                && self.count_home(queue, &mut home, budget).await?
            {
                let mut ended = Tallies::new();
                add(&mut ended, &counts.ended);
                add(&mut ended, &home.ended);
                counts.ended = stored(ended);
            } else {
                homes.push(home);
            }
        }
        counts.homes = homes;
        Ok(())
    }

    /// Counts on in the rows of a bucket. Returns whether it does not change any more.
    async fn count_home(
        &self,
        queue: &QueueName,
        home: &mut HomeCount,
        budget: &Budget,
    ) -> Result<bool, StoreError> {
        let now = self.now();
        let Some((hour, index_partition)) = key::registered_of(&home.bucket) else {
            return Ok(true);
        };
        let is_over = home.final_at() <= now;
        let p = key::bucket(&index_partition, hour, false);
        let after = Some(&home.cursor).filter(|cursor| !cursor.is_empty());
        let mut query = PageQuery {
            after: after.map(|s| Key::new(p.clone(), s.clone())),
            p,
            from: key::FIRST.into(),
            to: if is_over { key::LAST.into() } else { key::instant(now - ENDED_LAG) },
            limit: Some(PAGE_ENTRIES),
            backward: false,
        };
        // The table refuses a key to begin after that is not in the range.
        if home.cursor.as_str() >= query.to.as_str() {
            return Ok(false);
        }
        let mut tallies = Tallies::new();
        add(&mut tallies, &home.ended);
        loop {
            let Page { items, next } = self.table.query(&query).await?;
            budget.spend(items.len() as u64);
            for item in &items {
                home.cursor.clone_from(&item.key.s);
                if !item.key.is_row() || row::is_over(item, now) {
                    continue;
                }
                let ended = row::readable(item, now).and_then(|job| {
                    let outcome = job.life.ended()?;
                    Some((job.spec.job_type.clone(), Phase::Ended(outcome)))
                });
                match ended {
                    Some(which) => {
                        *tallies.entry(which).or_default() += 1;
                        home.until = home.until.max(row::hidden_from(item).unwrap_or(u64::MAX));
                    }
                    None => home.live += 1,
                }
            }
            if next.is_none() {
                break;
            }
            query.after = next;
            if budget.is_spent() {
                home.ended = stored(tallies);
                return Ok(false);
            }
        }
        home.ended = stored(tallies);
        if is_over && home.live == 0 {
            return self.store_sums(queue, home).await;
        }
        home.wait(now, is_over);
        Ok(false)
    }

    /// Stores the sums of a bucket. The table expires them with the last job of the bucket.
    async fn store_sums(&self, queue: &QueueName, home: &HomeCount) -> Result<bool, StoreError> {
        let sum = |tally: &Tally| {
            let Ok(Phase::Ended(outcome)) = tally.phase.parse() else { return None };
            Some((queue.clone(), tally.job_type.clone(), outcome, tally.jobs))
        };
        let sums: Sums = home.ended.iter().filter_map(sum).collect();
        let until = Some(home.until).filter(|until| *until != u64::MAX);
        let until = until.map(|until| (EXPIRES, Val::N(until.max(1))));
        let key = Key::new(key::all(queue), home.bucket.clone());
        let sums = (row::LIST, Val::B(encode(&sums, &key.s)?.into()));
        let item = Item::new(key, [sums].into_iter().chain(until));
        self.table.write(&[Change::Put(item)]).await?;
        Ok(true)
    }
}

impl HomeCount {
    fn new(bucket: String, now: Timestamp) -> Self {
        Self {
            bucket,
            cursor: String::new(),
            ended: Vec::new(),
            live: 0,
            until: 0,
            before: Vec::new(),
            again_at: now + Duration::from_mins(WAITS.0),
            wait_minutes: WAITS.0,
            next_at: now,
        }
    }

    /// From when on its jobs cannot become more.
    pub(super) fn final_at(&self) -> Timestamp {
        let hour = key::registered_of(&self.bucket).map(|(hour, _)| hour);
        hour.map_or(Timestamp::EPOCH, Hour::end) + MIN_FINAL_AGE
    }

    /// Decides when it is counted on, after all of its rows were, and begins another pass if it is
    /// time. No row is added once its hour `is_over`.
    fn wait(&mut self, now: Timestamp, is_over: bool) {
        self.next_at = if is_over { self.again_at } else { now };
        if self.live == 0 || now < self.again_at {
            return;
        }
        self.before = std::mem::take(&mut self.ended);
        self.cursor.clear();
        (self.live, self.until, self.next_at) = (0, 0, now);
        self.again_at = now + Duration::from_mins(self.wait_minutes);
        if is_over {
            self.wait_minutes = (self.wait_minutes * 2).min(WAITS.1);
        }
    }
}
