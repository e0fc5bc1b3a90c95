//! The work queue on Amazon SQS: work and wake-ups through standard queues with delays, hints through a FIFO queue.
//!
//! The one thing to know: a call that has no answer is repeated. The receiver recognises a duplicate message.
//!
//! Read in this order: [`message`] (the content of a message), [`pack`] (what goes together), [`queue`] (how it is sent).

pub mod message;
pub mod pack;
pub mod queue;

pub use message::{Malformed, Message};
pub use queue::{SqsQueues, SqsWorkQueue};
