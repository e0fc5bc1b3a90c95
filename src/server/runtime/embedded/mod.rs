//! The embedded deployment mode: one process on SQLite, with a task per active queue and a sweeper.

#[cfg(feature = "embedded")]
pub mod open;
pub mod queue_task;
pub mod sweeper;
