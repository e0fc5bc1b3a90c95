//! The built binary over a real socket: what its users see, row by row.
//!
//! Every test starts a server of its own on a free port and an empty directory, so that all can run at
//! once; nothing waits for a span, everything for a condition.

#![allow(clippy::unwrap_used, reason = "what helps a test fails like one")]

mod serve;
mod target;

mod access;
mod crash;
#[cfg(feature = "aws")]
mod deployed;
mod doctor;
mod events;
mod faults;
mod input;
mod jobs;
mod lifecycle;
mod live;
mod measures;
mod order;
mod plugins;
mod projects;
mod pull;
mod push;
mod routes;
mod schedules;
mod simulate;
mod traces;
