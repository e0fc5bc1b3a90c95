//! Postgres without a queue: the statements of the store, each a transaction by itself, on as many
//! connections as the store writes on.

use futures_util::future::try_join_all;

use super::ids;
use crate::bench::{DATA, clock};
use tidegate_backends::postgres::{OpenError, RawPostgres, Settings};
use tidegate_core::port::StoreError;

/// Returns the connections of a run.
pub(in crate::bench) async fn connections(
    settings: &Settings,
) -> Result<Vec<RawPostgres>, OpenError> {
    let now = clock::now();
    let mut connections = Vec::with_capacity(RawPostgres::CONNECTIONS);
    for _ in 0..RawPostgres::CONNECTIONS {
        connections.push(RawPostgres::open(settings.clone(), now).await?);
    }
    Ok(connections)
}

/// What is done to the jobs of a transaction.
#[derive(Clone, Copy)]
enum Step {
    Insert,
    /// A claim, and then the end.
    Round,
}

/// Returns the inserts per second, with `rows` in a transaction.
pub(super) async fn inserts(settings: &Settings, jobs: u64, rows: usize) -> anyhow::Result<f64> {
    let (connections, ids) = (connections(settings).await?, ids(jobs));
    let start = clock::instant();
    each(&connections, &ids, rows, Step::Insert).await?;
    Ok(jobs as f64 / start.elapsed().as_secs_f64())
}

/// Returns the jobs per second that are claimed and ended, with `rows` in a transaction of each. They
/// are inserted before.
pub(super) async fn rounds(settings: &Settings, jobs: u64, rows: usize) -> anyhow::Result<f64> {
    let (connections, ids) = (connections(settings).await?, ids(jobs));
    each(&connections, &ids, rows, Step::Insert).await?;
    let start = clock::instant();
    each(&connections, &ids, rows, Step::Round).await?;
    Ok(jobs as f64 / start.elapsed().as_secs_f64())
}

/// Takes `step` for every group of `rows` ids. The connections share the groups.
async fn each(
    connections: &[RawPostgres],
    ids: &[String],
    rows: usize,
    step: Step,
) -> Result<(), StoreError> {
    let every = connections.len();
    let parts = connections.iter().enumerate();
    let parts =
        parts.map(|(index, raw)| part(raw, ids.chunks(rows).skip(index).step_by(every), step));
    try_join_all(parts).await.map(|_| ())
}

/// Takes `step` for each of `groups`.
async fn part<'a>(
    raw: &RawPostgres,
    groups: impl Iterator<Item = &'a [String]>,
    step: Step,
) -> Result<(), StoreError> {
    for group in groups {
        match step {
            Step::Insert => raw.insert(group, &vec![DATA.as_bytes(); group.len()]).await?,
            Step::Round => {
                raw.claim(group).await?;
                raw.end(group).await?;
            }
        }
    }
    Ok(())
}
