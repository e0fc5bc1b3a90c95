//! The comparison of a standby with the snapshots of its leader.
//!
//! ```text
//!   seal applied ──▶ freeze ──digest, while following goes on──▶ manifest of that epoch ─┬▶ equal
//!                                                                                        └▶ other: restore
//! ```
//!
//! Applying is a function of the state and the records, so two nodes at one position have the same content.
//! If they do not, a machine or a release is wrong. The standby cannot know which one, and takes the content
//! that clients see: that of the leader.

use std::collections::BTreeMap;

use futures_util::{FutureExt as _, future::BoxFuture};
use tidegate_core::error_chain::ErrorChain;

use super::{
    body::StateDigest,
    error::LogError,
    key::Epoch,
    node::Node,
    object::Hash,
    replica::{Replica, ReplicaError},
    snapshot::Snapshot,
    tail::Tail,
};

/// A standby looks for manifests once in this many polls.
const POLLS_PER_READ: u64 = 15;
/// How often it looks for the manifest of an epoch: for a day, with a poll every two seconds. The snapshot of
/// a large database takes hours, and a leader that is busy with one leaves out those of the next epochs.
const MAX_READS: u32 = 2880;
/// How many digests wait for their manifests at most. Each read is a request.
const MAX_WAITING: usize = 16;

/// The state behind a seal: its digest, or that it is damaged.
#[derive(Debug)]
struct Audited {
    /// The hash of the seal.
    seal: Hash,
    /// None if the state is damaged.
    digest: Option<StateDigest>,
    /// How often its manifest was looked for.
    reads: u32,
}

/// A digest that is being computed.
struct Computing {
    epoch: Epoch,
    seal: Hash,
    digest: BoxFuture<'static, Result<Option<StateDigest>, ReplicaError>>,
    /// Whether it was polled. Before that, only the frozen state is there.
    has_begun: bool,
}

/// The digests of a standby.
#[derive(Default)]
pub(super) struct Audit {
    /// At most one, because each reads the whole state.
    computing: Option<Computing>,
    /// Those whose manifests were not found yet.
    waiting: BTreeMap<Epoch, Audited>,
}

impl Audit {
    /// Goes on with the computation. It does not wait for it.
    fn advance(&mut self) {
        let Some(mut computing) = self.computing.take() else { return };
        computing.has_begun = true;
        let Some(computed) = (&mut computing.digest).now_or_never() else {
            self.computing = Some(computing);
            return;
        };
        let Computing { epoch, seal, .. } = computing;
        match computed {
            Ok(Some(digest)) => self.add(epoch, Audited { seal, digest: Some(digest), reads: 0 }),
            // The replica has no digests.
            Ok(None) => {}
            Err(error) => self.note_error(epoch, seal, &error),
        }
    }

    /// Notes that the state behind the seal of `epoch` has no digest. Damage is a difference. After any
    /// other error nothing is known of the state: the disk may have failed once, or it is full.
    fn note_error(&mut self, epoch: Epoch, seal: Hash, error: &ReplicaError) {
        let is_damaged = matches!(error, ReplicaError::Damaged(_));
        let error = ErrorChain(error);
        if is_damaged {
            tracing::error!(%epoch, %error, "the local state behind the seal is damaged");
            self.add(epoch, Audited { seal, digest: None, reads: 0 });
        } else {
            tracing::warn!(%epoch, %error, "the digest of the local state could not be computed");
        }
    }

    /// Adds a digest, which waits for the manifest of `epoch`. Of too many, the oldest waits no longer.
    fn add(&mut self, epoch: Epoch, audited: Audited) {
        self.waiting.insert(epoch, audited);
        if self.waiting.len() > MAX_WAITING
            && let Some((oldest, _)) = self.waiting.pop_first()
        {
            note_not_compared(oldest);
        }
    }

    /// Whether a computation goes on, which no other one may replace.
    fn is_busy(&self) -> bool {
        self.computing.as_ref().is_some_and(|computing| computing.has_begun)
    }

    /// The epochs whose manifests are to be read.
    fn wanted(&self) -> Vec<Epoch> {
        self.waiting.keys().copied().collect()
    }

    /// Whether the state behind the seal of `epoch` differs from `snapshot`, the one that was found there.
    fn differs(&mut self, epoch: Epoch, snapshot: Option<&Snapshot>) -> bool {
        let Some(audited) = self.waiting.get_mut(&epoch) else { return false };
        let Some(snapshot) = snapshot else {
            audited.reads += 1;
            if audited.reads >= MAX_READS {
                self.waiting.remove(&epoch);
                note_not_compared(epoch);
            }
            return false;
        };
        // Others are older, and their snapshots were left out.
        let Some(audited) = self.waiting.remove(&epoch) else { return false };
        self.waiting = self.waiting.split_off(&epoch);
        if snapshot.seal != audited.seal {
            return false;
        }
        match (&snapshot.manifest.digest, &audited.digest) {
            (Some(theirs), Some(own)) => theirs.differs(own),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

/// Reports that the state behind the seal of `epoch` is not compared, and no later one was.
fn note_not_compared(epoch: Epoch) {
    tracing::warn!(
        %epoch,
        "the state of this server was not compared: the log has no snapshot of that epoch"
    );
}

impl<R: Replica> Node<R> {
    /// Freezes the local state if it is the state behind a seal, for a digest that the next poll begins to
    /// compute. A node that is behind passes several seals before that, and keeps the last one only: a
    /// frozen database makes SQLite's own log grow. A leader computes the digest of its snapshot. A state
    /// that cannot be frozen does not stop the node: following does not need the comparison.
    pub(super) async fn begin_audit(&self) {
        let Tail { next, hash: seal, .. } = self.replica.tail();
        let Some(epoch) = next.epoch.previous().filter(|_| next.seq == 0) else { return };
        if self.leadership.epoch().is_some() || self.audit.lock().is_busy() {
            return;
        }
        let mut frozen = match self.replica.freeze().await {
            Ok(frozen) => frozen,
            Err(error) => {
                self.audit.lock().note_error(epoch, seal, &error);
                return;
            }
        };
        let digest = async move { frozen.digest().await }.boxed();
        self.audit.lock().computing = Some(Computing { epoch, seal, digest, has_begun: false });
    }

    /// Compares the digests of this standby with the snapshots that the leader has made since, at every
    /// poll, and replaces a state that differs. It ends at the end of the log then.
    pub(super) async fn compare_states(&self, poll: u64) -> Result<(), LogError> {
        self.audit.lock().advance();
        if !poll.is_multiple_of(POLLS_PER_READ) {
            return Ok(());
        }
        let wanted = self.audit.lock().wanted();
        for epoch in wanted {
            let snapshot = self.snapshot_of(epoch).await?;
            if self.audit.lock().differs(epoch, snapshot.as_ref()) {
                return self.replace_state(epoch).await;
            }
        }
        Ok(())
    }

    /// Replaces the local state, which differs from the snapshot of `epoch`, by the newest snapshot.
    async fn replace_state(&self, epoch: Epoch) -> Result<(), LogError> {
        self.note_difference(epoch);
        self.end_audit();
        // Reads see no state that is known to be wrong.
        self.leadership.set_caught_up(false);
        let newest = self.newest_snapshot().await?;
        self.discard(newest).await?;
        self.catch_up().await
    }

    /// Forgets the digests: another state follows, or the node leads.
    pub(super) fn end_audit(&self) {
        *self.audit.lock() = Audit::default();
    }

    /// Reports that the local state and the snapshot of `epoch` differ.
    pub(super) fn note_difference(&self, epoch: Epoch) {
        metrics::counter!("tidegate_log_differences_total").increment(1);
        tracing::error!(
            %epoch,
            "the state of this server differs from the snapshot of the log; a standby replaces its own"
        );
        self.leadership.note_difference(epoch);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::ready,
        sync::{Arc, atomic::Ordering},
    };

    use tidegate_core::time::Timestamp;

    use super::*;
    use crate::bucket_log::{
        NodeSettings, body::Manifest, metered::Run, simulation::kv::KvReplica,
    };

    /// The digests of a standby whose first computation has ended like this.
    fn computed(digest: Result<Option<StateDigest>, ReplicaError>) -> Audit {
        let (epoch, seal) = (Epoch::FIRST, Hash::NONE);
        let digest = ready(digest).boxed();
        let computing = Computing { epoch, seal, digest, has_begun: false };
        let mut audit = Audit { computing: Some(computing), ..Audit::default() };
        audit.advance();
        audit
    }

    fn digest(first: u8) -> StateDigest {
        StateDigest { form: "values".into(), hash: [first; 32] }
    }

    /// A snapshot of the first epoch.
    fn snapshot() -> Snapshot {
        let manifest = Manifest { digest: Some(digest(1)), ..Manifest::default() };
        let (epoch, seal, time) = (Epoch::FIRST, Hash::NONE, Timestamp::EPOCH);
        Snapshot { epoch, nonce: 1, time, seal, manifest }
    }

    #[test]
    fn an_error_that_may_pass_is_no_difference_of_states() {
        for (digest, differs) in [
            (Ok(Some(digest(1))), false),
            (Ok(Some(digest(2))), true),
            (Err(ReplicaError::damaged("a row is no job")), true),
            (Err(ReplicaError::new("the disk did not answer")), false),
        ] {
            let shown = format!("{digest:?}");
            let mut audit = computed(digest);
            assert_eq!(audit.differs(Epoch::FIRST, Some(&snapshot())), differs, "{shown}");
        }
    }

    #[test]
    fn a_snapshot_that_takes_hours_is_compared() {
        let mut audit = computed(Ok(Some(digest(2))));
        // Four hours.
        for read in 0..480 {
            assert!(!audit.differs(Epoch::FIRST, None), "{read}");
        }
        assert!(audit.differs(Epoch::FIRST, Some(&snapshot())));
    }

    #[test]
    fn digests_without_a_snapshot_are_given_up() {
        let mut audit = computed(Ok(Some(digest(2))));
        for _ in 0..MAX_READS {
            assert_eq!(audit.wanted(), [Epoch::FIRST]);
            audit.differs(Epoch::FIRST, None);
        }
        assert!(audit.wanted().is_empty());
        let mut epoch = Epoch::FIRST;
        for _ in 0..=MAX_WAITING {
            audit.add(epoch, Audited { seal: Hash::NONE, digest: None, reads: 0 });
            epoch = epoch.next();
        }
        let wanted = audit.wanted();
        assert_eq!((wanted.len(), wanted[0]), (MAX_WAITING, Epoch::FIRST.next()));
    }

    /// A leader, a standby that this is done to, and the end of an epoch after it.
    fn audited(change: impl Fn(&KvReplica)) -> Arc<Run> {
        // An epoch is over after its start and two records.
        let settings = NodeSettings { rollover_records: 3, ..NodeSettings::default() };
        let run = Run::with_leader(1, settings.clone());
        let submit = |run: &Arc<Run>| {
            let client = Arc::clone(run);
            assert!(run.complete(async move { client.submit(0, 1).await }), "the node leads");
        };
        run.start(1, settings);
        submit(&run);
        let has_value =
            || run.handle(1).is_some() && run.replica(1).state.lock().value(0) == (1, 1);
        run.until(has_value);
        change(&run.replica(1));
        submit(&run);
        run
    }

    #[test]
    fn a_standby_that_differs_is_restored_and_reported() {
        let run = audited(|standby| {
            standby.state.lock().values.insert(9, (1, 1));
        });
        let differs = |number| run.handle(number).is_some_and(|node| node.difference().is_some());
        run.until(|| differs(1));
        run.until(|| run.replica(1).state.lock().value(9) == (0, 0));
        // The standby announces it to the leader.
        run.until(|| differs(0));
        assert!(run.leads(0) && run.ended.lock().is_empty());
        run.end();
    }

    #[test]
    fn a_standby_that_is_equal_goes_on() {
        let run = audited(|_| ());
        run.pass(120_000);
        for number in [0, 1] {
            assert_eq!(run.handle(number).expect("it is open").difference(), None, "node {number}");
        }
        let [leader, standby] = [0, 1].map(|number| run.replica(number).state.lock().clone());
        assert_eq!(leader, standby);
        run.end();
    }

    #[test]
    fn a_standby_whose_state_cannot_be_frozen_goes_on() {
        let run = audited(|standby| standby.cannot_freeze.store(true, Ordering::Relaxed));
        run.pass(120_000);
        assert_eq!(*run.ended.lock(), [""; 0], "no node stops");
        let [leader, standby] = [0, 1].map(|number| run.replica(number).state.lock().tail);
        assert!(leader.next.epoch > Epoch::FIRST);
        assert_eq!(standby, leader, "it follows behind the seal");
        run.end();
    }
}
