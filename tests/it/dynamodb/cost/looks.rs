//! What an open dashboard reads.

use std::{sync::Arc, time::Duration};

use tidegate_backends::{
    cost::price::LIST,
    dynamodb::{memory::MemoryTable, table::Table},
    http::{Guard, HttpTarget},
    testkit::meter::table::Metered,
};
use tidegate_core::{
    job::{Payload, QueueName, type_config::TypeConfig},
    port::{Clock, job_store::ListQuery},
    queue::QueueConfig,
    target::{Push, TargetConfig},
};
use tidegate_engine::{memory::FakeClock, request::NewJob, testkit::builders::name};
use tidegate_server::Server;

use super::{TYPE, ports};

/// Looks at the queues of a dashboard in a day, and at another view.
const LOOKS: (f64, f64) = (24.0 * 60.0, 24.0 * 120.0);

/// A serverless server, as each function has one.
struct Home {
    table: Arc<Metered<MemoryTable>>,
    clock: Arc<FakeClock>,
    server: Server,
}

impl Home {
    async fn new() -> Self {
        let (table, clock) = (Metered::new(MemoryTable::new()), Arc::new(FakeClock::default()));
        let ports = ports(Arc::clone(&table) as Arc<dyn Table>, &clock);
        let target = Arc::new(HttpTarget::new(Guard::On).unwrap());
        let server = Server::builder(ports, target).serverless().start().await.unwrap();
        let target = Some(TargetConfig::Push(Box::new(Push::to("https://worker.example/work"))));
        let config = TypeConfig { target, ..TypeConfig::default() };
        server.put_type(&name(TYPE), config, None).await.unwrap();
        Self { table, clock, server }
    }

    async fn enqueue(&self, jobs: usize) {
        for _ in 0..jobs.div_ceil(500) {
            let jobs = (0..jobs.min(500)).map(|n| {
                let mut job = NewJob::new(name(TYPE), Payload::json(format!("\"{n:0500}\"")));
                job.run_at = Some(self.clock.now() + Duration::from_millis(n as u64));
                job
            });
            assert!(self.server.enqueue_many(jobs.collect()).await.iter().all(Result::is_ok));
        }
    }

    async fn sweep(&self) {
        self.clock.advance(Duration::from_mins(1));
        let until = self.clock.now() + Duration::from_mins(1);
        assert_eq!(self.server.maintenance_sweep(until).await.failed, 0);
    }

    /// The units of a look at the queues, and of one at the latest jobs.
    async fn looks(&self) -> (f64, f64) {
        let before = self.table.bill();
        let queue: QueueName = name("default");
        let status = self.server.queue_statuses([&queue].into_iter()).await.unwrap();
        let status = status.into_iter().next().flatten().unwrap();
        assert!(status.counted_at.is_some());
        let queues = (self.table.bill() - before).reads;
        let before = self.table.bill();
        let query = ListQuery { limit: 50, ..ListQuery::default() };
        self.server.list(&query).await.unwrap();
        (queues, (self.table.bill() - before).reads)
    }

    /// The units of a look at the overview.
    async fn overview(&self) -> f64 {
        let before = self.table.bill();
        let queues = self.server.queues().await.unwrap();
        self.server.overview(queues).await.unwrap();
        (self.table.bill() - before).reads
    }
}

#[tokio::test]
async fn an_open_dashboard_costs_cents_a_day() {
    let home = Home::new().await;
    let cents =
        |(queues, jobs): (f64, f64)| (queues * LOOKS.0 + jobs * LOOKS.1) * LIST.read / 1e6 * 100.0;
    let queue: QueueName = name("default");
    for (jobs, most) in [(0, 1.0), (100, 3.0), (5000, 10.0)] {
        home.enqueue(jobs).await;
        home.sweep().await;
        let looks = home.looks().await;
        println!("{jobs} wait: {looks:?} units, {:.2} cents a day", cents(looks));
        assert!(cents(looks) <= most, "{jobs} wait: {looks:?}, {} cents a day", cents(looks));
        let overview = (home.overview().await, 0.0);
        assert!(cents(overview) <= most, "{jobs} wait: {overview:?} for an overview");
    }
    let status = home.server.queue_status(&queue).await.unwrap();
    assert_eq!((status.depth["scheduled"], status.depth_at_least), (2000, true));
    assert_eq!(status.counted_at, Some(home.clock.now()));
    home.clock.advance(Duration::from_secs(30));
    let status = home.server.queue_status(&queue).await.unwrap();
    assert_eq!(status.counted_at, Some(home.clock.now() - Duration::from_secs(30)));
}

#[tokio::test]
async fn a_look_at_idle_queues_reads_next_to_nothing() {
    let home = Home::new().await;
    let queues: Vec<QueueName> = (0..300).map(|n| name(&format!("queue-{n}"))).collect();
    for queue in &queues {
        let config = QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
        home.server.put_queue(queue, config, None).await.unwrap();
    }
    home.enqueue(10).await;
    home.sweep().await;
    home.server.queue_statuses(queues.iter()).await.unwrap();
    let before = home.table.bill();
    let statuses = home.server.queue_statuses(queues.iter()).await.unwrap();
    assert!(statuses.iter().flatten().all(|status| status.counted_at == Some(home.clock.now())));
    let reads = (home.table.bill() - before).reads;
    assert!(statuses.len() == 300 && reads <= 10.0, "{reads} units for 300 idle queues");
    home.overview().await;
    let reads = home.overview().await;
    assert!(reads <= 10.0, "{reads} units for an overview of 300 idle queues");
}
