//! Whether the bucket is silent, as an idle leader notices it.
//!
//! The reads of a leader are given up: those between two beats at the next beat, and proofs of leadership
//! after some seconds. So none of them shows that the bucket answers nothing. After such a read, the leader
//! sends one that it does not give up. It depends on no interval of beats: a bucket that is slow, and
//! answers, is not silent.

use std::{pin::pin, time::Duration};

use futures_util::future::{Either, select};

use super::{error::LogError, key::ObjectKey, node::Node, replica::Replica};

/// A bucket is silent if a read of it has no answer for this time. A request that is lost is repeated after
/// five seconds, and may be answered then.
const SILENCE: Duration = Duration::from_secs(10);

impl<R: Replica> Node<R> {
    /// Notes whether the bucket is silent, and ends when an object of the fence is gone, with the reason why
    /// the node stops.
    pub(super) async fn watch_bucket(&self) -> LogError {
        match select(pin!(self.watch_fence()), pin!(self.watch_answers())).await {
            Either::Left((error, _)) => error,
            Either::Right(((), fence)) => fence.await,
        }
    }

    /// Notes whether the bucket is silent. It does not end.
    async fn watch_answers(&self) {
        loop {
            self.leadership.set_silent(false);
            self.edge.bucket.doubted().await;
            let Some(epoch) = self.leadership.epoch() else { continue };
            // Any object would do. This one is small.
            let claim = ObjectKey::Claim(epoch);
            let read = pin!(self.edge.read(&claim));
            let silence = pin!(self.edge.pause(SILENCE));
            if let Either::Right(((), read)) = select(read, silence).await {
                tracing::warn!("the bucket of the log is silent");
                self.leadership.set_silent(true);
                read.await;
                tracing::info!("the bucket of the log answers again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::Ordering};

    use super::*;
    use crate::bucket_log::{NodeSettings, metered::Run};

    /// The only server of a log, which has been idle for a while.
    fn idle_leader(takeover: Duration) -> Arc<Run> {
        let run = Run::with_leader(1, NodeSettings::default().with_takeover(takeover));
        run.pass(150_000);
        assert!(answers(&run));
        run
    }

    /// Whether the bucket answers, as far as the leader knows.
    fn answers(run: &Run) -> bool {
        run.leads(0) && run.handle(0).is_some_and(|handle| handle.bucket_answers())
    }

    fn set_silent(run: &Run, is_silent: bool) {
        run.store.is_silent.store(is_silent, Ordering::Relaxed);
    }

    #[test]
    fn an_idle_leader_notices_that_its_bucket_is_silent() {
        for seconds in [1, 7] {
            let run = idle_leader(Duration::from_secs(seconds));
            set_silent(&run, true);
            run.until(|| !answers(&run));
            set_silent(&run, false);
            run.until(|| answers(&run));
            run.end();
        }
    }

    #[test]
    fn a_proof_that_is_given_up_shows_that_a_bucket_is_silent() {
        let run = idle_leader(Duration::from_secs(7));
        set_silent(&run, true);
        let handle = run.handle(0).expect("it is open");
        let executor = Arc::clone(&run.executor);
        run.complete(async move {
            select(pin!(handle.prove_leadership()), pin!(executor.elapse(5_000))).await;
        });
        run.pass(11_000);
        assert!(!answers(&run), "its next beat is later");
        run.end();
    }

    #[test]
    fn a_bucket_that_is_slower_than_beats_is_not_silent() {
        let run = idle_leader(Duration::from_secs(1));
        // A request takes a second and a half, and a beat is due after 0.6 seconds.
        run.store.delay.store(700, Ordering::Relaxed);
        for second in 1..=120 {
            run.pass(1_000);
            assert!(answers(&run), "after {second} s");
        }
        run.end();
    }
}
