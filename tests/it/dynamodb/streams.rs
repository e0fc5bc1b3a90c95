//! Pages of due jobs read as little as they need, and the queues with open buckets are known.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_backends::{
    dynamodb::{
        DynamoStore,
        memory::MemoryTable,
        table::{Change, Item, Table},
    },
    testkit::meter::table::Metered,
};
use tidegate_core::{
    job::{Event, Job, JobId, QueueName, Token, lifecycle::RetryDecision},
    port::{
        Clock, JobStore,
        job_store::{Committed, DueQuery, Write},
    },
    queue::order::Order,
    time::Timestamp,
};
use tidegate_engine::{
    memory::{FakeClock, SeededEntropy},
    testkit::builders::{JobBuilder, job, name},
};

pub(super) const ORDERS: [Order; 5] = [
    Order::Time { step_millis: 0 },
    Order::Time { step_millis: 7_000 },
    Order::Time { step_millis: 60_000 },
    Order::Priority { ageing_millis: None },
    Order::Priority { ageing_millis: Some(10_000) },
];

/// A store on a metered table, with a clock that a test moves.
pub(super) struct Shop {
    pub table: Arc<Metered<MemoryTable>>,
    pub clock: Arc<FakeClock>,
    pub store: DynamoStore,
}

impl Shop {
    pub fn new() -> Self {
        let (table, clock) = (Metered::new(MemoryTable::new()), Arc::new(FakeClock::default()));
        let store = Self::store(&table, &clock);
        Self { table, clock, store }
    }

    /// A store of another process.
    pub fn store(table: &Arc<Metered<MemoryTable>>, clock: &Arc<FakeClock>) -> DynamoStore {
        let entropy = Arc::new(SeededEntropy::new(5));
        DynamoStore::new(Arc::clone(table) as _, Arc::clone(clock) as _, entropy)
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub async fn add(&self, jobs: Vec<Job>) -> Vec<Job> {
        for answer in self
            .store
            .commit(jobs.iter().cloned().map(|job| vec![Write::AddJob(job)]).collect())
            .await
            .unwrap()
        {
            assert!(matches!(answer, Committed::All), "{answer:?}");
        }
        jobs
    }

    pub async fn apply(&self, job: &Job, event: Event) -> Job {
        let next = job.apply(event, self.now()).unwrap();
        let write = Write::SetJob { job: next.clone(), was: job.life.revision, all: false };
        let answer = self.store.commit(vec![vec![write]]).await.unwrap();
        assert!(matches!(answer[..], [Committed::All]), "{answer:?}");
        next
    }

    pub async fn claim(&self, job: &Job) -> Job {
        let event = Event::Claim {
            version: job.life.version,
            token: Token::new(1),
            worker: None,
            lease: Duration::from_secs(30),
            granted: true,
            decided_at: self.now(),
        };
        self.apply(job, event).await
    }

    pub fn query(&self, order: Order, limit: u32) -> DueQuery {
        DueQuery {
            queue: name("mail"),
            critical: false,
            types: vec![name("letter")],
            partition: None,
            order,
            until: self.now(),
            after: None,
            limit,
            granted: None,
        }
    }

    /// The ids of the due jobs, and the units that reading them took.
    pub async fn due(&self, query: &DueQuery) -> (Vec<JobId>, f64) {
        let before = self.table.bill();
        let page = self.store.due(std::slice::from_ref(query)).await.unwrap().remove(0);
        let reads = (self.table.bill() - before).reads;
        (page.jobs.into_iter().map(|job| job.id).collect(), reads)
    }

    pub async fn active(&self) -> BTreeSet<QueueName> {
        self.store.active_queues(self.now() + Duration::from_secs(150)).await.unwrap()
    }

    /// Deletes the items for which `is_lost` holds, as if they had never been written.
    async fn lose(&self, is_lost: impl Fn(&Item) -> bool) {
        let items = self.table.table().items().into_iter().filter(is_lost);
        let lost: Vec<Change> =
            items.map(|item| Change::Delete { key: item.key, when: None }).collect();
        assert!(!lost.is_empty());
        self.table.write(&lost).await.unwrap();
    }
}

/// A due job with an id that contains its location.
pub(super) fn letter(shop: &Shop, number: usize, priority: i32, after: Duration) -> Job {
    letter_with(shop, number, after, |letter| letter.priority(priority))
}

/// The same, with other options.
pub(super) fn letter_with(
    shop: &Shop,
    number: usize,
    after: Duration,
    options: impl FnOnce(JobBuilder) -> JobBuilder,
) -> Job {
    let due = shop.now() + after;
    let built = job(&format!("{number:026}")).queue("mail").of_type("letter").due(due.millis());
    let mut job = options(built).build();
    job.id = shop.store.assign_id(job.id.clone(), &job.spec, due);
    job
}

#[tokio::test]
async fn a_page_of_a_long_backlog_reads_a_few_units() {
    let shop = Shop::new();
    let priorities = [0, 5, 100, 255, -128];
    let letters = |from: usize| {
        (from..from + 500).map(|number| {
            let after = Duration::from_millis((number * 37 % 60_000) as u64);
            letter(&shop, number, priorities[number % priorities.len()], after)
        })
    };
    let mut jobs = Vec::new();
    for from in (0..5000).step_by(500) {
        jobs.extend(shop.add(letters(from).collect()).await);
    }
    shop.clock.advance(Duration::from_mins(3));
    for order in ORDERS {
        let key = |job: &Job| order.key(job.spec.priority, job.life.run_at().unwrap(), &job.id);
        jobs.sort_by_key(key);
        let mut query = shop.query(order, 10);
        for page in jobs.chunks(10).take(3) {
            let (found, reads) = shop.due(&query).await;
            let expected: Vec<JobId> = page.iter().map(|job| job.id.clone()).collect();
            assert_eq!(found, expected, "{order:?}");
            assert!(reads <= 40.0, "{order:?} reads {reads} units");
            query.after = page.last().map(tidegate_core::queue::order::Position::of);
        }
    }
}

#[tokio::test]
async fn priorities_without_a_partition_keep_their_order() {
    let shop = Shop::new();
    let priorities = [i32::MIN, -129, 100, 256, i32::MAX];
    let letters = (0..200).map(|number| {
        let after = Duration::from_millis((number * 7919 % 30_000) as u64);
        letter(&shop, number, priorities[number % priorities.len()], after)
    });
    let mut jobs = shop.add(letters.collect()).await;
    shop.clock.advance(Duration::from_mins(3));
    for order in ORDERS {
        let key = |job: &Job| order.key(job.spec.priority, job.life.run_at().unwrap(), &job.id);
        jobs.sort_by_key(key);
        let expected: Vec<JobId> = jobs.iter().take(20).map(|job| job.id.clone()).collect();
        assert_eq!(shop.due(&shop.query(order, 20)).await.0, expected, "{order:?}");
    }
}

#[tokio::test]
async fn what_leads_to_no_candidate_is_read_once() {
    let shop = Shop::new();
    let jobs = shop.add((0..400).map(|n| letter(&shop, n, 100, Duration::ZERO)).collect()).await;
    shop.clock.advance(Duration::from_secs(20));
    for job in &jobs[..300] {
        shop.claim(job).await;
    }
    let query = shop.query(ORDERS[2], 5);
    let (first, cold) = shop.due(&query).await;
    assert_eq!(first, jobs[300..305].iter().map(|job| job.id.clone()).collect::<Vec<_>>());
    let (again, warm) = shop.due(&query).await;
    assert_eq!(again, first);
    assert!(warm <= 6.0 && warm * 4.0 < cold, "{warm} units after {cold}");
}

#[tokio::test]
async fn a_retry_of_a_passed_job_is_found() {
    let shop = Shop::new();
    let jobs = shop.add((0..3).map(|n| letter(&shop, n, 100, Duration::ZERO)).collect()).await;
    shop.clock.advance(Duration::from_secs(20));
    let running = shop.claim(&jobs[0]).await;
    let ids = |jobs: &[Job]| jobs.iter().map(|job| job.id.clone()).collect::<BTreeSet<_>>();
    let found = shop.due(&shop.query(ORDERS[0], 10)).await.0;
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), ids(&jobs[1..]));
    // Its lease ends, and it waits again: it has another entry.
    shop.clock.advance(Duration::from_secs(31));
    let lapsed = Event::LeaseExpired {
        next: RetryDecision::Wait(Duration::from_secs(1)),
        at_most_once: false,
    };
    shop.apply(&running, lapsed).await;
    shop.clock.advance(Duration::from_secs(20));
    let found = shop.due(&shop.query(ORDERS[0], 10)).await.0;
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), ids(&jobs));
}

#[tokio::test]
async fn a_queue_is_active_until_its_jobs_have_ended() {
    let shop = Shop::new();
    assert_eq!(shop.active().await, BTreeSet::new());
    let jobs = shop.add(vec![letter(&shop, 1, 100, Duration::from_mins(90))]).await;
    assert_eq!(shop.active().await, BTreeSet::new(), "it is due later");
    shop.clock.advance(Duration::from_mins(91));
    assert_eq!(shop.active().await, [name("mail")].into());
    let running = shop.claim(&jobs[0]).await;
    shop.clock.advance(Duration::from_hours(3));
    shop.due(&shop.query(ORDERS[0], 10)).await;
    assert_eq!(shop.active().await, [name("mail")].into(), "it runs");
    let lapsed = Event::LeaseExpired {
        next: RetryDecision::Wait(Duration::from_secs(1)),
        at_most_once: false,
    };
    let waiting = shop.apply(&running, lapsed).await;
    assert_eq!(shop.active().await, [name("mail")].into(), "it waits for its retry");
    shop.apply(&waiting, Event::Cancel { force: true }).await;
    shop.clock.advance(Duration::from_hours(3));
    // A reader closes the buckets.
    let reader = Shop { store: Shop::store(&shop.table, &shop.clock), ..shop };
    reader.due(&reader.query(ORDERS[0], 10)).await;
    assert_eq!(reader.active().await, BTreeSet::new());
    let before = reader.table.bill();
    assert_eq!(reader.active().await, BTreeSet::new());
    assert!((reader.table.bill() - before).reads <= 1.0, "an idle queue costs nothing");
}

#[tokio::test]
async fn queues_of_a_release_without_the_list_are_active() {
    let shop = Shop::new();
    shop.add(vec![letter(&shop, 1, 100, Duration::ZERO)]).await;
    shop.lose(|item| item.key.p.starts_with("O#")).await;
    let newer = Shop { store: Shop::store(&shop.table, &shop.clock), ..shop };
    assert_eq!(newer.active().await, [name("mail")].into());
}

#[tokio::test]
async fn a_configuration_without_copies_is_read() {
    let shop = Shop::new();
    let item = |was, version| Write::SetItem {
        kind: tidegate_core::port::job_store::ItemKind::Type,
        name: "letter".into(),
        was,
        version,
        bytes: Some(b"{}".to_vec()),
    };
    let require = |version| Write::RequireItem {
        kind: tidegate_core::port::job_store::ItemKind::Type,
        name: "letter".into(),
        version,
    };
    let commit = async |write| shop.store.commit(vec![vec![write]]).await.unwrap().remove(0);
    assert!(matches!(commit(item(0, 1)).await, Committed::All));
    let version = shop.store.items_version().await.unwrap();
    shop.lose(|item| item.key.p.contains('@')).await;
    assert_eq!(shop.store.items_version().await.unwrap(), version);
    assert!(matches!(commit(require(1)).await, Committed::All));
    // A change writes all copies.
    assert!(matches!(commit(item(1, 2)).await, Committed::All));
    for _ in 0..50 {
        assert!(matches!(commit(require(2)).await, Committed::All));
        assert!(matches!(commit(require(1)).await, Committed::Conflict { .. }));
        assert_ne!(shop.store.items_version().await.unwrap(), version);
    }
}
