//! Tables and properties of who may start now.

mod admission;
mod check;
mod matcher;
mod order;
mod recurrence;
mod schedule;
mod window;
