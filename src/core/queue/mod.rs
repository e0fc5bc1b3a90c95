//! Who may start now: order, limits, matchers, windows, the head. Pure.
//!
//! Read in this order: [`config`] (what an owner says), [`order`] (who goes first), [`admission`]
//! (**where a job is admitted**), [`usage`] (what is taken), [`matcher`], [`rate`] and [`window`] (what limits are made of),
//! [`ledger`] (where decisions are recorded), [`plugin`] (what is known of a throttler that users write), [`recurrence`] and [`schedule`]
//! (when a schedule makes a job), [`check`] (what is wrong with what somebody said).

pub mod admission;
pub mod config;
pub mod ledger;
pub mod matcher;
pub mod order;
pub mod plugin;
pub mod rate;
pub mod usage;

#[cfg(test)]
mod tests;

pub use admission::{Admission, AdmissionDecision, Candidate};
pub use config::{Limits, QueueConfig};
pub use ledger::{Grant, GrantBatch, Ledger, Rule};
pub use order::Order;
pub use usage::Usage;
