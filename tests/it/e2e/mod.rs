//! The built binary over a real socket, as its users see it.
//!
//! Every test starts its own server on a free port and an empty directory, so all tests can run at
//! once. Tests wait for conditions and never for a fixed time.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail like the test")]

mod api;
pub(crate) mod bucket;
mod contract;
pub(crate) mod serve;
pub(crate) mod target;
mod wait;
mod wrong_lists;

mod access;
mod bodies;
mod connections;
mod crash;
mod damage;
#[cfg(feature = "aws")]
mod deployed;
mod dev;
mod doctor;
mod events;
mod faults;
mod filters;
mod input;
mod jobs;
mod lifecycle;
mod live;
mod lost_key;
mod measures;
#[cfg(target_os = "linux")]
mod memory;
mod moves;
mod nulls;
mod order;
mod plugins;
mod policies;
mod policy_traces;
mod projects;
mod pull;
mod push;
mod results;
mod routes;
mod schedules;
mod servers;
mod simulate;
mod stream;
mod traces;
mod transactions;

/// The number of rounds of a test on a local stack, at least 1: one unless `TIDEGATE_LOCAL_STACK_ROUNDS`
/// sets it, as the full check does.
#[allow(clippy::disallowed_methods, reason = "tests have no settings")]
fn rounds() -> usize {
    let set = std::env::var("TIDEGATE_LOCAL_STACK_ROUNDS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}
