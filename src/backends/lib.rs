//! The backends: each folder implements a port with one external system, and makes no decisions.
//!
//! | feature | backend |
//! |---|---|
//! | `sqlite` | [`sqlite`]: the job store of one machine |
//! | `postgres` | [`postgres`]: the job store that many servers share |
//! | `bucket` | [`bucket_log`]: the replicated log in object storage |
//! | `aws` | `dynamodb`: the job store; `sqs`: the work queue; `aws`: targets; `objects`: S3 |
//! | `http` | [`http`]: push delivery |
//! | `wasm` | [`wasm`]: plugins; with `compiler`, also their compiler |
//! | none | [`system`]: the machine's clock and entropy; [`cost`]: the cost of AWS |
//! | none | [`aws_targets`]: the settings of AWS targets |

#[cfg(feature = "aws")]
pub mod aws;
pub mod aws_targets;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "aws"))]
mod blob;
#[cfg(feature = "bucket")]
pub mod bucket_log;
pub mod cost;
#[cfg(feature = "aws")]
pub mod dynamodb;
#[cfg(test)]
mod fuzz;
#[cfg(feature = "http")]
pub mod http;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod job_columns;
#[cfg(feature = "aws")]
pub mod objects;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod private;
pub mod sealed;
#[cfg(any(feature = "aws", feature = "bucket"))]
mod signed_requests;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "aws")]
pub mod sqs;
pub mod system;
#[cfg(all(feature = "aws", any(test, feature = "testkit")))]
pub mod testkit;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "aws"))]
mod unreadable;
#[cfg(feature = "wasm")]
pub mod wasm;
