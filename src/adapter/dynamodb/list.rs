//! Lists and counts: nothing that decides depends on them.
//!
//! The one thing to know: there is no index by creation, since each job would pay for it. A list goes through the buckets from
//! the latest due time to the earliest. A job is due when it is accepted at the earliest, so once every bucket from some hour on
//! was read, so was every job accepted in or after that hour. A list of old jobs therefore reads past all that are due later.

use std::collections::BTreeMap;

use super::{
    DynamoStore,
    key::{self, Hour, Lane},
    row,
    table::Item,
};
use crate::{
    job::{Job, QueueName},
    port::{
        StoreError,
        job_store::{Depth, ListPage, ListQuery, StateFilter},
        listing::Cursor,
    },
};

fn place(job: &Job) -> Cursor {
    Cursor { created_at: job.spec.created_at, tie: job.id.to_string() }
}

impl DynamoStore {
    /// The queues that have had jobs.
    async fn queues(&self) -> Result<Vec<QueueName>, StoreError> {
        let items = self.whole(key::QUEUES).await?;
        Ok(items.iter().filter_map(|item| item.key.s.parse().ok()).collect())
    }

    /// The buckets that have had jobs of these queues, by hour.
    async fn buckets(&self, queues: &[QueueName]) -> Result<BTreeMap<Hour, Vec<Lane>>, StoreError> {
        let mut buckets: BTreeMap<Hour, Vec<Lane>> = BTreeMap::new();
        for queue in queues {
            for (hour, lane) in self.whole(key::all(queue)).await?.iter().filter_map(|item| key::registered_of(&item.key.s)) {
                buckets.entry(hour).or_default().push(lane);
            }
        }
        for lanes in buckets.values_mut() {
            lanes.sort_unstable();
            lanes.dedup();
        }
        Ok(buckets)
    }

    /// The jobs of a bucket.
    async fn jobs_in(&self, hour: Hour, lane: &Lane) -> Result<Vec<Job>, StoreError> {
        let now = self.now();
        let items = self.whole(key::bucket(lane, hour, false)).await?;
        let rows = items.iter().filter(|item: &&Item| item.key.s.contains('.') && !item.key.s.contains('!') && !row::is_over(item, now));
        rows.map(|item| row::shown(item, now)).collect()
    }

    pub(super) async fn list_jobs(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let after: Option<Cursor> = match &query.cursor {
            None => None,
            Some(text) => match text.parse() {
                Ok(cursor) => Some(cursor),
                Err(_) => return Ok(ListPage::default()),
            },
        };
        let queues = match &query.queue {
            Some(queue) => vec![queue.clone()],
            None => self.queues().await?,
        };
        let most = query.limit as usize;
        let mut found: BTreeMap<Cursor, Job> = BTreeMap::new();
        let mut more = false;
        for (hour, lanes) in self.buckets(&queues).await?.into_iter().rev() {
            // What lies in this hour and before was accepted before its end.
            let complete = found.keys().rev().take(most + 1).filter(|at| at.created_at >= hour.end()).count();
            if complete > most || query.from.is_some_and(|from| hour.end() <= from) {
                break;
            }
            for lane in lanes {
                let jobs = self.jobs_in(hour, &lane).await?.into_iter().filter(|job| query.asks_for(job));
                found.extend(jobs.map(|job| (place(&job), job)).filter(|(at, _)| after.as_ref().is_none_or(|after| at < after)));
            }
            // Only the newest are needed.
            while found.len() > most + 1 {
                found.pop_first();
                more = true;
            }
        }
        let more = more || found.len() > most;
        let jobs: Vec<Job> = found.into_values().rev().take(most).collect();
        let next_cursor = jobs.last().filter(|_| more).map(|job| place(job).to_string());
        Ok(ListPage { jobs, next_cursor })
    }

    pub(super) async fn count_jobs(&self) -> Result<Vec<Depth>, StoreError> {
        let mut counts = BTreeMap::<_, u64>::new();
        let queues = self.queues().await?;
        for (hour, lanes) in self.buckets(&queues).await? {
            for lane in lanes {
                for job in self.jobs_in(hour, &lane).await? {
                    let place = (job.spec.queue.clone(), job.spec.job_type.clone(), StateFilter::from(&job.life.state));
                    *counts.entry(place).or_default() += 1;
                }
            }
        }
        Ok(counts.into_iter().map(|((queue, job_type, state), jobs)| Depth { queue, job_type, state, jobs }).collect())
    }
}
