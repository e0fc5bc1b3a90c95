//! Logs that a leader writes and truncates while they are read, and logs that have lost an object.

use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::json;
use tidegate_core::port::Clock;

use super::*;
use crate::{
    bucket_log::{
        LogBucket, Removable,
        body::{EpochClaim, Manifest, SnapshotPart},
        create::PutAnswer,
        flight::MAX_PUTS,
        object::Header,
    },
    system::SystemEntropy,
};

const LOG: LogId = LogId(0xabc);

type Objects = BTreeMap<String, Bytes>;

/// A bucket that changes once, when the object `trigger` is read.
#[derive(Default)]
struct Bucket {
    objects: Mutex<Objects>,
    change: Mutex<Option<(ObjectKey, Objects)>>,
    /// How many requests it does not answer.
    unanswered: AtomicI64,
}

#[async_trait]
impl LogBucket for Bucket {
    async fn create(&self, key: &ObjectKey, _: Bytes) -> PutAnswer {
        panic!("a reader writes {key}")
    }

    async fn read(&self, key: &ObjectKey) -> GetAnswer {
        if self.unanswered.fetch_sub(1, Ordering::Relaxed) > 0 {
            return GetAnswer::Unknown;
        }
        let found = self.objects.lock().get(&key.to_string()).cloned();
        if let Some((_, objects)) = self.change.lock().take_if(|(trigger, _)| trigger == key) {
            *self.objects.lock() = objects;
        }
        found.map_or(GetAnswer::Absent, GetAnswer::Found)
    }

    async fn remove(&self, object: &Removable) -> bool {
        panic!("a reader removes {}", object.key())
    }
}

#[async_trait]
impl Hints for Bucket {
    async fn write(&self, hint: Hint, _: Bytes) -> bool {
        panic!("a reader writes {}", hint.name())
    }

    async fn read(&self, hint: Hint) -> Option<Bytes> {
        self.objects.lock().get(hint.name()).cloned()
    }
}

/// A clock whose waits take no time.
#[derive(Default)]
struct FastClock(AtomicI64);

#[async_trait]
impl Clock for FastClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::Relaxed))
    }

    async fn sleep_until(&self, at: Timestamp) {
        self.0.fetch_max(at.millis(), Ordering::Relaxed);
    }
}

/// Writes the objects of a log.
struct Writer {
    objects: Objects,
    tail: Tail,
    newest_snapshot: u64,
}

impl Writer {
    /// A log without an epoch.
    fn new() -> Self {
        let id = format!("{:032x}", LOG.0);
        let sum = tidegate_core::checksum::checksum(&[id.as_bytes(), &1_u32.to_be_bytes()]);
        let identity = json!({"log": id, "format": 1, "sum": sum}).to_string();
        let objects = [(ObjectKey::Identity.to_string(), identity.into())].into();
        Self { objects, tail: Tail::START, newest_snapshot: 0 }
    }

    fn put(&mut self, key: ObjectKey, kind: Kind, at: Tail, body: &Bytes) -> Object {
        let Tail { next: slot, time, hash: previous } = at;
        let object = Object::new(Header { kind, log: LOG, slot, nonce: 1, time, previous }, body);
        self.objects.insert(key.to_string(), object.bytes().clone());
        object
    }

    fn append(&mut self, kind: Kind, body: &Bytes) {
        let object = self.put(self.tail.key(), kind, self.tail, body);
        self.tail = Tail::after(&object);
    }

    /// An epoch with `records`, and the beat of its leader after the last one.
    fn epoch(&mut self, records: u64) {
        let epoch = self.tail.next.epoch;
        let claim = EpochClaim { snapshot: self.newest_snapshot, ..EpochClaim::default() };
        let at = Tail { next: self.tail.next, ..Tail::START };
        self.put(ObjectKey::Claim(epoch), Kind::Claim, at, &body::encode(&claim));
        self.append(Kind::Start, &body::encode(&StartRecord::default()));
        for _ in 0..records {
            self.append(Kind::Record, &body::pack(&[Bytes::from_static(b"a transaction")]));
        }
        let beat = Beat { epoch: epoch.number(), seq: self.tail.next.seq, ..Beat::default() };
        self.objects.insert(Hint::Leader.name().to_owned(), beat.encode());
    }

    /// A sealed epoch and the snapshot after its seal.
    fn sealed_epoch(&mut self, records: u64) {
        self.epoch(records);
        let epoch = self.tail.next.epoch;
        self.append(Kind::Seal, &Bytes::new());
        let bytes = Bytes::from(format!("the state after {epoch}"));
        let part = SnapshotPart {
            hash: Hash::of(&bytes).0,
            bytes: bytes.len() as u64,
            ..SnapshotPart::default()
        };
        let previous = self.newest_snapshot;
        let manifest = Manifest { parts: vec![part], previous, ..Manifest::default() };
        let at = Tail { next: Slot::first_of(epoch), hash: self.tail.hash, time: self.tail.time };
        self.put(ObjectKey::Manifest(epoch), Kind::Manifest, at, &body::encode(&manifest));
        let key = ObjectKey::Part { epoch, nonce: 1, index: 0 };
        self.objects.insert(key.to_string(), bytes);
        self.newest_snapshot = epoch.number();
    }

    /// Removes the records of `epoch`, but not its seal.
    fn remove_records(&mut self, epoch: u64, records: u64) {
        for seq in 0..=records {
            self.objects.remove(&record(epoch, seq).to_string());
        }
    }

    fn remove_snapshot(&mut self, epoch: u64) {
        let epoch = Epoch::new(epoch).unwrap();
        self.objects.remove(&ObjectKey::Manifest(epoch).to_string());
        let part = ObjectKey::Part { epoch, nonce: 1, index: 0 };
        self.objects.remove(&part.to_string());
    }
}

fn record(epoch: u64, seq: u64) -> ObjectKey {
    ObjectKey::Slot(Slot { epoch: Epoch::new(epoch).unwrap(), seq })
}

/// A log with the epochs 1 to 3 and the open epoch 4. The first two were truncated.
fn truncated_log() -> Writer {
    let mut writer = Writer::new();
    for _ in 1..=3 {
        writer.sealed_epoch(6);
    }
    writer.epoch(8);
    writer.remove_records(1, 6);
    writer.remove_records(2, 6);
    writer.remove_snapshot(1);
    writer
}

/// How many objects of slots are read, and the end of the log; or the problem.
async fn verified_to(bucket: Bucket) -> Result<(usize, Slot), String> {
    let bucket = Arc::new(bucket);
    let edge = Edge {
        bucket: Arc::clone(&bucket) as _,
        clock: Arc::new(FastClock::default()),
        entropy: Arc::new(SystemEntropy),
    };
    let reader = LogReader::open(edge, bucket).await.map_err(|problem| problem.to_string())?;
    let mut read = 0;
    let count = |entry| read += usize::from(matches!(entry, LogEntry::Object { .. }));
    let end = reader.expect("there is a log").verify(count).await;
    end.map(|end| (read, end.next)).map_err(|problem| problem.to_string())
}

/// How many objects of slots are read, or the problem.
async fn verified(bucket: Bucket) -> Result<usize, String> {
    verified_to(bucket).await.map(|(read, _)| read)
}

async fn verified_objects(objects: Objects) -> Result<usize, String> {
    verified(Bucket { objects: objects.into(), ..Bucket::default() }).await
}

#[tokio::test]
async fn every_object_that_is_missing_is_named() {
    let log = truncated_log();
    // The epoch 3 has 8 objects with its seal, and the open one has 9.
    assert_eq!(verified_objects(log.objects.clone()).await, Ok(17));
    // What a fence needs, and a reader does not.
    let unread = [record(1, 7), record(2, 7)].map(|key| key.to_string());
    for name in log.objects.keys().filter(|name| !unread.contains(name)) {
        let mut objects = log.objects.clone();
        objects.remove(name);
        let read = verified_objects(objects).await;
        if name == Hint::Leader.name() {
            assert_eq!(read, Ok(17));
            continue;
        }
        let problem = read.expect_err(name);
        assert!(problem.contains(&format!("{name} ")), "{name}: {problem}");
    }
}

#[tokio::test]
async fn what_is_missing_is_noticed_without_a_beat_of_the_leader() {
    for under_way in 0..8 {
        let mut log = truncated_log();
        log.objects.remove(Hint::Leader.name());
        let gap = record(4, 8 - under_way);
        log.objects.remove(&gap.to_string());
        let read = verified_objects(log.objects).await;
        if under_way < MAX_PUTS {
            // The PUTs after it may have ended first.
            assert_eq!(read, Ok(16 - under_way as usize));
        } else {
            let problem = read.unwrap_err();
            assert!(problem.contains(&gap.to_string()), "{problem}");
        }
    }
}

#[tokio::test]
async fn a_slot_that_a_leader_fills_during_the_read_is_read() {
    let log = truncated_log();
    for seq in 0..=8 {
        let late = record(4, seq);
        let mut objects = log.objects.clone();
        objects.remove(&late.to_string());
        objects.remove(Hint::Leader.name());
        let change = Some((late, log.objects.clone()));
        let bucket = Bucket { objects: objects.into(), change: change.into(), ..Bucket::default() };
        let read = verified(bucket).await.unwrap();
        // The log may end before a record with fewer than four after it.
        assert!(read == 17 || (seq > 4 && read == 8 + seq as usize), "{late}: {read}");
    }
}

#[tokio::test]
async fn what_an_interrupted_truncation_has_left_is_no_damage() {
    let mut log = Writer::new();
    for _ in 1..=3 {
        log.sealed_epoch(6);
    }
    log.epoch(1);
    // The records up to the older kept snapshot go first, and then the snapshot before it.
    log.remove_records(1, 6);
    log.remove_records(2, 3);
    assert_eq!(verified_objects(log.objects).await, Ok(10));
}

#[tokio::test]
async fn a_truncation_at_any_time_is_no_damage() {
    let mut log = Writer::new();
    for _ in 1..=3 {
        log.sealed_epoch(6);
    }
    log.epoch(1);
    let before = log.objects.clone();
    log.append(Kind::Seal, &Bytes::new());
    for _ in 5..=6 {
        log.sealed_epoch(2);
    }
    for epoch in 1..=5 {
        log.remove_records(epoch, 6);
    }
    for epoch in 1..=3 {
        log.remove_snapshot(epoch);
    }
    // Without the seals, which no reader that begins after them reads.
    let triggers = before.keys().filter_map(|name| {
        let epochs = (1..=4).filter_map(Epoch::new);
        let slots = epochs.clone().flat_map(|epoch| (0..9).map(move |seq| Slot { epoch, seq }));
        let parts = epochs.clone().map(|epoch| ObjectKey::Part { epoch, nonce: 1, index: 0 });
        let keys = slots.map(ObjectKey::Slot).chain(parts);
        let keys = keys.chain(epochs.clone().map(ObjectKey::Manifest));
        keys.chain(epochs.map(ObjectKey::Claim)).find(|key| key.to_string() == *name)
    });
    for trigger in triggers {
        let change = Some((trigger, log.objects.clone()));
        let objects = before.clone();
        let bucket = Bucket { objects: objects.into(), change: change.into(), ..Bucket::default() };
        let read = verified(bucket).await;
        assert!(read.is_ok(), "{trigger}: {read:?}");
    }
}

/// The leader goes on for some epochs, and removes what it wrote, while the end is looked for.
#[tokio::test]
async fn a_log_does_not_end_where_it_was_truncated() {
    let mut log = Writer::new();
    for _ in 1..=3 {
        log.sealed_epoch(6);
    }
    log.epoch(1);
    let mut before = log.objects.clone();
    before.remove(Hint::Leader.name());
    let gap = log.tail.key();
    for _ in 0..8 {
        log.append(Kind::Record, &body::pack(&[Bytes::from_static(b"a transaction")]));
    }
    log.append(Kind::Seal, &Bytes::new());
    for _ in 5..=8 {
        log.sealed_epoch(6);
    }
    for epoch in 1..=7 {
        log.remove_records(epoch, if epoch == 4 { 9 } else { 6 });
    }
    for epoch in 1..=6 {
        log.remove_snapshot(epoch);
    }
    let change = Some((gap, log.objects.clone()));
    let bucket = Bucket { objects: before.into(), change: change.into(), ..Bucket::default() };
    assert_eq!(verified_to(bucket).await.map(|(_, end)| end), Ok(log.tail.next));
}

#[tokio::test]
async fn a_manifest_that_follows_itself_is_refused() {
    let mut log = truncated_log();
    let epoch = Epoch::new(3).unwrap();
    let manifest = Manifest { previous: 3, ..Manifest::default() };
    let at = Tail { next: Slot::first_of(epoch), ..Tail::START };
    log.put(ObjectKey::Manifest(epoch), Kind::Manifest, at, &body::encode(&manifest));
    let problem = verified_objects(log.objects).await.unwrap_err();
    assert!(problem.contains("snap/0000000003/manifest"), "{problem}");
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_a_damaged_log() {
    let silent = |requests| Bucket {
        objects: truncated_log().objects.into(),
        unanswered: AtomicI64::new(requests),
        ..Bucket::default()
    };
    assert_eq!(verified(silent(20)).await, Ok(17));
    let problem = verified(silent(i64::MAX)).await.unwrap_err();
    assert!(problem.contains("the store does not answer"), "{problem}");
}
