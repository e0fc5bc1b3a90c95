//! The parts of a snapshot: several are read at once, and they come in their order.

use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};

use super::{object::Hash, snapshot::Snapshot};

/// Most parts that are under way, or wait for one before them. One more waits for the disk, and one is
/// being written. A part has at most about 16 MiB, so all of them have less than 100 MiB.
const MAX_READS: usize = 4;

/// What `read` yields for each part of a snapshot with `parts` parts, in order.
pub(super) fn in_order<'a, T: Send + 'a>(
    parts: usize,
    read: impl FnMut(usize) -> BoxFuture<'a, T> + Send + 'a,
) -> BoxStream<'a, T> {
    stream::iter(0..parts).map(read).buffered(MAX_READS).boxed()
}

impl Snapshot {
    /// Whether `bytes` are those of a part, as the manifest has it.
    pub(super) fn has(&self, index: usize, bytes: &Bytes) -> bool {
        let part = self.manifest.parts.get(index);
        part.is_some_and(|part| part.hash == Hash::of(bytes).0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn few_parts_are_read_at_once_and_they_come_in_order() {
        const PARTS: usize = 10;
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let read = |index| {
            let (now, most) = (&now, &most);
            let reading = async move {
                most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                // Later ones take less time.
                for _ in index..PARTS {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Relaxed);
                index
            };
            reading.boxed()
        };
        let found: Vec<usize> = in_order(PARTS, read).collect().await;
        assert_eq!(found, (0..PARTS).collect::<Vec<_>>());
        assert_eq!(most.load(Relaxed), MAX_READS);
        assert_eq!(in_order(0, |index| std::future::ready(index).boxed()).next().await, None);
    }
}
