//! tidegate: a durable job queue for work that must happen at the right time and at the right rate.
//!
//! ```text
//! main, cli, api ─▶ server ─▶ engine ─▶ port (traits) ─▶ job, queue (pure) ─▶ time
//!                   adapter/{memory, sqlite, http, otlp, system}, plugin ─▶ port
//! ```
//!
//! The pure core decides, the engine asks and writes, adapters keep and compare.

pub mod adapter;
#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod auth;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod dashboard;
pub mod engine;
pub mod event;
pub mod job;
#[cfg(feature = "plugins")]
pub mod plugin;
pub mod port;
pub mod queue;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod settings;
pub mod signature;
#[cfg(feature = "server")]
pub mod simulate;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod time;

#[cfg(feature = "server")]
pub use server::Server;
