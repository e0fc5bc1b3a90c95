//! Telemetry: metrics, traces, and their exporters.
//!
//! | module | contains |
//! |---|---|
//! | [`catalog`] | the table of all metrics |
//! | [`metrics`] | what the server records |
//! | [`traces`] | the spans of each job |
//! | [`process`] | the exporters of a long-running server: Prometheus, CloudWatch, OpenTelemetry |
//! | `function` | logs and metrics of a Lambda function |
//! | [`emf`] | the exporter for CloudWatch (embedded metric format) |
//! | [`otlp`] | the exporter for OpenTelemetry |
//! | `series` | the bound on series of all exporters |

pub mod catalog;
pub mod emf;
#[cfg(feature = "serverless")]
pub(crate) mod function;
pub mod metrics;
pub mod otlp;
pub mod process;
mod series;
pub mod traces;
