//! The configuration of queues, job types and schedules, as stored and as cached.

pub mod catalog;
pub mod configure;
pub mod constraint_usage;
pub mod drain;
pub mod schema;
pub(crate) mod unreadable;
