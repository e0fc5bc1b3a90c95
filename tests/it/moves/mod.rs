//! Moves of a whole store: every record arrives, whenever a move is interrupted; every difference is
//! found; damaged records are counted; and no engine uses a store that is a part of a move.

mod damaged;
mod differences;
mod interrupted;
mod marks;

use std::sync::Arc;

use object_store::{ObjectStoreExt as _, memory::InMemory, path::Path};
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::{
        Encoding, Event, Job,
        spec::{Unique, UniqueWhile},
    },
    port::{
        Movable,
        job_store::{Committed, Expect, ItemKind, JobStore, Key, Record, RecordKind, Txn, Write},
    },
    queue::{
        GrantBatch, Ledger,
        ledger::{BatchId, BatchRef, Bits},
    },
    stored::UnknownFields,
    time::Seconds,
};
use tidegate_engine::{
    memory::{FakeClock, MemoryStore},
    moves::{Comparison, Move, MoveError, Part, Side},
    testkit::builders::{at, job, name},
};

use crate::every_record::{every_answer, every_record};

/// When the tests move.
pub const NOW: i64 = 20_000;

pub async fn committed(store: &dyn JobStore, txn: Txn) {
    let answer = store.commit(vec![txn]).await.unwrap().pop();
    assert!(matches!(answer, Some(Committed::All)), "{answer:?}");
}

fn record(kind: RecordKind, name: &str) -> Record {
    Record { kind, name: name.to_owned(), until: at(NOW + 600_000), bytes: name.into() }
}

fn item(kind: ItemKind, name: &str, was: u64, version: u64) -> Write {
    Write::SetItem { kind, name: name.into(), was, version, bytes: Some(b"{}".to_vec()) }
}

fn ended(id: &str) -> Job {
    let job = job(id).of_type("x").unique(Unique::new("u", UniqueWhile::Live));
    let job = job.with(|spec| spec.correlation_key = Some("of \0 ended".into())).build();
    job.apply(Event::Cancel { force: false }, at(1)).unwrap()
}

/// A store in memory with something of every kind: everything of [`every_record`], a record and an item
/// of each kind, a key of each kind, an ended job, and an object.
pub async fn filled() -> Side {
    let side = side(Arc::new(MemoryStore::new()), "the source");
    for txn in every_record() {
        committed(&*side.store, txn).await;
    }
    let keys = [
        Key::Correlation(name("x"), "of \0 ended".into()),
        Key::Unique(name("x"), "u".into()),
        Key::Idempotency("i".into()),
    ];
    let to_ended = |key| Write::SetKey { key, job: name("ended"), was: Expect::Absent };
    let mut txn: Txn = keys.into_iter().map(to_ended).collect();
    txn.push(Write::AddJob(ended("ended")));
    committed(&*side.store, txn).await;
    for kind in RecordKind::ALL.into_iter().filter(|kind| *kind != RecordKind::Server) {
        for name in ["of-kind", "a.of-group", "a-b.of-group"] {
            // Only some kinds have groups.
            if !name.contains('.') || kind.group(name).is_some() {
                committed(&*side.store, vec![Write::PutRecord(record(kind, name))]).await;
            }
        }
    }
    for kind in ItemKind::ALL {
        committed(&*side.store, vec![item(kind, "of-kind", 0, 7)]).await;
    }
    side.objects.put(&Path::from("bodies/a"), "body".into()).await.unwrap();
    side
}

/// The same with so many jobs and records that they are more than a page.
async fn with_pages() -> Side {
    let side = filled().await;
    let add = |n| {
        let bytes = if n % 100 == 0 { vec![b'1'; 2 << 20] } else { b"[1]".to_vec() };
        vec![Write::AddJob(job(&format!("many-{n:03}")).data(Encoding::Json, bytes).build())]
    };
    let jobs = (0..450).map(add);
    let records =
        (0..70).map(|n| vec![Write::PutRecord(record(RecordKind::Audit, &format!("many-{n:02}")))]);
    side.store.commit(jobs.chain(records).collect()).await.unwrap();
    side
}

pub fn side(store: Arc<dyn Movable>, place: &str) -> Side {
    Side { store, objects: Arc::new(InMemory::new()), inbox: None, place: place.to_owned() }
}

/// An empty target.
fn empty() -> Side {
    side(Arc::new(MemoryStore::new()), "the target")
}

fn of(from: &Side, to: &Side) -> Move {
    Move { from: from.clone(), to: to.clone(), clock: Arc::new(FakeClock::new(at(NOW))) }
}

/// The whole move, as the command does it.
pub async fn moved(this: &Move, id: &str) -> Result<Comparison, MoveError> {
    let mut begun = this.begin(id.into()).await?;
    this.copy(&mut begun, &|_, _| {}).await?;
    let comparison = this.compare(&|_, _| {}).await?;
    this.finish(&begun, &comparison).await?;
    Ok(comparison)
}

#[tokio::test]
async fn everything_arrives_through_every_store() {
    let from = filled().await;
    let sqlite = side(Arc::new(SqliteStore::open_temporary().unwrap()), "SQLite");
    let memory = empty();
    for this in [of(&from, &sqlite), of(&sqlite, &memory)] {
        let comparison = moved(&this, "one").await.unwrap();
        assert!(comparison.is_equal(), "{comparison:?}");
        for part in comparison.parts {
            assert!(part.from > 0, "there is something of {}", part.part);
            assert_eq!(part.from, part.to, "{}", part.part);
        }
    }
    assert_eq!(every_answer(&*memory.store).await, every_answer(&*from.store).await);
    let body = memory.objects.get(&Path::from("bodies/a")).await.unwrap().bytes().await.unwrap();
    assert_eq!(body, "body");
}

#[tokio::test]
async fn pages_of_jobs_and_records_arrive() {
    let (from, to) = (with_pages().await, empty());
    let comparison = moved(&of(&from, &to), "one").await.unwrap();
    let jobs = comparison.parts.iter().find(|part| part.part == Part::Jobs).unwrap();
    assert_eq!((jobs.from, jobs.to), (455, 455));
}

#[tokio::test]
async fn a_job_past_its_retention_is_not_moved() {
    let (from, to) = (filled().await, empty());
    let mut over = ended("over");
    let mut spec = (*over.spec).clone();
    spec.retention = Seconds::new(1);
    over.spec = Arc::new(spec);
    committed(&*from.store, vec![Write::AddJob(over)]).await;
    let comparison = moved(&of(&from, &to), "one").await.unwrap();
    assert!(comparison.is_equal(), "{comparison:?}");
    let found = to.store.get(&[name("over"), name("ended")]).await.unwrap();
    assert!(matches!(&found[..], [Ok(None), Ok(Some(_))]), "{found:?}");
}

/// A ledger whose only batch was sent, and not claimed.
pub fn sent_ledger() -> Ledger {
    let batch = BatchRef {
        id: BatchId(7),
        count: 1,
        released: Bits::default(),
        check_at: at(90_000),
        sent: true,
        sends: 3,
        unknown: UnknownFields::default(),
    };
    Ledger { version: 9, batches: vec![batch], ..Ledger::default() }
}

#[tokio::test]
async fn what_was_dispatched_and_how_far_is_not_moved() {
    let (from, to) = (filled().await, empty());
    let queue = name("sent");
    let ledger = Write::SetLedger { queue, ledger: sent_ledger(), was: Expect::Absent };
    let batch = GrantBatch {
        id: BatchId(7),
        ledger_version: 9,
        grants: Vec::new(),
        state: None,
        unknown: UnknownFields::default(),
    };
    committed(&*from.store, vec![Write::AddBatch(name("sent"), batch), ledger]).await;
    committed(&*to.store, vec![item(ItemKind::Horizon, "free", 0, 3)]).await;
    let comparison = moved(&of(&from, &to), "one").await.unwrap();
    assert!(comparison.is_equal(), "{comparison:?}");
    let (ledger, _) = to.store.ledger(&name("sent")).await.unwrap().unwrap();
    let sent = &ledger.batches[0];
    assert_eq!((sent.sent, sent.sends, sent.check_at), (true, 0, at(0)), "it is checked at once");
    assert!(to.store.items(ItemKind::Horizon).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_transient_record_past_its_time_is_not_moved() {
    let (from, to) = (filled().await, empty());
    let over = Record { until: at(NOW), ..record(RecordKind::Demand, "a.over") };
    committed(&*from.store, vec![Write::PutRecord(over)]).await;
    let comparison = moved(&of(&from, &to), "one").await.unwrap();
    assert!(comparison.is_equal(), "{comparison:?}");
    let demands = comparison.parts.iter().find(|it| it.part == Part::Records(RecordKind::Demand));
    assert_eq!(demands.map(|it| (it.from, it.to)), Some((4, 3)));
}

#[tokio::test]
async fn a_new_item_continues_after_the_moved_versions() {
    let (from, to) = (filled().await, empty());
    committed(&*from.store, vec![item(ItemKind::Queue, "late", 0, 900)]).await;
    moved(&of(&from, &to), "one").await.unwrap();
    assert!(to.store.items_version().await.unwrap() >= 900);
}
