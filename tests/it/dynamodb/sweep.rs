//! The maintenance sweep when AWS refuses a part of it: the call fails, `doctor` reports it, and
//! malformed messages are counted.

use std::{sync::Arc, time::Duration};

use metrics_exporter_prometheus::PrometheusBuilder;
use object_store::memory::InMemory;
use serde_json::json;
use tidegate_backends::{
    dynamodb::{DynamoStore, sdk::SdkTable},
    http::{Guard, HttpTarget},
    sqs::{SqsQueues, SqsWorkQueue},
};
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    port::{
        Clock, JobStore, Write,
        health_check::{Check, CheckLevel},
        job_store::ItemKind,
        policy::NoPolicy,
    },
    queue::QueueConfig,
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    Ports,
    memory::{FakeClock, SeededEntropy},
    request::NewJob,
    testkit::builders::name,
};
use tidegate_server::{
    Server,
    lambda::{self, Maintenance, SqsEvent, SweepFailed, testkit::messages},
};

use super::{emulator::EmulatedTable, fake_aws::FakeAws};

const DENIED: (&str, &str) =
    ("AccessDeniedException", "the role is not authorized to perform this");

/// How late a job may be before a sweep fails.
const MAX_LATENESS: Duration = Duration::from_mins(10);

/// The functions of a deployment, as one.
struct Home {
    aws: Arc<FakeAws>,
    clock: Arc<FakeClock>,
    store: Arc<DynamoStore>,
    server: Server,
    _emulator: EmulatedTable,
}

impl Home {
    /// With a queue `free`, which has no limit, a queue `one`, whose limit is 1, and a type of the
    /// same name for each.
    async fn new() -> Self {
        let emulator = EmulatedTable::new();
        let aws = FakeAws::start(emulator.url()).await;
        let (clock, entropy) = (Arc::new(FakeClock::default()), Arc::new(SeededEntropy::new(1)));
        let table = SdkTable::new(aws_sdk_dynamodb::Client::new(&aws.config()), "tidegate");
        let queues = SqsQueues {
            work: aws.queue("work"),
            hints: aws.queue("hint.fifo"),
            timers: aws.queue("timer"),
        };
        let work = SqsWorkQueue::new(
            aws_sdk_sqs::Client::new(&aws.config()),
            queues,
            clock.clone(),
            entropy.clone(),
        );
        let store = Arc::new(DynamoStore::new(Arc::new(table), clock.clone(), entropy.clone()));
        let ports = Ports {
            store: store.clone(),
            objects: Arc::new(InMemory::new()),
            work: Arc::new(work),
            clock: clock.clone(),
            entropy,
            policy: Arc::new(NoPolicy),
        };
        let target = HttpTarget::new(Guard::On).unwrap();
        let server = Server::builder(ports, Arc::new(target)).serverless().start().await.unwrap();
        let limits = QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
        for (queue, limits) in [("free", QueueConfig::default()), ("one", limits)] {
            server.put_queue(&name(queue), limits, None).await.unwrap();
            let target =
                Some(TargetConfig::Push(Box::new(Push::to("https://worker.example/work"))));
            server
                .put_type(
                    &name(queue),
                    TypeConfig { queue: name(queue), target, ..TypeConfig::default() },
                    None,
                )
                .await
                .unwrap();
        }
        let home = Self { aws, clock, store, server, _emulator: emulator };
        assert_eq!(home.sweep().await, Ok(()));
        home
    }

    async fn enqueue(&self, job_type: &str, delay: u64) {
        let mut job = NewJob::new(name(job_type), Payload::null());
        job.run_at = Some(self.clock.now() + Duration::from_secs(delay));
        self.server.enqueue(job).await.unwrap();
    }

    fn deny(&self, action: &'static str) {
        self.aws.fail(action, 400, DENIED.0, DENIED.1);
    }

    fn allow(&self) {
        self.aws.fails.lock().clear();
    }

    async fn sweep(&self) -> Result<(), SweepFailed> {
        let until = self.clock.now() + Duration::from_mins(1);
        let maintenance = Maintenance::default().with_max_lateness(MAX_LATENESS);
        maintenance.run(&self.server, &SqsEvent::default(), until).await
    }

    /// What `doctor` reports of the maintenance sweep to a function with every permission.
    async fn said(&self) -> Check {
        self.server
            .doctor()
            .await
            .into_iter()
            .find(|check| check.about == "maintenance sweep")
            .unwrap()
    }
}

#[tokio::test]
async fn a_sweep_with_a_refused_request_fails() {
    let home = Home::new().await;
    // Without a job to admit, nothing is written. A new limit admits no job at first.
    home.enqueue("one", 0).await;
    home.clock.advance(Duration::from_mins(1));
    for action in ["BatchExecuteStatement", "BatchGetItem", "Query"] {
        home.deny(action);
        home.aws.asked.lock().clear();
        assert!(home.sweep().await.is_err(), "{action}: {:?}", home.aws.asked.lock());
        home.allow();
        home.clock.advance(Duration::from_mins(1));
        assert_eq!(home.sweep().await, Ok(()), "{action}");
    }
    home.enqueue("one", 0).await;
    home.deny("SendMessageBatch");
    assert!(home.sweep().await.is_err());
    home.allow();
    assert_eq!(home.sweep().await, Ok(()));
}

#[tokio::test]
async fn a_sweep_fails_while_a_job_is_too_late() {
    let home = Home::new().await;
    home.enqueue("free", 0).await;
    home.clock.advance(MAX_LATENESS);
    assert_eq!(home.sweep().await, Ok(()));
    home.clock.advance(Duration::from_mins(1));
    let failed = home.sweep().await.unwrap_err();
    assert_eq!(failed, SweepFailed::Sweep { failed: 0, late_seconds: 660 });
    assert!(failed.to_string().contains("the oldest due job is 660 s late"), "{failed}");
}

#[tokio::test]
async fn doctor_reports_a_failed_sweep_until_one_succeeds() {
    let home = Home::new().await;
    let check = home.said().await;
    assert!(check.level == CheckLevel::Ok && check.found.contains("began 0 s ago"), "{check:?}");

    // Jobs due soon are dispatched; the queue's tick is not.
    home.clock.advance(Duration::from_mins(1));
    home.enqueue("one", 0).await;
    home.server.flush().await.unwrap();
    home.deny("SendMessageBatch");
    assert!(home.sweep().await.is_err());
    home.allow();
    let check = home.said().await;
    assert!(
        check.level == CheckLevel::Error && check.found.contains("of the latest one failed"),
        "{check:?}"
    );
    home.clock.advance(Duration::from_mins(1));
    assert_eq!(home.sweep().await, Ok(()));
    assert_eq!(home.said().await.level, CheckLevel::Ok);

    // A job is due soon and cannot be dispatched: a sweep that starts again and again is not
    // enough.
    home.enqueue("free", 200).await;
    home.server.flush().await.unwrap();
    home.deny("SendMessageBatch");
    for _ in 0..3 {
        home.clock.advance(Duration::from_mins(1));
        assert!(home.sweep().await.is_err());
    }
    home.allow();
    let check = home.said().await;
    assert!(
        check.level == CheckLevel::Error && check.found.contains("began 180 s ago"),
        "{check:?}"
    );
}

#[tokio::test]
async fn doctor_reports_a_sweep_of_another_release() {
    let home = Home::new().await;
    let items = home.store.items(ItemKind::Horizon).await.unwrap();
    let item = items.into_iter().find(|item| item.name == "free").unwrap();
    let mut noted: serde_json::Value = item.read().unwrap();
    noted["last"]["release"] = json!("0.0.1");
    let (kind, was, bytes) =
        (ItemKind::Horizon, item.version, Some(noted.to_string().into_bytes()));
    let write = Write::SetItem { kind, name: item.name, was, version: was + 1, bytes };
    home.store.commit(vec![vec![write]]).await.unwrap();
    let check = home.said().await;
    assert!(
        check.level == CheckLevel::Warning && check.found.contains("`sweep` runs tidegate 0.0.1"),
        "{check:?}"
    );
}

#[tokio::test]
async fn malformed_messages_are_dropped_and_counted() {
    let home = Home::new().await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = recorder.handle();
    let _counting = metrics::set_default_local_recorder(&recorder);
    let bodies = ["not a message", r#"{"hint": {"queue": "one", "due": true}}"#];
    let event: SqsEvent = serde_json::from_value(messages(bodies)).unwrap();
    let failures =
        lambda::handle_dead_letter(&home.server, &event, home.clock.now() + Duration::from_mins(1))
            .await;
    assert_eq!(json!(failures), json!({"batchItemFailures": []}));
    assert!(
        counted.render().contains("tidegate_messages_malformed_total 1"),
        "{}",
        counted.render()
    );
}
