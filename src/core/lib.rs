//! The pure core of tidegate: what a job is, who may start now, when, and what follows; and the ports, the traits through which
//! the engine reaches stores, queues, targets and plugins.
//!
//! ```text
//!   event ─▶ schedule ─▶ queue ─▶ job ─▶ target, calendar ─▶ time        port ─▶ job, queue        validate ─▶ all of them
//! ```
//!
//! The one thing to know: nothing here does I/O, reads a clock or draws a random number. Time and chance are arguments, so the
//! same values give the same decision in a server, in a Lambda function, in a simulation and in a test.
//!
//! **Where is a job admitted?** In [`queue::admission`].

pub mod calendar;
pub mod error_chain;
pub mod error_code;
pub mod event;
#[cfg(test)]
mod fuzz;
pub mod job;
pub mod port;
pub mod queue;
pub mod schedule;
mod schema;
pub mod target;
pub mod time;
pub mod validate;
