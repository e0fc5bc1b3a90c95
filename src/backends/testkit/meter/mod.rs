//! Meters of billed services, by the services' own rules of size: [`table`] for DynamoDB, [`queue`]
//! for SQS.
//!
//! A meter does not change behaviour, so metered runs are representative.

pub mod queue;
pub mod table;

pub use queue::{MeteredQueue, Received, Requests};
pub use table::{Bill, Metered};
