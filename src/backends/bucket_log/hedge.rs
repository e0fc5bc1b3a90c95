//! A second PUT of a record whose first one is slow.
//!
//! The records behind a slow PUT wait for it, up to the timeout of the client. So the same bytes are sent
//! again, on another connection. The object exists once, whichever of the two arrives: the other one is
//! refused, and `create` reads the slot and finds its own bytes there.

use std::{collections::VecDeque, pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::future::{Either, select};

use super::{bucket::Edge, create::PutAnswer, key::ObjectKey};

/// The least time after which a PUT is sent a second time.
const MIN_WAIT: Duration = Duration::from_millis(250);
/// A PUT is slow if it takes this many times the median.
const SLOW_FACTOR: u32 = 3;
/// Most bytes of a PUT that is sent a second time. A larger one is slow where the line of the machine is:
/// two of them would share that line, and both could exceed the timeout of the client, again and again.
const MAX_BYTES: usize = 1 << 20;
/// How many PUTs the median is of.
const KEPT_TIMES: usize = 32;

/// How long the last PUTs took.
#[derive(Debug, Default)]
pub(super) struct PutTimes(VecDeque<Duration>);

impl PutTimes {
    /// Notes that a PUT took `span`.
    pub(super) fn note(&mut self, span: Duration) {
        if self.0.len() == KEPT_TIMES {
            self.0.pop_front();
        }
        self.0.push_back(span);
    }

    /// After how long the next PUT, of `bytes`, is sent a second time; none if it is too large for that.
    pub(super) fn hedge_after(&self, bytes: usize) -> Option<Duration> {
        if bytes > MAX_BYTES {
            return None;
        }
        let mut sorted: Vec<Duration> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        Some(median.saturating_mul(SLOW_FACTOR).max(MIN_WAIT))
    }
}

impl Edge {
    /// The first answer to a PUT that is sent a second time if it has none after `after`. An error of one of
    /// the two is no answer while the other one is under way. That one may still arrive after this call: it
    /// has the same bytes.
    pub(super) async fn put_hedged(
        &self,
        key: &ObjectKey,
        bytes: &Bytes,
        after: Duration,
    ) -> PutAnswer {
        let first = self.bucket.create(key, bytes.clone());
        match select(first, pin!(self.pause(after))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), first)) => {
                let second = self.bucket.create(key, bytes.clone());
                match select(first, second).await.factor_first() {
                    (PutAnswer::Unknown, other) => other.await,
                    (answer, _) => answer,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
    };

    use async_trait::async_trait;
    use object_store::memory::InMemory;
    use tokio::{sync::Notify, task::yield_now};

    use super::*;
    use crate::{
        bucket_log::{
            LogBucket, Removable, StoreBucket,
            create::{Created, GetAnswer},
            key::Slot,
        },
        system::{SystemClock, SystemEntropy},
    };

    /// What becomes of the first PUT.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum First {
        /// It is lost, and has no answer.
        Lost,
        /// It arrives, and has no answer.
        Unanswered,
        /// It fails while the second one is under way.
        Fails,
    }

    struct Disturbed {
        inner: StoreBucket,
        first: First,
        puts: AtomicU32,
        has_second: Notify,
    }

    #[async_trait]
    impl LogBucket for Disturbed {
        async fn create(&self, key: &ObjectKey, bytes: Bytes) -> PutAnswer {
            match (self.puts.fetch_add(1, Ordering::Relaxed), self.first) {
                (0, First::Lost) => pending().await,
                (0, First::Unanswered) => {
                    self.inner.create(key, bytes).await;
                    pending().await
                }
                (0, First::Fails) => {
                    self.has_second.notified().await;
                    PutAnswer::Unknown
                }
                (1, First::Fails) => {
                    self.has_second.notify_one();
                    // The first one is polled before this one goes on.
                    yield_now().await;
                    self.inner.create(key, bytes).await
                }
                _ => self.inner.create(key, bytes).await,
            }
        }

        async fn read(&self, key: &ObjectKey) -> GetAnswer {
            self.inner.read(key).await
        }

        async fn remove(&self, object: &Removable) -> bool {
            self.inner.remove(object).await
        }
    }

    #[tokio::test]
    async fn a_put_without_a_clear_answer_is_sent_again_once() {
        for first in [First::Lost, First::Unanswered, First::Fails] {
            let inner = StoreBucket::new(Arc::new(InMemory::new()), "prefix".into());
            let (puts, has_second) = (0.into(), Notify::new());
            let bucket = Arc::new(Disturbed { inner, first, puts, has_second });
            let edge = Edge {
                bucket: Arc::clone(&bucket) as _,
                clock: Arc::new(SystemClock),
                entropy: Arc::new(SystemEntropy),
            };
            let (key, own) = (ObjectKey::Slot(Slot::FIRST), Bytes::from_static(b"own"));
            let after = Some(Duration::from_millis(1));
            let created = edge.create_hedged(&key, &own, after).await;
            assert_eq!(created, Created::Own, "{first:?}");
            assert_eq!(bucket.puts.load(Ordering::Relaxed), 2, "{first:?}");
            let other = Bytes::from_static(b"other");
            let created = edge.create_hedged(&key, &other, after).await;
            assert_eq!(created, Created::Other(own), "{first:?}");
        }
    }

    #[test]
    fn a_put_is_slow_after_three_times_the_median() {
        let mut times = PutTimes::default();
        assert_eq!(times.hedge_after(MAX_BYTES), Some(MIN_WAIT));
        assert_eq!(times.hedge_after(MAX_BYTES + 1), None);
        for millis in [60, 5_000, 60] {
            times.note(Duration::from_millis(millis));
        }
        assert_eq!(times.hedge_after(1), Some(MIN_WAIT), "one slow PUT is not the usual one");
        for _ in 0..KEPT_TIMES {
            times.note(Duration::from_millis(200));
        }
        assert_eq!(times.hedge_after(1), Some(Duration::from_millis(600)));
        assert_eq!(times.0.len(), KEPT_TIMES);
    }
}
