#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
// These rules are for the server, whose clock and settings are ports. A client has the machine's.
#![allow(clippy::disallowed_methods, reason = "a client reads the machine's clock and variables")]

mod attempt;
mod client;
mod config;
mod database;
mod defaults;
mod error;
mod handler;
mod heartbeat;
mod job;
mod lease;
mod outbox;
mod pages;
mod panic;
mod push;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod transport;
mod worker;

pub use attempt::{AbortReason, Aborted, Attempt};
pub use client::{Client, ClientBuilder, FOREVER, Jobs, NewEvent};
pub use config::{Action, Config, Difference, Plan, Resource, Settings, Step};
pub use database::Statement;
pub use error::{BoxError, Error, ErrorKind, ProblemError};
pub use handler::{Handler, JobTypes, Later, PermanentError, Release, Snooze};
pub use http::Method;
pub use job::{Enqueue, Job, JobType, NewJob};
pub use pages::Pages;
pub use push::{Callback, Push, PushJob, verify};
pub use stream::{Change, Stream, StreamOptions};
/// The types of the HTTP API.
pub use tidegate_api as api;
pub use tokio_util::sync::CancellationToken;
pub use trace::{traceparent, with_traceparent};
pub use transport::{Answer, Request};
pub use worker::{Worker, WorkerOptions};
