//! The small records: keys, ledgers and their batches, items, replies and dead letters.

mod items;
mod ledgers;
mod named;

pub use items::*;
pub use ledgers::*;
pub use named::*;
