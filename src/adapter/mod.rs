//! What carries out the ports: each folder speaks to one outside thing, and none of them decides anything.
//!
//! [`memory`] is the reference for the job store.

mod listing;
pub mod memory;

pub use listing::Cursor;
