//! Checks of the log that a running server leads.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{CheckLevel, Finding, finding};
use tidegate_backends::bucket_log::Handle;
use tidegate_core::port::{Clock, HealthCheck, job_store::Committed};

/// What the check is about.
const ABOUT: &str = "log";
/// How long the bucket may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The checks of a server on the log in its bucket.
pub struct Leader {
    handle: Handle<Committed>,
    clock: Arc<dyn Clock>,
}

impl Leader {
    /// The log whose node has this handle.
    pub fn new(handle: Handle<Committed>, clock: Arc<dyn Clock>) -> Self {
        Self { handle, clock }
    }
}

#[async_trait]
impl HealthCheck for Leader {
    async fn checks(&self) -> Vec<Finding> {
        let lost = tokio::select! {
            lost = self.handle.lost_object() => lost,
            () = self.clock.sleep(TIMEOUT) => {
                return vec![finding(
                    CheckLevel::Error,
                    ABOUT,
                    "its bucket does not answer".to_owned(),
                    "see the server's log; writes wait until it answers",
                )];
            }
        };
        vec![lost.map_or_else(
            || {
                Finding::ok(
                    ABOUT,
                    "its identity and its claims are in the bucket, whose lifecycle rules are not read: \
                     none may expire objects of the log",
                )
            },
            |name| {
                finding(
                    CheckLevel::Error,
                    ABOUT,
                    format!("the object {name} of the log is gone from the bucket"),
                    "restore it, for example from its older version, and remove the lifecycle rule that \
                     expires objects: without them, no server can start, and no standby can take over",
                )
            },
        )]
    }
}
