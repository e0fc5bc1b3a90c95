//! Which replies a job has processed, so that a second delivery of an event changes nothing.

use serde::{Deserialize, Serialize};

use super::Lifecycle;

/// How many processed replies a job keeps in addition to those in its history.
pub const MAX_PROCESSED_REPLIES: usize = 16;

/// The id of a reply. It follows from the event, so that a second delivery is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReplyId(pub u128);

impl Lifecycle {
    /// Records that `reply` brought the latest entry of the history.
    pub fn record_reply(&mut self, reply: ReplyId) {
        if let Some(entry) = self.history.last_mut() {
            entry.reply = Some(reply);
        }
    }

    /// Records that `reply` came too late. It changes nothing else, so an ended job may record it
    /// too.
    pub fn record_late_reply(&mut self, reply: ReplyId) {
        self.processed_replies.push(reply);
        self.forget_oldest();
    }

    /// Takes over the processed replies of `before`, the previous job with the same correlation
    /// key.
    ///
    /// A second delivery of a reply to that job must not complete this one.
    pub fn inherit_replies(&mut self, before: &Self) {
        let replies = before.history.iter().filter_map(|entry| entry.reply);
        self.processed_replies.extend(before.processed_replies.iter().copied().chain(replies));
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        self.processed_replies
            .drain(..self.processed_replies.len().saturating_sub(MAX_PROCESSED_REPLIES));
    }

    /// Whether this job, or a previous one with its correlation key, has processed `reply`.
    pub fn has_processed(&self, reply: ReplyId) -> bool {
        self.processed_replies.contains(&reply)
            || self.history.iter().any(|entry| entry.reply == Some(reply))
    }
}
