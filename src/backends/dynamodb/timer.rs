//! What must be looked at although it is not due to run: timers, read by instant.
//!
//! The one thing to know: a timer may come too early, never too late. Whoever finds one whose job has a later time by now
//! writes another for that time, before the first goes. So a heartbeat that extends a lease writes nothing here.

use std::{collections::BTreeMap, time::Duration};

use super::{
    DynamoStore,
    entry::{LAG, Timers, Wanted},
    key::{self, Hour},
    row,
    table::{Change, Item, PageQuery},
};
use crate::blob::decode;
use tidegate_core::{
    job::{Job, JobId},
    port::StoreError,
    time::Timestamp,
};

/// How long a timer waits for a job that is not there. The enqueue that wrote it is over by then.
const ORPHAN: Duration = Duration::from_mins(15);
/// Timers that one request reads.
const PAGE: u32 = 200;

impl DynamoStore {
    /// At most `limit` jobs that have not ended and whose `wake_at` is `until` or before, earliest first; and the earliest after it,
    /// unless the page is full.
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
            let mut ask = PageQuery {
                p: key::timers(number),
                from: key::FIRST.into(),
                to: key::LAST.into(),
                limit: Some(PAGE),
                backward: false,
            };
            let mut all_spent = true;
            loop {
                let first = key::timer_at(&ask.from).unwrap_or(number.start());
                // A timer is never later than its job's time: what was read so far is complete up to where it ended.
                if overdue.keys().filter(|(at, _)| *at <= first).count() >= limit {
                    next = None;
                    break 'hours;
                }
                if first > until && next.is_some_and(|next| next <= first) {
                    break 'hours;
                }
                let page = self.table.query(&ask).await?;
                all_spent &=
                    self.read_timers(&page.items, until, began, &mut overdue, &mut next).await?;
                match page.items.last() {
                    Some(last) if page.more => ask.from = format!("{}{}", last.key.s, key::FIRST),
                    _ => break,
                }
            }
            if all_spent && number.end() + LAG <= began {
                self.table.write(&[Change::Delete { key: hour.key.clone(), when: None }]).await?;
            }
        }
        // What does not fit is found again.
        let jobs = overdue.into_values().take(limit).collect();
        Ok((jobs, next))
    }

    /// Sorts the jobs of some timers into those that are overdue and those that will be, and removes the timers that nobody needs
    /// any more. Whether those were all.
    async fn read_timers(
        &self,
        items: &[Item],
        until: Timestamp,
        began: Timestamp,
        overdue: &mut BTreeMap<(Timestamp, JobId), Job>,
        next: &mut Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let mut lists: Vec<Timers> = Vec::with_capacity(items.len());
        for item in items {
            let list = item
                .bytes(row::LIST)
                .ok_or_else(|| StoreError::corrupt(format!("{} is no timer", item.key.s)))?;
            lists.push(decode(list, || format!("timer {}", item.key.s))?);
        }
        let ids: Vec<&JobId> = lists.iter().flatten().map(|(id, ..)| id).collect();
        let mut jobs = self.jobs(&ids).await?.into_iter();
        let (mut again, mut spent) = (Vec::new(), Vec::new());
        for (item, list) in items.iter().zip(lists) {
            let lies_at = key::timer_at(&item.key.s).unwrap_or(began);
            let mut needed = lies_at + LAG > began;
            for (id, revision, _) in list {
                let Some(job) = jobs.next().flatten() else {
                    needed |= lies_at + ORPHAN > began;
                    continue;
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
                    // The caller may be late: a timer that is due at `began` may not be due at `until`.
                    needed |= at <= lies_at;
                    if lies_at <= began && at > lies_at {
                        again.push(Wanted::wake(&id, job.life.revision.0, at));
                    }
                }
            }
            if !needed && lies_at <= began {
                spent.push(item.key.clone());
            }
        }
        if spent.is_empty() {
            return Ok(items.is_empty());
        }
        self.announce(again).await?;
        let changes: Vec<Change> =
            spent.iter().map(|key| Change::Delete { key: key.clone(), when: None }).collect();
        self.table.write(&changes).await?;
        Ok(spent.len() == items.len())
    }
}
