//! The work queue on Amazon SQS: standard queues with delays for work and timers, a FIFO queue
//! for hints.
//!
//! A call without an answer is repeated. The receiver recognises duplicate messages.
//!
//! Read in this order: [`message`] (the content of a message), [`pack`] (batches of
//! messages), [`queue`] (sending them).

pub mod message;
pub mod pack;
pub mod queue;

pub use message::{Malformed, Message};
pub use queue::{SqsQueues, SqsWorkQueue};
