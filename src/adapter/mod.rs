//! What carries out the ports: each folder speaks to one outside thing, and none of them decides anything.
//!
//! [`memory`] is the reference for the job store.

#[cfg(feature = "http")]
pub mod http;
mod listing;
pub mod memory;
pub mod system;

pub use listing::Cursor;
