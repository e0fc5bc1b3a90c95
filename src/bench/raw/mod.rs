//! A store without a queue, with the same durability: the limit of what a server can reach on it.

pub(super) mod postgres;
pub(super) mod sqlite;

use super::place::Place;

/// Returns the inserts per second, with `rows` in a transaction.
pub(super) async fn inserts(place: &Place, jobs: u64, rows: usize) -> anyhow::Result<f64> {
    match place {
        Place::Directory(dir) => {
            let dir = dir.path().to_owned();
            Ok(tokio::task::spawn_blocking(move || sqlite::inserts(&dir, jobs, rows)).await??)
        }
        Place::Schema(schema) => postgres::inserts(&schema.settings()?, jobs, rows).await,
    }
}

/// Returns the jobs per second that are marked as running and as done, with `rows` in a transaction.
/// On SQLite each is inserted too.
pub(super) async fn cycles(place: &Place, jobs: u64, rows: usize) -> anyhow::Result<f64> {
    match place {
        Place::Directory(dir) => {
            let dir = dir.path().to_owned();
            Ok(tokio::task::spawn_blocking(move || sqlite::cycles(&dir, jobs, rows)).await??)
        }
        Place::Schema(schema) => postgres::rounds(&schema.settings()?, jobs, rows).await,
    }
}

/// Returns ascending ids, like those of a queue.
fn ids(jobs: u64) -> Vec<String> {
    (0..jobs).map(id).collect()
}

/// Returns the id of a number.
pub(super) fn id(number: u64) -> String {
    format!("01k{number:023}")
}
