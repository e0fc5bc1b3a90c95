//! Where one side of a move is.

use std::{fmt, path::Path};

use anyhow::bail;

#[cfg(feature = "aws")]
use super::table::TableAddress;
use crate::cli::UsageError;
use tidegate_engine::moves::Side;
use tidegate_server::{runtime::Place, settings::Settings};

/// What the address of a table begins with.
pub(super) const TABLE_SCHEME: &str = "dynamodb://";

/// Where one side is.
pub(super) enum Location {
    /// The data of servers.
    Servers(Place),
    /// The data of functions on AWS.
    #[cfg(feature = "aws")]
    Table(TableAddress),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Servers(place) => place.fmt(f),
            #[cfg(feature = "aws")]
            Self::Table(table) => table.fmt(f),
        }
    }
}

impl Location {
    /// The location that `text` names, or the setting `store`. `option` is the option that gave it.
    ///
    /// # Errors
    ///
    /// None is named, or the address is wrong.
    pub(super) fn named(
        text: Option<&str>,
        option: &str,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        let Some(text) = text.or(settings.store.as_deref()) else {
            bail!(UsageError(format!(
                "name a data directory, a database or a table with {option}, or set `store`"
            )));
        };
        if text.starts_with(TABLE_SCHEME) {
            return Self::table(text, option);
        }
        if !text.contains("://") {
            return Ok(Self::Servers(Place::Directory(std::path::absolute(text)?)));
        }
        let of_text = Settings { store: Some(text.to_owned()), ..settings.clone() };
        match of_text.database() {
            Ok(Some(database)) => Ok(Self::Servers(Place::Database(Box::new(database)))),
            Ok(None) => bail!(UsageError(format!("{option}: names no database"))),
            Err(fault) => bail!(UsageError(format!("{option}: {}", fault.problem))),
        }
    }

    #[cfg(feature = "aws")]
    fn table(text: &str, option: &str) -> anyhow::Result<Self> {
        let address = text.parse::<TableAddress>();
        Ok(Self::Table(address.map_err(|error| UsageError(format!("{option}: {error}")))?))
    }

    #[cfg(not(feature = "aws"))]
    fn table(_: &str, option: &str) -> anyhow::Result<Self> {
        bail!(UsageError(format!("{option}: this build of tidegate has no commands for AWS")))
    }

    /// The data directory, if it is one.
    pub(super) fn directory(&self) -> Option<&Path> {
        if let Self::Servers(Place::Directory(dir)) = self { Some(dir) } else { None }
    }

    /// Whether functions use it.
    pub(super) fn is_table(&self) -> bool {
        !matches!(self, Self::Servers(_))
    }

    /// What an operator does after everything was moved here.
    pub(super) fn next_step(&self) -> &'static str {
        if self.is_table() { "its functions go on" } else { "start the servers there" }
    }

    /// Whether there is a store, also an empty one. Nothing is made or changed.
    ///
    /// # Errors
    ///
    /// It cannot be reached.
    pub(super) async fn has_store(&self) -> anyhow::Result<bool> {
        match self {
            Self::Servers(place) => Ok(place.has_store().await?),
            #[cfg(feature = "aws")]
            Self::Table(table) => table.has_store().await,
        }
    }

    /// The store and the objects in it, without encryption. A table must exist; an empty store of servers
    /// is made if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be used. The message has the remedy.
    pub(super) async fn open(&self) -> anyhow::Result<Side> {
        match self {
            Self::Servers(place) => Ok(place.open().await?),
            #[cfg(feature = "aws")]
            Self::Table(table) => table.open().await,
        }
    }
}
