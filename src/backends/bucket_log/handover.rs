//! What a leader does when another process claims the next epoch.
//!
//! ```text
//!   claim to replace ──▶ drain, seal ──▶ claimant leads ──▶ stop
//!                                    └──nothing in time──▶ roll over, go on
//!   claim of a standby ──▶ go on; found again ──▶ roll over, go on
//! ```
//!
//! A candidate must seal the first empty slot. A busy leader fills each slot before the candidate's
//! seal arrives, so a process that is to replace it would never lead. The leader therefore reads the
//! claim once in some records, seals its own epoch, and leaves the first slot of the next one to the
//! claimant for a short time. Nothing depends on that time: a claimant that is late meets the next
//! claim of this leader, and a leader that is late finds the start record of the claimant.
//!
//! A standby that claims believes that the leader is lost. A leader that reads such a claim is not,
//! so it keeps its leadership.

use std::time::Duration;

use bytes::Bytes;

use super::{
    create::Created,
    error::LogError,
    follow::decode_claim,
    key::{ObjectKey, Slot},
    node::Node,
    object::{Kind, Object},
    planted::PlantedBug,
    replica::Replica,
};

/// A busy leader reads the claim of the next epoch once in this many records. A GET costs less than a
/// tenth of a PUT, so this adds less than half a percent to what the records cost.
pub(super) const RECORDS_PER_CLAIM_CHECK: u64 = 20;
/// The longest time between two reads of the slot in which the claimant begins to lead.
const MAX_HANDOVER_POLL: Duration = Duration::from_millis(200);
/// The part of the patience of a standby that passes between two such reads. No standby may lose
/// patience during a hand-over.
const HANDOVER_POLLS_PER_PATIENCE: u32 = 30;
/// How often in a row a leader finds that slot empty before it goes on. A claimant needs up to 20
/// requests, one after the other.
const MAX_HANDOVER_POLLS: u32 = 10;

/// Why a process claims an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// It was started to replace the leader, which may be alive.
    Replace,
    /// The epoch before is over, or its leader seems to be lost.
    Succeed,
}

/// What a leader does about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// It goes on.
    GoOn,
    /// It writes a record, which finds out whether its epoch is sealed.
    Prove,
    /// It rolls over, so that the claim is behind it. A claimant that replaces it may lead first.
    RollOver,
}

/// What a leader is doing when it finds a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// Whether no request waits and no PUT is under way.
    pub is_idle: bool,
    /// Whether enough time has passed since it began to lead, or last tried to hand over.
    pub may_hand_over: bool,
}

/// How often an epoch's leader has found the claim of the next one.
#[derive(Debug, Default)]
pub(super) struct ClaimWatch {
    /// Claims that replace nothing, in a row.
    checks: u32,
}

impl ClaimWatch {
    /// What the leader does now that it has found a claim with `intent`.
    pub(super) fn react(&mut self, intent: Intent, leader: Activity) -> Reaction {
        match intent {
            Intent::Replace if leader.may_hand_over => Reaction::RollOver,
            Intent::Replace if leader.is_idle => Reaction::Prove,
            Intent::Replace => Reaction::GoOn,
            Intent::Succeed => {
                self.checks += 1;
                match self.checks {
                    1 if leader.is_idle => Reaction::Prove,
                    1 => Reaction::GoOn,
                    // That process gave up, or it would have sealed this epoch by now.
                    _ => Reaction::RollOver,
                }
            }
        }
    }
}

impl<R: Replica> Node<R> {
    /// The intent of the process that has claimed the next epoch; none if none has.
    pub(super) async fn next_claim(&self) -> Option<Intent> {
        let epoch = self.leadership.epoch()?.next();
        let bytes = self.edge.read(&ObjectKey::Claim(epoch)).await?;
        // A claim that cannot be decoded stops the standbys, and not the leader.
        let replaces = decode_claim(self.log, epoch, Some(bytes)).is_ok_and(|claim| claim.replaces);
        if replaces && self.planted.has(PlantedBug::ReplacementIgnored) {
            return None;
        }
        Some(if replaces { Intent::Replace } else { Intent::Succeed })
    }

    /// Seals the epoch of this leader, and leaves the next one to its claimant for a while. False if
    /// another node leads.
    pub(super) async fn hand_over(&self) -> Result<bool, LogError> {
        tracing::info!("a server was started to replace this one, which hands over");
        if !self.seal_own().await? {
            return Ok(false);
        }
        let (patience, _) = self.settings.patience;
        let poll = (patience / HANDOVER_POLLS_PER_PATIENCE).min(MAX_HANDOVER_POLL);
        let (mut next, mut polls) = (self.replica.tail().next, 0);
        while polls < MAX_HANDOVER_POLLS {
            self.edge.pause(poll).await;
            polls += 1;
            while let Some(bytes) = self.edge.read(&ObjectKey::Slot(next)).await {
                match Object::decode(bytes) {
                    // The claimant of a later epoch is alive: it has sealed one without a leader.
                    Ok(object) if object.header.kind == Kind::Seal => {
                        (next, polls) = (Slot::first_of(next.epoch.next()), 0);
                    }
                    _ => return Ok(false),
                }
            }
        }
        tracing::warn!("the server that was started to replace this one does not lead: going on");
        Ok(true)
    }

    /// Seals the epoch of this leader, which has no record under way. False if another node has.
    pub(super) async fn seal_own(&self) -> Result<bool, LogError> {
        let tail = self.replica.tail();
        let seal = self.object(Kind::Seal, tail, &Bytes::new());
        match self.edge.create(&tail.key(), seal.bytes()).await {
            Created::Own => {
                self.replica.apply(vec![tail.own(seal)]).await?;
                Ok(true)
            }
            Created::Other(_) => Ok(false),
        }
    }

    /// Whether another node has led since this one began the epoch that it leads. Its leadership is
    /// over then: what it has in memory must not outlive it.
    pub(super) async fn is_overtaken(&self) -> Result<bool, LogError> {
        let Some(led) = self.leadership.epoch() else { return Ok(false) };
        let Slot { epoch, seq } = self.replica.tail().next;
        if epoch <= led {
            return Ok(false);
        }
        let Some(last) = epoch.previous().filter(|last| *last > led) else { return Ok(seq > 0) };
        // An epoch that was led has at least its start record.
        let sealed = self.replica.sealed(led.next()..=last).await?;
        Ok(seq > 0 || sealed.values().any(|records| *records > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Activity = Activity { is_idle: false, may_hand_over: true };
    const IDLE: Activity = Activity { is_idle: true, may_hand_over: true };

    #[test]
    fn a_leader_hands_over_to_a_process_that_replaces_it() {
        for leader in [BUSY, IDLE] {
            let mut claims = ClaimWatch::default();
            assert_eq!(claims.react(Intent::Replace, leader), Reaction::RollOver);
        }
    }

    #[test]
    fn a_leader_does_not_hand_over_again_at_once() {
        let mut claims = ClaimWatch::default();
        for _ in 0..5 {
            let busy = Activity { may_hand_over: false, ..BUSY };
            assert_eq!(claims.react(Intent::Replace, busy), Reaction::GoOn);
            let idle = Activity { may_hand_over: false, ..IDLE };
            assert_eq!(claims.react(Intent::Replace, idle), Reaction::Prove);
        }
        assert_eq!(claims.react(Intent::Replace, BUSY), Reaction::RollOver);
    }

    #[test]
    fn a_standby_that_gave_up_does_not_end_a_leadership() {
        for (leader, first) in [(BUSY, Reaction::GoOn), (IDLE, Reaction::Prove)] {
            let mut claims = ClaimWatch::default();
            assert_eq!(claims.react(Intent::Succeed, leader), first);
            assert_eq!(claims.react(Intent::Succeed, leader), Reaction::RollOver);
        }
    }
}
