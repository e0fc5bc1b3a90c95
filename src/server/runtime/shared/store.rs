//! The layer that notices, for the other servers, what this one commits.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use tidegate_core::{
    job::State,
    port::{
        Committed, JobStore, Notice, StoreError, StoreLayer, Txn, Write,
        job_store::{ItemKind, SharedStore, each_write},
    },
};

/// What this server has committed, and the others have no notice of yet.
#[derive(Default)]
pub(in crate::runtime) struct Outgoing {
    notices: Mutex<BTreeSet<Notice>>,
    added: Notify,
}

impl Outgoing {
    /// Adds a notice.
    pub(super) fn add(&self, notice: Notice) {
        self.add_all([notice]);
    }

    fn add_all(&self, notices: impl IntoIterator<Item = Notice>) {
        let mut all = self.notices.lock();
        let before = all.len();
        all.extend(notices);
        let is_more = all.len() > before;
        drop(all);
        if is_more {
            self.added.notify_one();
        }
    }

    /// All notices; waits until there are some.
    pub(super) async fn take(&self) -> BTreeSet<Notice> {
        loop {
            let added = self.added.notified();
            let notices = std::mem::take(&mut *self.notices.lock());
            if !notices.is_empty() {
                return notices;
            }
            added.await;
        }
    }
}

/// A store whose commits become notices.
pub(in crate::runtime) struct NoticingStore {
    inner: SharedStore,
    outgoing: Arc<Outgoing>,
}

impl NoticingStore {
    /// The layer around `inner`.
    pub(in crate::runtime) fn new(inner: SharedStore, outgoing: Arc<Outgoing>) -> Self {
        Self { inner, outgoing }
    }
}

impl StoreLayer for NoticingStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.inner
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let mut notices: Vec<BTreeSet<Notice>> = txns.iter().map(notices_of).collect();
        let committed = self.inner.commit(txns).await;
        // A commit of unknown outcome may have happened.
        if let Ok(committed) = &committed {
            let mut outcomes = committed.iter();
            notices.retain(|_| matches!(outcomes.next(), Some(Committed::All)));
        }
        self.outgoing.add_all(notices.into_iter().flatten());
        committed
    }
}

/// What others may wait for in a transaction.
fn notices_of(txn: &Txn) -> BTreeSet<Notice> {
    let mut notices = BTreeSet::new();
    each_write(txn, &mut |write| notices.extend(notice_of(write)));
    notices
}

/// What others may wait for in a write. They need not know that a job starts.
fn notice_of(write: &Write) -> Option<Notice> {
    match write {
        Write::AddJob(job) | Write::SetJob { job, .. } => match job.life.state {
            State::Running(_) => None,
            _ if job.life.awaits_retry_decision() => Some(Notice::Retries),
            _ => Some(Notice::Queue(job.spec.queue.clone())),
        },
        Write::SetItem { kind, .. } => match kind {
            ItemKind::Operation => Some(Notice::Operations),
            ItemKind::Schedule => Some(Notice::Schedules),
            ItemKind::Token | ItemKind::Closed => Some(Notice::Tokens),
            kind => kind.is_decided_under().then_some(Notice::Configuration),
        },
        _ => None,
    }
}
