//! What a due timer means for each of its jobs, and what becomes of the timer.
//!
//! A timer is removed once none of its jobs needs it. One that stays for long, because one of its
//! jobs cannot be read, is written again for that job alone, so that the others do not wait for it.

use std::time::Duration;

use super::{
    DynamoStore,
    entry::{EntryRequest, LOW_WATERMARK_LAG, TimedJob, renews_timer, timer_item},
    key::{self, Key},
    retention::{self, Deletions},
    row,
    table::{Change, Item},
    timer::Found,
};
use crate::{blob::decode, unreadable::log_damage};
use tidegate_core::{
    job::{Job, JobId},
    port::StoreError,
    time::Timestamp,
};

/// Age at which a timer counts no longer for a change that has not happened. The request that wrote
/// it is over by then.
const MAX_CHANGE_AGE: Duration = Duration::from_mins(15);

/// What a due timer means for one of its jobs.
enum TimedOutcome {
    /// The job needs the timer. It must be checked at this time after `until`, if that is known.
    Keep(Option<Timestamp>),
    /// Nothing is to be done.
    Drop,
    /// The job needs this timer, after `until`.
    Renew(EntryRequest),
    /// The caller must check the job, whose time is this.
    Overdue(Timestamp, Box<Job>),
    /// What the job of this row leaves behind is to be removed.
    Purge(Item),
}

/// A timer that is due.
#[derive(Clone, Copy)]
struct DueTimer {
    at: Timestamp,
    /// When the read of the timers began, and until when jobs are overdue.
    began: Timestamp,
    until: Timestamp,
}

impl DueTimer {
    /// Whether the change that it was written for may still be under way.
    fn is_young(self) -> bool {
        self.at + MAX_CHANGE_AGE > self.began
    }

    /// What it means for the job `timed`, whose row is `row`.
    fn check(self, timed: &TimedJob, row: Option<Item>) -> TimedOutcome {
        use TimedOutcome as O;
        let Some(row) = row else {
            return if self.is_young() { O::Keep(None) } else { O::Drop };
        };
        let job = match row::job(&row) {
            Ok(job) => job,
            Err(error) => {
                // The timer of a job that cannot be read stays until it can, or is over.
                row::unreadable_row(&row, &error);
                return if row::is_over(&row, self.began) { O::Drop } else { O::Keep(None) };
            }
        };
        if row::is_removed(&row, &job) {
            return O::Purge(row);
        }
        let revision = job.life.revision.0;
        let is_ended = job.life.ended().is_some();
        // The latest change has written a timer of its own.
        let has_own = if is_ended { row::has_timer(&row) } else { renews_timer(&job) };
        if timed.revision < revision && has_own {
            return O::Drop;
        }
        let awaits_change = revision < timed.revision && self.is_young();
        let at = if is_ended { retention::sweep_at(&job) } else { job.life.wake_at(&job.spec) };
        match at {
            None if awaits_change => O::Keep(None),
            None => O::Drop,
            // `began` may be later than `until`: a timer due at `began` may not be due at `until`.
            Some(at) if at > self.until && (awaits_change || at <= self.at) => O::Keep(Some(at)),
            Some(at) if at > self.until => O::Renew(EntryRequest::timer(&timed.id, revision, at)),
            Some(_) if is_ended && !retention::names_object(&job) => {
                if awaits_change {
                    O::Keep(None)
                } else {
                    O::Purge(row)
                }
            }
            Some(at) => O::Overdue(at, Box::new(job)),
        }
    }
}

/// A timer that was read, after the check of its jobs.
struct CheckedTimer {
    /// The number of its scan.
    scan: usize,
    key: Key,
    /// The jobs that need it.
    left: Vec<TimedJob>,
    /// Whether it is written again for the jobs that are left.
    is_shortened: bool,
}

/// What some timers lead to.
#[derive(Default)]
struct TimerActions {
    /// The timers that replace others.
    renewed: Vec<EntryRequest>,
    /// The jobs whose remains are removed, each with the number of its timer in `checked`.
    purged: Vec<(usize, TimedJob, Item)>,
    /// The timers that are removed or written again.
    checked: Vec<CheckedTimer>,
    /// The scans of the other timers.
    kept: Vec<usize>,
}

impl TimerActions {
    /// Adds the timer at `key` with its jobs and their rows.
    fn add(
        &mut self,
        (scan, key): (usize, Key),
        timer: DueTimer,
        jobs: impl Iterator<Item = (TimedJob, Option<Item>)>,
        found: &mut Found,
    ) {
        let (mut left, mut renewed, mut purged) = (Vec::new(), Vec::new(), Vec::new());
        let (number, mut stays, mut count) = (self.checked.len(), false, 0);
        for (timed, row) in jobs {
            count += 1;
            match timer.check(&timed, row) {
                TimedOutcome::Keep(at) => {
                    if let Some(at) = at {
                        found.later(at);
                    }
                    stays = true;
                    left.push(timed);
                }
                TimedOutcome::Drop => {}
                TimedOutcome::Renew(request) => {
                    found.later(request.at);
                    renewed.push(request);
                }
                TimedOutcome::Overdue(at, job) => {
                    found.overdue.insert((at, timed.id.clone()), *job);
                    left.push(timed);
                }
                TimedOutcome::Purge(row) => purged.push((number, timed, row)),
            }
        }
        let is_settled = timer.at + LOW_WATERMARK_LAG <= timer.began;
        let is_shortened = stays && !timer.is_young() && left.len() < count;
        if is_settled && (left.is_empty() || is_shortened) {
            self.renewed.extend(renewed);
            self.purged.extend(purged);
            self.checked.push(CheckedTimer { scan, key, left, is_shortened });
        } else {
            self.kept.push(scan);
        }
    }
}

impl DynamoStore {
    /// Adds the jobs of some timers to `found`, and removes unneeded timers. Each timer has the
    /// number of its scan. Returns the scans of those that stay.
    pub(super) async fn read_timers(
        &self,
        timers: &[(usize, Item)],
        began: Timestamp,
        found: &mut Found,
    ) -> Result<Vec<usize>, StoreError> {
        let lists: Vec<Option<Vec<TimedJob>>> =
            timers.iter().map(|(_, item)| readable(item)).collect();
        let ids: Vec<&JobId> = lists.iter().flatten().flatten().map(|job| &job.id).collect();
        let mut rows = self.every_row(&ids).await?.into_iter();
        let mut actions = TimerActions::default();
        for ((scan, item), list) in timers.iter().zip(lists) {
            let Some(list) = list else {
                actions.kept.push(*scan);
                continue;
            };
            let at = key::instant_of_timer(&item.key.s).unwrap_or(began);
            let timer = DueTimer { at, began, until: found.until };
            let count = list.len();
            let jobs = list.into_iter().zip(rows.by_ref().take(count));
            actions.add((*scan, item.key.clone()), timer, jobs, found);
        }
        let TimerActions { renewed, purged, mut checked, mut kept } = actions;
        self.announce(renewed).await?;
        found.purged += purged.len();
        for (number, timed) in self.purge_jobs(purged).await? {
            checked[number].left.push(timed);
        }
        let mut changes = Vec::new();
        for CheckedTimer { scan, key, left, is_shortened } in checked {
            if left.is_empty() {
                changes.push(Change::Delete { key, when: None });
                continue;
            }
            kept.push(scan);
            if is_shortened {
                changes.push(Change::Put(timer_item(key, &left)?));
            }
        }
        if !changes.is_empty() {
            self.table.write(&changes).await?;
        }
        Ok(kept)
    }

    /// Deletes what these jobs leave behind. Returns those that cannot be handled yet.
    async fn purge_jobs(
        &self,
        jobs: Vec<(usize, TimedJob, Item)>,
    ) -> Result<Vec<(usize, TimedJob)>, StoreError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<(&JobId, &Item)> = jobs.iter().map(|(_, job, row)| (&job.id, row)).collect();
        let (mut deletions, mut reused) = (Deletions::default(), Vec::new());
        let left = self.leftovers(&rows).await?;
        for ((number, timed, row), left) in jobs.into_iter().zip(left) {
            if left.is_reused {
                reused.push((number, timed));
                continue;
            }
            self.forget_location(&timed.id);
            deletions.extend(left.items.into_iter().chain(left.location));
            let is_removed = row::job(&row).is_ok_and(|job| row::is_removed(&row, &job));
            let mark = row.attrs.get(&row::MARK).filter(|_| is_removed).cloned();
            // The table expires the others.
            let key = row.key;
            deletions
                .extend(mark.map(|mark| Change::Delete { key, when: Some((row::MARK, mark)) }));
        }
        self.delete(deletions).await?;
        Ok(reused)
    }
}

/// How many jobs a timer has.
pub(super) fn timed_jobs(item: &Item) -> usize {
    readable(item).map_or(0, |jobs| jobs.len())
}

/// The jobs of a timer; none for a damaged one, which is logged once and stays.
fn readable(item: &Item) -> Option<Vec<TimedJob>> {
    let what = || format!("timer {}", item.key.s);
    let list = item.bytes(row::LIST).ok_or_else(|| StoreError::corrupt(what()));
    let list = list.and_then(|list| decode(list, &item.key.s, what));
    list.inspect_err(log_damage).ok()
}
