//! Closing a log: no server leads it again, and what it has stays.
//!
//! ```text
//!   does a server lead? ──no──▶ claim of the next epoch, which closes ──▶ seals of all epochs before it
//! ```
//!
//! The seals are the fence, as in a takeover: a leader that was frozen acknowledges nothing after them. The
//! claim is what servers refuse. It is never removed, and no start record follows it.

use std::time::Duration;

use bytes::Bytes;

use super::{
    super::{
        body::{self, EpochClaim},
        create::Created,
        error::LogError,
        follow::decode_claim,
        hints::{Beat, SLOW_INTERVAL},
        key::{Epoch, ObjectKey, Slot},
        object::{Hash, Header, Kind, Object},
        tail::Tail,
    },
    LogReader, read,
};

/// The time between two looks for a sign of life.
const POLL: Duration = Duration::from_secs(1);
/// The least time without a sign of life after which no server leads.
const MIN_WAIT: Duration = Duration::from_secs(15);
/// Most slots that are tried. Each epoch takes one, and a leader that is alive after all fills some.
const MAX_SEALS: u32 = 100;

/// Why a log was not closed.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// A server leads it, or begins to. Nothing was written, unless it shows only after the claim.
    #[error("a server leads the log, or begins to: stop all servers of the log first")]
    Led,
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl LogReader {
    /// Closes the log, and returns its end. A leader that does not end its epoch is waited for until its
    /// next beat is late: a minute and a half if it knows of no standby. A repeat goes on where a call was
    /// interrupted, and changes nothing in a closed log.
    ///
    /// # Errors
    ///
    /// [`CloseError`].
    pub async fn close(&self) -> Result<Tail, CloseError> {
        let beat = self.beat().await;
        let tail = self.list(drop).await?;
        let newest = self.newest_epoch(beat.as_ref()).await?;
        let last = match newest {
            Some(newest) => self.claim_after(newest, &tail, beat.as_ref()).await?,
            None => self.claim_last(Epoch::FIRST, None).await?,
        };
        for _ in 0..MAX_SEALS {
            // It begins behind the newest snapshots, so a slot that a truncation has emptied is not taken for
            // the end.
            let tail = self.list(drop).await?;
            if tail.next.epoch >= last {
                return Ok(tail);
            }
            let seal = self.object(Kind::Seal, tail, &Bytes::new());
            // A record or another seal may be there. Then reading goes on.
            self.edge.create(&tail.key(), seal.bytes()).await;
        }
        Err(CloseError::Led)
    }

    /// The epoch of the claim that closes the log: `newest`, or the one after it.
    async fn claim_after(
        &self,
        newest: Epoch,
        tail: &Tail,
        beat: Option<&Beat>,
    ) -> Result<Epoch, CloseError> {
        let claim = read(&self.edge, &ObjectKey::Claim(newest)).await?;
        if decode_claim(self.log, newest, claim)?.closes {
            return Ok(newest);
        }
        if self.is_led(newest, tail, beat).await? {
            return Err(CloseError::Led);
        }
        self.claim_last(newest.next(), beat).await
    }

    /// Whether there is a sign of life in time: a beat after `beat`, a claim after `newest`, or an object at
    /// `tail`. No other sign is needed of a leader that has ended its epoch.
    async fn is_led(
        &self,
        newest: Epoch,
        tail: &Tail,
        beat: Option<&Beat>,
    ) -> Result<bool, LogError> {
        let of_newest = beat.filter(|beat| beat.epoch == newest.number());
        if of_newest.is_some_and(|beat| beat.ended_at(tail.next).is_some()) {
            return Ok(false);
        }
        let within = of_newest.map_or(SLOW_INTERVAL, Beat::next_within);
        let wait = (within * 3 / 2).max(MIN_WAIT);
        for _ in 0..=wait.as_secs() / POLL.as_secs() {
            self.edge.pause(POLL).await;
            // A store that does not answer is no sign of life.
            let has_beaten = self.beat().await.is_some_and(|now| Some(&now) != beat);
            if has_beaten
                || read(&self.edge, &ObjectKey::Claim(newest.next())).await?.is_some()
                || read(&self.edge, &tail.key()).await?.is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Creates the claim of `epoch` that closes the log.
    async fn claim_last(&self, epoch: Epoch, beat: Option<&Beat>) -> Result<Epoch, CloseError> {
        let snapshot = self.kept_snapshots(beat).await?.into_keys().next_back();
        let snapshot = snapshot.map_or(0, Epoch::number);
        let claim = EpochClaim { snapshot, closes: true, ..EpochClaim::default() };
        let at = Tail { next: Slot::first_of(epoch), hash: Hash::NONE, ..Tail::START };
        let claim = self.object(Kind::Claim, at, &body::encode(&claim));
        match self.edge.create(&ObjectKey::Claim(epoch), claim.bytes()).await {
            Created::Own => Ok(epoch),
            Created::Other(_) => Err(CloseError::Led),
        }
    }

    /// An object that continues the log at `tail`.
    fn object(&self, kind: Kind, tail: Tail, body: &Bytes) -> Object {
        let time = self.edge.clock.now().max(tail.time);
        let (slot, nonce) = (tail.next, self.edge.entropy.bits());
        let header = Header { kind, log: self.log, slot, nonce, time, previous: tail.hash };
        Object::new(header, body)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bucket_log::{NodeSettings, metered::Run, simulation::executor::Actor};

    /// A run whose node 0 leads and has written a record.
    fn led() -> Arc<Run> {
        let run = Run::with_leader(1, NodeSettings::default());
        assert!(submit(&run), "the node leads");
        run
    }

    fn submit(run: &Arc<Run>) -> bool {
        let client = Arc::clone(run);
        run.complete(async move { client.submit(0, 1).await })
    }

    /// The end of the closed log, or why it was not closed.
    fn close(run: &Arc<Run>) -> Result<String, String> {
        let (edge, hints) = run.edge();
        run.complete(async move {
            let reader = LogReader::open(edge, hints).await.unwrap().expect("there is a log");
            let closed = reader.close().await;
            reader.verify(drop).await.expect("the log is whole");
            closed.map(|end| end.next.to_string()).map_err(|error| error.to_string())
        })
    }

    #[test]
    fn a_log_with_a_leader_is_not_closed() {
        let run = led();
        let refused = close(&run).unwrap_err();
        assert!(refused.contains("stop all servers"), "{refused}");
        assert!(submit(&run), "the leader goes on");
        run.end();
    }

    #[test]
    fn no_server_leads_or_follows_a_closed_log() {
        let run = led();
        run.lose(0);
        for _ in 0..2 {
            assert_eq!(close(&run).as_deref(), Ok("2.0"), "also once more");
        }
        for (number, leads_at_start) in [(1, true), (2, false)] {
            run.start(number, NodeSettings { leads_at_start, ..NodeSettings::default() });
            run.until(|| run.ended.lock().len() == number);
            assert!(run.ended.lock()[number - 1].contains("Closed"), "{:?}", run.ended.lock());
        }
        assert_eq!(close(&run).as_deref(), Ok("2.0"), "they have written nothing");
        run.end();
    }

    /// The last server has ended its epoch, and no server is waited for.
    #[test]
    fn a_log_whose_leader_was_stopped_is_closed_at_once() {
        let run = led();
        run.handle(0).expect("it is open").release();
        run.until(|| run.ended.lock().len() == 1);
        let began = run.executor.now();
        assert_eq!(close(&run).as_deref(), Ok("2.0"));
        assert!(run.executor.now() - began < MIN_WAIT.as_millis() as i64);
        run.end();
    }

    #[test]
    fn a_frozen_leader_acknowledges_nothing_after_the_close() {
        let run = led();
        run.executor.freeze(0, 60_000);
        assert_eq!(close(&run).as_deref(), Ok("2.0"));
        assert!(!submit(&run), "its slot has the seal");
        run.until(|| run.ended.lock().len() == 1);
        run.end();
    }

    /// A call that was killed after its claim.
    #[test]
    fn a_close_that_was_interrupted_is_ended_by_the_next_one() {
        let run = led();
        run.lose(0);
        let (edge, hints) = run.edge();
        let before = run.store.requests().puts;
        run.executor.spawn(Actor::Node(0), async move {
            let reader = LogReader::open(edge, hints).await.unwrap().expect("there is a log");
            reader.close().await.expect("it is killed before its end");
        });
        run.until(|| run.store.requests().puts > before);
        run.executor.kill(0);
        run.pass(1_000);
        assert_eq!(close(&run).as_deref(), Ok("2.0"));
        run.end();
    }
}
