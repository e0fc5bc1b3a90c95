//! Calls as JSON, with the names of `plugins/wit`. Recorded faults contain them, and `tidegate
//! plugin test` makes them of its cases.
//!
//! ```json
//! {"throttle": {
//!   "context": {"queue": "orders", "now": "2026-03-01T08:00:00Z", "config": {"limit": 2}},
//!   "round": {"room": 10},
//!   "running": [{"id": "a", "job-type": "import", "attributes": {"region": "east"}}],
//!   "candidates": [{"id": "b", "job-type": "import", "attributes": {"region": "west"}}],
//!   "state": {}, "data": {"b": {"rows": 12}}}}
//! ```
//!
//! Missing fields have defaults, so that a handwritten call needs only the relevant ones. Instants
//! are RFC 3339. The configuration and data are JSON values rather than strings with JSON, and
//! attributes are an object. A plugin cannot distinguish a call from its recorded copy, because
//! fields outside of the contract, such as a job's windows, are not recorded. A recorded fault
//! leaves out data over a bound; `data-left-out` has the size of each piece.

mod answer;
mod failure;
mod job;
mod retry;
mod throttle;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use answer::answer_to_json;
use retry::RetryJson;
use throttle::ThrottleJson;
use tidegate_core::port::policy::Call;

/// Maximum bytes of data in a recorded call.
const MAX_RECORDED_DATA_BYTES: usize = 64 << 10;
/// Maximum bytes of the messages and details of attempts in a recorded call.
const MAX_RECORDED_FAILURE_BYTES: usize = 64 << 10;

/// The text is not a call of a plugin.
#[derive(Debug, thiserror::Error)]
#[error("not a call of a plugin: {0}")]
pub struct NotACall(#[from] serde_json::Error);

/// `call` as JSON.
pub fn to_json(call: &Call) -> String {
    CallJson::of(call).to_json()
}

/// `call` as JSON with at most 64 KiB of data, and as much of messages and details of attempts, for
/// recorded faults. It lists the data that it leaves out, and counts the attempts that lack texts.
pub fn to_bounded_json(call: &Call) -> String {
    let mut written = CallJson::of(call);
    written.leave_out_data();
    written.to_json()
}

/// Parses a call.
///
/// # Errors
///
/// [`NotACall`] with the problem and its position.
pub fn from_json(json: &str) -> Result<Call, NotACall> {
    Ok(match serde_json::from_str(json)? {
        CallJson::Throttle(written) => Call::Throttle(Arc::new(written.call())),
        CallJson::Retry(written) => Call::Retry(Arc::new(written.call()?)),
    })
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CallJson {
    Throttle(ThrottleJson),
    Retry(RetryJson),
}

impl CallJson {
    fn of(call: &Call) -> Self {
        match call {
            Call::Throttle(call) => Self::Throttle(ThrottleJson::of(call)),
            Call::Retry(call) => Self::Retry(RetryJson::of(call)),
        }
    }

    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("all keys are strings, and all numbers exist in JSON")
    }

    /// Leaves out each piece of data that exceeds the remaining bound.
    fn leave_out_data(&mut self) {
        let mut room = MAX_RECORDED_DATA_BYTES;
        let mut left_out = |data: &RawValue| {
            let bytes = data.get().len();
            let fits = bytes <= room;
            room -= if fits { bytes } else { 0 };
            (!fits).then_some(bytes)
        };
        match self {
            Self::Throttle(call) => {
                call.leave_out_failures(MAX_RECORDED_FAILURE_BYTES);
                call.data_left_out = call
                    .data
                    .iter()
                    .filter_map(|(id, data)| Some((id.clone(), left_out(data)?)))
                    .collect();
                call.data.retain(|id, _| !call.data_left_out.contains_key(id));
            }
            Self::Retry(call) => {
                call.leave_out_failures(MAX_RECORDED_FAILURE_BYTES);
                call.data_left_out = call.data.as_deref().and_then(left_out);
                call.data = call.data.take().filter(|_| call.data_left_out.is_none());
            }
        }
    }
}
