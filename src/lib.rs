//! tidegate: a durable job queue for work that must happen at the right time and at the right rate.
//!
//! This crate is the binary and a façade over the library crates. [`plugin_testing`] runs the test
//! cases of a plugin. `examples/embedded.rs` is a complete program with a handler.
//!
//! # Embed a server
//!
//! A [`Server`] runs on a directory and keeps its jobs in SQLite. This program enqueues a job,
//! leases it as a worker does, reports its result, and reads the result.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{
//!     Server,
//!     backends::http::Guard,
//!     core::job::{Body, Payload, TypeName, type_config::TypeConfig},
//!     engine::request::{LeaseRequest, NewJob, Report, ReportOutcome},
//! };
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let server = Server::open(dir.path(), Guard::On)?.start().await?;
//! let mail: TypeName = "mail".parse()?;
//! server.put_type(&mail, TypeConfig::default(), None).await?;
//!
//! // The job is durable when this returns.
//! let job = NewJob::new(mail.clone(), Payload::json(r#"{"to": "ann"}"#));
//! let id = server.enqueue(job).await?.job.id;
//!
//! let mut request = LeaseRequest { min: 0,
//!     queue: None,
//!     types: vec![mail],
//!     max: 1,
//!     wait: Duration::from_secs(30),
//!     max_pause: Duration::ZERO,
//!     call: None,
//!     worker: Some("worker-1".to_owned()),
//!     lease_seconds: None,
//!     reports: Vec::new(),
//! };
//! let job = server.lease(request.clone()).await?.jobs.remove(0);
//! assert_eq!((&job.id, job.life.attempt), (&id, 1));
//!
//! // A report names the attempt and its token, so a late report of an earlier attempt is refused.
//! let report = Report {
//!     id: job.id.clone(),
//!     job_type: None,
//!     attempt: job.life.attempt,
//!     token: job.life.running().map(|run| run.token),
//!     outcome: ReportOutcome::Succeeded {
//!         result: Some(Body::Inline(Payload::json(r#""sent""#))),
//!     },
//!     checkpoint: None,
//! };
//! // A worker sends its reports with the next lease request. `max: 0` leases nothing.
//! request = LeaseRequest { max: 0, reports: vec![report], ..request };
//! assert!(server.lease(request).await?.reports[0].is_ok());
//!
//! let result = server.result(&id, None, Duration::ZERO).await?.value.expect("a result");
//! assert_eq!(&result.bytes[..], br#""sent""#);
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Wrap a store
//!
//! A store is an implementation of [`JobStore`](core::port::JobStore). A
//! [`StoreLayer`](core::port::StoreLayer) wraps another store and acts around each call. This one
//! counts commits. The server runs on memory alone.
//!
//! ```
//! use std::sync::{
//!     Arc,
//!     atomic::{AtomicU64, Ordering},
//! };
//! use tidegate::{
//!     Server,
//!     backends::{
//!         http::{Guard, HttpTarget},
//!         system::{SystemClock, SystemEntropy},
//!     },
//!     core::{
//!         job::{Payload, TypeName, type_config::TypeConfig},
//!         port::{
//!             JobStore, StoreLayer, job_store::StoreError, policy::NoPolicy,
//!             store_layer::Operation,
//!         },
//!     },
//!     engine::{
//!         Ports,
//!         memory::{MemoryStore, MemoryWorkQueue},
//!         request::NewJob,
//!     },
//! };
//!
//! struct CountedStore<S> {
//!     inner: S,
//!     commits: Arc<AtomicU64>,
//! }
//!
//! impl<S: JobStore> StoreLayer for CountedStore<S> {
//!     fn inner(&self) -> &dyn JobStore {
//!         &self.inner
//!     }
//!
//!     async fn around<T: Send>(
//!         &self,
//!         operation: Operation,
//!         call: impl Future<Output = Result<T, StoreError>> + Send,
//!     ) -> Result<T, StoreError> {
//!         if operation == Operation::Commit {
//!             self.commits.fetch_add(1, Ordering::Relaxed);
//!         }
//!         call.await
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let commits = Arc::new(AtomicU64::new(0));
//! let ports = Ports {
//!     store: Arc::new(CountedStore { inner: MemoryStore::new(), commits: commits.clone() }),
//!     objects: Arc::new(object_store::memory::InMemory::new()),
//!     work: Arc::new(MemoryWorkQueue::default()),
//!     clock: Arc::new(SystemClock),
//!     entropy: Arc::new(SystemEntropy),
//!     policy: Arc::new(NoPolicy),
//! };
//! let target = Arc::new(HttpTarget::new(Guard::On)?);
//! let server = Server::builder(ports, target).start().await?;
//! let mail: TypeName = "mail".parse()?;
//! server.put_type(&mail, TypeConfig::default(), None).await?;
//! let before = commits.load(Ordering::Relaxed);
//! server.enqueue(NewJob::new(mail, Payload::json("null"))).await?;
//! assert!(commits.load(Ordering::Relaxed) > before);
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Implement a policy
//!
//! A [`Policy`](core::port::Policy) runs the plugins of queues and job types. The default one runs
//! them as WebAssembly. A program that contains its rules implements the trait and dispatches by
//! the plugin's name.
//!
//! ```
//! use std::sync::Arc;
//! use async_trait::async_trait;
//! use tidegate::{
//!     Server,
//!     backends::http::Guard,
//!     core::{
//!         port::policy::{
//!             Action, Call, Decision, Fault, Plugin, Policy, Problem, Purpose, RetryAnswer,
//!             RetryOutput,
//!             RetryCall, ThrottleAnswer, ThrottleCall,
//!         },
//!         queue::plugin::Role,
//!     },
//! };
//!
//! struct Rules;
//!
//! #[async_trait]
//! impl Policy for Rules {
//!     /// Admits one job per tick and holds the others. A decision depends on the call alone.
//!     async fn throttle(
//!         &self,
//!         _: &Plugin,
//!         call: Arc<ThrottleCall>,
//!         _: Purpose,
//!     ) -> Result<ThrottleAnswer, Fault> {
//!         let decide = |place| match place {
//!             0 => Decision { action: Action::Run, reason: None },
//!             _ => Decision { action: Action::Hold(None), reason: Some("one per tick".into()) },
//!         };
//!         let decisions = (0..call.candidates.len()).map(decide).collect();
//!         Ok(ThrottleAnswer { decisions, more: false, state: None })
//!     }
//!
//!     async fn retry(
//!         &self,
//!         _: &Plugin,
//!         _: Arc<RetryCall>,
//!         _: Purpose,
//!     ) -> Result<RetryOutput, Fault> {
//!         Ok(RetryAnswer::GiveUp(Some("the rules allow no retry".into())).into())
//!     }
//!
//!     async fn check(&self, _: &Plugin, _: Role, _: &str) -> Result<Vec<Problem>, Fault> {
//!         Ok(Vec::new())
//!     }
//!
//!     fn report_fault(&self, plugin: &Plugin, _: &Call, fault: &Fault) {
//!         eprintln!("plugin {}: {fault}", plugin.name);
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let server = Server::open(dir.path(), Guard::On)?.policy(Arc::new(Rules)).start().await?;
//! server.stop().await;
//! # Ok(())
//! # }
//! ```

mod bench;
pub mod cli;
mod demo;
pub mod plugin_testing;

pub use tidegate_api as api;
pub use tidegate_backends as backends;
pub use tidegate_core as core;
pub use tidegate_engine as engine;
pub use tidegate_server as server;
pub use tidegate_server::Server;
