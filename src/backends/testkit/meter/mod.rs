//! What a run takes of the services that are paid for by use, by their own rules of size: [`table`] for DynamoDB, [`queue`] for SQS.
//!
//! The one thing to know: the meter decides nothing and changes nothing, so what is metered is what runs.

pub mod queue;
pub mod table;

pub use queue::{MeteredQueue, Received, Requests};
pub use table::{Bill, Metered};
