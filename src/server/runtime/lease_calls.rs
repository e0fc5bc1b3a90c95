//! The repeatable lease calls that this process serves now. A repeat supersedes the call before it:
//! no worker reads the answer of that one.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::watch;

use tidegate_engine::RepeatableCall;

/// The latest call of each group of repeats.
#[derive(Default)]
pub(super) struct LeaseCalls(Mutex<HashMap<String, watch::Sender<()>>>);

impl LeaseCalls {
    /// Begins `call`. The call that it repeats, if that is served still, is no longer the latest.
    pub(super) fn begin(&self, call: &RepeatableCall) -> Turn<'_> {
        let group = call.group().to_owned();
        let sender = watch::Sender::new(());
        let latest = sender.subscribe();
        let is_repeat = self.0.lock().insert(group.clone(), sender).is_some();
        Turn { calls: self, group, latest, is_repeat }
    }
}

/// One call, until it is answered.
pub(super) struct Turn<'a> {
    calls: &'a LeaseCalls,
    group: String,
    latest: watch::Receiver<()>,
    is_repeat: bool,
}

impl Turn<'_> {
    /// A receiver whose sender is gone once the call is repeated.
    pub(super) fn latest(&self) -> watch::Receiver<()> {
        self.latest.clone()
    }

    /// Whether it was repeated.
    pub(super) fn is_superseded(&self) -> bool {
        self.latest.has_changed().is_err()
    }

    /// Whether it repeats a call that was served when it began.
    pub(super) fn is_repeat(&self) -> bool {
        self.is_repeat
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock();
        // The entry of a later call stays.
        if self.latest.has_changed().is_ok() {
            calls.remove(&self.group);
        }
    }
}
