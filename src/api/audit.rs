//! The audit log.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_core::time::Timestamp;

use crate::AnyValue;

/// A change that a caller made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// The name of the token; `anonymous` on a server that is open.
    pub caller: String,
    /// The operation, by its id in this document: `pause_queue`.
    pub action: String,
    /// The path of the request, which names what was changed: `/v1/queues/mail/pause`.
    pub path: String,
    /// The query of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The status of the answer.
    pub status: u16,
    /// The id of the request, as in the log.
    pub request_id: String,
    /// The body of the request without secrets and data, or `{"bytes": n}` if it is no JSON or has
    /// more than 8 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AnyValue>)]
    pub with: Option<Value>,
}

/// A page of the audit log.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditPage {
    /// The entries, newest first.
    pub entries: Vec<AuditEntry>,
    /// Where the next page starts; absent on the last. A page may be short and still have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
