//! Push delivery over HTTP/1.1 by `reqwest`.
//!
//! Read in this order: [`target`] (one request and its outcome), [`guard`] (forbidden
//! addresses).

pub mod guard;
pub mod target;

pub use guard::{Guard, Refused};
pub use target::HttpTarget;
