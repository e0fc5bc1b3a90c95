//! Which releases may use a store: the schema record.
//!
//! Every stored form has a number. A release reads all forms up to [`READS`] and writes [`WRITES`],
//! which is one that the release before it reads. So releases that follow each other work on one
//! store at the same time, and each can be rolled back to the one before it. The record holds the
//! highest number that was ever written. A release that cannot read it admits nothing, accepts
//! nothing and changes no configuration, from its start on, or from the moment at which the record
//! is raised under it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::configure::{MAX_CONFLICT_RETRIES, bytes, contended};
use crate::{Catalog, Engine, Error, moves::Mark};
use tidegate_core::port::{
    Write,
    job_store::{Item, ItemKind},
};

/// The highest form that this release reads.
pub const READS: u32 = 1;
/// The form that this release writes: at most what the release before it reads.
pub const WRITES: u32 = 1;
/// The name of the one item.
const NAME: &str = "schema";
const _: () = assert!(WRITES <= READS && READS <= WRITES + 1, "a form is read one release earlier");

/// The schema record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// The highest form that a release has written.
    pub writes: u32,
    /// The first release that has written it.
    pub release: String,
}

impl Schema {
    /// The record in these items; form 0 if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if this release cannot read the form, or the record itself; or if the
    /// store is a part of a [move](crate::moves).
    pub(super) fn of(items: &[Item]) -> Result<(u64, Self), Error> {
        Mark::check(items).map_err(|why| unusable(&why))?;
        let Some(item) = items.iter().find(|item| item.name == NAME) else {
            return Ok((0, Self::default()));
        };
        let schema: Self = item
            .read()
            .map_err(|error| unusable(&format!("its schema record cannot be read: {error}")))?;
        if schema.writes > READS {
            let Self { writes, release } = schema;
            return Err(unusable(&format!(
                "release {release} has written form {writes}, and this release reads forms up to \
                 {READS}: run {release} or a later release"
            )));
        }
        Ok((item.version, schema))
    }

    /// Checks that a command of this release can write next to servers that run: it would not raise the
    /// record, which they might not read then.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if these servers write a lower form.
    pub fn check_in_use(&self) -> Result<(), Error> {
        self.check_form(WRITES)
    }

    /// The same for a command that writes the form `own`.
    fn check_form(&self, own: u32) -> Result<(), Error> {
        let Self { writes, release } = self;
        if *writes == 0 || *writes >= own {
            return Ok(());
        }
        Err(unusable(&format!(
            "release {release} has written form {writes}, and this release writes form {own}: run \
             the release of the servers, or start a server of this release first"
        )))
    }
}

fn unusable(why: &str) -> Error {
    Error::unavailable(
        super::unreadable::UNREADABLE_RETRY,
        format!("the stored data cannot be used: {why}"),
    )
}

impl Engine {
    /// Records that this release writes its form, if no release has written it or a higher one.
    ///
    /// # Errors
    ///
    /// The store's; [`Error::Unavailable`] if this release cannot read what is stored.
    pub async fn record_schema(&self, mut catalog: Arc<Catalog>) -> Result<(), Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let (was, schema) = catalog.schema.clone();
            if schema.writes >= WRITES {
                return Ok(());
            }
            let release = env!("CARGO_PKG_VERSION").to_owned();
            let write = Write::SetItem {
                kind: ItemKind::Schema,
                name: NAME.into(),
                was,
                version: was + 1,
                bytes: Some(bytes(&Schema { writes: WRITES, release })?),
            };
            if self.write_items(vec![write]).await? {
                return Ok(());
            }
            catalog = self.catalog().await?;
        }
        Err(contended(NAME))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_next_to_servers_raises_no_form() {
        for (writes, own, is_good) in [(0, 2, true), (1, 2, false), (2, 2, true), (3, 2, true)] {
            let schema = Schema { writes, release: "0.1.0".into() };
            assert_eq!(schema.check_form(own).is_ok(), is_good, "{own} over {writes}");
        }
    }
}
