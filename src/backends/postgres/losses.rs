//! The losses of acknowledged commits that servers found, kept for servers that start later.

use super::{
    connect::{Link, Readers},
    error::Fault,
    row::column,
    wal::Loss,
};
use tidegate_core::{port::StoreError, time::Timestamp};

/// Several servers find the same loss, each as far as it had commits.
const ADD: &str = "INSERT INTO losses AS l (cluster, timeline, found_at, bytes) \
     VALUES ($1::bigint, $2::bigint, $3::bigint, $4::bigint) ON CONFLICT (cluster, timeline) \
     DO UPDATE SET found_at = excluded.found_at, bytes = greatest(l.bytes, excluded.bytes)";
const LATEST: &str = "SELECT found_at, bytes FROM losses WHERE found_at > $1::bigint \
     ORDER BY found_at DESC LIMIT 1";

/// Keeps a `loss` on a timeline of a cluster.
///
/// # Errors
///
/// It is not kept.
pub(super) async fn add(
    link: &Link,
    (cluster, timeline): (i64, u32),
    loss: Loss,
) -> Result<(), Fault> {
    let (timeline, found_at) = (i64::from(timeline), loss.found_at.millis());
    let bytes = loss.bytes as i64;
    link.query(ADD, &[&cluster, &timeline, &found_at, &bytes]).await.map(drop)
}

/// The latest loss that a server found after `since`.
///
/// # Errors
///
/// The database's.
pub(super) async fn latest(
    readers: &Readers,
    since: Timestamp,
) -> Result<Option<Loss>, StoreError> {
    let rows = readers.query(LATEST, &[&since.millis()]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (found_at, bytes): (i64, i64) = (column(row, 0)?, column(row, 1)?);
    Ok(Some(Loss { found_at: Timestamp::from_millis(found_at), bytes: bytes as u64 }))
}
