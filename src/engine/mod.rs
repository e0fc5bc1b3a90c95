//! The verbs.

pub mod error;
pub mod request;

pub use error::Error;
