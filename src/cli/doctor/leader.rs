//! Checks of the log that a running server leads.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{CheckLevel, Finding, finding};
use tidegate_backends::bucket_log::Handle;
use tidegate_core::port::{Clock, HealthCheck, job_store::Committed};

/// What the check of objects is about.
const ABOUT: &str = "log";
/// What the check of rights is about.
const ABOUT_STORE: &str = "bucket of the log";
/// What the finding of another content is about.
const ABOUT_STATES: &str = "states of the log";
/// Why a leader accepts no work: a write would wait, perhaps for longer than its client does.
const SILENT: &str = "the bucket of the log does not answer";
/// How long the bucket may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the probes of the bucket may take, with their repeats.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

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

    /// Checks that objects are there that must never be removed; none if the bucket does not answer.
    async fn check_objects(&self) -> Option<Finding> {
        let lost = tokio::select! {
            lost = self.handle.lost_object() => lost,
            () = self.clock.sleep(TIMEOUT) => return None,
        };
        Some(lost.map_or_else(
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
        ))
    }

    /// The finding that the content of a server has differed; none if that is not known.
    fn check_states(&self) -> Option<Finding> {
        let epoch = self.handle.difference()?;
        Some(finding(
            CheckLevel::Error,
            ABOUT_STATES,
            format!(
                "a server had another content than the snapshot of epoch {epoch}, and a standby replaces \
                 its own by it"
            ),
            "the disk or the memory of a machine is damaged, or a release applies records in another way: \
             find the server by tidegate_log_differences_total, and check its machine; restart it, and \
             then this server, to clear the finding",
        ))
    }

    /// Checks the rights of the server, and that an object is created once.
    async fn check_store(&self) -> Finding {
        let problem = tokio::select! {
            checked = self.handle.check_store() => match checked {
                Ok(()) => {
                    let found = "a probe was created once, read and removed";
                    return Finding::ok(ABOUT_STORE, found);
                }
                Err(unfit) => unfit.to_string(),
            },
            () = self.clock.sleep(PROBE_TIMEOUT) => "it does not answer in time".to_owned(),
        };
        finding(
            CheckLevel::Error,
            ABOUT_STORE,
            problem,
            "the server must be able to write, read and delete objects below the prefix and to list \
             the bucket, and the store must refuse to create an object twice",
        )
    }
}

#[async_trait]
impl HealthCheck for Leader {
    async fn checks(&self) -> Vec<Finding> {
        let Some(objects) = self.check_objects().await else {
            return vec![finding(
                CheckLevel::Error,
                ABOUT,
                "its bucket does not answer".to_owned(),
                "see the server's log; writes wait until it answers",
            )];
        };
        let mut findings = vec![objects, self.check_store().await];
        findings.extend(self.check_states());
        findings
    }

    fn refusal(&self) -> Option<String> {
        (!self.handle.bucket_answers()).then(|| SILENT.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use object_store::memory::InMemory;

    use super::*;
    use tidegate_backends::{
        bucket_log::{
            Edge, LogBucket, Node, NodeSettings, Removable, StoreBucket,
            create::{GetAnswer, PutAnswer},
            key::ObjectKey,
        },
        sqlite::SqliteReplica,
        system::{SystemClock, SystemEntropy},
    };

    /// A bucket that ignores the condition of each PUT, if it is to.
    struct Overwriting {
        inner: StoreBucket,
        overwrites: bool,
    }

    #[async_trait]
    impl LogBucket for Overwriting {
        async fn create(&self, key: &ObjectKey, bytes: Bytes) -> PutAnswer {
            let answer = self.inner.create(key, bytes).await;
            if self.overwrites { PutAnswer::Created } else { answer }
        }

        async fn read(&self, key: &ObjectKey) -> GetAnswer {
            self.inner.read(key).await
        }

        async fn remove(&self, object: &Removable) -> bool {
            self.inner.remove(object).await
        }
    }

    /// What is found of the store.
    async fn found(overwrites: bool) -> Finding {
        let inner = StoreBucket::new(Arc::new(InMemory::new()), "prefix".into());
        let edge = Edge {
            bucket: Arc::new(Overwriting { inner, overwrites }),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        };
        let dir = tempfile::TempDir::new().unwrap();
        let replica = Arc::new(SqliteReplica::open(dir.path()).unwrap());
        let (_node, handle) = Node::open(edge, replica, NodeSettings::default()).await.unwrap();
        let mut findings = Leader::new(handle, Arc::new(SystemClock)).checks().await;
        assert_eq!(findings.len(), 2, "{findings:?}");
        findings.remove(1)
    }

    #[tokio::test]
    async fn a_store_that_no_longer_creates_once_is_found() {
        assert_eq!(found(false).await.level, CheckLevel::Ok);
        let unfit = found(true).await;
        assert_eq!(unfit.level, CheckLevel::Error);
        assert!(unfit.found.contains("ignores the condition"), "{}", unfit.found);
    }
}
