//! Push delivery over HTTP/1.1 by `reqwest`.
//!
//! Read in this order: [`target`] (one request and its outcome), [`guard`] (forbidden
//! addresses).

pub mod target;

pub use target::HttpTarget;
pub use tidegate_core::validate::{Guard, Refused};
