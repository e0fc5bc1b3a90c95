//! What carries out the ports: each folder speaks to one outside thing, and none of them decides anything.
//!
//! [`memory`] is the reference for the job store; [`sqlite`] is the one that production runs on, on one machine, and
//! `dynamodb` in the cloud.

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(any(feature = "sqlite", feature = "aws"))]
mod blob;
#[cfg(feature = "aws")]
pub mod dynamodb;
pub mod emf;
#[cfg(feature = "http")]
pub mod http;
pub mod memory;
#[cfg(feature = "http")]
pub mod otlp;
#[cfg(feature = "aws")]
pub mod s3;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "aws")]
pub mod sqs;
pub mod system;
