//! Lease calls that a worker may repeat: the repeat gets the leases whose answer was lost.
//!
//! The tokens of such a call follow from its request id and a random number, which a record in the
//! store has next to the ids of its jobs. The store keeps only digests of tokens: without the
//! request id, a record gives none away. A record is written no later than its claims, so that a
//! claim without one is never lost with its answer; a record of a claim that failed finds nothing.

use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Catalog, Engine, Error, tick::Demand};
use tidegate_core::{
    job::{Event, Job, JobId, State, Token},
    port::{
        Committed, Txn, Write,
        job_store::{Record, RecordKind, RecordQuery},
    },
    time::{Seconds, Timestamp},
};

/// Most records of one call that are read. A call claims from each of its queues once or a few
/// times.
const MAX_RECORDS: u32 = 1000;
/// How often the leases of a repeat are renewed again because their jobs changed meanwhile.
const MAX_RENEWALS: usize = 8;
/// Most records that are kept where the store does not expire them.
const MAX_KEPT_RECORDS: u64 = 100_000;
/// Most records that one call of [`Engine::drop_lease_records`] drops: more than the answers of a
/// second.
const MAX_DROPPED_RECORDS: u32 = 10_000;

/// A lease call that its worker may repeat.
pub struct RepeatableCall {
    request_id: String,
    /// Names the records of the call and its repeats.
    group: String,
    /// What the request id does not say: its tokens follow from both.
    nonce: u128,
    /// The number of the call's next record.
    next: AtomicU32,
}

/// The content of a record: jobs with the numbers of their attempts.
#[derive(Serialize, Deserialize)]
struct Claims(Vec<(JobId, u16)>);

// Its tokens follow from its fields.
impl fmt::Debug for RepeatableCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RepeatableCall(..)")
    }
}

impl RepeatableCall {
    /// The call of `worker` with this id; `nonce` is random.
    pub fn new(request_id: &str, worker: Option<&str>, nonce: u128) -> Self {
        let mut hash = Sha256::new();
        let worker = worker.unwrap_or_default();
        hash.update((worker.len() as u64).to_be_bytes());
        hash.update(worker);
        hash.update(request_id);
        let digest = hash.finalize();
        let (start, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
        let group = format!("{:032x}", u128::from_be_bytes(*start));
        Self { request_id: request_id.to_owned(), group, nonce, next: AtomicU32::new(0) }
    }

    /// A name that this call and its repeats have, and no other call.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The token of the attempt that a claim of `job` starts.
    pub(crate) fn next_token(&self, job: &Job) -> Token {
        self.token(self.nonce, &job.id, job.life.attempt.saturating_add(1))
    }

    fn token(&self, nonce: u128, job: &JobId, attempt: u16) -> Token {
        let mut hash = Sha256::new();
        hash.update(nonce.to_be_bytes());
        hash.update(attempt.to_be_bytes());
        hash.update((job.as_str().len() as u64).to_be_bytes());
        hash.update(job.as_str());
        hash.update(&self.request_id);
        let digest = hash.finalize();
        let (start, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
        Token::new(u128::from_be_bytes(*start))
    }

    /// The write that records the claims of `jobs`; none without jobs.
    fn record<'a>(&self, jobs: impl Iterator<Item = &'a Job>) -> Option<Write> {
        let (mut claims, mut until) = (Vec::new(), Timestamp::EPOCH);
        for job in jobs {
            until = until.max(job.life.running()?.lease_until);
            claims.push((job.id.clone(), job.life.attempt));
        }
        let bytes = serde_json::to_vec(&Claims(claims)).expect("ids can be written as JSON");
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{:032x}-{number}", self.group, self.nonce);
        let record = Record { kind: RecordKind::Lease, name, until, bytes };
        (until > Timestamp::EPOCH).then_some(Write::PutRecord(record))
    }

    /// The claims of a record of this call, or of one that it repeats, each with its token.
    fn claims(&self, record: &Record) -> Vec<(JobId, Token)> {
        let nonce = record.name.rsplit_once('.').and_then(|(_, name)| name.split_once('-'));
        let nonce = nonce.and_then(|(nonce, _)| u128::from_str_radix(nonce, 16).ok());
        let claims = serde_json::from_slice(&record.bytes).ok();
        let (Some(nonce), Some(Claims(claims))) = (nonce, claims) else { return Vec::new() };
        let token = |(job, attempt): (JobId, u16)| {
            let token = self.token(nonce, &job, attempt);
            (job, token)
        };
        claims.into_iter().map(token).collect()
    }
}

/// The writes that record the claims of the demands that are repeatable calls; `claimed` has each
/// claimed job with the index of its demand.
pub(crate) fn lease_records<'a>(
    demands: &[Demand],
    claimed: &(impl Iterator<Item = (usize, &'a Job)> + Clone),
) -> Vec<Write> {
    let calls = demands.iter().enumerate().filter_map(|(index, demand)| {
        let call = demand.call.as_ref()?;
        call.record(claimed.clone().filter(|(of, _)| *of == index).map(|(_, job)| job))
    });
    calls.collect()
}

impl Engine {
    /// The leases of `call` that have not ended, if it repeats an earlier one, of the jobs that
    /// `allows` accepts. They are renewed, and last for `lease` from now on, or as long as their type
    /// says.
    ///
    /// The renewal changes the jobs, so a server that sees now that the earlier call had no reader
    /// no longer hands them back.
    ///
    /// # Errors
    ///
    /// The store's; repeating the call is harmless.
    pub async fn repeated_leases(
        &self,
        call: &RepeatableCall,
        lease: Option<Seconds>,
        allows: impl Fn(&Job) -> bool + Send,
    ) -> Result<Vec<Job>, Error> {
        let prefix = format!("{}.", call.group);
        let query =
            RecordQuery { kind: RecordKind::Lease, prefix, after: None, limit: MAX_RECORDS };
        let records = self.ports.store.records(&[query]).await?.pop().unwrap_or_default();
        let mut left: Vec<(JobId, Token)> =
            records.iter().flat_map(|record| call.claims(record)).collect();
        let mut leases = Vec::new();
        if left.is_empty() {
            return Ok(leases);
        }
        let catalog = self.catalog().await?;
        for _ in 0..MAX_RENEWALS {
            let ids: Vec<JobId> = left.iter().map(|(id, _)| id.clone()).collect();
            let (mut renewed, mut txns) = (Vec::new(), Vec::new());
            let jobs = self.ports.store.get(&ids).await?;
            let now = self.now();
            for ((id, token), job) in left.into_iter().zip(jobs) {
                let Some(job) = job.ok().flatten().filter(&allows) else { continue };
                if let Some(after) = renewed_lease(&job, token, lease, &catalog, now) {
                    txns.push(self.change_writes(job.life.revision, &after, false, now));
                    renewed.push((id, token, after));
                }
            }
            if txns.is_empty() {
                break;
            }
            self.extend_records(&records, renewed.iter().map(|(_, _, job)| job)).await?;
            left = Vec::new();
            for ((id, token, after), done) in
                renewed.into_iter().zip(self.ports.store.commit(txns).await?)
            {
                if let Committed::All = done {
                    self.cache_job(&after);
                    leases.push(after);
                } else {
                    left.push((id, token));
                }
            }
            if left.is_empty() {
                break;
            }
        }
        Ok(leases)
    }

    /// Keeps `records` for as long as the leases of `jobs`, so that another repeat finds them.
    async fn extend_records(
        &self,
        records: &[Record],
        jobs: impl Iterator<Item = &Job>,
    ) -> Result<(), Error> {
        let until = jobs.filter_map(|job| Some(job.life.running()?.lease_until)).max();
        let short = records.iter().filter(|record| until.is_some_and(|until| record.until < until));
        let longer = short.map(|record| {
            let until = until.unwrap_or(record.until);
            vec![Write::PutRecord(Record { until, ..record.clone() })]
        });
        let longer: Vec<Txn> = longer.collect();
        if !longer.is_empty() {
            self.ports.store.commit(longer).await?;
        }
        Ok(())
    }

    /// Writes the records of the claims in `claims`: with them if the store takes all of them at
    /// once, else before them.
    pub(crate) async fn write_lease_records(
        &self,
        records: Vec<Write>,
        claims: &mut Vec<Txn>,
    ) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        if self.ports.store.capabilities().atomicity.is_atomic() {
            claims.push(records);
        } else {
            self.ports.store.commit(vec![records]).await?;
        }
        Ok(())
    }

    /// Drops a bounded number of the records of lease calls whose leases have ended, where the store
    /// does not expire them.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn drop_lease_records(&self) -> Result<(), Error> {
        let (kind, store) = (RecordKind::Lease, &self.ports.store);
        store.purge(kind, self.now(), MAX_KEPT_RECORDS, MAX_DROPPED_RECORDS).await?;
        Ok(())
    }
}

/// `job` with a new lease, if the attempt with `token` still has one.
fn renewed_lease(
    job: &Job,
    token: Token,
    lease: Option<Seconds>,
    catalog: &Catalog,
    now: Timestamp,
) -> Option<Job> {
    job.life.running().filter(|run| run.token == token && run.lease_until > now)?;
    let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
    let lease = lease.or(config.map(|config| config.lease_seconds)).unwrap_or(job.spec.timeout);
    let (attempt, until) = (job.life.attempt, now + lease.duration());
    let mut after = job.apply(Event::Heartbeat { attempt, until, progress: None }, now).ok()?;
    if let State::Running(run) = &mut after.life.state {
        // The stored token has no secret.
        run.token = token;
    }
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::builders::job;

    #[test]
    fn the_tokens_of_a_repeat_follow_from_id_and_record() {
        let call = |id, worker, nonce| RepeatableCall::new(id, worker, nonce);
        let (first, job) = (call("request-1", Some("w"), 7), job("a").build());
        let token = first.next_token(&job);
        assert!(token.secret().is_some());
        let name = format!("{}.{:032x}-0", first.group, 7);
        let bytes = serde_json::to_vec(&Claims(vec![(job.id.clone(), 1)])).unwrap();
        let until = Timestamp::EPOCH;
        let record = Record { kind: RecordKind::Lease, name, until, bytes };
        let repeat = call("request-1", Some("w"), 8);
        assert_eq!(repeat.group(), first.group());
        assert!(repeat.claims(&record) == [(job.id.clone(), token)]);
        for other in [
            call("request-2", Some("w"), 7),
            call("request-1", None, 7),
            call("1", Some("wrequest-"), 7),
        ] {
            assert_ne!(other.group(), first.group());
        }
        let other = call("request-2", Some("w"), 7).claims(&record);
        assert!(other != [(job.id, token)], "another id has other tokens");
        let damaged = Record { bytes: b"x".to_vec(), ..record };
        assert!(repeat.claims(&damaged).is_empty());
    }
}
