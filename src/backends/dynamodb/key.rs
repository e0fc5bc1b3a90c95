//! The keys of items in the table.
//!
//! **A row's key contains its due time.** What is found by time lies in a *bucket*: one hour of one
//! *index partition*. An index partition is a queue, a type, critical or not, a partition, a
//! priority and a shard. Keys within a bucket sort by instant, so that a bucket of one priority is
//! a stream of `tidegate_core::queue::order`. An id drawn by the engine contains the index
//! partition and the instant of its row, so that the id alone gives the key.
//!
//! | item | `p` | `s` |
//! |---|---|---|
//! | job | `B#partition#hour` | `instant.tie` |
//! | index entry | `B#partition#hour` | `instant!id!revision` |
//! | late entry | `B#partition#hour!` | `instant!id!revision` |
//! | timer | `T#hour#shard` | `instant!random` |
//! | open bucket | `R#queue`, late ones `L#queue` | `hour#partition` |
//! | open partition of timers | `R#` | `hour#shard` |
//! | queue with open buckets of an hour | `O#` | `hour#queue` |
//! | bucket that has had jobs | `A#queue` | `hour#partition` |
//! | queue that has had jobs | `Q#` | queue |
//! | counts of a queue's jobs, where counting goes on | `N#`, `N#cursor` | queue, `-` |
//! | location of a client's id | `I#id` | `-` |
//! | body | `D#id` | `mark#part` |
//! | key of a job | `K#kind#type#key` | `-` |
//! | ledger, grant batch | `H#queue`, `G#queue` | `-`, number |
//! | item of configuration, copies of a type | `C#kind`, `C#type@number` | name |
//! | version of the configuration, copies | `C#`, `C#@number` | `version` |
//! | record, its appointment | `E#kind`, `Y#kind` | name, `instant!name` |
//! | record of a group | `E#kind#group` | name |
//! | part of a large record | `F#kind#name` | `digest#part` |
//! | request for a tick, further items | `W#queue`, `W#queue@number` | `-` |

use sha2::{Digest, Sha256};

use tidegate_core::{
    job::{JobId, QueueName, Spec},
    port::job_store::{self, ItemKind, RecordKind},
    queue::ledger::BatchId,
    time::Timestamp,
};

/// The digits of ULIDs in the order of their bytes, so that texts sort like their numbers.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Milliseconds added to an instant, so that none is negative.
const INSTANT_OFFSET: i64 = 1 << 48;
/// The length of a bucket in milliseconds.
const HOUR_MILLIS: i64 = 3_600_000;
/// Digits of an instant.
pub(super) const INSTANT_DIGITS: usize = 10;
/// Digits of an index partition's name: sixty bits.
const INDEX_PARTITION_DIGITS: usize = 12;
/// Digits of an hour's number.
pub(super) const HOUR_DIGITS: usize = 6;
/// The length of a ULID.
const ULID_LENGTH: usize = 26;

/// Sorts before everything that follows a name.
pub(super) const FIRST: char = ' ';
/// Sorts after everything that follows a name.
pub(super) const LAST: char = '~';

/// The key of an item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The partition.
    pub p: String,
    /// The sort key within it.
    pub s: String,
}

impl Key {
    /// Whether this is the key of a job's row.
    pub(crate) fn is_row(&self) -> bool {
        self.p.starts_with(BUCKETS) && matches!(SortKey::parse(&self.s), Some(SortKey::Row(_)))
    }

    /// Whether this is the key of the location of a client's id.
    pub(super) fn is_location(&self) -> bool {
        self.p.starts_with("I#")
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

/// The text of an instant in keys.
pub(super) fn instant(at: Timestamp) -> String {
    let max = (1i64 << 50) - 1;
    digits((at.millis().saturating_add(INSTANT_OFFSET)).clamp(0, max) as u64, INSTANT_DIGITS)
}

fn instant_of(text: &str) -> Option<Timestamp> {
    (text.len() == INSTANT_DIGITS)
        .then(|| number(text))?
        .map(|number| Timestamp::from_millis(number as i64 - INSTANT_OFFSET))
}

/// The number of the hour that `at` is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Hour(u32);

impl Hour {
    pub(super) fn of(at: Timestamp) -> Self {
        Self((at.millis().saturating_add(INSTANT_OFFSET).max(0) / HOUR_MILLIS) as u32)
    }

    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The first instant of the hour.
    pub(super) fn start(self) -> Timestamp {
        Timestamp::from_millis(i64::from(self.0) * HOUR_MILLIS - INSTANT_OFFSET)
    }

    /// The first instant after the hour.
    pub(super) fn end(self) -> Timestamp {
        self.next().start()
    }

    pub(super) fn text(self) -> String {
        digits(self.0.into(), HOUR_DIGITS)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        (text.len() == HOUR_DIGITS).then(|| number(text))?.map(|number| Self(number as u32))
    }
}

/// The priorities whose jobs have index partitions of their own. Jobs of all others share one, which
/// is read as far as no unread job can precede a read one. A bound keeps the number of streams
/// small that a page of due jobs merges.
const OWN_PRIORITIES: std::ops::RangeInclusive<i32> = -128..=255;

/// The priority of all jobs of the index partition in which jobs of this priority wait; none if
/// they share it with jobs of other priorities.
pub(super) fn own_priority(priority: i32) -> Option<i32> {
    OWN_PRIORITIES.contains(&priority).then_some(priority)
}

/// The name of an index partition: a digest of its queue, type, class, partition, priority and
/// shard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Partition(String);

impl Partition {
    /// The index partition of jobs with this spec; `tie` selects the shard.
    pub(super) fn of(spec: &Spec, tie: &str, shards: u8) -> Self {
        let shard = if shards < 2 { 0 } else { Sha256::digest(tie)[0] % shards };
        let mut hash = Sha256::new();
        for part in [spec.queue.as_str(), spec.job_type.as_str(), &spec.partition] {
            hash.update(part);
            hash.update([0]);
        }
        hash.update([u8::from(spec.critical), shard]);
        if let Some(priority) = own_priority(spec.priority) {
            hash.update(priority.to_be_bytes());
        }
        let mut first = [0; 8];
        first.copy_from_slice(&hash.finalize()[..8]);
        Self(digits(u64::from_be_bytes(first) >> 4, INDEX_PARTITION_DIGITS))
    }
}

/// The location of a job's row: its index partition and instant.
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

    /// The location of the row at `key`.
    pub(super) fn of_row(key: &Key) -> Option<Self> {
        let index_partition = key.p.strip_prefix(BUCKETS)?.get(..INDEX_PARTITION_DIGITS)?;
        let at = instant_of(key.s.get(..INSTANT_DIGITS)?)?;
        Some(Self { index_partition: Partition(index_partition.to_owned()), at })
    }

    /// The key of the row at this location whose id has `tie`.
    pub(super) fn row(&self, tie: &str) -> Key {
        Key::new(
            bucket(&self.index_partition, Hour::of(self.at), false),
            format!("{}.{tie}", instant(self.at)),
        )
    }
}

/// The part of an id that distinguishes rows of one instant, and the location if the id contains
/// it.
pub(super) fn parts(id: &JobId) -> (&str, Option<JobLocation>) {
    let text = id.as_str();
    let split = text
        .split_at_checked(ULID_LENGTH)
        .filter(|(ulid, _)| number(ulid.get(13..).unwrap_or("")).is_some());
    let location = split.and_then(|(_, rest)| JobLocation::parse(rest.strip_prefix('.')?));
    match location {
        Some(location) => (&text[..ULID_LENGTH], Some(location)),
        None => (text, None),
    }
}

/// `id` with its location.
pub(super) fn with_location(id: &JobId, location: &JobLocation) -> JobId {
    format!("{id}.{}", location.text()).parse().expect("a ULID with a location is a valid id")
}

/// The id of the row at `key`, if the id contains its location.
pub(super) fn located_id(key: &Key) -> Option<JobId> {
    let index_partition = key.p.strip_prefix(BUCKETS)?.get(..INDEX_PARTITION_DIGITS)?;
    let (at, tie) = key.s.split_once('.')?;
    format!("{tie}.{index_partition}{at}").parse().ok()
}

/// What the partitions of all buckets begin with.
pub(super) const BUCKETS: &str = "B#";

/// The partition of an index partition's bucket.
pub(super) fn bucket(index_partition: &Partition, hour: Hour, late: bool) -> String {
    format!("{BUCKETS}{}#{}{}", index_partition.0, hour.text(), if late { "!" } else { "" })
}

/// The instant of a timer's key.
pub(super) fn instant_of_timer(s: &str) -> Option<Timestamp> {
    instant_of(s.get(..INSTANT_DIGITS)?)
}

/// The end of a row's sort key, which follows its instant; none for an entry.
pub(super) fn tie_of_row(s: &str) -> Option<&str> {
    s.get(INSTANT_DIGITS..)?.strip_prefix('.')
}

/// A parsed sort key in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SortKey {
    /// A job's row.
    Row(Timestamp),
    /// An entry for a job, written for a revision.
    Entry(Timestamp, JobId, u64),
}

impl SortKey {
    pub(super) fn parse(s: &str) -> Option<Self> {
        let (at, rest) = s.split_at_checked(INSTANT_DIGITS)?;
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

/// The list of queues with open buckets, by the hour of the bucket.
pub(super) const ACTIVE: &str = "O#";
/// The item that states that every queue with open buckets is listed.
pub(super) fn active_is_complete() -> Key {
    Key::new("O#complete", "-")
}

/// The sort key of a queue in the list of queues with open buckets.
pub(super) fn active(hour: Hour, queue: &str) -> String {
    format!("{}#{queue}", hour.text())
}

/// The hour and the queue of [`active`].
pub(super) fn active_of(s: &str) -> Option<(Hour, QueueName)> {
    let (hour, queue) = s.split_once('#')?;
    Some((Hour::parse(hour)?, queue.parse().ok()?))
}

/// The queue of a registration of an open bucket; none for an hour of timers.
pub(super) fn queue_of_open(key: &Key) -> Option<&str> {
    let queue = key.p.strip_prefix("R#").or_else(|| key.p.strip_prefix("L#"))?;
    Some(queue).filter(|queue| !queue.is_empty())
}

/// The registry of queues that have had jobs.
pub(super) const QUEUES: &str = "Q#";

/// The partition of the counts of the queues' jobs.
pub(super) const COUNTS: &str = "N#";

/// The counts of a queue's jobs.
pub(super) fn counts(queue: &QueueName) -> Key {
    Key::new(COUNTS, queue.as_str())
}

/// What one count of jobs leaves to the next.
pub(super) fn count_cursor() -> Key {
    Key::new("N#cursor", "-")
}

/// The registry of buckets of a queue that have had jobs.
pub(super) fn all(queue: &QueueName) -> String {
    format!("A#{queue}")
}

/// The sort key of a bucket in a registry.
pub(super) fn registered(hour: Hour, index_partition: &Partition) -> String {
    format!("{}#{}", hour.text(), index_partition.0)
}

/// The bucket that [`registered`] names.
pub(super) fn registered_of(s: &str) -> Option<(Hour, Partition)> {
    let (hour, index_partition) = s.split_once('#')?;
    Some((Hour::parse(hour)?, Partition(index_partition.to_owned())))
}

/// The item with the location of a client's own id.
pub(super) fn id(id: &JobId) -> Key {
    Key::new(format!("I#{id}"), "-")
}

/// A part of a job's body; `mark` is that of the write that stored the body.
pub(super) fn body(id: &JobId, mark: &str, part: usize) -> Key {
    Key::new(format!("D#{id}"), format!("{mark}#{part:03}"))
}

/// A key that leads to a job.
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

pub(super) fn ledger(queue: &QueueName) -> Key {
    Key::new(format!("H#{queue}"), "-")
}

/// The request for a tick of a queue.
pub(super) fn tick_request(queue: &QueueName) -> Key {
    Key::new(format!("W#{queue}"), "-")
}

/// One of the further items for the releases of a queue.
pub(super) fn tick_request_part(queue: &QueueName, number: u8) -> Key {
    Key::new(format!("W#{queue}@{number}"), "-")
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

/// What the partitions of all records begin with.
pub(super) const RECORDS: &str = "E#";

/// The partition of the records of a kind that have no group.
pub(super) fn records(kind: RecordKind) -> String {
    format!("{RECORDS}{}", kind.as_str())
}

/// The kind and the group of the record at `key`; none if it has no group.
pub(super) fn group_of(key: &Key) -> Option<(RecordKind, &str)> {
    let (kind, group) = key.p.strip_prefix(RECORDS)?.split_once('#')?;
    let kind = RecordKind::ALL.into_iter().find(|each| each.as_str() == kind)?;
    Some((kind, group))
}

/// The partition of the records whose names begin with `prefix`. Each group of records has a
/// partition of its own: all groups together may need more than one partition's capacity.
pub(super) fn records_with(kind: RecordKind, prefix: &str) -> String {
    match kind.group(prefix) {
        Some(group) => format!("{}#{group}", records(kind)),
        None => records(kind),
    }
}

pub(super) fn record(kind: RecordKind, name: &str) -> Key {
    Key::new(records_with(kind, name), name)
}

/// A part of a large record.
pub(super) fn record_part(kind: RecordKind, name: &str, digest: &str, part: usize) -> Key {
    Key::new(format!("F#{}#{name}", kind.as_str()), format!("{digest}#{part}"))
}

/// The partition of the appointments of a kind: the instants at which its records are dropped.
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

/// Copies of each item that many requests read. A partition of the table answers 3000 reads a
/// second, and each copy has one of its own.
const COPIES: u8 = 16;

/// The keys of the copies of the item of `key`: partitions `C#...@0` and so on.
pub(super) fn copies(key: &Key) -> impl Iterator<Item = Key> {
    (0..COPIES).map(|number| copy(key, number.into()))
}

/// The key of one copy of the item of `key`, chosen by a random number.
pub(super) fn copy(key: &Key, chance: u128) -> Key {
    Key::new(format!("{}@{}", key.p, chance % u128::from(COPIES)), key.s.clone())
}

/// The item with the number that every change of the configuration replaces. It has copies.
pub(super) fn items_version() -> Key {
    Key::new("C#", "version")
}
