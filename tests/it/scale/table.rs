//! The table with AWS's limits: what each limit admits, refuses and takes.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tidegate_backends::{
    dynamodb::{
        Key,
        memory::MemoryTable,
        table::{Change, Item, PageQuery, Table, Val},
    },
    testkit::limits::{LimitedTable, TableLimits},
};
use tidegate_core::port::{Clock, StoreError};
use tidegate_engine::memory::SeededEntropy;

use crate::serverless::time::Virtual;

/// A table with limits, and its time.
struct Limited {
    time: Arc<Virtual>,
    table: Arc<LimitedTable<MemoryTable>>,
}

impl Limited {
    fn new(limits: TableLimits) -> Self {
        let time = Virtual::new();
        let (clock, chance) = (Arc::clone(&time) as Arc<dyn Clock>, SeededEntropy::new(1));
        let table = LimitedTable::new(MemoryTable::new(), limits, clock, Arc::new(chance));
        Self { time, table: Arc::new(table) }
    }

    /// Runs `work` and returns its result, and how long it took.
    fn timed<T, F>(&self, work: impl FnOnce(Arc<LimitedTable<MemoryTable>>) -> F) -> (T, Duration)
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let done = Arc::new(Mutex::new(None));
        let (began, time) = (self.time.now(), Arc::clone(&self.time));
        let (work, written) = (work(Arc::clone(&self.table)), Arc::clone(&done));
        self.time.spawn(async move {
            let result = work.await;
            *written.lock() = Some((result, time.now().since(began)));
        });
        self.time.run(began + Duration::from_hours(1));
        done.lock().take().expect("the work ends within an hour")
    }
}

fn item(p: &str, number: usize, bytes: usize) -> Item {
    let value = Val::B(vec![7; bytes].into());
    Item::new(Key { p: p.into(), s: format!("{number:06}") }, [('d', value)])
}

/// Puts `count` items of 1 KB under each of these keys, a request after the other, and repeats what
/// was refused.
async fn fill(table: Arc<LimitedTable<MemoryTable>>, partitions: Vec<&'static str>, count: usize) {
    for first in (0..count).step_by(20) {
        let each = partitions.iter().flat_map(|p| (first..first + 20).map(|n| item(p, n, 900)));
        let puts: Vec<Change> = each.map(Change::Put).collect();
        while table.write(&puts).await.is_err() {}
    }
}

fn no_burst() -> TableLimits {
    TableLimits { burst: Duration::from_millis(50), ..TableLimits::AWS }
}

#[test]
fn a_partition_key_takes_a_thousand_writes_a_second() {
    let limited = Limited::new(no_burst());
    let ((), took) = limited.timed(|table| async move {
        let each = (0..8).map(|_| fill(Arc::clone(&table), vec!["a"], 2000));
        futures_util::future::join_all(each).await;
    });
    let rate = limited.table.used().bill.writes / took.as_secs_f64();
    assert!((900.0..1050.0).contains(&rate), "{rate} writes a second");
    assert!(limited.table.used().throttled > 0);
}

#[test]
fn unused_capacity_is_kept_for_a_burst() {
    let limits = TableLimits { burst: Duration::from_secs(4), ..TableLimits::AWS };
    let limited = Limited::new(limits);
    let ((), took) = limited.timed(|table| fill(table, vec!["a"], 3000));
    assert!(took < Duration::from_secs(2), "{took:?} for 3000 writes");
    assert_eq!(limited.table.used().throttled, 0);
}

#[test]
fn several_partition_keys_share_the_ceiling_of_a_new_table() {
    let limited = Limited::new(no_burst());
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let ((), took) = limited.timed(|table| async move {
        let each = keys.map(|p| fill(Arc::clone(&table), vec![p], 4000));
        futures_util::future::join_all(each).await;
    });
    let rate = limited.table.used().bill.writes / took.as_secs_f64();
    assert!((3500.0..4200.0).contains(&rate), "{rate} writes a second");
}

#[test]
fn a_call_fails_once_every_try_was_refused() {
    let limits = TableLimits { burst: Duration::from_millis(1), ..TableLimits::AWS };
    let limited = Limited::new(limits.scaled(0.001));
    let (error, took) = limited.timed(|table| async move {
        loop {
            if let Err(error) = table.write(&[Change::Put(item("a", 1, 900))]).await {
                break error;
            }
        }
    });
    assert!(matches!(error, StoreError::Throttled { .. }), "{error:?}");
    assert!(took < Duration::from_secs(1), "{took:?}: an entry must be written within seconds");
    assert_eq!(limited.table.used().failed, 1);
}

#[test]
fn pages_end_at_a_megabyte_and_reads_are_charged_by_4_kb() {
    let limited = Limited::new(TableLimits::AWS);
    let ((), _) = limited.timed(|table| fill(table, vec!["a"], 2000));
    let before = limited.table.used().bill;
    let ((pages, items), _) = limited.timed(|table| async move {
        let (p, from, to) = ("a".to_owned(), " ".to_owned(), "~".to_owned());
        let mut query = PageQuery { p, from, to, limit: None, backward: false, after: None };
        let (mut pages, mut items) = (0, 0);
        loop {
            let page = table.query(&query).await.unwrap();
            (pages, items) = (pages + 1, items + page.items.len());
            query.after = page.next;
            if query.after.is_none() {
                return (pages, items);
            }
        }
    });
    assert_eq!((pages, items), (2, 2000));
    let reads = limited.table.used().bill.reads - before.reads;
    assert!((440.0..460.0).contains(&reads), "{reads} units for 1.8 MB");
}

#[test]
fn a_request_takes_4_to_10_ms_and_seldom_more() {
    let limited = Limited::new(TableLimits::AWS);
    let time = Arc::clone(&limited.time);
    let (mut spans, _) = limited.timed(|table| async move {
        let mut spans = Vec::new();
        for _ in 0..1000 {
            let began = time.now();
            table.get(&[item("a", 1, 1).key]).await.unwrap();
            spans.push(time.now().since(began));
        }
        spans
    });
    spans.sort_unstable();
    let (p50, p99) = (spans[500].as_millis(), spans[970].as_millis());
    assert!((4..=8).contains(&p50) && p99 <= 10, "p50 {p50} ms, p97 {p99} ms");
    assert!(spans[999] > Duration::from_millis(20), "{:?}", spans[999]);
}
