//! The serverless home: what each function does with what it is called with. The functions themselves, in `functions/`, only wire.
//!
//! ```text
//!   enqueue: HTTP ─▶ [`http`] ─▶ Server (away) ─▶ notes ─▶ SQS
//!   tick: hints, wake-ups, the minute ─▶ [`tick`] ─▶ rounds ─▶ work ─▶ SQS
//!   deliver: work ─▶ [`deliver`] ─▶ claims ─▶ targets ─▶ results ─▶ hints ─▶ SQS
//!   dead-letter: what SQS gave up on ─▶ [`give_up`] ─▶ failed attempts
//!   ingest: what other services send ─▶ [`ingest`] ─▶ events ─▶ Server ─▶ notes ─▶ SQS
//! ```
//!
//! The one thing to know: a function may be called with the same messages twice, at once, late, or be ended half way. What it answers says only
//! which messages are to come again; [`redelivery`] says how soon.
//!
//! `docs/decisions/0010-serverless-deployment-mode.md` says what must be deployed around it.

pub mod doctor;
pub mod event;
mod handlers;
pub mod http;
pub mod ingest;
pub mod open;
pub mod redelivery;
pub mod settings;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use crate::telemetry::function::{Metrics, observe};
pub use event::{Event, Failures};
pub use handlers::{SweepFailed, deliver, handle_dead_letter, tick};
pub use http::{router, strip_stage_prefix};
pub use ingest::Ingest;
pub use open::{CannotOpen, deadline, open, open_to_deliver};
pub use redelivery::Redelivery;
pub use settings::CloudSettings;
