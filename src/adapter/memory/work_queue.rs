//! A work queue in the process: what is sent waits until somebody takes it.

use std::collections::VecDeque;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::port::{StoreError, Work, WorkQueue};

/// Work in a list. It is gone with its process; the ticks send again what nobody claims.
#[derive(Debug, Default)]
pub struct MemoryWorkQueue(Mutex<VecDeque<Work>>);

impl MemoryWorkQueue {
    /// At most `most` pieces of work, in the order they were sent; they are here no more.
    pub fn take(&self, most: usize) -> Vec<Work> {
        let mut work = self.0.lock();
        let count = most.min(work.len());
        work.drain(..count).collect()
    }
}

#[async_trait]
impl WorkQueue for MemoryWorkQueue {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        self.0.lock().extend(work.iter().cloned());
        Ok(())
    }
}
