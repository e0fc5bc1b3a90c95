//! The server: the verbs of the engine as one service, its HTTP handlers, and its deployment modes.
//!
//! ```text
//!   handlers, dashboard ─▶ runtime (Server) ─▶ engine
//!   lambda ─▶ handlers, runtime
//!
//!   runtime::embedded: tasks of one process, on SQLite
//!   runtime::serverless: no tasks, an outbox of messages
//! ```

pub mod auth;
pub mod dashboard;
pub mod handlers;
#[cfg(feature = "serverless")]
pub mod lambda;
#[cfg(feature = "embedded")]
pub mod listener;
mod packed_file;
#[cfg_attr(not(feature = "embedded"), allow(dead_code, reason = "only the embedded mode uses it"))]
pub mod runtime;
pub mod settings;
pub mod telemetry;

pub use runtime::Server;
