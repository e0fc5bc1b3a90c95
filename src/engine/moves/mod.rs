//! A move: everything of one store is copied to another one, and both are compared.
//!
//! ```text
//!   begin ──▶ copy ─ a page, then its position ─▶ ... ──▶ compare, both ways ──▶ finish
//!     │                                                                            │
//!     mark on both stores: no server starts                 the source says where its data is now,
//!                                                           and the target may be served
//! ```
//!
//! No server may use either store meanwhile. The **mark** is an item next to the schema record, which
//! every engine reads before it does anything, so that a server refuses a store that is a part of a move
//! ([`mark`]). The mark of the target has the position behind the last page that was written. A move
//! that was interrupted goes on there, and what it had written behind the position counts as written.
//! Ids, versions and revisions stay as they are, so that leases, keys and grants go on.
//!
//! What is not moved: jobs past their retention, which readers no longer see; transient records past
//! their time; damaged records, which readers leave out, and which the comparison counts and names; the
//! records of servers, and how far jobs were dispatched; and batches that no ledger names, which a tick
//! would remove. Anything else that is damaged stops a move.
//!
//! Read in this order: [`part`] (what there is to move), [`mark`], [`begin`], [`ready`], [`copy`],
//! [`mod@write`], [`ledgers`], [`objects`], [`compare`], [`job_parts`].

mod begin;
mod compare;
mod copy;
mod error;
mod job_parts;
mod ledgers;
pub(crate) mod mark;
mod objects;
mod part;
mod ready;
mod write;

use std::sync::Arc;

use object_store::ObjectStore;

pub use begin::{Begun, abort};
pub use compare::{Comparison, PartComparison};
pub use error::MoveError;
pub use mark::{Mark, Role};
pub use part::Part;

use tidegate_core::port::{Clock, Inbox, Movable};

/// A store with its objects, as one side of a move.
#[derive(Clone)]
pub struct Side {
    /// The store, without a layer: encrypted secrets are moved as they are.
    pub store: Arc<dyn Movable>,
    /// Large bodies and plugins.
    pub objects: Arc<dyn ObjectStore>,
    /// Requests of applications, if the store has an inbox.
    pub inbox: Option<Arc<dyn Inbox>>,
    /// Where it is, for people: without a password.
    pub place: String,
}

/// A move from one store to another one.
pub struct Move {
    /// The source.
    pub from: Side,
    /// The target: empty, or with a part of this move.
    pub to: Side,
    /// The clock of this machine.
    pub clock: Arc<dyn Clock>,
}

/// What a move reports while it goes on: so many more records of a part.
pub type OnProgress<'a> = &'a (dyn Fn(Part, u64) + Send + Sync);
