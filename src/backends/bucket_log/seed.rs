//! A new log that begins with a state: as if its first epoch had made it, and a truncation had removed the
//! records of that epoch.
//!
//! ```text
//!   claim 1 ──▶ parts and manifest of snapshot 1 ──▶ seal of epoch 1 ──▶ claim 2 ──▶ identity
//! ```
//!
//! The identity is the last object. Before it, every server refuses the prefix, because there is a claim
//! and no identity. The claim of epoch 2, which has no leader, makes every reader look for the snapshot.

use bytes::Bytes;

use super::{
    body::{self, EpochClaim, Manifest, StartRecord},
    bucket::Edge,
    create::Created,
    error::LogError,
    identity,
    key::{Epoch, ObjectKey, Slot},
    object::{Hash, Header, Kind, LogId, Object},
    replica::Replica,
    snapshot::{Snapshot, upload_parts},
    tail::Tail,
};

/// Why a log was not begun.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// There is a log, or what a call that failed has left of one.
    #[error("there is a log, or a part of one")]
    NotEmpty,
    /// The store or the replica cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Begins a log in the bucket of `edge` with the state of `replica`, which has applied no record. The
/// store has passed a [`probe`](super::probe()).
///
/// # Errors
///
/// [`SeedError`]. What was written stays, and no server takes it for a log.
pub async fn seed<R: Replica>(edge: &Edge, replica: &R) -> Result<LogId, SeedError> {
    let (log, nonce) = (LogId(edge.entropy.bits()), edge.entropy.bits());
    let time = edge.clock.now();
    let object = |kind, slot, previous, body: &Bytes| {
        Object::new(Header { kind, log, slot, nonce, time, previous }, body)
    };
    let claim = |epoch, snapshot| {
        let claim = EpochClaim { snapshot, ..EpochClaim::default() };
        object(Kind::Claim, Slot::first_of(epoch), Hash::NONE, &body::encode(&claim))
    };
    let (first, second) = (Epoch::FIRST, Epoch::FIRST.next());
    if edge.read(&ObjectKey::Identity).await.is_some() {
        return Err(SeedError::NotEmpty);
    }
    create(edge, &ObjectKey::Claim(first), claim(first, 0).bytes()).await?;

    // The start record is applied and never written: the snapshot has replaced it.
    let start = StartRecord { schema: replica.schema(), ..StartRecord::default() };
    let start = object(Kind::Start, Slot::FIRST, Hash::NONE, &body::encode(&start));
    let tail = Tail::after(&start);
    let seal = object(Kind::Seal, tail.next, tail.hash, &Bytes::new());
    for durable in [Tail::START.own(start), tail.own(seal.clone())] {
        replica.apply(vec![durable]).await.map_err(LogError::from)?;
    }

    let mut base = replica.freeze().await.map_err(LogError::from)?;
    let manifest = Manifest::default();
    let (time, hash) = (seal.header.time, seal.hash());
    let mut snapshot = Snapshot { epoch: first, nonce, time, seal: hash, manifest };
    upload_parts(edge, &mut snapshot, &mut *base).await?;
    let manifest = body::encode(&snapshot.manifest);
    let manifest = object(Kind::Manifest, Slot::FIRST, seal.hash(), &manifest);
    create(edge, &ObjectKey::Manifest(first), manifest.bytes()).await?;
    create(edge, &tail.key(), seal.bytes()).await?;
    create(edge, &ObjectKey::Claim(second), claim(second, first.number()).bytes()).await?;
    create(edge, &ObjectKey::Identity, &identity::encode(log)).await?;
    Ok(log)
}

async fn create(edge: &Edge, key: &ObjectKey, bytes: &Bytes) -> Result<(), SeedError> {
    match edge.create(key, bytes).await {
        Created::Own => Ok(()),
        Created::Other(_) => Err(SeedError::NotEmpty),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bucket_log::{
        LogReader, NodeSettings, identify,
        metered::Run,
        simulation::{
            executor::Actor,
            kv::{Command, KvReplica},
        },
    };

    /// A replica with one write, which no log has.
    fn replica() -> KvReplica {
        let replica = KvReplica::new(9, Arc::default(), None);
        let command = Command { write: 1, attempt: 1, key: 0, was: 0 };
        assert!(replica.state.lock().execute(command));
        replica
    }

    /// Begins a log in the store of a run.
    fn seeded(run: &Arc<Run>) -> Result<LogId, SeedError> {
        let (edge, _) = run.edge();
        run.complete(async move { seed(&edge, &replica()).await })
    }

    fn start(run: &Arc<Run>, number: usize) {
        run.start(number, NodeSettings { leads_at_start: true, ..NodeSettings::default() });
        run.until_leads(number);
    }

    #[test]
    fn servers_begin_with_the_state_of_the_log() {
        let run = Run::new(1);
        seeded(&run).unwrap();
        for number in 0..3 {
            start(&run, number);
            // The snapshot of the takeover may have replaced the first one.
            run.pass(20_000);
            assert_eq!(run.replica(number).state.lock().value(0), (1, 1), "server {number}");
            run.lose(number);
        }
        let (edge, hints) = run.edge();
        run.complete(async move {
            let reader = LogReader::open(edge, hints).await.unwrap().expect("there is a log");
            reader.verify(drop).await.unwrap();
        });
        run.end();
    }

    #[test]
    fn a_log_is_begun_once() {
        let run = Run::new(1);
        start(&run, 0);
        assert!(matches!(seeded(&run), Err(SeedError::NotEmpty)));
        run.end();
        let run = Run::new(1);
        seeded(&run).unwrap();
        assert!(matches!(seeded(&run), Err(SeedError::NotEmpty)));
        run.end();
    }

    #[test]
    fn a_log_whose_begin_failed_is_no_log() {
        // The number of PUTs: a claim, two parts, the manifest, the seal, a claim and the identity.
        for puts in 1..7 {
            let run = Run::new(1);
            let (edge, hints) = run.edge();
            let seeding = edge.clone();
            run.executor.spawn(Actor::Node(0), async move {
                seed(&seeding, &replica()).await.expect("it is killed before its end");
            });
            run.until(|| run.store.requests().puts >= f64::from(puts));
            run.executor.kill(0);
            // The last PUT may arrive or not.
            run.pass(1_000);
            let server = edge.clone();
            let read = run.complete(async move { LogReader::open(edge, hints).await.map(drop) });
            let led = run.complete(async move { identify(&server).await.map(drop) });
            // Without the first claim, nothing is there.
            assert_eq!(read.is_ok(), puts == 1, "after {puts} PUTs: {read:?}");
            assert_eq!(led.is_ok(), puts == 1, "after {puts} PUTs: {led:?}");
            run.end();
        }
    }
}
