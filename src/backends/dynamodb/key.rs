//! The names under which items lie in the table.
//!
//! The one thing to know: **a row's key is its due time.** What is to be found by time lies in a *bucket*: one hour of one
//! *index partition*, which is a queue, a type, critical or not, a partition and a shard. Within it keys sort by instant. An id that the
//! engine draws carries the index partition and the instant that its job is filed under, so that the id alone gives the key.
//!
//! | item | `p` | `s` |
//! |---|---|---|
//! | job | `B#partition#hour` | `instant.tie` |
//! | wake entry | `B#partition#hour` | `instant!id!revision` |
//! | late entry | `B#partition#hour!` | `instant!id!revision` |
//! | timer | `T#hour` | `instant!chance` |
//! | open bucket | `R#queue`, late ones `L#queue`, timers `R#` | `hour#partition` |
//! | bucket that has had jobs | `A#queue` | `hour#partition` |
//! | queue that has had jobs | `Q#` | queue |
//! | place of a client's id | `I#id` | `-` |
//! | body | `D#id` | `digest#part` |
//! | key of a job | `K#kind#type#key` | `-` |
//! | head, grant batch | `H#queue`, `G#queue` | `-`, number |
//! | item of configuration | `C#kind` | name |
//! | record, its appointment | `E#kind`, `Y#kind` | name, `instant!name` |
//! | part of a large record | `F#kind#name` | `digest#part` |

use sha2::{Digest, Sha256};

use tidegate_core::{
    job::{JobId, QueueName, Spec, TypeName},
    port::job_store::{self, ItemKind, RecordKind},
    queue::ledger::BatchId,
    time::Timestamp,
};

/// Digits in the order of their bytes, so that texts sort as the numbers do; those of ULIDs.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// What is added to an instant, so that none is negative.
const ZERO: i64 = 1 << 48;
/// How long a bucket is, in milliseconds.
const HOUR: i64 = 3_600_000;
/// Digits of an instant.
const INSTANT: usize = 10;
/// Digits of an index partition's name: sixty bits.
const INDEX_PARTITION_DIGITS: usize = 12;
/// Digits of an hour's number.
const NUMBER: usize = 6;
/// The length of a ULID.
const ULID: usize = 26;

/// Sorts before everything that follows a name.
pub(super) const FIRST: char = ' ';
/// Sorts after everything that follows a name.
pub(super) const LAST: char = '~';

/// Where an item lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The partition.
    pub p: String,
    /// The place in it.
    pub s: String,
}

impl Key {
    /// Whether a job's own item lies here.
    pub fn is_row(&self) -> bool {
        self.p.starts_with("B#") && matches!(SortKey::parse(&self.s), Some(SortKey::Row(_)))
    }

    pub(super) fn new(p: impl Into<String>, s: impl Into<String>) -> Self {
        Self { p: p.into(), s: s.into() }
    }
}

fn digits(mut number: u64, width: usize) -> String {
    let mut text = vec![b'0'; width];
    for digit in text.iter_mut().rev() {
        *digit = DIGITS[(number & 31) as usize];
        number >>= 5;
    }
    String::from_utf8(text).expect("digits are ASCII")
}

fn number(text: &str) -> Option<u64> {
    text.bytes().try_fold(0u64, |number, byte| {
        let digit = DIGITS.iter().position(|digit| *digit == byte)?;
        Some(number << 5 | digit as u64)
    })
}

/// An instant as keys contain it.
pub(super) fn instant(at: Timestamp) -> String {
    let most = (1i64 << 50) - 1;
    digits((at.millis().saturating_add(ZERO)).clamp(0, most) as u64, INSTANT)
}

fn instant_of(text: &str) -> Option<Timestamp> {
    (text.len() == INSTANT)
        .then(|| number(text))?
        .map(|number| Timestamp::from_millis(number as i64 - ZERO))
}

/// The number of the hour that `at` is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Hour(u32);

impl Hour {
    pub(super) fn of(at: Timestamp) -> Self {
        Self((at.millis().saturating_add(ZERO).max(0) / HOUR) as u32)
    }

    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Its first instant.
    pub(super) fn start(self) -> Timestamp {
        Timestamp::from_millis(i64::from(self.0) * HOUR - ZERO)
    }

    /// The first instant after it.
    pub(super) fn end(self) -> Timestamp {
        self.next().start()
    }

    pub(super) fn text(self) -> String {
        digits(self.0.into(), NUMBER)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        (text.len() == NUMBER).then(|| number(text))?.map(|number| Self(number as u32))
    }
}

/// An index partition's name: a digest of what it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Partition(String);

impl Partition {
    /// The index partition in which a job with this spec waits; `tie` spreads them over the shards.
    pub(super) fn of(spec: &Spec, tie: &str, shards: u8) -> Self {
        let shard = if shards < 2 { 0 } else { Sha256::digest(tie)[0] % shards };
        Self::named(&spec.queue, &spec.job_type, spec.critical, &spec.partition, shard)
    }

    fn named(
        queue: &QueueName,
        job_type: &TypeName,
        critical: bool,
        partition: &str,
        shard: u8,
    ) -> Self {
        let mut hash = Sha256::new();
        for part in [queue.as_str(), job_type.as_str(), partition] {
            hash.update(part);
            hash.update([0]);
        }
        hash.update([u8::from(critical), shard]);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.finalize()[..8]);
        Self(digits(u64::from_be_bytes(first) >> 4, INDEX_PARTITION_DIGITS))
    }
}

/// Where a job's row lies: which index partition, and under which instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobLocation {
    pub index_partition: Partition,
    pub at: Timestamp,
}

impl JobLocation {
    pub(super) fn text(&self) -> String {
        format!("{}{}", self.index_partition.0, instant(self.at))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (index_partition, at) = text.split_at_checked(INDEX_PARTITION_DIGITS)?;
        number(index_partition)?;
        Some(Self { index_partition: Partition(index_partition.to_owned()), at: instant_of(at)? })
    }

    /// The key of the row here whose id ends in `tie`.
    pub(super) fn row(&self, tie: &str) -> Key {
        Key::new(
            bucket(&self.index_partition, Hour::of(self.at), false),
            format!("{}.{tie}", instant(self.at)),
        )
    }
}

/// The part of an id that tells rows of one instant apart, and the place if the id carries it.
pub(super) fn parts(id: &JobId) -> (&str, Option<JobLocation>) {
    let text = id.as_str();
    let split = text
        .split_at_checked(ULID)
        .filter(|(ulid, _)| number(ulid.get(13..).unwrap_or("")).is_some());
    let place = split.and_then(|(_, rest)| JobLocation::parse(rest.strip_prefix('.')?));
    match place {
        Some(place) => (&text[..ULID], Some(place)),
        None => (text, None),
    }
}

/// `id` with its place.
pub(super) fn with_place(id: &JobId, place: &JobLocation) -> JobId {
    format!("{id}.{}", place.text()).parse().expect("a ULID and its place are a good id")
}

/// The id of the row at `key`, if it carries its place.
pub(super) fn placed_id(key: &Key) -> Option<JobId> {
    let index_partition = key.p.strip_prefix("B#")?.get(..INDEX_PARTITION_DIGITS)?;
    let (at, tie) = key.s.split_once('.')?;
    format!("{tie}.{index_partition}{at}").parse().ok()
}

/// The partition of an index partition's bucket.
pub(super) fn bucket(index_partition: &Partition, hour: Hour, late: bool) -> String {
    format!("B#{}#{}{}", index_partition.0, hour.text(), if late { "!" } else { "" })
}

/// The partition of the timers of an hour.
pub(super) fn timers(hour: Hour) -> String {
    format!("T#{}", hour.text())
}

/// The instant at which a timer lies.
pub(super) fn timer_at(s: &str) -> Option<Timestamp> {
    instant_of(s.get(..INSTANT)?)
}

/// What a key in a bucket says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SortKey {
    /// A job's row.
    Row(Timestamp),
    /// An entry for a job, announced for a revision.
    Entry(Timestamp, JobId, u64),
}

impl SortKey {
    pub(super) fn parse(s: &str) -> Option<Self> {
        let (at, rest) = s.split_at_checked(INSTANT)?;
        let at = instant_of(at)?;
        if rest.starts_with('.') {
            return Some(Self::Row(at));
        }
        let (id, revision) = rest.strip_prefix('!')?.split_once('!')?;
        Some(Self::Entry(at, id.parse().ok()?, revision.parse().ok()?))
    }
}

/// The key of an entry for `id` at `at`, written for its revision `revision`.
pub(super) fn entry(
    index_partition: &Partition,
    at: Timestamp,
    late: bool,
    id: &JobId,
    revision: u64,
) -> Key {
    Key::new(
        bucket(index_partition, Hour::of(at), late),
        format!("{}!{id}!{revision}", instant(at)),
    )
}

/// The registry of open buckets of a queue.
pub(super) fn open(queue: &QueueName, late: bool) -> String {
    format!("{}#{queue}", if late { 'L' } else { 'R' })
}

/// The registry of open hours of timers.
pub(super) const OPEN_TIMERS: &str = "R#";
/// The registry of queues that have had jobs.
pub(super) const QUEUES: &str = "Q#";

/// The registry of buckets of a queue that have had jobs.
pub(super) fn all(queue: &QueueName) -> String {
    format!("A#{queue}")
}

/// A bucket in a registry.
pub(super) fn registered(hour: Hour, index_partition: &Partition) -> String {
    format!("{}#{}", hour.text(), index_partition.0)
}

/// The bucket that [`registered`] names.
pub(super) fn registered_of(s: &str) -> Option<(Hour, Partition)> {
    let (hour, index_partition) = s.split_once('#')?;
    Some((Hour::parse(hour)?, Partition(index_partition.to_owned())))
}

/// Where the place of a client's own id is kept.
pub(super) fn id(id: &JobId) -> Key {
    Key::new(format!("I#{id}"), "-")
}

/// A part of a job's body.
pub(super) fn body(id: &JobId, digest: &str, part: usize) -> Key {
    Key::new(format!("D#{id}"), format!("{digest}#{part:03}"))
}

/// A name that leads to a job.
pub(super) fn name(key: &job_store::Key) -> Key {
    use job_store::Key as K;
    Key::new(
        match key {
            K::Correlation(job_type, key) => format!("K#correlation#{job_type}#{key}"),
            K::Unique(job_type, key) => format!("K#unique#{job_type}#{key}"),
            K::Idempotency(key) => format!("K#idempotency##{key}"),
        },
        "-",
    )
}

pub(super) fn head(queue: &QueueName) -> Key {
    Key::new(format!("H#{queue}"), "-")
}

pub(super) fn batches(queue: &QueueName) -> String {
    format!("G#{queue}")
}

pub(super) fn batch(queue: &QueueName, id: BatchId) -> Key {
    Key::new(batches(queue), format!("{:016x}", id.0))
}

pub(super) fn batch_of(s: &str) -> Option<BatchId> {
    u64::from_str_radix(s, 16).ok().map(BatchId)
}

pub(super) fn items(kind: ItemKind) -> String {
    format!("C#{}", kind.as_str())
}

pub(super) fn item(kind: ItemKind, name: &str) -> Key {
    Key::new(items(kind), name)
}

/// The partition of the records of a kind.
pub(super) fn records(kind: RecordKind) -> String {
    format!("E#{}", kind.as_str())
}

pub(super) fn record(kind: RecordKind, name: &str) -> Key {
    Key::new(records(kind), name)
}

/// A part of a large record.
pub(super) fn record_part(kind: RecordKind, name: &str, digest: &str, part: usize) -> Key {
    Key::new(format!("F#{}#{name}", kind.as_str()), format!("{digest}#{part}"))
}

/// The partition of the appointments at which records of a kind are dropped.
pub(super) fn appointments(kind: RecordKind) -> String {
    format!("Y#{}", kind.as_str())
}

pub(super) fn appointment(kind: RecordKind, at: Timestamp, name: &str) -> Key {
    Key::new(appointments(kind), format!("{}!{name}", instant(at)))
}

/// The time of an appointment, and the name of its record.
pub(super) fn appointment_of(key: &Key) -> Option<(Timestamp, String)> {
    let (at, name) = key.s.split_once('!')?;
    Some((instant_of(at)?, name.to_owned()))
}

/// Where the number lies that changes with the configuration.
pub(super) fn items_version() -> Key {
    Key::new("C#", "version")
}
