//! The cost of jobs on a table, metered by the size of real bytes.

mod attempts;
mod jobs;
mod looks;
mod sweep;
mod ticks;

use std::{sync::Arc, time::Duration};

use object_store::memory::InMemory;
use tidegate_backends::{
    cost::Units,
    dynamodb::{DynamoStore, table::Table},
    testkit::meter::{Bill, Metered},
};
use tidegate_core::{
    job::{
        Job, Payload, QueueName, TypeName,
        lifecycle::{Failure, Reason},
        type_config::TypeConfig,
    },
    port::{Clock, policy::NoPolicy},
    queue::QueueConfig,
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    Demand, Dispatch, Engine, Ports, Rules, TickCache, TickInput, TickOutcome,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    request::{NewJob, Report, ReportOutcome},
    testkit::builders::name,
};

/// An engine on a metered table.
struct Shop<T> {
    engine: Engine,
    table: Arc<Metered<T>>,
    clock: Arc<FakeClock>,
    cache: TickCache,
}

const TYPE: &str = "invoice";

/// Everything in memory, and a store on `table`.
fn ports(table: Arc<dyn Table>, clock: &Arc<FakeClock>) -> Ports {
    let (clock, entropy) = (Arc::clone(clock) as Arc<dyn Clock>, Arc::new(SeededEntropy::new(3)));
    Ports {
        store: Arc::new(DynamoStore::new(table, Arc::clone(&clock), Arc::clone(&entropy) as _)),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock,
        entropy,
        policy: Arc::new(NoPolicy),
    }
}

impl<T: Table + 'static> Shop<T> {
    async fn new(table: T, config: QueueConfig) -> Self {
        let (table, clock) = (Metered::new(table), Arc::new(FakeClock::default()));
        let engine =
            Engine::new(ports(Arc::clone(&table) as Arc<dyn Table>, &clock), Rules::default());
        engine.put_queue(&queue(), config, None).await.unwrap();
        let target = Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/"))));
        engine
            .put_type(
                &name(TYPE),
                TypeConfig { queue: queue(), target, ..TypeConfig::default() },
                None,
            )
            .await
            .unwrap();
        Self { engine, table, clock, cache: TickCache::default() }
    }

    /// Jobs of some 300 bytes, enqueued one by one or all at once.
    async fn enqueue(&self, jobs: usize, delay: u64, at_once: bool) -> Vec<Job> {
        let job = || {
            let mut job = NewJob::new(
                name(TYPE),
                Payload::json(format!("{{\"text\":\"{}\"}}", "x".repeat(300))),
            );
            job.delay_seconds = (delay > 0).then(|| tidegate_core::time::Seconds::new(delay));
            job.options
                .attributes
                .insert("region".into(), tidegate_core::job::Value::Text("east".into()));
            job
        };
        let each = if at_once { jobs } else { 1 };
        let mut accepted = Vec::new();
        for _ in 0..jobs / each {
            let answers = self.engine.enqueue((0..each).map(|_| job()).collect()).await;
            accepted.extend(answers.into_iter().map(|answer| answer.unwrap().job));
        }
        accepted
    }

    async fn tick(
        &mut self,
        capacity: u32,
        dispatch: Dispatch,
        reports: Vec<Report>,
    ) -> TickOutcome {
        let types: Vec<TypeName> = vec![name(TYPE)];
        let demands = if capacity > 0 {
            vec![Demand {
                min: 0,
                types,
                capacity,
                worker: None,
                lease: None,
                dispatch,
                call: None,
            }]
        } else {
            Vec::new()
        };
        self.engine
            .tick(&queue(), &mut self.cache, TickInput { reports, demands, ..TickInput::default() })
            .await
            .unwrap()
    }

    fn bill(&self) -> Bill {
        self.table.bill()
    }
}

fn queue() -> QueueName {
    name("mail")
}

fn report(job: &Job, succeeded: bool) -> Report {
    let outcome = if succeeded {
        ReportOutcome::Succeeded { result: None }
    } else {
        ReportOutcome::Failed { failure: Failure::new(Reason::Failed, "no"), retryable: true }
    };
    let token = job.life.running().map(|run| run.token);
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token,
        outcome,
        checkpoint: None,
    }
}

fn numbers(units: Units) -> String {
    units.named().map(|(name, number)| format!("{name} {number:.3}")).join("  ")
}

/// Waits until a new ledger has settled.
async fn settle<T: Table + 'static>(shop: &mut Shop<T>) {
    shop.tick(1, Dispatch::Queue, Vec::new()).await;
    shop.clock.advance(Duration::from_secs(11));
    shop.tick(1, Dispatch::Queue, Vec::new()).await;
}
