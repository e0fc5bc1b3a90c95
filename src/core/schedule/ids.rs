//! The ids of the jobs of schedules, which every engine derives alike.

use sha2::{Digest, Sha256};

use crate::{
    job::{JobId, ScheduleName},
    time::Timestamp,
};

/// The id of the job for the occurrence of a schedule at `at`: the same in every engine, at any
/// time.
///
/// It has the schedule's name and the instant: `nightly:20260329T010000Z`. A long name is replaced
/// by its beginning and a digest.
pub fn occurrence_id(schedule: &ScheduleName, at: Timestamp) -> JobId {
    let instant = at.to_utc();
    let form = if at.millis() % 1000 == 0 { "%Y%m%dT%H%M%SZ" } else { "%Y%m%dT%H%M%S%.3fZ" };
    id_under(schedule, &instant.format(form).to_string())
}

/// The id of a job that a schedule makes on request; `key` identifies the request.
pub fn run_id(schedule: &ScheduleName, key: &str) -> JobId {
    id_under(schedule, &format!("run.{}", digest(key, 8)))
}

fn id_under(schedule: &ScheduleName, rest: &str) -> JobId {
    let name = schedule.as_str();
    let name = if name.len() <= 40 {
        name.to_owned()
    } else {
        format!("{}.{}", &name[..27], digest(name, 6))
    };
    format!("{name}:{rest}")
        .parse()
        .expect("40 bytes of a name and at most 20 more letters are a valid id")
}

/// The first `bytes` bytes of a text's digest, at most 8.
fn digest(text: &str, bytes: usize) -> String {
    let start = Sha256::digest(text)[..bytes]
        .iter()
        .fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{start:0width$x}", width = bytes * 2)
}
