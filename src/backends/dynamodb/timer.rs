//! Timers: when a job must be checked although it is not due, for example at the end of a lease.
//!
//! A timer may be too early, never too late. A reader that finds a timer of a job whose time is
//! later by now writes another timer for that time, and then removes the first one. A heartbeat
//! that extends a lease therefore writes no timer.

use std::{collections::BTreeMap, time::Duration};

use super::{
    DynamoStore,
    entry::{EntryRequest, LOW_WATERMARK_LAG, TimedJob},
    key::{self, Hour},
    row,
    table::{Change, Item, PageQuery},
};
use crate::{blob::decode, unreadable::log_damage};
use tidegate_core::{
    job::{Job, JobId},
    port::StoreError,
    time::Timestamp,
};

/// Age at which a timer without a job is removed. The enqueue that wrote it is over by then.
const MIN_ORPHAN_AGE: Duration = Duration::from_mins(15);
/// Timers that one request reads.
const PAGE_TIMERS: u32 = 200;

impl DynamoStore {
    /// At most `limit` live jobs with a `wake_at` of `until` or earlier, earliest first. Also the
    /// earliest `wake_at` after `until`, unless the page is full.
    pub(super) async fn overdue_jobs(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<(Vec<Job>, Option<Timestamp>), StoreError> {
        let hours = self.whole(key::OPEN_TIMERS).await?;
        let (mut overdue, mut next): (BTreeMap<(Timestamp, JobId), Job>, Option<Timestamp>) =
            (BTreeMap::new(), None);
        'hours: for hour in &hours {
            let Some(number) = Hour::parse(&hour.key.s) else {
                continue;
            };
            let began = self.now();
            let mut query = PageQuery {
                p: key::timers(number),
                from: key::FIRST.into(),
                to: key::LAST.into(),
                limit: Some(PAGE_TIMERS),
                backward: false,
                after: None,
            };
            let mut all_removed = true;
            loop {
                let first = query
                    .after
                    .as_ref()
                    .and_then(|after| key::instant_of_timer(&after.s))
                    .unwrap_or(number.start());
                // A timer is never later than its job's time, so everything before `first` is
                // complete.
                if overdue.keys().filter(|(at, _)| *at <= first).count() >= limit {
                    next = None;
                    break 'hours;
                }
                if first > until && next.is_some_and(|next| next <= first) {
                    break 'hours;
                }
                let page = self.table.query(&query).await?;
                all_removed &=
                    self.read_timers(&page.items, until, began, &mut overdue, &mut next).await?;
                query.after = page.next;
                if query.after.is_none() {
                    break;
                }
            }
            if all_removed && number.end() + LOW_WATERMARK_LAG <= began {
                self.table.write(&[Change::Delete { key: hour.key.clone(), when: None }]).await?;
            }
        }
        // The next call finds the rest.
        let jobs = overdue.into_values().take(limit).collect();
        Ok((jobs, next))
    }

    /// Adds the jobs of some timers to `overdue` or `next`, and removes unneeded timers. Returns
    /// whether all of them were removed.
    async fn read_timers(
        &self,
        items: &[Item],
        until: Timestamp,
        began: Timestamp,
        overdue: &mut BTreeMap<(Timestamp, JobId), Job>,
        next: &mut Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let lists: Vec<(&Item, Vec<TimedJob>)> =
            items.iter().filter_map(|item| Some((item, readable(item)?))).collect();
        let ids: Vec<&JobId> = lists.iter().flat_map(|(_, list)| list).map(|job| &job.id).collect();
        let mut found = self.found(&ids).await?.into_iter();
        let (mut renewed, mut unneeded) = (Vec::new(), Vec::new());
        for (item, list) in lists {
            let timer_at = key::instant_of_timer(&item.key.s).unwrap_or(began);
            let mut needed = timer_at + LOW_WATERMARK_LAG > began;
            for TimedJob { id, revision, .. } in list {
                let job = match found.next() {
                    // The timer of a job that cannot be read stays until it can.
                    Some(Err(_)) => {
                        needed = true;
                        continue;
                    }
                    Some(Ok(Some(job))) => job,
                    Some(Ok(None)) | None => {
                        needed |= timer_at + MIN_ORPHAN_AGE > began;
                        continue;
                    }
                };
                needed |= job.life.revision.0 < revision;
                let Some(at) = job.life.wake_at(&job.spec).filter(|_| job.life.ended().is_none())
                else {
                    continue;
                };
                if at <= until {
                    needed = true;
                    overdue.insert((at, id), job);
                } else {
                    *next = Some(next.map_or(at, |next| next.min(at)));
                    // `began` may be later than `until`: a timer due at `began` may not be due at
                    // `until`.
                    needed |= at <= timer_at;
                    if timer_at <= began && at > timer_at {
                        renewed.push(EntryRequest::timer(&id, job.life.revision.0, at));
                    }
                }
            }
            if !needed && timer_at <= began {
                unneeded.push(item.key.clone());
            }
        }
        if unneeded.is_empty() {
            return Ok(items.is_empty());
        }
        self.announce(renewed).await?;
        let changes: Vec<Change> =
            unneeded.iter().map(|key| Change::Delete { key: key.clone(), when: None }).collect();
        self.table.write(&changes).await?;
        Ok(unneeded.len() == items.len())
    }
}

/// The jobs of a timer; none for a damaged one, which is logged once and stays.
fn readable(item: &Item) -> Option<Vec<TimedJob>> {
    let what = || format!("timer {}", item.key.s);
    let list = item.bytes(row::LIST).ok_or_else(|| StoreError::corrupt(what()));
    let list = list.and_then(|list| decode(list, &item.key.s, what));
    list.inspect_err(log_damage).ok()
}
