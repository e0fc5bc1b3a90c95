//! Schedules: their configuration, and the jobs that their occurrences make.

pub(crate) mod agenda;
pub mod configure;
mod finish;
pub mod materialize;
