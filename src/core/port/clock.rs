//! The current time, and waiting for an instant.

use std::time::Duration;

use async_trait::async_trait;

use crate::time::Timestamp;

/// The one source of time. Tests move it by hand.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The current instant.
    fn now(&self) -> Timestamp;

    /// Returns at `at` or a little later, at once if it is past. A clock of development that is
    /// frozen returns after the span until `at`, before it shows that instant.
    async fn sleep_until(&self, at: Timestamp);

    /// Returns after `span`, whether the clock is set meanwhile or not. It is for waits that no
    /// instant ends, such as those before a repeated request.
    async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }

    /// The time of the machine, by which requests wait: a client does so too. Only a clock of
    /// development differs from it.
    fn machine_now(&self) -> Timestamp {
        self.now()
    }

    /// When to wake up for the instant `at` of the machine's time.
    fn at_machine_time(&self, at: Timestamp) -> Timestamp {
        at
    }
}
