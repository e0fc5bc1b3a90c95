//! Cases that users and DESIGN section 6 name, each told in full: what was set up, what went wrong, what must
//! follow. They run on every embedded store, and those about events, replies and schedules on a table in the cloud too, with time that
//! is moved by hand.

#![allow(clippy::unwrap_used, reason = "what a case sets up must work")]

mod crashes;
mod dispatch;
mod events;
mod explain;
mod fairness;
mod faults;
pub mod harness;
mod keys;
mod life;
mod limits;
mod moves;
mod objects;
mod plugins;
mod races;
mod replies;
mod retries;
mod schedules;
mod throttle;
mod unclaimed;
