//! Partitions take turns: one candidate of each, from the partition after the last one served.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::ControlFlow,
};

use super::{
    Search,
    lap::Lap,
    turns::{Turns, is_behind, left_off, record_reached},
};
use crate::{
    Engine, Error,
    tick::throttle::{MIN_THROTTLER_PAGE, Throttling},
};
use tidegate_core::{
    job::{Job, QueueName, TypeName},
    port::job_store::DueQuery,
    queue::{
        config::SCAN_BOUND,
        order::{Order, Position},
        waiting::{SeenPartitions, WaitingCount},
    },
    time::Timestamp,
};

/// Partitions that one tick visits at most.
const MAX_PARTITIONS: u32 = 64;

/// The first page of each partition that a tick visits, and where each continues.
pub(super) struct PartitionPages {
    /// The candidates of each partition. The last page may be the one behind the cursor.
    jobs: Vec<std::vec::IntoIter<Job>>,
    /// The last position that was read in each partition with more due jobs.
    pub(super) ends: BTreeMap<String, Position>,
    /// The last position that was read behind the cursor, if its partition has more due jobs.
    pub(super) deeper: Option<Position>,
}

/// Where the scan was before this tick.
pub(super) struct ScanStart {
    pub(super) last_partition: Option<String>,
    pub(super) cursor: Option<Position>,
}

impl Search<'_> {
    /// Offers one candidate of each partition in turn, from the one after the last that was served.
    ///
    /// If nothing stops it, the search continues in the next tick: first deeper into each partition
    /// that has more (`scan_cursor`), then with the partitions that one tick does not visit, until
    /// the lap is complete (`lap_start`). With a throttler, a [`Lap`] of first pages comes before. In such a
    /// lap, what is behind the cursor is read once: by its last tick, if the first pages leave slots.
    pub(super) async fn scan_partitions(&mut self) -> Result<(), Error> {
        let types = self.capacities.types();
        if types.is_empty() || self.admission.closed(false) {
            self.held_if_closed(false);
            return Ok(());
        }
        if self.plan.throttler_holds_all() {
            return Ok(());
        }
        let start = ScanStart {
            last_partition: self.plan.last_partition.clone(),
            cursor: self.plan.scan_cursor.take(),
        };
        let last = start.last_partition.as_deref();
        let turn = self
            .engine
            .partitions_in_turn(self.queue, &types, self.now, last, &BTreeSet::new())
            .await?;
        self.plan.wake_to_start(turn.next_due);
        let is_first_lap = self.visits_first();
        let cursor = start.cursor.as_ref().filter(|_| !is_first_lap);
        let mut pages = self.partition_pages(&turn.names, types.clone(), cursor).await?;
        let seen = SeenPartitions {
            pages: self.seen_pages(&turn.names, &pages),
            from: last,
            end: turn.end.as_deref(),
        };
        let waiting: Vec<&Job> = pages.jobs.iter().flat_map(std::vec::IntoIter::as_slice).collect();
        self.estimate_waiting(&waiting, &types, Some(seen)).await?;
        let mut stopped = self.offer_pages(&mut pages, cursor).await?;
        let reads_on = !stopped && is_first_lap && self.is_lap_over(last, turn.end.as_deref());
        if let Some(cursor) = start.cursor.as_ref().filter(|_| reads_on) {
            let types = self.capacities.types();
            let mut behind = self.partition_pages(&[], types, Some(cursor)).await?;
            stopped = self.offer_pages(&mut behind, Some(cursor)).await?;
            pages.deeper = behind.deeper;
        }
        if stopped {
            (self.plan.scan_cursor, self.plan.lap_start) = (start.cursor, None);
            self.plan.lap = Lap::default();
        } else {
            self.advance_scan(start, turn.end, pages);
        }
        Ok(())
    }

    /// Offers the candidates of `pages`. The last page may be the one behind `cursor`. Returns whether the
    /// search stops here.
    async fn offer_pages(
        &mut self,
        pages: &mut PartitionPages,
        cursor: Option<&Position>,
    ) -> Result<bool, Error> {
        if self.plan.may_call_throttler() {
            match self.throttle_in_turn(&mut pages.jobs, cursor).await? {
                Some(left_off) => pages.resume_at(left_off, cursor),
                None => return Ok(true),
            }
        } else {
            self.offer_in_turn(&mut pages.jobs);
        }
        Ok(self.admission.closed(false) || self.capacities.types().is_empty())
    }

    /// What the first pages of the partitions in `names` show of the jobs that wait there; empty if
    /// the throttler does not need it.
    fn seen_pages<'n>(
        &self,
        names: &'n [String],
        pages: &PartitionPages,
    ) -> Vec<(&'n str, Option<WaitingCount>, bool)> {
        if !self.needs_estimate() {
            return Vec::new();
        }
        let seen = names.iter().zip(&pages.jobs).map(|(name, jobs)| {
            let waits = |job: &&Job| !self.is_granted(job) && !job.life.awaits_retry_decision();
            let count = WaitingCount::of(jobs.as_slice().iter().filter(waits));
            (name.as_str(), count, pages.ends.contains_key(name))
        });
        seen.collect()
    }

    fn needs_estimate(&self) -> bool {
        self.plan.throttling.as_ref().is_some_and(Throttling::needs_estimate)
    }

    /// Estimates what waits, if the throttler needs it and this tick has not done so: by the last
    /// count, and by what this tick has `seen` of the jobs of `types`. At least `waiting` do.
    pub(crate) async fn estimate_waiting(
        &mut self,
        waiting: &[&Job],
        types: &[TypeName],
        seen: Option<SeenPartitions<'_>>,
    ) -> Result<(), Error> {
        if !self.needs_estimate() {
            return Ok(());
        }
        let mut estimate = (*self.engine.waiting(self.queue).await?).clone();
        if let Some(seen) = seen {
            let is_all = self.catalog.types_of(self.queue).all(|(name, _)| types.contains(name));
            estimate.correct(&seen, is_all);
        }
        let waits = |job: &&&Job| !self.is_granted(job) && !job.life.awaits_retry_decision();
        estimate.cover(waiting.iter().filter(waits).copied());
        if let Some(throttling) = &mut self.plan.throttling {
            throttling.set_estimate(estimate);
        }
        Ok(())
    }

    /// Reads the first page of each partition in `names`, and the page behind `cursor`, if there is one.
    async fn partition_pages(
        &mut self,
        names: &[String],
        types: Vec<TypeName>,
        cursor: Option<&Position>,
    ) -> Result<PartitionPages, Error> {
        let each = (SCAN_BOUND / names.len().max(1) as u32).min(self.wanted(false)).max(1);
        let query = |partition: &str, after: Option<Position>| DueQuery {
            queue: self.queue.clone(),
            critical: false,
            types: types.clone(),
            partition: Some(partition.to_owned()),
            order: Order::of(&self.limits.queue),
            until: self.now,
            limit: if after.is_some() { SCAN_BOUND } else { each },
            after,
            granted: self.leave_out.clone(),
        };
        let mut queries: Vec<DueQuery> = names.iter().map(|name| query(name, None)).collect();
        // One partition at a time is read beyond its first page, so that jobs deep in it are found.
        queries.extend(cursor.map(|cursor| query(&cursor.partition, Some(cursor.clone()))));
        let mut pages = PartitionPages {
            jobs: Vec::with_capacity(queries.len()),
            ends: BTreeMap::new(),
            deeper: None,
        };
        for (index, page) in self.engine.ports.store.due(&queries).await?.into_iter().enumerate() {
            self.plan.wake_to_start(page.next_due);
            match page.next {
                Some(end) if index < names.len() => {
                    pages.ends.insert(end.partition.clone(), end);
                }
                end => pages.deeper = end,
            }
            pages.jobs.push(page.jobs.into_iter());
        }
        Ok(pages)
    }

    /// Offers one candidate of each partition in turn, until no worker takes more or nothing more
    /// fits.
    fn offer_in_turn(&mut self, partitions: &mut [std::vec::IntoIter<Job>]) {
        let mut offered = true;
        while offered && !self.admission.closed(false) && self.capacities.total() > 0 {
            offered = false;
            for partition in &mut *partitions {
                let Some(job) = partition.next() else { continue };
                offered = true;
                if self.try_admit(&job) {
                    self.plan.last_partition = Some(job.spec.partition.clone());
                }
                if self.admission.closed(false) || self.capacities.total() == 0 {
                    break;
                }
            }
        }
    }

    /// Lets the throttler decide on the candidates of partitions in turn, page by page. Once that
    /// has used up the tick's time, it decides on one more page, from `cursor` on, so that the scan
    /// makes progress.
    ///
    /// Returns where it left off in each partition that has undecided candidates; none if the
    /// search stops here.
    async fn throttle_in_turn(
        &mut self,
        partitions: &mut [std::vec::IntoIter<Job>],
        cursor: Option<&Position>,
    ) -> Result<Option<BTreeMap<String, Position>>, Error> {
        let order = Order::of(&self.limits.queue);
        let first = self.capacities.total().max(MIN_THROTTLER_PAGE) as usize;
        let mut size = first;
        let mut line = Turns::of(partitions).collect::<Vec<Job>>().into_iter();
        let positions: Vec<Position> = line.as_slice().iter().map(Position::of).collect();
        let mut late = false;
        while !late && line.len() > 0 {
            match self.throttle(&mut line, size).await? {
                ControlFlow::Break(None) => return Ok(None),
                ControlFlow::Break(Some(_)) => late = true,
                ControlFlow::Continue(())
                    if self.admission.closed(false) || self.capacities.total() == 0 =>
                {
                    return Ok(None);
                }
                ControlFlow::Continue(()) => size *= 2,
            }
        }
        let (decided, left) = positions.split_at(positions.len() - line.len());
        let mut reached: HashMap<&str, &Position> =
            cursor.iter().map(|cursor| (cursor.partition.as_str(), *cursor)).collect();
        record_reached(&mut reached, order, decided);
        // One partition after the other, in the order of the scan: many may have few candidates
        // left.
        let behind = |job: &Job, cursor: &Position| {
            job.spec.partition > cursor.partition || is_behind(&Position::of(job), cursor, order)
        };
        let mut more: Vec<Job> = cursor
            .map(|cursor| line.filter(|job| behind(job, cursor)).collect())
            .unwrap_or_default();
        more.sort_by(|one, other| one.spec.partition.cmp(&other.spec.partition));
        more.truncate(first);
        let more_positions: Vec<Position> = more.iter().map(Position::of).collect();
        let mut more = more.into_iter();
        if more.len() > 0 && self.throttle(&mut more, first).await? == ControlFlow::Break(None) {
            return Ok(None);
        }
        record_reached(&mut reached, order, &more_positions[..more_positions.len() - more.len()]);
        Ok(Some(left_off(left, &reached, order)))
    }
}

impl PartitionPages {
    /// Continues the partitions where the throttler left off.
    fn resume_at(&mut self, mut left_off: BTreeMap<String, Position>, cursor: Option<&Position>) {
        let deeper = cursor.and_then(|cursor| left_off.remove(&cursor.partition));
        self.deeper = deeper.or(self.deeper.take());
        self.ends.extend(left_off);
    }
}

/// The partitions that one tick visits.
pub(crate) struct PartitionTurn {
    /// Those with due jobs.
    pub(crate) names: Vec<String>,
    /// The last one that was looked at, if there are more.
    pub(crate) end: Option<String>,
    /// No job of the other ones that were looked at is due before this instant.
    pub(crate) next_due: Option<Timestamp>,
}

impl Engine {
    /// The partitions with jobs of `types` due at `until` that one tick visits, from the one after
    /// `last` on, cyclically, without those in `skip`.
    pub(crate) async fn partitions_in_turn(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        last: Option<&str>,
        skip: &BTreeSet<String>,
    ) -> Result<PartitionTurn, Error> {
        let store = &self.ports.store;
        let page = store.partitions(queue, types, until, last, MAX_PARTITIONS, skip).await?;
        let mut turn = PartitionTurn { names: page.names, end: page.next, next_due: page.next_due };
        let Some(last) = last.filter(|_| turn.end.is_none()) else {
            return Ok(turn);
        };
        let room = MAX_PARTITIONS.saturating_sub(turn.names.len() as u32);
        if room == 0 {
            // The next tick goes on from the front.
            turn.end = turn.names.last().cloned();
        } else {
            let front = store.partitions(queue, types, until, None, room, skip).await?;
            turn.names.extend(front.names.into_iter().take_while(|name| name.as_str() <= last));
            turn.end = front.next.filter(|next| next.as_str() < last);
            turn.next_due = turn.next_due.into_iter().chain(front.next_due).min();
        }
        Ok(turn)
    }
}
