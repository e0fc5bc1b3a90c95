//! Push delivery over HTTP/1.1 by `reqwest`.
//!
//! [`target`] has one request and its outcome, and [`Guard`] the forbidden addresses.

pub mod target;

pub use target::HttpTarget;
pub use tidegate_core::validate::{Guard, Refused};
