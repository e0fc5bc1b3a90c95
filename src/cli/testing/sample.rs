//! Complete answers of the server as JSON, each with the fields that a test changes.
//!
//! The commands read the types of the API, which have required fields. A test names only the fields
//! that matter to it.

use serde_json::{Value, json};
use tidegate_api::{PluginView, QueueView, ScheduleView};
use tidegate_core::time::Timestamp;

/// Returns `base` with `changes`: objects are merged, every other value is replaced.
fn with(mut base: Value, changes: Value) -> Value {
    merge(&mut base, changes);
    base
}

fn merge(base: &mut Value, changes: Value) {
    match (base, changes) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (name, value) in changes {
                merge(fields.entry(name).or_insert(Value::Null), value);
            }
        }
        (base, value) => *base = value,
    }
}

/// Returns a scheduled job. Its phase is its state, unless `changes` has another.
pub fn job(changes: Value) -> Value {
    let phase = changes.get("state").cloned().unwrap_or_else(|| json!("scheduled"));
    let job = json!({
        "phase": phase,
        "id": "j1", "type": "mail", "queue": "default", "state": "scheduled", "attempt": 0,
        "max_attempts": 3, "handed_back": 0, "priority": 100, "weight": 1, "critical": false,
        "run_at": "2001-09-09T01:40:00Z", "due_at": "2001-09-09T01:40:00Z",
        "created_at": "2001-09-09T01:40:00Z", "started_at": null, "ended_at": null,
        "expires_at": null, "data": null, "attributes": {}, "correlation_key": null,
        "replay_of": null, "result": null, "error": null, "history": [], "timeout_seconds": 86400,
        "retry": {"strategy": "exponential"}, "keep_result": {"seconds": 86400},
    });
    with(job, changes)
}

/// Returns the second attempt at the job `id`, with a lease of `millis` milliseconds.
pub fn lease(id: &str, millis: i64) -> Value {
    let from = Timestamp::from_millis(1_000_000_000_000);
    let until = Timestamp::from_millis(from.millis() + millis);
    let job = job(json!({"id": id, "state": "running", "attempt": 2, "started_at": from}));
    json!({"job": job, "attempt": 2, "token": format!("token-{id}"), "expires_at": until})
}

/// Returns the answer to a lease request.
pub fn leases(leases: &[Value], reports: &[Value]) -> Value {
    json!({"leases": leases, "reports": reports})
}

/// Returns the answer to an accepted report.
pub fn reported() -> Value {
    json!({"status": 200, "id": "j1", "state": "succeeded"})
}

/// Returns the answer to a heartbeat.
pub fn beat(cancel: bool) -> Value {
    json!({"cancel": cancel, "expires_at": "2001-09-09T01:47:00Z"})
}

/// Returns a queue without status.
pub fn queue(changes: Value) -> Value {
    let queue = json!({"name": "q", "paused": false, "version": 1});
    let queue = with(queue, changes);
    serde_json::from_value::<QueueView<'_>>(queue.clone()).expect("a sample is a queue");
    queue
}

/// Returns a queue's status without jobs.
pub fn queue_status(changes: Value) -> Value {
    let status = json!({
        "depth": {}, "phases": {}, "ready": 0, "running_weight": 0, "oldest_due_at": null, "held": [],
        "desired_workers": 0, "lateness_seconds": 0, "constraints": [],
    });
    with(status, changes)
}

/// Returns a cancel operation with the number of matched, changed and refused jobs.
pub fn operation(id: &str, state: &str, [matched, done, refused]: [u64; 3]) -> Value {
    json!({"operation": {
        "id": id, "kind": "cancel", "state": state, "created_at": "2026-01-01T00:00:00Z",
        "matched": matched, "done": done, "refused": refused,
    }})
}

/// Returns a pull type.
pub fn job_type(changes: Value) -> Value {
    let job_type = json!({
        "name": "mail", "queue": "default", "delivery": "at_least_once", "timeout_seconds": 86400,
        "version": 1,
    });
    with(job_type, changes)
}

/// Returns a schedule without a rule.
pub fn schedule(changes: Value) -> Value {
    let schedule = json!({
        "name": "beat", "type": "ping", "paused": false, "data": null, "version": 1, "next": [],
        "last_occurrence": null, "last_job": null, "last_error": null, "missed_count": 0,
    });
    let schedule = with(schedule, changes);
    serde_json::from_str::<ScheduleView<'_>>(&schedule.to_string())
        .expect("a sample is a schedule");
    schedule
}

/// Returns a plugin that nothing uses and that was never called.
pub fn plugin(changes: Value) -> Value {
    let plugin = json!({
        "name": "share", "roles": ["throttler"], "live": 1, "runnable": true, "shadow": null,
        "used_by": [], "health": plugin_health(json!({})), "version": 1,
    });
    let plugin = with(plugin, changes);
    serde_json::from_value::<PluginView>(plugin.clone()).expect("a sample is a plugin");
    plugin
}

/// Returns the statistics of a plugin's calls.
pub fn plugin_health(changes: Value) -> Value {
    let health = json!({
        "calls": 0, "faults": 0, "failing": false, "faults_by_kind": {}, "last_fault": null,
        "last_usage": null,
    });
    with(health, changes)
}

/// Returns a fault of a plugin's call.
pub fn plugin_fault(changes: Value) -> Value {
    let fault = json!({
        "at": "2001-09-09T01:44:40Z", "version": 1, "shadow": false, "role": "throttler",
        "kind": "trapped", "message": "it divided by zero",
    });
    with(fault, changes)
}
