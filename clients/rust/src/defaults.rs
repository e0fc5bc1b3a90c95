//! The defaults of configurations.
//!
//! Generated from a server by clients/conformance/generate.py: do not edit.

/// What an empty configuration of each kind has.
pub(crate) const DEFAULTS: &str = r#"{
 "queue": {
  "ageing_seconds": null,
  "concurrency": null,
  "constraints": [],
  "order": "time",
  "order_step_seconds": 60,
  "partition_by": null,
  "partition_then_by": null,
  "plugin_calls": null,
  "strict_order": null,
  "throttler": null
 },
 "job type": {
  "attributes": {},
  "callback_signing_secret": null,
  "callback_url": null,
  "concurrency": null,
  "deadline_seconds": null,
  "delivery": "at_least_once",
  "headers": {},
  "hold_slot_until": "lease_end",
  "keep_result": {
   "seconds": 86400
  },
  "lease_seconds": 30,
  "max_attempts": null,
  "max_releases": 100,
  "on_response_timeout": "fail",
  "priority": 100,
  "queue": "default",
  "response_timeout_seconds": 30,
  "retention_seconds": 2592000,
  "retry": {
   "config": {
    "base_seconds": 2,
    "jitter": "full",
    "max_seconds": 3600
   },
   "strategy": "exponential"
  },
  "retry_after_restart": null,
  "retry_targets": null,
  "start": "claim",
  "target": null,
  "timeout_seconds": 86400,
  "weight": 1,
  "windows": []
 },
 "schedule": {
  "anchor": null,
  "attributes": null,
  "callback_url": null,
  "critical": false,
  "cron": null,
  "data": null,
  "deadline_seconds": null,
  "ends_at": null,
  "every_seconds": null,
  "expires_after_seconds": null,
  "headers": null,
  "keep_result": null,
  "max_attempts": null,
  "max_missed": 100,
  "missed": "one",
  "paused": false,
  "priority": null,
  "retry": null,
  "starts_at": null,
  "timeout_seconds": null,
  "type": null,
  "tz": null,
  "unique": null,
  "weight": null,
  "windows": null
 },
 "trigger": {
  "complete": null,
  "enqueue": null,
  "filter": null,
  "job_types": null
 }
}"#;
