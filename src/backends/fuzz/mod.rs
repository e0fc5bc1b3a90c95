//! Fuzz targets: the data that backends read from tables, queues and plugins.
//!
//! See "Fuzz targets" in `CONTRIBUTING.md`. Targets of private items are in `fuzz.rs` of their
//! folder.

#[allow(dead_code, reason = "each crate uses only a part of it")]
#[path = "../../core/fuzz/driver.rs"]
pub(crate) mod driver;

#[cfg(feature = "http")]
mod guard;
#[cfg(feature = "aws")]
mod sqs;
