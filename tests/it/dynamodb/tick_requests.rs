//! Requests for ticks: many hints become one, and none is lost.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_backends::{
    dynamodb::{
        TickRequests,
        memory::MemoryTable,
        table::{Change, Exchange, ExchangeStep, Item, Page, PageQuery, Table, Val},
    },
    testkit::meter::table::Metered,
};
use tidegate_core::{
    job::{QueueName, Version},
    port::{Hint, HintKind, StoreError, Timer, Work, WorkQueue, work_queue::OPERATIONS},
    queue::GrantDigest,
};
use tidegate_engine::{
    memory::{FakeClock, SeededEntropy},
    testkit::builders::name,
};

use super::emulator::EmulatedTable;

/// The hints that were sent. It may refuse them.
#[derive(Default)]
struct Sent {
    hints: Mutex<Vec<Hint>>,
    refuses: AtomicBool,
}

#[async_trait]
impl WorkQueue for Sent {
    async fn send(&self, _: &[Work]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(StoreError::unavailable("the queue is away"));
        }
        self.hints.lock().extend(hints.iter().cloned());
        Ok(())
    }

    async fn take_releases(&self, _: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        Ok(BTreeSet::new())
    }

    async fn set_timers(&self, _: &[Timer]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A table that makes each exchange twice, or refuses it.
struct Unsteady {
    table: MemoryTable,
    repeats: AtomicBool,
    refuses: AtomicBool,
}

#[async_trait]
impl Table for Unsteady {
    async fn get(
        &self,
        keys: &[tidegate_backends::dynamodb::Key],
    ) -> Result<Vec<Option<Item>>, StoreError> {
        self.table.get(keys).await
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        self.table.query(query).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&tidegate_backends::dynamodb::Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        self.table.scan(prefix, after, limit).await
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        self.table.write(changes).await
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.table.together(changes).await
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(StoreError::Throttled {
                retry_after: Duration::from_millis(50),
                message: "too much".into(),
            });
        }
        if self.repeats.load(Ordering::SeqCst) {
            self.table.exchange(exchange).await?;
        }
        self.table.exchange(exchange).await
    }
}

/// Two processes on one table and one queue, which is busy.
struct Processes {
    sent: Arc<Sent>,
    clock: Arc<FakeClock>,
    requests: [TickRequests; 2],
}

impl Processes {
    async fn on(table: Arc<dyn Table>) -> Self {
        let both = Self::on_quiet(&table);
        for _ in 0..4 {
            both.take().await;
        }
        both
    }

    fn on_quiet(table: &Arc<dyn Table>) -> Self {
        let (sent, clock) = (Arc::new(Sent::default()), Arc::new(FakeClock::default()));
        let requests = [1, 2].map(|seed| {
            let entropy = Arc::new(SeededEntropy::new(seed));
            TickRequests::new(sent.clone(), Arc::clone(table), clock.clone(), entropy)
        });
        Self { sent, clock, requests }
    }

    /// Hints by one of the processes, and returns what was sent for them.
    async fn hint(&self, process: usize, kinds: &[HintKind]) -> Vec<HintKind> {
        self.try_hint(process, kinds).await.unwrap();
        self.sent.hints.lock().drain(..).map(|hint| hint.kind).collect()
    }

    async fn try_hint(&self, process: usize, kinds: &[HintKind]) -> Result<(), StoreError> {
        let hint = |kind: &HintKind| Hint { queue: name("q"), kind: kind.clone() };
        let hints: Vec<Hint> = kinds.iter().map(hint).collect();
        self.requests[process].hint(&hints).await
    }

    async fn take(&self) -> BTreeSet<GrantDigest> {
        self.requests[1].take_releases(&name("q")).await.unwrap()
    }
}

fn unsteady() -> Arc<Unsteady> {
    Arc::new(Unsteady {
        table: MemoryTable::new(),
        repeats: AtomicBool::new(false),
        refuses: AtomicBool::new(false),
    })
}

fn released(job: &str) -> HintKind {
    HintKind::Released(name(job), Version(3))
}

fn digests(jobs: &[&str]) -> BTreeSet<GrantDigest> {
    jobs.iter().map(|job| GrantDigest::of(&name(job), Version(3))).collect()
}

/// Runs a check on a table in memory and on an emulator.
macro_rules! on_tables {
    ($($name:ident => $check:ident;)*) => {
        mod in_memory { $(
            #[tokio::test]
            async fn $name() { super::$check(std::sync::Arc::new(super::MemoryTable::new())).await; }
        )* }
        mod emulated { $(
            #[test]
            fn $name() {
                let table = std::sync::Arc::new(super::EmulatedTable::new());
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(super::$check(table));
            }
        )* }
    };
}

on_tables! {
    hints_of_a_quiet_queue_are_sent_as_they_are => quiet_are_sent;
    many_hints_become_one => many_become_one;
    an_unanswered_request_is_made_again => is_made_again;
}

async fn quiet_are_sent(table: Arc<dyn Table>) {
    let both = Processes::on_quiet(&table);
    let hints = [released("a"), HintKind::Due];
    for _ in 0..2 {
        // A job's start, and its end.
        assert_eq!(both.hint(0, &hints).await, hints);
        assert_eq!(both.take().await, digests(&[]));
        assert_eq!(both.hint(0, &hints).await, hints);
        assert_eq!(both.take().await, digests(&[]));
        both.clock.advance(Duration::from_secs(3));
    }
    for _ in 0..4 {
        both.take().await;
    }
    assert_eq!(both.hint(0, &hints).await, [HintKind::Due], "it is busy now");
    assert_eq!(both.take().await, digests(&["a"]));
    both.clock.advance(Duration::from_secs(7));
    assert_eq!(both.hint(0, &hints).await, hints, "it is quiet again");
    assert_eq!(both.hint(1, &hints).await, hints);
}

async fn many_become_one(table: Arc<dyn Table>) {
    let both = Processes::on(table).await;
    assert_eq!(both.hint(0, &[released("a"), HintKind::Due]).await, [HintKind::Due]);
    assert_eq!(both.hint(1, &[released("b"), released("c")]).await, []);
    assert_eq!(both.hint(1, &[HintKind::Due]).await, []);
    let decision = HintKind::RetryDecision(name("d"));
    assert_eq!(both.hint(0, &[decision.clone(), released("a")]).await, [decision]);
    assert_eq!(both.take().await, digests(&["a", "b", "c"]));
    // A tick that dies before it commits loses nothing: the next one takes them again.
    assert_eq!(both.hint(0, &[released("e")]).await, [HintKind::Due]);
    assert_eq!(both.take().await, digests(&["a", "b", "c", "e"]));
    assert_eq!(both.hint(0, &[HintKind::Due]).await, [HintKind::Due]);
    assert_eq!(both.take().await, digests(&["e"]));
    assert_eq!(both.take().await, digests(&[]));
}

async fn is_made_again(table: Arc<dyn Table>) {
    let both = Processes::on(table).await;
    assert_eq!(both.hint(0, &[HintKind::Due]).await, [HintKind::Due]);
    both.clock.advance(Duration::from_millis(2_900));
    assert_eq!(both.hint(1, &[released("a")]).await, []);
    assert_eq!(both.hint(1, &[HintKind::Due]).await, []);
    // The hint, or the process that meant to send it, is lost.
    both.clock.advance(Duration::from_millis(200));
    assert_eq!(both.hint(0, &[released("b")]).await, [HintKind::Due]);
    assert_eq!(both.hint(1, &[HintKind::Due]).await, []);
    assert_eq!(both.take().await, digests(&["a", "b"]));
}

#[tokio::test]
async fn a_tick_of_another_process_leaves_a_queue_busy() {
    let both = Processes::on(unsteady()).await;
    assert_eq!(both.hint(1, &[released("a")]).await, [HintKind::Due]);
    let taken = both.requests[0].take_releases(&name("q")).await.unwrap();
    assert_eq!(taken, digests(&["a"]));
    assert_eq!(both.hint(0, &[released("b"), HintKind::Due]).await, [HintKind::Due]);
}

#[tokio::test]
async fn a_request_whose_answer_was_lost_is_still_sent() {
    let table = unsteady();
    let both = Processes::on(table.clone()).await;
    table.repeats.store(true, Ordering::SeqCst);
    assert_eq!(both.hint(0, &[released("a")]).await, [HintKind::Due]);
    assert_eq!(both.hint(1, &[released("b")]).await, []);
    assert_eq!(both.take().await, digests(&["a", "b"]), "it was taken by the first of two");
    assert_eq!(both.hint(1, &[HintKind::Due]).await, [HintKind::Due]);
}

#[tokio::test]
async fn a_hint_that_was_refused_is_sent_by_the_repeat() {
    let both = Processes::on(unsteady()).await;
    both.sent.refuses.store(true, Ordering::SeqCst);
    both.try_hint(0, &[released("a")]).await.unwrap_err();
    both.sent.refuses.store(false, Ordering::SeqCst);
    assert_eq!(both.hint(0, &[released("a")]).await, [HintKind::Due]);
    assert_eq!(both.take().await, digests(&["a"]));
}

#[tokio::test]
async fn hints_are_sent_as_they_are_if_the_table_refuses() {
    let table = unsteady();
    let both = Processes::on(table.clone()).await;
    table.refuses.store(true, Ordering::SeqCst);
    let hints = [released("a"), HintKind::Due];
    assert_eq!(both.hint(0, &hints).await, hints);
}

#[tokio::test]
async fn hints_about_operations_are_not_collected() {
    let both = Processes::on(unsteady()).await;
    let hint = Hint { queue: name(OPERATIONS), kind: HintKind::Operation("op".into()) };
    for _ in 0..2 {
        both.requests[0].hint(std::slice::from_ref(&hint)).await.unwrap();
    }
    assert_eq!(both.sent.hints.lock().len(), 2);
}

/// What happens in a queue whose changes come from many processes, a tick every 200 ms.
struct Load {
    /// Releases a second, and how many of them a change has.
    releases: usize,
    of_change: usize,
}

impl Load {
    /// Runs for some seconds: the write units a second of the key with the most, those of all keys
    /// for each release, and the hints for each tick.
    async fn run(&self) -> (f64, f64, f64) {
        const SECONDS: usize = 6;
        const PROCESSES: usize = 50;
        let (table, sent) = (Metered::new(MemoryTable::new()), Arc::new(Sent::default()));
        let clock = Arc::new(FakeClock::default());
        let process = |seed| {
            let entropy = Arc::new(SeededEntropy::new(seed));
            TickRequests::new(sent.clone(), Arc::clone(&table) as _, clock.clone(), entropy)
        };
        let processes: Vec<TickRequests> = (0..PROCESSES as u64).map(process).collect();
        let tick = async || processes[0].take_releases(&name("q")).await.unwrap();
        for _ in 0..4 {
            tick().await;
        }
        let changes = self.releases / self.of_change / 5;
        let (mut most, mut total, mut ticks, mut hints) = (0.0_f64, 0.0, 0, 0);
        let mut released_before = BTreeSet::new();
        for second in 0..SECONDS {
            for fifth in 0..5 {
                let mut released_now = BTreeSet::new();
                for change in 0..changes {
                    let kinds: Vec<HintKind> = (0..self.of_change)
                        .map(|job| released(&format!("{second}-{fifth}-{change}-{job}")))
                        .collect();
                    for kind in &kinds {
                        let HintKind::Released(job, version) = kind else { continue };
                        released_now.insert(GrantDigest::of(job, *version));
                    }
                    let hint = |kind| Hint { queue: name("q"), kind };
                    let hinted: Vec<Hint> = kinds.into_iter().map(hint).collect();
                    processes[change % PROCESSES].hint(&hinted).await.unwrap();
                    clock.advance(Duration::from_micros(200_000 / changes as u64));
                }
                hints += sent.hints.lock().drain(..).count();
                ticks += 1;
                let taken = tick().await;
                assert!(taken.is_superset(&released_now), "a tick takes what was released");
                assert!(taken.is_superset(&released_before), "and what the one before took");
                released_before = released_now;
            }
            let writes: Vec<f64> =
                table.take_partitions().into_values().map(|bill| bill.writes).collect();
            let of_key = writes.iter().copied().fold(0.0, f64::max);
            let of_all: f64 = writes.iter().sum();
            // The first second shows what must be spread.
            if second > 0 {
                most = of_key.max(most);
                total += of_all;
            }
        }
        let releases = (changes * self.of_change * 5 * (SECONDS - 1)) as f64;
        (most, total / releases, f64::from(hints as u32) / f64::from(ticks))
    }
}

#[tokio::test]
async fn no_key_takes_all_releases_of_a_busy_queue() {
    // Those of single callbacks, of few, and of invocations that report thirty results.
    let cases = [(1000, 1, 1.6), (2000, 1, 1.6), (50, 1, 1.4), (4000, 30, 0.2), (9000, 30, 0.2)];
    for (releases, of_change, units_of_each) in cases {
        let (most, units, hints) = Load { releases, of_change }.run().await;
        println!("{releases} by {of_change}: {most} a second, {units:.2} each, {hints:.2} hints");
        assert!(most <= 600.0, "{releases}: a key takes {most} units a second");
        assert!(units <= units_of_each, "{releases}: {units} units each");
        assert!(hints <= 1.0, "{releases}: {hints} hints for each tick");
    }
}

#[tokio::test]
async fn releases_in_further_items_are_not_lost() {
    let table = unsteady();
    let both = Processes::on(table.clone()).await;
    let many: Vec<HintKind> = (0..200).map(|job| released(&format!("j{job}"))).collect();
    let jobs = |from: usize, to: usize| -> BTreeSet<GrantDigest> {
        (from..to).map(|job| GrantDigest::of(&name(&format!("j{job}")), Version(3))).collect()
    };
    assert_eq!(both.hint(0, &many).await, [HintKind::Due]);
    assert_eq!(both.take().await, jobs(0, 200));
    // The first change learns in the item of the queue that there are further ones.
    assert_eq!(both.hint(0, &[released("j200")]).await, [HintKind::Due]);
    for job in 201..260 {
        assert_eq!(both.hint(0, &[released(&format!("j{job}"))]).await, []);
    }
    // A tick that dies loses nothing.
    assert_eq!(both.take().await, jobs(0, 260));
    assert_eq!(both.hint(0, &[released("j260")]).await, [HintKind::Due]);
    assert_eq!(both.take().await, jobs(200, 261));
    // Neither does a hint that is refused.
    both.sent.refuses.store(true, Ordering::SeqCst);
    both.try_hint(0, &[released("j261")]).await.unwrap_err();
    both.sent.refuses.store(false, Ordering::SeqCst);
    assert_eq!(both.hint(0, &[released("j261")]).await, [HintKind::Due]);
    assert!(both.take().await.is_superset(&jobs(260, 262)));
    // A hint that does not arrive is sent by a later change.
    assert_eq!(both.hint(0, &[released("j262")]).await, [HintKind::Due]);
    both.clock.advance(Duration::from_millis(3_100));
    let mut sent = Vec::new();
    for job in 263..300 {
        sent.extend(both.hint(0, &[released(&format!("j{job}"))]).await);
    }
    assert_eq!(sent, [HintKind::Due]);
    assert!(both.take().await.is_superset(&jobs(262, 300)));
}

#[tokio::test]
async fn a_tick_of_an_older_release_ends_the_use_of_further_items() {
    let table = Arc::new(MemoryTable::new());
    let both = Processes::on(table.clone()).await;
    let many: Vec<HintKind> = (0..200).map(|job| released(&format!("j{job}"))).collect();
    both.hint(0, &many).await;
    both.take().await;
    both.hint(0, &[released("a")]).await;
    // It takes only the item of the queue, and records a later time until which that is busy.
    let item = table.items().into_iter().find(|item| item.key.p == "W#q").unwrap();
    let Some(Val::N(busy_until)) = item.attrs.get(&'b') else { panic!("it is busy: {item:?}") };
    let set = vec![('b', Val::N(busy_until + 400))];
    let step = ExchangeStep::Move { from: 'r', to: 't', set, remove: 'a' };
    table.exchange(&Exchange { key: item.key, step }).await.unwrap();
    // The process still knows of further items. It learns now that they are not used any more.
    assert_eq!(both.hint(0, &[released("b")]).await, [HintKind::Due]);
    let further = || table.items().into_iter().filter(|item| item.key.p.starts_with("W#q@"));
    let before: Vec<Item> = further().collect();
    assert_eq!(before.len(), 1);
    for job in ["c", "d", "e"] {
        assert_eq!(both.hint(0, &[released(job)]).await, []);
    }
    assert_eq!(further().collect::<Vec<_>>(), before);
    assert_eq!(both.take().await, digests(&["a", "b", "c", "d", "e"]));
}
