//! A work queue in the process: messages wait until a test or a server takes them.

use std::collections::BTreeSet;

use async_trait::async_trait;
use parking_lot::Mutex;

use tidegate_core::{
    job::QueueName,
    port::{
        StoreError, WorkQueue,
        work_queue::{Hint, Timer, Work},
    },
    queue::GrantDigest,
    time::Timestamp,
};

/// Messages in lists. They are lost when the process ends; ticks send unclaimed work again.
#[derive(Debug, Default)]
pub struct MemoryWorkQueue(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    work: Vec<Work>,
    hints: Vec<Hint>,
    timers: Vec<Timer>,
}

impl MemoryWorkQueue {
    /// Removes and returns at most `most` pieces of work that are ready at `now`, in the order in
    /// which they were sent. Granted work is always ready.
    pub fn take(&self, most: usize, now: Timestamp) -> Vec<Work> {
        let work = &mut self.0.lock().work;
        let mut taken = Vec::new();
        work.retain(|piece| {
            let take = taken.len() < most && (piece.granted_at.is_some() || piece.run_at <= now);
            if take {
                taken.push(piece.clone());
            }
            !take
        });
        taken
    }

    /// Removes and returns every hint, in the order in which they were sent.
    pub fn take_hints(&self) -> Vec<Hint> {
        std::mem::take(&mut self.0.lock().hints)
    }

    /// Removes and returns every timer whose time has come at `now`.
    pub fn take_timers(&self, now: Timestamp) -> Vec<Timer> {
        let timers = &mut self.0.lock().timers;
        let (come, later) = std::mem::take(timers).into_iter().partition(|timer| timer.at <= now);
        *timers = later;
        come
    }

    /// When the next piece of work or timer is due. Hints can be taken at once.
    pub fn next_at(&self) -> Option<Timestamp> {
        let lists = self.0.lock();
        lists
            .work
            .iter()
            .map(|work| work.run_at)
            .chain(lists.timers.iter().map(|timer| timer.at))
            .min()
    }
}

#[async_trait]
impl WorkQueue for MemoryWorkQueue {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        self.0.lock().work.extend(work.iter().cloned());
        Ok(())
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        self.0.lock().hints.extend(hints.iter().cloned());
        Ok(())
    }

    async fn take_releases(&self, _: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        Ok(BTreeSet::new())
    }

    async fn set_timers(&self, timers: &[Timer]) -> Result<(), StoreError> {
        self.0.lock().timers.extend(timers.iter().cloned());
        Ok(())
    }
}
