//! tidegate: a durable job queue for work that must happen at the right time and at the right rate.
//!
//! ```text
//! main, cli, api ─▶ server ─▶ engine ─▶ port (traits) ─▶ job, queue (pure) ─▶ time
//!                   adapter/{memory, sqlite, http, system} ─▶ port
//! ```
//!
//! The pure core decides, the engine asks and writes, adapters keep and compare.

#[cfg(feature = "server")]
pub mod cli;
pub mod job;
pub mod port;
pub mod queue;
pub mod time;
