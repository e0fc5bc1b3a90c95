//! What a job leaves behind goes when its retention is over, also if the process dies between any
//! two writes, and never what belongs to a new job under the same id or keys.

mod bounds;
mod parts;
mod reused;
mod upkeep;

use std::{
    sync::{Arc, atomic::AtomicU64, atomic::AtomicUsize, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::ObjectStore;
use tidegate_backends::dynamodb::{
    DynamoStore, Key,
    memory::MemoryTable,
    table::{Change, EXPIRES, Exchange, Item, Page, PageQuery, Table, Val},
};
use tidegate_core::{
    job::{
        Body, Job, Payload,
        spec::{KeepResult, Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    port::{
        Clock, StoreError,
        job_store::{ListQuery, SharedStore},
    },
    time::Seconds,
};
use tidegate_engine::{
    Engine, Error, OBJECT_BYTES, Ports, Rules, TickCache, TickInput,
    memory::{FakeClock, SeededEntropy},
    request::{JobPatch, NewJob, ReportOutcome},
    testkit::builders::name,
};

use crate::cases::harness::{Harness, failed, queue, report, work};

/// A table that fails every request once it has made a number of changes. A write makes its changes
/// in an order that `order` selects: that of the caller if it is 0.
pub(super) struct DyingTable {
    table: Arc<MemoryTable>,
    left: AtomicUsize,
    order: AtomicU64,
    /// The number of requests.
    requests: AtomicUsize,
}

impl DyingTable {
    /// `table`, until so many changes were made.
    pub(super) fn after(table: &Arc<MemoryTable>, changes: usize) -> Self {
        Self {
            table: Arc::clone(table),
            left: AtomicUsize::new(changes),
            order: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
        }
    }

    /// How many of `changes` still happen.
    fn take(&self, changes: usize) -> usize {
        let left = self.left.load(Ordering::SeqCst);
        self.left.store(left.saturating_sub(changes), Ordering::SeqCst);
        left.min(changes)
    }

    fn check(&self) -> Result<(), StoreError> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let died = || StoreError::unavailable("the process died");
        if self.left.load(Ordering::SeqCst) > 0 { Ok(()) } else { Err(died()) }
    }
}

#[async_trait]
impl Table for DyingTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        self.check()?;
        self.table.get(keys).await
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        self.check()?;
        self.table.query(query).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        self.check()?;
        self.table.scan(prefix, after, limit).await
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        self.check()?;
        let count = self.take(changes.len());
        if count == changes.len() {
            return self.table.write(changes).await;
        }
        let seed = self.order.load(Ordering::SeqCst);
        let mut order: Vec<u64> = (0..changes.len() as u64).collect();
        order.sort_by_key(|index| index.wrapping_add(1).wrapping_mul(seed) % 101);
        let some: Vec<Change> =
            order[..count].iter().map(|index| changes[*index as usize].clone()).collect();
        self.table.write(&some).await?;
        Err(StoreError::unavailable("it died"))
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.check()?;
        self.take(1);
        self.table.together(changes).await
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        self.check()?;
        self.take(1);
        self.table.exchange(exchange).await
    }
}

/// A harness on a table.
struct Shop {
    harness: Harness,
    clock: Arc<FakeClock>,
    table: Arc<MemoryTable>,
    dying: Arc<DyingTable>,
}

const RETENTION: u64 = 600;
/// After the end of the retention: longer than a request may be under way, and a timer is kept.
const SETTLED: u64 = RETENTION + 40;

impl Shop {
    async fn new(config: TypeConfig) -> Self {
        let table = Arc::new(MemoryTable::new());
        let dying = Arc::new(DyingTable::after(&table, usize::MAX));
        let clock = Arc::new(FakeClock::default());
        let mut shop = Self {
            harness: Harness::at(store(&dying, &clock, 1), Arc::clone(&clock)),
            clock,
            table,
            dying,
        };
        shop.harness.set_type("work", config).await;
        shop.restart(2);
        shop
    }

    /// Another process, with the same objects.
    fn process(&self, seed: u64) -> Engine {
        let ports = self.harness.engine.ports().clone();
        let store = store(&self.dying, &self.clock, seed);
        Engine::new(Ports { store, ..ports }, Rules::default())
    }

    /// The process of the harness ends, and another one begins.
    fn restart(&mut self, seed: u64) {
        self.harness.engine = self.process(seed);
        self.harness.store = Arc::clone(&self.harness.engine.ports().store);
        *self.harness.cache = TickCache::default();
    }

    fn die_after(&self, changes: usize) {
        self.dying.left.store(changes, Ordering::SeqCst);
    }

    fn revive(&mut self, seed: u64) {
        self.die_after(usize::MAX);
        self.restart(seed);
    }

    /// The number of requests to the table.
    fn requests(&self) -> usize {
        self.dying.requests.load(Ordering::SeqCst)
    }

    fn items(&self, prefixes: &[&str]) -> Vec<Item> {
        let mut items = self.table.items();
        items.retain(|item| prefixes.iter().any(|prefix| item.key.p.starts_with(prefix)));
        items
    }

    async fn objects(&self) -> usize {
        self.harness.engine.ports().objects.list(None).count().await
    }

    async fn end(&mut self, run: &Job, result: Option<Payload>) -> Result<(), Error> {
        let outcome = ReportOutcome::Succeeded { result: result.map(Body::Inline) };
        let report = self.harness.engine.prepare_report(report(run, outcome)).await?;
        let input = TickInput { reports: vec![report], ..TickInput::default() };
        let (engine, cache) = (&self.harness.engine, &mut self.harness.cache);
        engine.tick(&queue(), cache, input).await?.reports.remove(0).map(drop)
    }

    async fn sweep(&self) -> Result<(), Error> {
        self.harness.engine.sweep().await.map(drop)
    }

    /// Checks that nothing of a job is left but the hidden row, if anything.
    async fn assert_forgotten(&self, what: &str) {
        let left = self.items(&["K#", "I#", "D#", "T#"]);
        assert!(left.is_empty(), "{what}: {left:#?}");
        for item in self.items(&["B#"]) {
            assert!(item.attrs.contains_key(&EXPIRES), "{what}: {item:?}");
        }
        assert_eq!(self.objects().await, 0, "{what}");
    }
}

fn store(table: &Arc<DyingTable>, clock: &Arc<FakeClock>, seed: u64) -> SharedStore {
    let entropy = Arc::new(SeededEntropy::new(seed));
    Arc::new(DynamoStore::new(Arc::clone(table) as _, Arc::clone(clock) as _, entropy))
}

fn kept() -> TypeConfig {
    TypeConfig { retention_seconds: Seconds::new(RETENTION), ..TypeConfig::default() }
}

fn of_size(bytes: usize) -> Payload {
    Payload::json(format!("\"{}\"", "x".repeat(bytes)))
}

fn large() -> Payload {
    of_size(OBJECT_BYTES)
}

/// A job with an id, three keys and this data.
fn named(data: Payload) -> NewJob {
    let unique = Unique::new("u", UniqueWhile::Live);
    NewJob {
        id: Some(name("mine")),
        idempotency_key: Some("i".into()),
        correlation_key: Some("c".into()),
        data,
        ..work().with_options(|options| options.unique = Some(unique))
    }
}

/// The same without a correlation key, with which a job is kept for five minutes at least.
fn named_and_removed(data: Payload) -> NewJob {
    NewJob { correlation_key: None, ..named(data) }
}

/// Jobs that leave different things behind, each with its result.
fn leaving() -> Vec<(&'static str, NewJob, Option<Payload>)> {
    let drawn = |data| NewJob { data, ..work() };
    let repeatable = NewJob { idempotency_key: Some("i".into()), ..work() };
    vec![
        ("all", named(large()), Some(of_size(20_000))),
        ("keys and parts", named(of_size(3000)), None),
        ("keys alone", named(Payload::null()), None),
        ("a body", drawn(large()), None),
        ("a result", work(), Some(of_size(20_000))),
        ("parts of a body", drawn(of_size(3000)), None),
        ("an idempotency key", repeatable, None),
    ]
}

#[tokio::test]
async fn what_a_job_leaves_goes_with_its_retention() {
    for (what, job, result) in leaving() {
        let mut shop = Shop::new(kept()).await;
        shop.harness.enqueue(job).await;
        let run = shop.harness.lease(1).await.remove(0);
        shop.end(&run, result.clone()).await.unwrap();
        let id = run.id;
        let before = (shop.items(&["K#", "I#", "D#"]), shop.objects().await);
        shop.clock.advance(Duration::from_secs(RETENTION - 1));
        shop.sweep().await.unwrap();
        assert_eq!((shop.items(&["K#", "I#", "D#"]), shop.objects().await), before, "{what}");
        let read = shop.harness.engine.load(vec![shop.harness.job(&id).await]).await.unwrap();
        assert_eq!(read[0].life.result.is_some(), result.is_some(), "{what}");
        shop.clock.advance(Duration::from_secs(2));
        assert!(matches!(shop.harness.engine.job(&id, None).await, Err(Error::NotFound { .. })));
        shop.clock.advance(Duration::from_secs(SETTLED - RETENTION));
        shop.sweep().await.unwrap();
        assert_eq!((shop.items(&["K#", "I#", "D#"]), shop.objects().await), (vec![], 0), "{what}");
        shop.clock.advance(Duration::from_secs(1000));
        shop.sweep().await.unwrap();
        shop.assert_forgotten(what).await;
    }
}

#[tokio::test]
async fn a_job_that_leaves_nothing_has_no_timer() {
    let mut shop = Shop::new(kept()).await;
    shop.harness.with_limit(5).await;
    shop.harness.settle().await;
    shop.harness.set_type("work", kept()).await;
    shop.harness.enqueue(NewJob { data: of_size(900), ..work() }).await;
    let run = shop.harness.lease(1).await.remove(0);
    shop.end(&run, Some(Payload::null())).await.unwrap();
    assert_eq!(shop.items(&["T#"]), []);
    let row = shop.items(&["B#"]).remove(0);
    let expires = run.life.running().unwrap().started_at + Duration::from_secs(RETENTION);
    assert_eq!(row.attrs[&EXPIRES], Val::N(expires.millis() as u64 / 1000));
}

#[tokio::test]
async fn a_result_goes_before_its_job() {
    let keep_result = KeepResult::For(Seconds::new(60));
    let mut shop = Shop::new(TypeConfig { keep_result, ..kept() }).await;
    let job = shop.harness.enqueue(named(large())).await;
    let run = shop.harness.lease(1).await.remove(0);
    shop.end(&run, Some(of_size(20_000))).await.unwrap();
    assert_eq!(shop.objects().await, 2);
    shop.clock.advance(Duration::from_secs(59));
    shop.sweep().await.unwrap();
    assert_eq!(shop.objects().await, 2);
    shop.clock.advance(Duration::from_secs(2));
    shop.sweep().await.unwrap();
    assert_eq!(shop.objects().await, 1);
    let left = shop.harness.job(&job.id).await;
    assert_eq!(shop.harness.engine.data(&left).await.unwrap(), large());
    shop.clock.advance(Duration::from_secs(30));
    shop.sweep().await.unwrap();
    assert_eq!(shop.items(&["T#"]).len(), 1, "one timer is left, for the end of the retention");
    for _ in 0..2 {
        shop.clock.advance(Duration::from_secs(1000));
        shop.sweep().await.unwrap();
    }
    shop.assert_forgotten("all").await;
}

/// Runs a job up to the call that dies: its end, or the sweep after its retention. Returns whether
/// the call went through.
async fn cut(
    job: NewJob,
    result: Option<Payload>,
    config: &TypeConfig,
    at_end: bool,
    (writes, order): (usize, u64),
) -> (Shop, bool) {
    let mut shop = Shop::new(config.clone()).await;
    shop.dying.order.store(order, Ordering::SeqCst);
    shop.harness.enqueue(job).await;
    let run = shop.harness.lease(1).await.remove(0);
    if at_end {
        shop.die_after(writes);
    }
    let mut died = shop.end(&run, result.clone()).await.is_err();
    if at_end {
        shop.revive(3);
        // The worker repeats its report.
        if died {
            let _ = shop.end(&run, result).await;
        }
    }
    shop.clock.advance(Duration::from_secs(SETTLED));
    if !at_end {
        shop.die_after(writes);
        died = shop.sweep().await.is_err();
        shop.revive(4);
    }
    (shop, !died)
}

#[tokio::test]
async fn what_a_job_leaves_goes_after_any_crash() {
    let removed = TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() };
    for config in [kept(), removed] {
        for (what, job, result) in leaving() {
            // The changes of a write may happen in any order.
            let cuts = [(true, 0), (true, 37), (true, 100), (false, 0), (false, 37), (false, 100)];
            for (at_end, order) in cuts {
                let mut writes = 0;
                loop {
                    let (shop, is_done) =
                        cut(job.clone(), result.clone(), &config, at_end, (writes, order)).await;
                    for _ in 0..4 {
                        shop.clock.advance(Duration::from_secs(1000));
                        shop.sweep().await.unwrap();
                    }
                    let what = format!(
                        "{what}, {writes} writes in order {order}, at its end: {at_end}, {:?}",
                        config.retention_seconds
                    );
                    // An object whose key went with a row that was removed at once is an orphan.
                    if shop.objects().await > 0 {
                        assert!(!is_done, "{what}");
                        let left = shop.items(&["K#", "I#", "D#", "T#"]);
                        assert!(left.is_empty(), "{what}: {left:#?}");
                    } else {
                        shop.assert_forgotten(&what).await;
                    }
                    if is_done {
                        break;
                    }
                    writes += 1;
                    assert!(writes < 40, "it never goes through");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_removed_job_takes_everything_with_it() {
    let removed = TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() };
    for (what, job, result) in leaving() {
        let mut shop = Shop::new(removed.clone()).await;
        let is_named = job.id.is_some();
        let job = NewJob { correlation_key: None, ..job };
        shop.harness.enqueue(job).await;
        let run = shop.harness.lease(1).await.remove(0);
        shop.end(&run, result).await.unwrap();
        assert!(matches!(
            shop.harness.engine.job(&run.id, None).await,
            Err(Error::NotFound { .. })
        ));
        assert_eq!((shop.items(&["K#", "D#"]), shop.objects().await), (vec![], 0), "{what}");
        assert_eq!(shop.items(&["B#"]).len(), usize::from(is_named), "{what}");
        shop.clock.advance(Duration::from_mins(1));
        shop.sweep().await.unwrap();
        assert_eq!(shop.items(&["B#", "I#"]), [], "{what}");
        for _ in 0..2 {
            shop.clock.advance(Duration::from_secs(1000));
            shop.sweep().await.unwrap();
        }
        assert_eq!(shop.items(&["T#"]), [], "{what}");
    }
}

#[tokio::test]
async fn a_new_job_under_a_forgotten_id_keeps_what_is_its_own() {
    for retention in [0, RETENTION] {
        let config =
            TypeConfig { retention_seconds: Seconds::new(retention), ..TypeConfig::default() };
        let job = || match retention {
            0 => named_and_removed(of_size(3000)),
            _ => named(of_size(3000)),
        };
        let keys = if retention == 0 { 2 } else { 3 };
        // Before the sweep that would remove the first job, or after it.
        for waits in [1, 25, 45] {
            let mut shop = Shop::new(config.clone()).await;
            shop.harness.enqueue(job()).await;
            let run = shop.harness.lease(1).await.remove(0);
            shop.end(&run, None).await.unwrap();
            shop.clock.advance(Duration::from_secs(retention + waits));
            if waits != 1 {
                shop.sweep().await.unwrap();
            }
            let second = shop.harness.enqueue(job()).await;
            assert_ne!(second.spec.created_at, run.spec.created_at);
            for _ in 0..4 {
                shop.sweep().await.unwrap();
                shop.clock.advance(Duration::from_secs(SETTLED));
            }
            // Another process finds it by its id and by each of its keys.
            shop.restart(9);
            let found = shop.harness.job(&second.id).await;
            assert_eq!(found.spec.created_at, second.spec.created_at);
            assert_eq!(shop.harness.engine.data(&found).await.unwrap(), of_size(3000));
            for repeat in [job(), NewJob { id: None, ..job() }] {
                let answer = shop.harness.engine.enqueue(vec![repeat]).await.remove(0);
                assert!(answer.is_err() || !answer.unwrap().new, "{retention} {waits}");
            }
            assert_eq!(shop.items(&["K#"]).len(), keys);
            let run = shop.harness.lease(9).await;
            assert_eq!(run.len(), 1, "{retention} {waits}");
            shop.end(&run[0], None).await.unwrap();
            shop.clock.advance(Duration::from_secs(SETTLED));
            for _ in 0..3 {
                shop.clock.advance(Duration::from_secs(1000));
                shop.sweep().await.unwrap();
            }
            shop.assert_forgotten(&format!("{retention} {waits}")).await;
        }
    }
}

/// Moves the timers to where earlier releases wrote them.
async fn as_earlier_releases(table: &MemoryTable) {
    let without_shard = |text: &str| text.rsplit_once('#').unwrap().0.to_owned();
    let mut changes = Vec::new();
    for item in table.items() {
        let key = &item.key;
        let old = match key.p.as_str() {
            "R#" => Key { s: without_shard(&key.s), ..key.clone() },
            p if p.starts_with("T#") => Key { p: without_shard(p), ..key.clone() },
            _ => continue,
        };
        changes.push(Change::Delete { key: key.clone(), when: None });
        changes.push(Change::Put(Item { key: old, ..item }));
    }
    assert!(!changes.is_empty());
    table.write(&changes).await.unwrap();
}

#[tokio::test]
async fn timers_of_every_shard_and_of_earlier_releases_are_found() {
    let mut shop = Shop::new(kept()).await;
    let expires_at = Some(shop.clock.now() + Duration::from_secs(30));
    let expiring = || NewJob { expires_at, ..work() };
    shop.harness.enqueue(expiring()).await;
    as_earlier_releases(&shop.table).await;
    for seed in 20..60 {
        shop.restart(seed);
        shop.harness.enqueue(expiring()).await;
    }
    let partitions = shop.items(&["R#"]).iter().filter(|item| item.key.p == "R#").count();
    assert!((8..=17).contains(&partitions), "{partitions}");
    let page = shop.harness.store.overdue(shop.clock.now(), None, 100).await.unwrap();
    assert_eq!((page.jobs.len(), page.next_at), (0, expires_at));
    shop.clock.advance(Duration::from_secs(31));
    let page = shop.harness.store.overdue(shop.clock.now(), None, 10).await.unwrap();
    assert_eq!((page.jobs.len(), page.next_at), (10, None));
    let swept = shop.harness.engine.sweep().await.unwrap();
    assert_eq!(swept.changed.len(), 41);
    shop.clock.advance(Duration::from_secs(3700));
    shop.sweep().await.unwrap();
    assert!(shop.items(&["T#", "R#"]).iter().all(|item| item.key.p != "R#"));
}

impl Shop {
    /// Removes what the table has expired by now.
    async fn expire(&self) {
        let now = self.clock.now().millis() as u64 / 1000;
        let is_over =
            |item: &Item| matches!(item.attrs.get(&EXPIRES), Some(Val::N(at)) if *at <= now);
        let over = self.table.items().into_iter().filter(is_over);
        let over: Vec<Change> =
            over.map(|item| Change::Delete { key: item.key, when: None }).collect();
        self.table.write(&over).await.unwrap();
    }

    /// Lets days pass, with a pass over objects and what the table does each ten days.
    async fn pass(&mut self, days: u64) {
        for day in (0..days).step_by(10) {
            self.clock.advance(Duration::from_hours(240));
            self.expire().await;
            if day % 100 == 0 {
                self.restart(100 + day);
            }
            let now = self.clock.now();
            self.harness.engine.sweep_objects(now).await.unwrap();
            self.harness.engine.upkeep(now + Duration::from_mins(1)).await.unwrap();
            self.sweep().await.unwrap();
        }
    }
}

fn index_entries(shop: &Shop) -> usize {
    shop.items(&["B#"]).iter().filter(|item| item.key.s.contains('!')).count()
}

#[tokio::test]
async fn index_entries_expire_unless_their_jobs_wait() {
    let config = TypeConfig { max_attempts: Some(9), ..kept() };
    for waits in [false, true] {
        let mut shop = Shop::new(config.clone()).await;
        let job = shop.harness.enqueue(named(Payload::null())).await;
        let other = shop.harness.enqueue(work()).await;
        let run = shop.harness.lease(2).await;
        for job in &run {
            let reports = vec![report(job, failed())];
            shop.harness.tick(TickInput { reports, ..TickInput::default() }).await;
        }
        shop.clock.advance(Duration::from_hours(1));
        assert_eq!(index_entries(&shop), 2);
        if !waits {
            let run = shop.harness.lease(2).await;
            shop.harness.succeed(&run).await;
            // One has a client's id, which a sweep removes. No sweep looks at the other.
            shop.pass(390).await;
            assert_eq!(index_entries(&shop), 2);
            shop.pass(20).await;
            assert_eq!(index_entries(&shop), 0);
            assert!(!shop.items(&["A#"]).is_empty());
            shop.pass(100).await;
            assert_eq!(shop.items(&["A#", "B#", "K#", "I#", "D#"]), []);
            continue;
        }
        shop.pass(1200).await;
        assert_eq!(index_entries(&shop), 2);
        let query = ListQuery { limit: 10, ..ListQuery::default() };
        let listed = shop.harness.store.list(&query).await.unwrap().jobs;
        assert_eq!(listed.len(), 2, "{listed:?}");
        let run = shop.harness.lease(2).await;
        assert_eq!(run.len(), 2);
        assert!(run.iter().any(|run| run.id == job.id) && run.iter().any(|run| run.id == other.id));
        assert!(
            !shop.harness.engine.enqueue(vec![named(Payload::null())]).await.remove(0).unwrap().new
        );
    }
}

#[tokio::test]
async fn a_job_far_in_the_future_is_listed_and_runs() {
    let mut shop = Shop::new(kept()).await;
    let far = shop.clock.now() + Duration::from_hours(24 * 1500);
    let now = shop.harness.enqueue(named(Payload::null())).await;
    let later = shop.harness.enqueue(NewJob { run_at: Some(far), ..work() }).await;
    let patch = JobPatch { run_at: Some(far), ..JobPatch::default() };
    shop.harness.engine.patch(&now.id, None, patch, None).await.unwrap();
    shop.pass(1490).await;
    let query = ListQuery { limit: 10, ..ListQuery::default() };
    assert_eq!(shop.harness.store.list(&query).await.unwrap().jobs.len(), 2);
    assert!(shop.harness.lease(2).await.is_empty());
    shop.pass(20).await;
    let run = shop.harness.lease(2).await;
    assert_eq!(run.len(), 2);
    assert!(run.iter().any(|run| run.id == now.id) && run.iter().any(|run| run.id == later.id));
}
