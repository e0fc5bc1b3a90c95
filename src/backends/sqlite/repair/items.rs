//! What takes the place of damaged configuration, so that nothing runs without the limits and
//! guarantees that it had.
//!
//! A damaged queue is paused. A damaged type stays as one that cannot be read: its jobs wait, a
//! running one keeps its lease past its end, and no request creates the type again without its
//! options. An API that was closed stays closed.

use rusqlite::{OptionalExtension, params};

use super::{Damage, Failure, Place, Repair};
use crate::sqlite::row::{self, RawText, decode, with_checksum};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::{StoreError, job_store::ItemKind},
    queue::{Ledger, config::QueueItem},
};

/// In place of a type, as JSON. It is none, and the error of its reader shows this text.
const HELD_TYPE: &[u8] = br#""it was damaged, and a repair has set it aside: set the type again""#;
/// The name and the content of the one item of the kind [`ItemKind::Closed`].
const CLOSED: (&str, &[u8]) = ("closed", b"true");

/// The kind of this name; none if the name is damaged.
fn known(kind: &str) -> Option<ItemKind> {
    ItemKind::ALL.into_iter().find(|known| known.as_str() == kind)
}

/// A removed item.
pub(super) struct Replaced {
    /// Its kind; none if that is damaged.
    kind: Option<ItemKind>,
    name: String,
    /// The version of what takes its place.
    version: i64,
}

impl Replaced {
    pub(super) fn new(kind: &str, name: &str, version: i64) -> Self {
        // The one item of its kind may have lost its name, or its kind.
        let is_closed = kind == ItemKind::Closed.as_str() || name == CLOSED.0;
        match known(kind) {
            Some(ItemKind::Closed) | None if is_closed => {
                Self { kind: Some(ItemKind::Closed), name: CLOSED.0.to_owned(), version }
            }
            kind => Self { kind, name: name.to_owned(), version },
        }
    }

    /// What was done about it, and what follows.
    pub(super) fn consequence(&self) -> &'static str {
        match self.kind {
            Some(ItemKind::Queue) => {
                "set aside; the queue is paused: set its configuration again, then resume it"
            }
            Some(ItemKind::Type) => "set aside; the jobs of the type wait: set it again",
            Some(ItemKind::Closed) => "written again",
            _ => "set aside: set it again",
        }
    }
}

impl Repair<'_> {
    /// Puts what holds in the place of a removed item.
    pub(super) fn replace(&self, item: &Replaced) -> Result<(), Failure> {
        let Replaced { kind, name, version } = item;
        match kind {
            Some(ItemKind::Queue) if name.parse::<QueueName>().is_ok() => {
                self.pause(name, *version)
            }
            Some(ItemKind::Type) => self.hold_type(name, *version).map(drop),
            Some(ItemKind::Closed) => self.put(ItemKind::Closed, name, *version, CLOSED.1),
            _ => Ok(()),
        }
    }

    /// Holds what may have lost its configuration, because the kind or the name of a damaged item
    /// was another one.
    pub(super) fn hold_without_configuration(&mut self, damage: &[Damage]) -> Result<(), Failure> {
        let may_be = |wanted: ItemKind| {
            damage.iter().any(|damage| match &damage.place {
                Place::Item { kind, .. } => known(kind).is_none_or(|kind| kind == wanted),
                _ => false,
            })
        };
        if may_be(ItemKind::Queue) {
            self.pause_without_configuration()?;
        }
        if may_be(ItemKind::Type) {
            self.hold_types_without_configuration()?;
        }
        Ok(())
    }

    /// A version after that of the damaged item in row `n`, and after the one that the ledger of
    /// the queue `name` was decided under.
    pub(super) fn next_version(&self, n: i64, name: &str) -> Result<i64, Failure> {
        let stored: i64 =
            self.db
                .query_row("SELECT version FROM items WHERE rowid = ?1", [n], |row| row.get(0))?;
        let head: Option<Vec<u8>> = self
            .db
            .query_row(
                "SELECT head FROM heads JOIN queue_names ON queue_names.n = heads.queue \
                 WHERE queue_names.name = ?1",
                [name],
                |row| row.get(0),
            )
            .optional()?;
        let ledger: Option<Ledger> = head.and_then(|head| decode(&head, name, String::new).ok());
        let decided_under = ledger.map_or(0, |ledger| ledger.config_version as i64);
        Ok(stored.clamp(0, i64::MAX - 1).max(decided_under) + 1)
    }

    /// Stores an item, unless there is another one of its kind and name.
    fn put(&self, kind: ItemKind, name: &str, version: i64, json: &[u8]) -> Result<(), Failure> {
        let kind = kind.as_str();
        let bytes = with_checksum(json, &row::item_owner(kind, name, version), 0);
        self.db.execute(
            "INSERT INTO items (kind, name, version, bytes) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT DO NOTHING",
            params![kind, name, version, bytes],
        )?;
        Ok(())
    }

    /// Stores a paused queue without limits.
    fn pause(&self, name: &str, version: i64) -> Result<(), Failure> {
        let item = QueueItem { paused: true, version: version as u64, ..QueueItem::default() };
        let json = serde_json::to_vec(&item).map_err(StoreError::corrupt)?;
        self.put(ItemKind::Queue, name, version, &json)
    }

    /// Stores a type that cannot be read. Returns whether a user's type can have this name.
    fn hold_type(&self, name: &str, version: i64) -> Result<bool, Failure> {
        let is_of_user = name.parse().is_ok_and(|name: TypeName| !name.is_internal());
        if is_of_user {
            self.put(ItemKind::Type, name, version, HELD_TYPE)?;
        }
        Ok(is_of_user)
    }

    /// Pauses the queues that have a ledger and no configuration.
    fn pause_without_configuration(&mut self) -> Result<(), Failure> {
        let mut bare = self.db.prepare(
            "SELECT name, head FROM heads JOIN queue_names ON queue_names.n = heads.queue \
             WHERE name NOT IN (SELECT name FROM items WHERE kind = ?1)",
        )?;
        let mut rows = bare.query([ItemKind::Queue.as_str()])?;
        while let Some(row) = rows.next()? {
            let (name, head): (String, Vec<u8>) = (row.get(0)?, row.get(1)?);
            let ledger: Ledger = decode(&head, &name, || format!("the ledger of queue {name}"))?;
            self.pause(&name, ledger.config_version as i64 + 1)?;
            self.done
                .push(format!("queue {name} has no configuration, and is paused: set it again"));
        }
        Ok(())
    }

    /// Holds the types that have live jobs and no configuration.
    fn hold_types_without_configuration(&mut self) -> Result<(), Failure> {
        let mut bare = self.db.prepare(
            "SELECT DISTINCT name FROM jobs NOT INDEXED JOIN type_names ON type_names.n = type \
             WHERE state < 2 AND name NOT IN (SELECT name FROM items WHERE kind = ?1)",
        )?;
        let mut rows = bare.query([ItemKind::Type.as_str()])?;
        while let Some(row) = rows.next()? {
            let name = row.get::<_, RawText>(0)?.shown();
            if self.hold_type(&name, 1)? {
                let then = "has no configuration, and its jobs wait: set it again";
                self.done.push(format!("type {name} {then}"));
            }
        }
        Ok(())
    }
}
