//! Telemetry: the [`metrics`] of the server, the [`traces`] of each job, and the exporters [`emf`] (CloudWatch) and [`otlp`] (OpenTelemetry).

pub mod emf;
pub mod metrics;
pub mod otlp;
pub mod traces;
