//! Where the servers under test have their jobs: a new directory, or a new schema of a database that
//! several of them share.

use std::{
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use super::{clock, postmaster::Postmaster};
use tidegate_backends::postgres::{BadAddress, ScratchDatabase, Settings};

/// What the names of all schemas of measurements begin with.
const PREFIX: &str = "tidegate_bench_";
/// The key that encrypts the secrets of targets: measurements have none.
pub(super) const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
/// The parameter of an address that names the schema.
const SCHEMA: &str = "schema=";

/// Where the servers of one run have their jobs. A directory is removed when it is dropped.
pub(super) enum Place {
    Directory(TempDir),
    Schema(Schema),
}

/// A schema that no other run uses.
pub(super) struct Schema {
    /// The address of the database, with the schema.
    pub address: String,
    postmaster: Option<Postmaster>,
}

impl Place {
    /// A new directory in `parent`.
    pub(super) fn directory(parent: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(parent)
            .and_then(|()| tempfile::Builder::new().prefix("tidegate-bench-").tempdir_in(parent))
            .map(Self::Directory)
            .with_context(|| format!("no directory can be created in {}", parent.display()))
    }

    /// The database's server, if there is one on this machine.
    pub(super) fn postmaster(&self) -> Option<Postmaster> {
        match self {
            Self::Directory(_) => None,
            Self::Schema(schema) => schema.postmaster,
        }
    }
}

impl Schema {
    /// How to reach it.
    pub(super) fn settings(&self) -> Result<Settings, BadAddress> {
        self.address.parse()
    }
}

/// A database for measurements, without a deployment.
pub(crate) struct Database {
    address: String,
    scratch: ScratchDatabase,
    postmaster: Option<Postmaster>,
    /// What the names of this run's schemas begin with.
    prefix: String,
    schemas: AtomicU32,
}

impl Database {
    /// The database of `address`. A schema that the address names is not used.
    ///
    /// # Errors
    ///
    /// It is no address, the database does not answer, or a deployment uses it.
    pub(crate) async fn open(address: &str) -> anyhow::Result<Self> {
        let is_url = ["postgres://", "postgresql://"].iter().any(|it| address.starts_with(it));
        ensure!(is_url, "the address must begin with postgres://");
        let address = without_schema(address);
        let settings: Settings = address.parse()?;
        let scratch = ScratchDatabase::open(settings, PREFIX).await?;
        let postmaster = Postmaster::of(scratch.server_process().await?);
        // Another run may use the database, even from another machine.
        let (millis, pid) = (clock::since_epoch().as_millis(), std::process::id());
        let prefix = format!("{PREFIX}{millis}_{pid}_");
        Ok(Self { address, scratch, postmaster, prefix, schemas: AtomicU32::new(0) })
    }

    /// Whether its server is a process of this machine.
    pub(super) fn is_here(&self) -> bool {
        self.postmaster.is_some()
    }

    /// The address of the database, without a schema.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A new schema, which exists as soon as a server uses it.
    pub(super) fn new_schema(&self) -> Place {
        let number = self.schemas.fetch_add(1, Ordering::Relaxed);
        let Self { address, prefix, postmaster, .. } = self;
        let separator = if address.contains('?') { '&' } else { '?' };
        let address = format!("{address}{separator}{SCHEMA}{prefix}{number}");
        Place::Schema(Schema { address, postmaster: *postmaster })
    }

    /// Drops all schemas of this run.
    ///
    /// # Errors
    ///
    /// The database's.
    pub(crate) async fn drop_schemas(&self) -> anyhow::Result<()> {
        let dropped = self.scratch.drop_schemas(&self.prefix).await;
        dropped.with_context(|| format!("drop the schemas {}*", self.prefix))
    }
}

/// `address` without the parameter that names a schema.
fn without_schema(address: &str) -> String {
    let Some((base, query)) = address.split_once('?') else { return address.to_owned() };
    let rest: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with(SCHEMA)).collect();
    if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_loses_its_schema_and_nothing_else() {
        for (address, without) in [
            ("postgres://h/d", "postgres://h/d"),
            ("postgres://h/d?schema=a", "postgres://h/d"),
            (
                "postgres://h/d?sslmode=disable&schema=a&user=b",
                "postgres://h/d?sslmode=disable&user=b",
            ),
        ] {
            assert_eq!(without_schema(address), without);
        }
    }
}
