//! What the engine needs from its environment, as traits with guarantees, bounds and units.
//!
//! Objects (large bodies) go through the `object_store` crate's own trait.

pub mod clock;
pub mod entropy;
pub mod health_check;
pub mod inbox;
pub mod job_filter;
pub mod job_store;
pub mod listing;
pub mod movable;
pub mod notices;
pub mod policy;
pub mod spans;
pub mod store_layer;
pub mod target;
pub mod work_queue;

pub use clock::{Clock, ClockReading};
pub use entropy::Entropy;
pub use health_check::HealthCheck;
pub use inbox::{Inbox, InboxClosing, InboxDepth, InboxPage, InboxRequest, InboxRules};
pub use job_filter::JobFilter;
pub use job_store::{
    Atomicity, Committed, ErrorSource, JobStore, StoreCapabilities, StoreError, Txn, Write,
};
pub use movable::{AllJobsPage, AllRecordsPage, Movable};
pub use notices::{ChangeBatch, Notice, Notices};
pub use policy::Policy;
pub use spans::Spans;
pub use store_layer::StoreLayer;
pub use target::Target;
pub use work_queue::{Hint, HintKind, Timer, Work, WorkQueue};
