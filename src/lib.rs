//! tidegate: a durable job queue for work that must happen at the right time and at the right rate.
//!
//! ```text
//! main, cli, api ─▶ server ─▶ engine ─▶ port (traits) ─▶ job, queue (pure) ─▶ time
//! functions ─▶ cloud ─▶ api, server   adapter/{memory, sqlite, dynamodb, sqs, aws, http, otlp, system}, plugin ─▶ port
//! ```
//!
//! The pure core decides, the engine asks and writes, adapters keep and compare.

pub mod adapter;
#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod auth;
#[cfg(feature = "embedded")]
pub mod cli;
#[cfg(feature = "aws")]
pub mod cloud;
pub mod cost;
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
#[cfg(feature = "embedded")]
pub mod simulate;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod time;

#[cfg(feature = "server")]
pub use server::Server;
