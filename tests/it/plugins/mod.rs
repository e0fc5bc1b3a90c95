//! The plugin host with real components: valid ones, and every kind of invalid one.
//!
//! Each invalid plugin ends as a fault or a refusal within its bound, with a message for its
//! author. The host continues.

mod answers;
mod attacks;
mod bounds;
mod candidates;
mod compile;
pub mod guest;
mod host;
mod record;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use guest::Guest;
use object_store::{ObjectStore, memory::InMemory};
use tidegate_backends::wasm::{
    PluginHost, Run,
    compile::{Artifact, CompileError, Compiler},
    diagnostics::PluginDiagnostics,
};
use tidegate_core::{
    job::{
        Attributes, Value,
        lifecycle::{AttemptRecord, Failure, Outcome, Reason, Token},
    },
    port::policy::{
        Ended, Fault, FaultKind, Plugin, Policy as _, Purpose, RetryAnswer, RetryCall, RunningSet,
        ThrottleAnswer, ThrottleCall,
    },
    queue::Grant,
    stored::UnknownFields,
};
use tidegate_engine::{
    memory::FakeClock,
    testkit::builders::{at, job, name},
};

/// The time of every call: 2026-03-01T08:00:00Z.
const NOW: i64 = 1_772_352_000_000;

/// A host with one plugin in it.
struct Plugged {
    host: PluginHost,
    plugin: Plugin,
}

fn new_host(objects: &Arc<InMemory>) -> PluginHost {
    let objects: Arc<dyn ObjectStore> = Arc::clone(objects) as _;
    PluginHost::new(objects, Arc::new(FakeClock::new(at(NOW))), Run::Here).unwrap()
}

/// What compiling says, in this process.
async fn compiled(wasm: Vec<u8>) -> Result<Artifact, CompileError> {
    new_host(&Arc::default()).compile(Bytes::from(wasm), &Compiler::Here).await
}

/// The sentences with which a component is refused.
async fn refused(wasm: Vec<u8>) -> Vec<String> {
    match compiled(wasm).await {
        Err(CompileError::Refused(refused)) => refused.messages,
        other => panic!("{other:?}"),
    }
}

fn plugin(artifact: &Artifact) -> Plugin {
    Plugin { name: name("guest"), version: Arc::new(artifact.version(1, at(NOW))) }
}

impl Plugged {
    async fn new(guest: Guest) -> Self {
        let objects = Arc::default();
        let host = new_host(&objects);
        let artifact = host.compile(guest.component().into(), &Compiler::Here).await.unwrap();
        artifact.put(&*objects).await.unwrap();
        Self { host, plugin: plugin(&artifact) }
    }

    async fn throttle(&self, call: ThrottleCall) -> Result<ThrottleAnswer, Fault> {
        self.host.throttle(&self.plugin, Arc::new(call), Purpose::Live).await
    }

    async fn retry(&self, call: RetryCall) -> Result<RetryAnswer, Fault> {
        let output = self.host.retry(&self.plugin, Arc::new(call), Purpose::Live).await;
        output.map(|output| output.answer)
    }

    fn seen(&self) -> PluginDiagnostics {
        self.host.seen(&self.plugin.name)
    }
}

/// A call with this many candidates and running jobs, of the regions east, north and west in turn.
fn offer(candidates: usize, running: usize) -> ThrottleCall {
    let region = |index: usize| ["east", "north", "west"][index % 3];
    let candidate = |index| {
        job(&format!("j{index}"))
            .attribute("region", region(index))
            .attribute("size", index as i64)
            .build()
    };
    let grant = |index| {
        let job = job(&format!("r{index}")).attribute("region", region(index)).build();
        Grant {
            waits_until: None,
            job: job.id.clone(),
            version: job.life.version,
            job_type: job.spec.job_type.clone(),
            priority: job.spec.priority,
            weight: job.spec.weight,
            critical: false,
            attributes: job.spec.attributes.clone(),
            granted_at: at(NOW),
            unknown: UnknownFields::default(),
        }
    };
    ThrottleCall {
        queue: name("orders"),
        now: at(NOW),
        seed: 7,
        config: "{}".into(),
        concurrency: Some(100),
        room: 10,
        running: RunningSet {
            batches: Vec::new(),
            admitted: Arc::new((0..running).map(grant).collect()),
        },
        candidates: (0..candidates).map(candidate).collect(),
        ended: Arc::default(),
        state: Arc::default(),
        data: [].into(),
        hosts: Arc::default(),
        waiting: Arc::default(),
    }
}

/// An attempt that ended.
fn ended() -> Ended {
    Ended {
        id: name("e"),
        job_type: name("work"),
        priority: 3,
        weight: 4,
        attributes: Attributes::from([("region".into(), Value::Text("east".into()))]),
        retry_target: None,
        attempt: 3,
        started_at: at(NOW - 9000),
        ended_at: at(NOW - 8000),
        succeeded: false,
        reason: Some("timeout".into()),
        message: Some("too slow".into()),
        status: Some(503),
        details: Some(r#"{"code":7}"#.into()),
        not_before: Some(at(NOW + 1000)),
    }
}

/// The call after a job's second failure.
fn failure() -> RetryCall {
    let failure = Failure {
        reason: Reason::Failed,
        message: Some("HTTP 503".into()),
        details: Some("{\"busy\":true}".into()),
        status: Some(503),
        retry_after: None,
        unknown: UnknownFields::default(),
    };
    let entry = |attempt| AttemptRecord {
        attempt,
        started_at: at(NOW - 5000),
        ended_at: at(NOW),
        outcome: Outcome::Failed,
        error: Some(failure.clone()),
        retry_at: None,
        token: Token::new(0),
        reply: None,
        hand_back: None,
        worker: None,
        unknown: UnknownFields::default(),
    };
    let mut job = job("j").queue("orders").build();
    job.life.attempt = 2;
    job.life.history = vec![entry(1), entry(2)];
    RetryCall {
        queue: name("orders"),
        now: at(NOW),
        seed: 7,
        config: "{}".into(),
        job,
        data: None,
        not_before: None,
        host: None,
        state: Arc::default(),
    }
}

/// How long a call may take here, where its bound is 250 ms and other tests want the same
/// processors.
const PATIENCE: Duration = Duration::from_secs(2);

/// The fault of `guest` on a call with three candidates; it took no longer than its bound, and the
/// host goes on.
async fn fault_of(guest: Guest) -> Fault {
    let plugged = Plugged::new(guest).await;
    let fault = plugged.throttle(offer(3, 3)).await.unwrap_err();
    let seen = plugged.seen();
    assert!(seen.live.last.unwrap().took < PATIENCE, "{:?}", seen.live.last);
    assert_eq!(seen.live.failed.back().unwrap().answer, Err(fault.clone()));
    fault
}

fn assert_fault(fault: &Fault, kind: FaultKind, part: &str) {
    assert!(fault.kind == kind && fault.message.contains(part), "{fault:?}");
}
