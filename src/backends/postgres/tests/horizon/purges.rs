//! Purges of records. Each starts where the last one has dropped all.

use super::*;
use crate::postgres::tests::server::store;
use tidegate_core::port::job_store::{Purged, Record, RecordKind};

const KIND: RecordKind = RecordKind::Lease;
/// More records than there are.
const MANY: u32 = 10_000;

fn record(name: &str, until: i64) -> Write {
    Write::PutRecord(Record {
        kind: KIND,
        name: name.to_owned(),
        until: Timestamp::from_millis(until),
        bytes: b"[]".to_vec(),
    })
}

async fn purge(store: &PostgresStore, now: i64) -> Purged {
    let now = Timestamp::from_millis(now);
    store.purge(KIND, now, u64::from(MANY), MANY).await.unwrap()
}

fn expired(expired: u64) -> Purged {
    Purged { expired, ..Purged::default() }
}

/// A round: it adds records, which have expired, and drops them.
async fn purge_round(store: &PostgresStore, number: i64) {
    let add = |n: i64| record(&format!("n-{number:06}-{n:03}"), number);
    let added = store.commit(vec![(0..JOBS).map(add).collect()]).await.unwrap();
    assert!(matches!(added[..], [Committed::All]), "{added:?}");
    assert_eq!(purge(store, number).await, expired(JOBS.unsigned_abs()));
}

impl Meter {
    /// What the rounds with these numbers read, with the first purge of a new store, which is from the
    /// front.
    fn purges_read(&self, settings: &Settings, numbers: Range<i64>) -> i64 {
        let application = settings.config.get_application_name().unwrap();
        let before = self.read(application);
        let store = open(settings);
        for number in numbers {
            RUNTIME.block_on(purge_round(&store, number));
            // When the next one from the front is due depends on the time.
            store.shared.purges.front_at(Instant::now() + Duration::from_hours(1));
        }
        drop(store);
        self.read(application) - before
    }

    /// What rounds from `number` on read, apart from a start at the front.
    fn purge_phase(&self, settings: &Settings, number: i64) -> i64 {
        let first = number + FIRST_ROUNDS;
        let of_start = self.purges_read(settings, number..first);
        self.purges_read(settings, first..first + FIRST_ROUNDS + ROUNDS) - of_start
    }
}

#[test]
fn an_open_transaction_does_not_slow_purges() {
    let server = OwnServer::start();
    let address = server.address();
    let settings = settings_at(&address);
    let meter = Meter::new(&address);
    // It makes the tables.
    drop(open(&settings));
    // The plans are those of tables that are known to be empty.
    run(&meter.client, "ANALYZE");
    let holder = hold(&address);
    let numbers = [1, 2, 3].map(|phase| phase * 2 * ROUNDS);
    let reads = numbers.map(|number| meter.purge_phase(&settings, number));
    drop(holder);
    println!("the rounds of each phase read {reads:?}");
    let [first, _, last] = reads;
    assert!(3 * last <= 4 * first, "the purges read {last} rows, and read {first}");
}

#[test]
fn a_record_with_an_earlier_time_is_dropped_later() {
    let store = store();
    RUNTIME.block_on(async {
        let add = async |name: &str, until: i64| {
            let added = store.commit(vec![vec![record(name, until)]]).await.unwrap();
            assert!(matches!(added[..], [Committed::All]), "{added:?}");
        };
        add("a", 10).await;
        assert_eq!(purge(&store, 10).await, expired(1));
        store.shared.purges.front_at(Instant::now() + Duration::from_hours(1));
        add("b", 5).await;
        add("c", 15).await;
        assert_eq!(purge(&store, 20).await, expired(1), "the place is behind the other one");
        store.shared.purges.front_at(Instant::now());
        assert_eq!(purge(&store, 20).await, expired(1));
    });
}

/// Records of long leases that are too many move the place far ahead. Those of short ones are before it.
#[test]
fn a_full_purge_from_the_front_is_continued() {
    let store = store();
    RUNTIME.block_on(async {
        let add = |name: &str, until: i64| vec![record(name, until)];
        let purge = async |keep: u64, limit: u32| {
            store.purge(KIND, Timestamp::from_millis(10), keep, limit).await.unwrap()
        };
        store.commit(vec![add("long", 1000)]).await.unwrap();
        assert_eq!(purge(0, 2).await, Purged { expired: 0, over: 1, left: 0 });
        store.commit(["a", "b", "c"].map(|name| add(name, 5)).into()).await.unwrap();
        store.shared.purges.front_at(Instant::now());
        assert_eq!(purge(10, 2).await, Purged { expired: 2, over: 0, left: 1 });
        assert_eq!(purge(10, 2).await, expired(1), "it does not start at the last place");
    });
}
