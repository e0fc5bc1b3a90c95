//! Whether a store answers requests of one kind, as far as those that a node sends show.
//!
//! A request that fails counts, and those that were under way with it do not: a store that refuses several
//! at once has refused once. One that is given up shows nothing, because its answer may have been on its way.
//! It leaves a doubt, and a leader ends that by a read that it does not give up.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

/// A store does not answer if this many requests of one kind, each begun after the one before had failed, had
/// no clear answer. A busy one may refuse a few.
const MAX_UNANSWERED: u32 = 3;

/// The answers to the requests of one kind.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// How many requests have failed since one had a clear answer, of those that were not under way together.
    failures: AtomicU32,
    /// Whether one was given up since then.
    is_in_doubt: AtomicBool,
    given_up: Notify,
}

impl Answers {
    /// Begins a request.
    pub(super) fn begin(&self) -> Pending<'_> {
        Pending { answers: self, failures: self.failures.load(Ordering::Relaxed), has_ended: false }
    }

    /// Notes that the store has answered.
    pub(super) fn note_answer(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.is_in_doubt.store(false, Ordering::Relaxed);
    }

    /// Whether the last requests have had an answer.
    pub(super) fn are_there(&self) -> bool {
        self.failures.load(Ordering::Relaxed) < MAX_UNANSWERED
    }

    /// Ends once a request was given up without an answer, and none has had one since.
    pub(super) async fn doubted(&self) {
        loop {
            self.given_up.notified().await;
            if self.is_in_doubt.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// A request that has no answer yet. Dropping it gives it up.
pub(super) struct Pending<'a> {
    answers: &'a Answers,
    /// How many had failed when it began.
    failures: u32,
    has_ended: bool,
}

impl Pending<'_> {
    /// Ends the request, with a clear answer or without one.
    pub(super) fn end(mut self, is_answered: bool) {
        self.has_ended = true;
        if is_answered {
            self.answers.note_answer();
        } else {
            // If it is another number by now, a request has failed or was answered since this one began.
            let more = self.failures.saturating_add(1);
            let _ = self.answers.failures.compare_exchange(
                self.failures,
                more,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.answers.is_in_doubt.store(true, Ordering::Relaxed);
            self.answers.given_up.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn requests_that_fail_together_count_once() {
        let answers = Answers::default();
        for are_there in [true, true, false] {
            let together: Vec<_> = (0..8).map(|_| answers.begin()).collect();
            for request in together {
                request.end(false);
            }
            assert_eq!(answers.are_there(), are_there);
        }
        answers.begin().end(true);
        assert!(answers.are_there());
    }

    #[test]
    fn a_request_that_is_given_up_leaves_a_doubt_until_an_answer() {
        let answers = Answers::default();
        let is_doubted = || answers.doubted().now_or_never().is_some();
        assert!(!is_doubted());
        drop(answers.begin());
        assert!(answers.are_there() && is_doubted());
        drop(answers.begin());
        answers.begin().end(true);
        assert!(!is_doubted(), "another one was answered");
        answers.begin().end(false);
        assert!(!is_doubted(), "it has failed");
    }
}
