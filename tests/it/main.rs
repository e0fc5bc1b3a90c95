//! Tests of the public interfaces, as one binary: one file or folder per subject.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue must fail")]

mod architecture;
#[cfg(feature = "aws")]
mod aws;
mod backup;
mod bench;
mod bulk;
mod cases;
mod demo;
mod docs;
#[cfg(feature = "aws")]
mod dynamodb;
mod e2e;
mod embedded_plugins;
mod every_record;
mod faults;
mod gallery;
#[cfg(feature = "aws")]
mod ingest;
mod leases;
mod log_stores;
mod logged;
mod moves;
mod not_run;
mod outage;
mod plugins;
mod port;
#[cfg(feature = "aws")]
mod scale;
#[cfg(feature = "aws")]
mod secrets;
mod server;
#[cfg(feature = "aws")]
mod serverless;
mod shipped;
mod simulation;
mod sqlite_damage;
mod sqlite_log;
mod sqlite_store;
mod stored;
mod templates;
mod words;
mod work_queue;
