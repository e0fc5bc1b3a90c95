//! tidegate: a durable job queue for work that must happen at the right time and at the right rate.
//!
//! This crate is the binary and a façade over the library crates. A program that embeds tidegate opens a
//! [`Server`] on a directory, registers a handler for a job type, enqueues jobs and reads their results.
//! `examples/embedded.rs` is such a program. [`plugin_testing`] runs the test cases of a plugin.

mod bench;
pub mod cli;
mod demo;
pub mod plugin_testing;

pub use tidegate_api as api;
pub use tidegate_backends as backends;
pub use tidegate_core as core;
pub use tidegate_engine as engine;
pub use tidegate_server as server;
pub use tidegate_server::Server;
