//! A damaged record holds itself alone: every page goes on without it, and finds it again once it
//! can be read.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_backends::dynamodb::{
    DynamoStore, LowWatermarks,
    memory::MemoryTable,
    table::{Change, Item, Table, Val},
};
use tidegate_core::{
    job::{Job, Lifecycle, Revision, State, lifecycle::Waiting},
    port::{
        Committed, JobStore, Movable as _, Write,
        job_store::{
            CurrentRecord, DueQuery, Expect, Key, ListQuery, RECORD_BYTES, Record, RecordKind,
            RecordQuery,
        },
    },
    queue::order::Order,
    time::Seconds,
};
use tidegate_engine::{
    memory::{FakeClock, SeededEntropy},
    testkit::builders::{at, job, name},
};

/// The attribute with a job's lifecycle, and that with the jobs of a timer.
const LIFE: char = 'l';

struct Fixture {
    table: Arc<MemoryTable>,
    clock: Arc<FakeClock>,
    store: DynamoStore,
}

impl Fixture {
    fn new() -> Self {
        let (table, clock) = (Arc::new(MemoryTable::new()), Arc::new(FakeClock::new(at(0))));
        let entropy = Arc::new(SeededEntropy::new(1));
        let store = DynamoStore::new(Arc::clone(&table) as _, Arc::clone(&clock) as _, entropy)
            .with_low_watermarks(LowWatermarks {
                worth: 1,
                stuck: 2,
                old: Duration::from_secs(30),
            });
        Self { table, clock, store }
    }

    async fn write(&self, write: Write) {
        let answers = self.store.commit(vec![vec![write]]).await.unwrap();
        assert!(matches!(answers[..], [Committed::All]), "{answers:?}");
    }

    /// Flips a bit of [`LIFE`] in each item that `is_meant`. A second call restores it.
    async fn flip(&self, is_meant: impl Fn(&Item) -> bool) {
        self.flip_in(LIFE, is_meant).await;
    }

    /// Flips a bit of `attribute` in each item that `is_meant`. A second call restores it.
    async fn flip_in(&self, attribute: char, is_meant: impl Fn(&Item) -> bool) {
        let mut items: Vec<Item> = self.table.items().into_iter().filter(is_meant).collect();
        assert!(!items.is_empty());
        for item in &mut items {
            let Some(Val::B(bytes)) = item.attrs.get_mut(&attribute) else { panic!("{item:?}") };
            let mut damaged = bytes.to_vec();
            *damaged.last_mut().unwrap() ^= 1;
            *bytes = Bytes::from(damaged);
        }
        let changes: Vec<Change> = items.into_iter().map(Change::Put).collect();
        self.table.write(&changes).await.unwrap();
    }

    /// All records of `kind` in pages of `limit`, and the names of the damaged ones.
    async fn all_records(&self, kind: RecordKind, limit: u32) -> (Vec<Vec<Record>>, Vec<String>) {
        let (mut pages, mut damaged, mut after) = (Vec::new(), Vec::new(), None::<String>);
        loop {
            let page = self.store.all_records(kind, after.as_deref(), limit).await.unwrap();
            pages.push(page.records);
            damaged.extend(page.damaged);
            let Some(next) = page.next else { return (pages, damaged) };
            assert!(after.is_none_or(|after| after < next), "it goes on");
            after = Some(next);
        }
    }

    /// The ids of the due jobs.
    async fn due(&self) -> Vec<String> {
        let query = DueQuery {
            queue: name("mail"),
            critical: false,
            types: vec![name("x")],
            partition: None,
            order: Order::Time { step_millis: 0 },
            until: tidegate_core::port::Clock::now(&*self.clock),
            after: None,
            limit: 100,
            granted: None,
        };
        ids(&self.store.due(&[query]).await.unwrap()[0].jobs)
    }

    async fn listed(&self) -> Vec<String> {
        let query = ListQuery { limit: 100, ..ListQuery::default() };
        ids(&self.store.list(&query).await.unwrap().jobs)
    }

    async fn counted(&self) -> u64 {
        self.store.keep_counts(tidegate_core::time::Timestamp::MAX).await.unwrap();
        self.store.depth(None).await.unwrap().counts.iter().map(|depth| depth.jobs).sum()
    }
}

fn ids(jobs: &[Job]) -> Vec<String> {
    let mut ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    ids.sort_unstable();
    ids
}

/// Whether an item is the row of the job with this id.
fn is_row(id: &'static str) -> impl Fn(&Item) -> bool {
    move |item| item.attrs.contains_key(&'j') && format!("{item:?}").contains(id)
}

#[tokio::test]
async fn a_damaged_job_is_missing_alone_until_it_can_be_read() {
    let fixture = Fixture::new();
    for id in ["good", "odd"] {
        fixture.write(Write::AddJob(job(id).queue("mail").of_type("x").due(1000).build())).await;
    }
    fixture.flip(is_row("odd")).await;
    // Soon; when low watermarks may move; after the hour; and when the rest of it is old.
    for second in [2, 60, 3700, 7500, 20_000] {
        fixture.clock.set(at(second * 1000));
        for _ in 0..2 {
            assert_eq!(fixture.due().await, ["good"], "at {second}");
            assert_eq!(fixture.listed().await, ["good"], "at {second}");
            assert_eq!(fixture.counted().await, 2, "at {second}");
        }
    }
    let ids = ["odd", "good"].map(|id| id.parse().unwrap());
    let asked = fixture.store.get(&ids).await.unwrap();
    assert!(asked[0].is_err() && asked[1].is_ok(), "{asked:?}");
    fixture.flip(is_row("odd")).await;
    assert_eq!(fixture.due().await, ["good", "odd"]);
    assert_eq!(fixture.listed().await, ["good", "odd"]);
    assert_eq!(fixture.counted().await, 2);
}

#[tokio::test]
async fn a_damaged_job_or_timer_delays_no_other_timer() {
    for damage_timer in [false, true] {
        let fixture = Fixture::new();
        for (id, expires) in [("good", 5), ("odd", 3)] {
            let mut job = job(id).queue("mail").of_type("x").due(100_000_000).build();
            Arc::make_mut(&mut job.spec).expires_at = Some(at(expires * 1000));
            Arc::make_mut(&mut job.spec).retention = Seconds::new(60);
            fixture.write(Write::AddJob(job)).await;
        }
        let is_timer = |item: &Item| item.key.p.starts_with('T') && item.key.s.contains('!');
        let first = fixture.table.items().into_iter().filter(is_timer).map(|item| item.key).min();
        let first = first.expect("there are timers");
        let is_meant = |item: &Item| {
            if damage_timer { item.key == first } else { is_row("odd")(item) }
        };
        fixture.flip(is_meant).await;
        fixture.clock.set(at(60_000));
        for _ in 0..3 {
            let overdue = fixture.store.overdue(at(60_000), None, 100).await.unwrap().jobs;
            assert_eq!(ids(&overdue), ["good"], "{damage_timer}");
        }
        fixture.flip(is_meant).await;
        let overdue = fixture.store.overdue(at(60_000), None, 100).await.unwrap().jobs;
        assert_eq!(ids(&overdue), ["good", "odd"], "{damage_timer}");
    }
}

#[tokio::test]
async fn a_job_that_ran_is_found_after_its_repair_too() {
    let fixture = Fixture::new();
    let scheduled = job("odd").queue("mail").of_type("x").due(1000).build();
    fixture.write(Write::AddJob(scheduled.clone())).await;
    fixture.clock.set(at(2000));
    let state = State::Scheduled { run_at: at(1500), waiting: Waiting::Retry };
    let life = Lifecycle { revision: Revision(2), state, ..scheduled.life.clone() };
    let (was, again) = (scheduled.life.revision, Job { life, ..scheduled });
    fixture.write(Write::SetJob { job: again, was, all: false }).await;
    fixture.flip(is_row("odd")).await;
    for second in [60, 7500] {
        fixture.clock.set(at(second * 1000));
        assert_eq!(fixture.due().await, [""; 0]);
    }
    fixture.flip(is_row("odd")).await;
    assert_eq!(fixture.due().await, ["odd"]);
}

#[tokio::test]
async fn a_damaged_record_is_left_out_alone() {
    // In its item, and in parts.
    for (bytes, attribute, partition) in [(10, 'h', "E#"), (500_000, 'd', "F#")] {
        let fixture = Fixture::new();
        let (kind, until) = (RecordKind::DeadLetter, at(1000));
        let record = |name: &str| Record { kind, name: name.into(), until, bytes: vec![7; bytes] };
        let all = ["good", "odd", "well"].map(record);
        for record in all.clone() {
            fixture.write(Write::PutRecord(record)).await;
        }
        let is_odd = |item: &Item| {
            item.key.p.starts_with(partition)
                && [&item.key.p, &item.key.s].iter().any(|key| key.ends_with("odd"))
        };
        let found = async || {
            let (prefix, after) = (String::new(), None);
            let query = RecordQuery { kind, prefix, after, limit: 100 };
            fixture.store.records(&[query]).await.unwrap().remove(0)
        };
        fixture.flip_in(attribute, is_odd).await;
        let [good, _, well] = all.clone();
        assert_eq!(found().await, [good, well]);
        fixture.flip_in(attribute, is_odd).await;
        assert_eq!(found().await, all);
    }
}

#[tokio::test]
async fn a_record_without_one_of_its_parts_is_left_out_alone() {
    let fixture = Fixture::new();
    let (kind, until) = (RecordKind::DeadLetter, at(1000));
    for name in ["good", "odd", "well"] {
        let record = Record { kind, name: name.into(), until, bytes: vec![7; 500_000] };
        fixture.write(Write::PutRecord(record)).await;
    }
    let is_first_part = |item: &Item| item.key.p.ends_with("#odd") && item.key.s.ends_with("#0");
    let first = fixture.table.items().into_iter().find(is_first_part).unwrap();
    let removal = Change::Delete { key: first.key, when: None };
    fixture.table.write(&[removal]).await.unwrap();
    let query = RecordQuery { kind, prefix: String::new(), after: None, limit: 100 };
    let found = fixture.store.records(&[query]).await.unwrap().remove(0);
    let found: Vec<String> = found.into_iter().map(|record| record.name).collect();
    assert_eq!(found, ["good", "well"]);
}

#[tokio::test]
async fn a_move_reads_on_behind_a_damaged_record() {
    let fixture = Fixture::new();
    let (kind, until) = (RecordKind::Log, at(1000));
    for name in ["a.1", "a.2", "a.3", "a.4", "b.1"] {
        let record = Record { kind, name: name.into(), until, bytes: b"{}".to_vec() };
        fixture.write(Write::PutRecord(record)).await;
    }
    fixture.flip_in('h', |item| item.key.s == "a.2").await;
    let (pages, damaged) = fixture.all_records(kind, 2).await;
    let found: Vec<&str> = pages.iter().flatten().map(|record| &record.name[..]).collect();
    assert_eq!(found, ["a.1", "a.3", "a.4", "b.1"]);
    assert_eq!(damaged, ["a.2"]);
}

#[tokio::test]
async fn a_page_of_all_groups_has_a_bounded_size() {
    let fixture = Fixture::new();
    let (kind, until) = (RecordKind::Log, at(1000));
    let mut names = vec!["a-c".to_owned()];
    for group in ["a", "a-b", "b"] {
        names.extend((0..3).map(|n| format!("{group}.{n}")));
    }
    for name in &names {
        let record = Record { kind, name: name.clone(), until, bytes: vec![7; RECORD_BYTES] };
        fixture.write(Write::PutRecord(record)).await;
    }
    let (pages, damaged) = fixture.all_records(kind, 1000).await;
    for page in &pages {
        let bytes: usize = page.iter().map(|record| record.bytes.len()).sum();
        assert!(bytes <= 8 << 20, "a page has {bytes} bytes");
    }
    let found: Vec<&str> = pages.iter().flatten().map(|record| &record.name[..]).collect();
    names.sort_unstable();
    assert_eq!(found, names);
    assert!(damaged.is_empty(), "{damaged:?}");
}

#[tokio::test]
async fn pages_of_all_groups_leave_out_nothing() {
    let fixture = Fixture::new();
    let (kind, until) = (RecordKind::Log, at(1000));
    // More groups than are read at once, some with more records than a page has.
    let mut names: Vec<String> = (0..20).map(|n| format!("g{n:02}-x")).collect();
    for group in 0..40 {
        names.extend((0..=group % 5).map(|n| format!("g{group:02}.{n}")));
    }
    for name in &names {
        let record = Record { kind, name: name.clone(), until, bytes: b"{}".to_vec() };
        fixture.write(Write::PutRecord(record)).await;
    }
    names.sort_unstable();
    for limit in [1, 3, 4, 7, 1000] {
        let (pages, _) = fixture.all_records(kind, limit).await;
        assert!(pages.iter().all(|page| page.len() <= limit as usize));
        let found: Vec<&str> = pages.iter().flatten().map(|record| &record.name[..]).collect();
        assert_eq!(found, names, "in pages of {limit}");
    }
}

#[tokio::test]
async fn a_damaged_key_is_not_an_absent_one() {
    let fixture = Fixture::new();
    let keys = ["odd", "good"].map(|key| Key::Correlation(name("x"), key.into()));
    for key in &keys {
        let (key, was) = (key.clone(), Expect::Absent);
        fixture.write(Write::SetKey { key, job: name("holder"), was }).await;
    }
    let is_odd = |item: &Item| item.key.p.starts_with("K#") && item.key.p.ends_with("odd");
    let mut odd = fixture.table.items().into_iter().find(is_odd).unwrap();
    odd.attrs.insert('j', Val::S("not an id".into()));
    fixture.table.write(&[Change::Put(odd)]).await.unwrap();
    let holders = fixture.store.keys(&keys).await.unwrap();
    assert!(holders[0].is_err(), "{holders:?}");
    assert_eq!(holders[1], Ok(Some(name("holder"))));
    let [odd, _] = keys;
    let taken = Write::SetKey { key: odd, job: name("other"), was: Expect::Absent };
    let refused = fixture.store.commit(vec![vec![taken]]).await.unwrap().remove(0);
    assert!(
        matches!(refused, Committed::Conflict { current: CurrentRecord::Unreadable(_), .. }),
        "{refused:?}"
    );
}
