//! The mark of a store that is a part of a move.
//!
//! It is an item of the kind of the schema record, so that every engine reads it with its configuration
//! and refuses the store: at its start, and from the next read on if it runs already.

use serde::{Deserialize, Serialize};

use super::{MoveError, Side, part::Position};
use tidegate_core::port::{
    Committed, Write,
    job_store::{Item, ItemKind},
};

/// The name of the item.
pub(crate) const NAME: &str = "move";

/// What a store is in a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Its data is being copied.
    Source,
    /// Its data is incomplete.
    Target,
    /// Its data was copied, and the target is complete.
    Moved,
}

/// The mark of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The same on both sides, and on no others.
    pub id: String,
    /// What this store is.
    pub role: Role,
    /// Where the other store is, for people.
    pub other: String,
    /// On the target: how far the copy has come.
    #[serde(default)]
    pub(super) position: Position,
}

impl Mark {
    /// Why no server may use the store, and what to do.
    fn refusal(&self) -> String {
        let other = &self.other;
        match self.role {
            Role::Source => format!(
                "it is being moved to {other}: repeat `tidegate move`, which goes on, or give the \
                 move up with `tidegate move --abort`"
            ),
            Role::Target => format!(
                "it has a part of what is being moved from {other}: repeat `tidegate move`, which \
                 goes on"
            ),
            Role::Moved => format!(
                "it was moved to {other}: start the server there, or go back to what is here, \
                 without any later change, with `tidegate move --abort`"
            ),
        }
    }

    /// Checks that the items of its kind have no mark.
    ///
    /// # Errors
    ///
    /// Why no server may use the store.
    pub(crate) fn check(items: &[Item]) -> Result<(), String> {
        match items.iter().find(|item| item.name == NAME) {
            None => Ok(()),
            Some(item) => Err(item.read::<Self>().map_or_else(
                |error| format!("the mark of a move cannot be read: {error}"),
                |mark| mark.refusal(),
            )),
        }
    }

    /// The mark of a store with its version, if it has one.
    pub(super) async fn read(side: &Side) -> Result<Option<(u64, Self)>, MoveError> {
        let items = side.items(ItemKind::Schema).await?;
        let Some(item) = items.into_iter().find(|item| item.name == NAME) else { return Ok(None) };
        let mark = item.read().map_err(|error| {
            MoveError::refused(format!(
                "the mark of a move in {} cannot be read: {error}",
                side.place
            ))
        })?;
        Ok(Some((item.version, mark)))
    }

    /// Puts `mark` in the place of the one of version `was`, or removes that one. Returns its version.
    pub(super) async fn put(side: &Side, was: u64, mark: Option<&Self>) -> Result<u64, MoveError> {
        let bytes = mark.map(serde_json::to_vec).transpose().map_err(|error| {
            MoveError::refused(format!("the mark of a move cannot be written: {error}"))
        })?;
        let write = Write::SetItem {
            kind: ItemKind::Schema,
            name: NAME.to_owned(),
            was,
            version: was + 1,
            bytes,
        };
        match side.commit(vec![vec![write]]).await?.pop() {
            Some(Committed::All) => Ok(was + 1),
            _ => Err(MoveError::refused(format!(
                "another process has changed the mark of the move in {}: let one `tidegate move` \
                 run at a time",
                side.place
            ))),
        }
    }
}
