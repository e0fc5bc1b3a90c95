//! The current time, and waiting for an instant.

use async_trait::async_trait;

use crate::time::Timestamp;

/// The one source of time. Tests move it by hand.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The current instant.
    fn now(&self) -> Timestamp;

    /// Returns at `at` or a little later, at once if it is past.
    async fn sleep_until(&self, at: Timestamp);
}
