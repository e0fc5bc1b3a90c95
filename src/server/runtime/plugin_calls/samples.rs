//! One sample a minute of each plugin and queue, of all processes that share the store.
//!
//! A process that has a sample claims its minute: it writes a record that names plugin, queue and
//! minute, unless there is one. The process that wrote it stores its sample. If it dies in between, the
//! minute has no sample.
//!
//! | name | content |
//! |---|---|
//! | `GROUP.minute-QUEUE-NUMBER` | random, so that no two processes write the same claim |

use std::time::Duration;

use tidegate_backends::wasm::recording::{Reason, Unstored, span_number};
use tidegate_core::{
    event::trigger::{digest, hex},
    job::QueueName,
    port::{
        Write,
        job_store::{Committed, Expect, Record, Txn},
    },
    time::Timestamp,
};
use tidegate_engine::Error;

use super::{
    Inner,
    stored::{RECORD_KIND, group},
};

/// The span in which one call of each plugin and queue is stored.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_mins(1);
/// How long after its minute a claim is in the store. A sample that is older is not stored, so that
/// none is stored for a minute whose claim has expired. Clocks of processes differ by less.
const CLAIM_RETENTION: Duration = Duration::from_mins(10);

/// When the claim of minute `number` expires.
fn claimed_until(number: i64) -> Timestamp {
    let end = number.saturating_add(1).saturating_mul(SAMPLE_INTERVAL.as_millis() as i64);
    Timestamp::from_millis(end) + CLAIM_RETENTION
}

/// The name of the claim of a minute.
fn claim_name(group: &str, queue: &QueueName, number: i64) -> String {
    let queue = hex(&digest(&[queue.as_str()])[..8]);
    format!("{group}.minute-{queue}-{number}")
}

/// What claims the minute of a sample; none if the sample is too old at `now`.
fn claim(sample: &Unstored, nonce: u128, now: Timestamp) -> Option<Txn> {
    let number = span_number(SAMPLE_INTERVAL, sample.call.at);
    let until = claimed_until(number);
    if now >= until {
        return None;
    }
    let name = claim_name(&group(&sample.plugin), &sample.call.queue, number);
    let bytes = nonce.to_be_bytes().to_vec();
    let record = Record { kind: RECORD_KIND, name, until, bytes };
    Some(vec![Write::SwapRecord { record, was: Expect::Absent }])
}

impl Inner {
    /// `calls` without the samples of minutes that this process or another one has claimed before.
    ///
    /// # Errors
    ///
    /// The store's. Some minutes may be claimed then, and have no sample.
    pub(super) async fn without_claimed_minutes(
        &self,
        calls: Vec<Unstored>,
    ) -> Result<Vec<Unstored>, Error> {
        let is_sample = |call: &Unstored| call.reason == Reason::Sample;
        let (samples, mut stored): (Vec<Unstored>, Vec<Unstored>) =
            calls.into_iter().partition(is_sample);
        let (now, nonce) = (self.engine.now(), self.engine.ports().entropy.bits());
        let claims = samples.into_iter().filter_map(|call| Some((claim(&call, nonce, now)?, call)));
        let (txns, samples): (Vec<Txn>, Vec<Unstored>) = claims.unzip();
        if txns.is_empty() {
            return Ok(stored);
        }
        let answers = self.engine.ports().store.commit(txns).await?;
        let answered = samples.into_iter().zip(answers);
        let won = answered.filter(|(_, answer)| matches!(answer, Committed::All));
        stored.extend(won.map(|(call, _)| call));
        Ok(stored)
    }
}
