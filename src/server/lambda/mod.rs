//! The serverless mode: what each function does with its events. The crates in `functions/` contain
//! only wiring.
//!
//! ```text
//!   enqueue: HTTP ─▶ [`http`] ─▶ Server (serverless) ─▶ messages ─▶ SQS
//!   tick: hints, timers ─▶ [`tick`] ─▶ ticks ─▶ work ─▶ SQS
//!   deliver: work ─▶ [`deliver`] ─▶ claims ─▶ targets ─▶ results ─▶ hints ─▶ SQS
//!   sweep: the maintenance sweep, dead letters of SQS ─▶ [`Maintenance`] ─▶ failed attempts, ticks
//!   ingest: records of other services ─▶ [`ingest`] ─▶ events ─▶ Server ─▶ messages ─▶ SQS
//! ```
//!
//! The one thing to know: Lambda may invoke a function with the same messages twice, concurrently
//! or late, and may end an invocation half way. The answer of a function names only the messages
//! that SQS must redeliver; [`redelivery`] decides how soon.
//!
//! `docs/decisions/0010-serverless-deployment-mode.md` describes the rest of the deployment.

pub mod doctor;
pub mod event;
mod handlers;
pub mod http;
pub mod ingest;
#[cfg(feature = "testkit")]
mod next_release;
pub mod open;
pub mod redelivery;
pub mod settings;
mod sweep;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use axum::response::Response;

pub use crate::telemetry::function::{Metrics, observe};
pub use event::{Failures, SqsEvent};
pub use handlers::{deliver, handle_dead_letter, tick};
pub use http::{ApiFunction, Content, router, strip_stage_prefix, with_content};
pub use ingest::Ingest;
pub use open::{DeploymentOpenError, api, deadline, open, open_to_deliver};
pub use redelivery::Redelivery;
pub use settings::CloudSettings;
pub use sweep::{Maintenance, SweepFailed};
