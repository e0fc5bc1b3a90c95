//! Cases of the engine, each with its setup, the fault and the required result. They run under
//! simulated time on every embedded store. Those about events, replies and schedules also run on a
//! DynamoDB table in memory.

#![allow(clippy::unwrap_used, reason = "the setup of a case must succeed")]

mod crashes;
mod dispatch;
mod drains;
mod events;
mod explain;
mod explain_queue;
mod fairness;
mod faults;
mod gathers;
pub mod harness;
mod hosts;
mod keys;
mod life;
mod limits;
mod moves;
mod newer;
mod objects;
mod orphans;
mod plugins;
mod races;
mod replays;
mod replies;
mod retries;
mod schedules;
mod sorted;
mod throttle;
mod unclaimed;
