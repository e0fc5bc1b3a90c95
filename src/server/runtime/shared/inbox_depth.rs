//! How much waits in the inbox: each server measures it for its metrics.
//!
//! This has a task of its own. A read of the inbox may be slow while an old transaction keeps removed rows
//! in its index, and then delays neither the sweep nor the reads of new requests.

use std::{sync::Arc, time::Duration};

use super::upgrade;
use crate::{runtime::WeakServer, telemetry::metrics};

/// How often the inbox is measured.
pub(super) const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// Most requests that are counted.
const MAX_COUNTED: u32 = 10_000;

/// Measures the inbox, at once and at an interval.
pub(super) async fn measure_inbox(server: WeakServer) -> Option<()> {
    // A counter that begins with its first refusal would show no increase.
    metrics::inbox_refused(0);
    loop {
        let (inner, shared) = upgrade(&server)?;
        let clock = Arc::clone(&inner.engine.ports().clock);
        drop(inner);
        match shared.inbox.as_deref()?.depth(MAX_COUNTED).await {
            Ok(depth) => metrics::inbox_depth(depth),
            Err(error) => {
                tracing::warn!(error = %error.chain(), "the requests of the inbox were not counted");
            }
        }
        drop(shared);
        clock.sleep_until(clock.now() + MEASURE_INTERVAL).await;
    }
}
