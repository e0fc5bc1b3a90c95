//! Which job may start now: order, limits, matchers, rates, the ledger. Pure.
//!
//! Read in this order: [`config`] (a queue's configuration), [`order`] (which job is first),
//! [`admission`] (**where a job is admitted**), [`usage`] (capacity in use), [`matcher`] and
//! [`rate`] (the parts of limits), [`ledger`] (the record of a queue's grants), [`plugin`] (a
//! throttler of the queue's owner), [`waiting`] (what that throttler sees of the jobs that wait).

pub mod admission;
pub mod config;
pub mod ledger;
pub mod matcher;
pub mod order;
pub mod plugin;
pub mod plugin_calls;
pub mod plugin_state;
pub mod rate;
pub mod startable;
pub mod usage;
pub mod waiting;

#[cfg(test)]
mod tests;

pub use admission::{Admission, AdmissionDecision, Candidate};
pub use config::{Limits, QueueConfig};
pub use ledger::{Grant, GrantBatch, GrantDigest, Ledger, Rule};
pub use order::Order;
pub use startable::{Startable, startable};
pub use usage::Usage;
