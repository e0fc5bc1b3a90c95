//! Push delivery over HTTP/1.1 by `reqwest`.
//!
//! Read in this order: [`target`] (one request and what came of it), [`guard`] (where requests may
//! not go).

pub mod guard;
pub mod target;

pub use guard::{Guard, Refused};
pub use target::HttpTarget;
