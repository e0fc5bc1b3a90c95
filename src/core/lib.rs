//! The pure core of tidegate: jobs, their admission, their retries and schedules. It also has the
//! ports, the traits through which the engine reaches stores, queues, targets and plugins.
//!
//! ```text
//!   event ─▶ schedule ─▶ queue ─▶ job ─▶ target, calendar ─▶ time
//!   port ─▶ job, queue        validate ─▶ schedule, queue, job, target
//! ```
//!
//! Nothing here does I/O, reads a clock or draws a random number. Time and random numbers are
//! arguments, so the same values give the same decision in a server, in a Lambda function, in a
//! simulation and in a test.
//!
//! **Where is a job admitted?** In [`queue::admission`].

pub mod calendar;
pub mod checksum;
pub mod document;
pub mod error_chain;
pub mod error_code;
pub mod event;
#[cfg(test)]
mod fuzz;
pub mod job;
mod parsed;
pub mod port;
pub mod queue;
pub mod ruled;
pub mod schedule;
mod schema;
pub mod stored;
pub mod strict;
pub mod target;
pub mod time;
pub mod validate;
