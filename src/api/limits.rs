//! What a server accepts in one request.

use serde::{Deserialize, Serialize};
use tidegate_core::time::Seconds;

/// The bounds of requests and answers. A server of another version, deployment mode or setting may
/// have others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Limits {
    /// Most bytes of a request about one job.
    pub request_bytes: u64,
    /// Most bytes of a request with many jobs, reports or events.
    pub batch_request_bytes: u64,
    /// Most bytes of an answer; null: there is no bound.
    pub answer_bytes: Option<u64>,
    /// Most bytes of a job's data, and of a result.
    pub data_bytes: u64,
    /// Most bytes of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Most bytes of the `message` of a report, and of the `note` of a heartbeat.
    pub message_bytes: u64,
    /// Most bytes of the `error` of a report.
    pub error_bytes: u64,
    /// Most jobs in a batch.
    pub batch_jobs: u64,
    /// Most events in a request.
    pub batch_events: u64,
    /// Most leases of a request.
    pub leases: u64,
    /// Most reports in a lease request.
    pub reports: u64,
    /// Most log lines in a heartbeat, and in a report.
    pub log_lines: u64,
    /// Most items of a page.
    pub page_items: u64,
    /// The longest wait of a request for leases, for a result or for log lines.
    pub wait_seconds: Seconds,
}
