//! How many jobs are due, and which partitions have due jobs.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, params};

use super::{Scan, next_partition};
use crate::{
    sqlite::{error::Failure, names::Names, row::RawText},
    unreadable::unreadable,
};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::{
        StoreError,
        job_store::{DueQuery, MAX_LOOKED_AT, PartitionPage},
    },
    queue::order::Order,
    time::Timestamp,
};

/// How many jobs of a stream are due, up to a bound.
const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_due \
     WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 AND type = ?4 \
     AND priority = ?5 AND run_at <= ?6 LIMIT ?7)";

/// How many jobs of each of `types` are due, at most `most` in all. It counts index entries and
/// reads no job.
pub(in crate::sqlite) fn count(
    db: &Connection,
    names: &Names,
    queue: &QueueName,
    types: &[TypeName],
    until: Timestamp,
    most: u32,
) -> Result<BTreeMap<TypeName, u64>, Failure> {
    let mut counts = BTreeMap::new();
    let (Some(number), numbers) = (names.queue(queue), names.types(types)) else {
        return Ok(counts);
    };
    let mut find = db.prepare_cached(COUNT)?;
    let mut left = u64::from(most);
    for critical in [true, false] {
        let (order, types) = (Order::Time { step_millis: 0 }, types.to_vec());
        let query = &DueQuery {
            queue: queue.clone(),
            critical,
            types,
            partition: None,
            order,
            until,
            after: None,
            limit: most,
            granted: None,
        };
        for stream in (Scan { db, queue: number, query }).streams(&numbers)? {
            let place = params![
                number,
                critical,
                stream.partition,
                stream.job_type,
                stream.priority,
                until.millis(),
                left as i64
            ];
            let found = find.query_row(place, |row| row.get::<_, i64>(0))? as u64;
            if let Some(name) = names.type_name(stream.job_type).filter(|_| found > 0) {
                *counts.entry(name.clone()).or_default() += found;
            }
            left -= found;
            if left == 0 {
                return Ok(counts);
            }
        }
    }
    Ok(counts)
}

/// The next queue after a number with a job that is scheduled or runs.
const NEXT_QUEUE: &str = "SELECT min(queue) FROM ( \
     SELECT min(queue) AS queue FROM jobs INDEXED BY jobs_due WHERE state = 0 AND queue > ?1 \
     UNION ALL \
     SELECT min(queue) FROM jobs INDEXED BY jobs_running WHERE state = 1 AND queue > ?1)";

/// The queues with running jobs or scheduled ones, due or not.
pub(in crate::sqlite) fn active_queues(db: &Connection) -> Result<Vec<i64>, Failure> {
    let mut find = db.prepare_cached(NEXT_QUEUE)?;
    let (mut queues, mut after) = (Vec::new(), i64::MIN);
    while let Some(queue) = find.query_row([after], |row| row.get::<_, Option<i64>>(0))? {
        queues.push(queue);
        after = queue;
    }
    Ok(queues)
}

/// The partitions with jobs of `types` that are due at `until`.
pub(in crate::sqlite) fn partitions(
    db: &Connection,
    names: &Names,
    queue: &QueueName,
    types: &[TypeName],
    (until, after, limit): (Timestamp, Option<&str>, u32),
    skip: &BTreeSet<String>,
) -> Result<PartitionPage, Failure> {
    let (Some(number), numbers) = (names.queue(queue), names.types(types)) else {
        return Ok(PartitionPage::default());
    };
    let all = [false, true].map(|critical| DueQuery {
        queue: queue.clone(),
        critical,
        types: types.to_vec(),
        partition: None,
        order: Order::Time { step_millis: 0 },
        until: Timestamp::from_millis(i64::MIN),
        after: None,
        limit,
        granted: None,
    });
    let (mut after, limit) = (after.map(RawText::from), limit as usize);
    let (mut found, mut due) = (Vec::new(), 0);
    // One more than the page has shows whether there are more.
    while due <= limit && found.len() <= limit * MAX_LOOKED_AT {
        let next = |critical| next_partition(db, number, critical, after.as_ref());
        let Some(partition) = next(false)?.into_iter().chain(next(true)?).min() else {
            break;
        };
        if skip.contains(&partition.shown()) {
            after = Some(partition);
            continue;
        }
        let mut first: Option<Timestamp> = None;
        for query in &all {
            let (scan, mut streams) = (Scan { db, queue: number, query }, Vec::new());
            scan.streams_of(&partition, &numbers, &mut streams)?;
            first = first.into_iter().chain(scan.next_due(&streams)?).min();
        }
        let name = partition.shown();
        match first {
            Some(_) if name.as_bytes() != partition.0 => {
                let error = StoreError::corrupt("the name of its partition is damaged");
                unreadable(format!("in partition {name:?}"), &error);
            }
            Some(at) => {
                due += usize::from(at <= until);
                found.push((name, at));
            }
            None => {}
        }
        after = Some(partition);
    }
    let found = found.iter().map(|(name, at)| (name.as_str(), *at));
    Ok(PartitionPage::of(found, until, limit))
}
