//! Schedules: their configuration, and the jobs that their occurrences make.

pub mod configure;
pub mod materialize;
