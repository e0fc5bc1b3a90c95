//! A table with the limits of DynamoDB: what an emulator does not have.
//!
//! A request takes its time, and is refused while the capacity of a partition key or of the table
//! is used up. As [`SdkTable`](crate::dynamodb::sdk::SdkTable) does, this table repeats what was
//! refused, and gives up after a few tries. All waits are those of the given clock, so a test can
//! use virtual time.
//!
//! The one thing to know: a partition key never gets more than the capacity of one partition. A
//! real table may divide a partition whose keys are in demand, but it gives no promise.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::meter::{
    Bill,
    table::{MAX_BATCH_KEYS, MAX_BATCH_WRITES, read_units, write_units},
};
use crate::dynamodb::{
    Key,
    repeat::{MAX_REPEATS, max_delay, max_repeats},
    table::{Change, Exchange, Item, Page, PageQuery, Table},
};
use tidegate_core::{
    port::{Clock, Entropy, StoreError},
    time::Timestamp,
};

/// Concurrent requests of one call: those of the real adapter.
const MAX_CONCURRENT_REQUESTS: usize = 8;

/// Capacity in units a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Strongly consistent reads of 4 KB.
    pub reads: f64,
    /// Writes of 1 KB.
    pub writes: f64,
}

/// The limits of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableLimits {
    /// Of all items with one partition key.
    pub partition: Capacity,
    /// Of a table that has had no load. It grows to twice the highest minute.
    pub table: Capacity,
    /// How long unused capacity is kept.
    pub burst: Duration,
    /// The shortest and the longest time of a usual request.
    pub latency: (Duration, Duration),
    /// The longest time of one request in a hundred.
    pub slowest: Duration,
}

impl TableLimits {
    /// Those of a new table that is billed by request.
    ///
    /// DynamoDB may keep unused capacity for five minutes, but promises none of it. Five seconds
    /// let a page of a megabyte pass, and not a campaign.
    pub const AWS: Self = Self {
        partition: Capacity { reads: 3000.0, writes: 1000.0 },
        table: Capacity { reads: 12_000.0, writes: 4000.0 },
        burst: Duration::from_secs(5),
        latency: (Duration::from_millis(4), Duration::from_millis(10)),
        slowest: Duration::from_millis(60),
    };

    /// Limits for `factor` times the load: the same times, with a part of the capacity.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let part = |capacity: Capacity| Capacity {
            reads: capacity.reads * factor,
            writes: capacity.writes * factor,
        };
        Self { partition: part(self.partition), table: part(self.table), ..self }
    }
}

/// What a table has consumed and refused.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TableUse {
    /// The billed units.
    pub bill: Bill,
    /// Refused requests, and refused parts of requests.
    pub throttled: u64,
    /// Calls that failed because every try was refused.
    pub failed: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

/// Unused capacity. A request is admitted while there is any, and may leave a debt.
#[derive(Clone, Copy)]
struct Credit {
    units: f64,
    at: Timestamp,
}

impl Credit {
    fn new(rate: f64, burst: Duration, at: Timestamp) -> Self {
        Self { units: rate * burst.as_secs_f64(), at }
    }

    fn refill(&mut self, rate: f64, burst: Duration, now: Timestamp) {
        let gained = rate * now.since(self.at).as_secs_f64();
        *self = Self { units: (self.units + gained).min(rate * burst.as_secs_f64()), at: now };
    }
}

/// A kind of capacity of the whole table, which grows with its load.
struct TableCredit {
    rate: f64,
    credit: Credit,
    minute: i64,
    used: f64,
}

impl TableCredit {
    fn new(rate: f64, burst: Duration, now: Timestamp) -> Self {
        Self { rate, credit: Credit::new(rate, burst, now), minute: 0, used: 0.0 }
    }

    fn use_up(&mut self, units: f64, now: Timestamp) {
        let minute = now.millis().div_euclid(60_000);
        if minute != self.minute {
            self.rate = self.rate.max(2.0 * self.used / 60.0);
            (self.minute, self.used) = (minute, 0.0);
        }
        self.used += units;
        self.credit.units -= units;
    }
}

struct State {
    partitions: HashMap<String, [Credit; 2]>,
    table: [TableCredit; 2],
    used: TableUse,
}

/// A table with limits.
pub struct LimitedTable<T> {
    table: T,
    limits: TableLimits,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    state: Mutex<State>,
}

impl<T: Table> LimitedTable<T> {
    /// Puts `limits` on `table`, with the time of `clock`.
    pub fn new(
        table: T,
        limits: TableLimits,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let now = clock.now();
        let credit = |rate| TableCredit::new(rate, limits.burst, now);
        let state = State {
            partitions: HashMap::new(),
            table: [credit(limits.table.reads), credit(limits.table.writes)],
            used: TableUse::default(),
        };
        Self { table, limits, clock, entropy, state: Mutex::new(state) }
    }

    /// What was consumed and refused so far.
    pub fn used(&self) -> TableUse {
        self.state.lock().used
    }

    /// The table without its limits.
    pub fn unlimited(&self) -> &T {
        &self.table
    }

    /// Whether a request for these partition keys is admitted now.
    fn admits<'k>(&self, kind: Kind, partitions: impl IntoIterator<Item = &'k str>) -> bool {
        let (now, burst) = (self.clock.now(), self.limits.burst);
        let mut state = self.state.lock();
        let state = &mut *state;
        let table = &mut state.table[kind as usize];
        table.credit.refill(table.rate, burst, now);
        let mut admitted = table.credit.units > 0.0;
        let rates = [self.limits.partition.reads, self.limits.partition.writes];
        for partition in partitions {
            let credits = match state.partitions.get_mut(partition) {
                Some(credits) => credits,
                None => state
                    .partitions
                    .entry(partition.to_owned())
                    .or_insert_with(|| rates.map(|rate| Credit::new(rate, burst, now))),
            };
            let credit = &mut credits[kind as usize];
            credit.refill(rates[kind as usize], burst, now);
            admitted &= credit.units > 0.0;
        }
        state.used.throttled += u64::from(!admitted);
        admitted
    }

    /// Takes the units of an admitted request.
    fn charge(&self, kind: Kind, partition: &str, units: f64) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if let Some(credits) = state.partitions.get_mut(partition) {
            credits[kind as usize].units -= units;
        }
        state.table[kind as usize].use_up(units, now);
        match kind {
            Kind::Read => state.used.bill.reads += units,
            Kind::Write => state.used.bill.writes += units,
        }
    }

    /// Charges a change of `current` that was made, or refused unless `taken`.
    fn charge_change(&self, change: &Change, current: Option<&Item>, taken: bool, factor: f64) {
        let after = change.applied(current).map_or(0, |item| item.size());
        let units = write_units(current.map_or(0, Item::size).max(after)) * factor;
        self.charge(Kind::Write, &change.key().p, units);
        let bill = &mut self.state.lock().used.bill;
        bill.rows += if change.key().is_row() { units } else { 0.0 };
        bill.refused += if taken { 0.0 } else { units };
    }

    async fn wait(&self, span: Duration) {
        self.clock.sleep_until(self.clock.now() + span).await;
    }

    /// Draws the time of a request. Half of it passes before the request takes effect.
    fn half_of_a_request(&self) -> Duration {
        self.state.lock().used.bill.round_trips += 1;
        let (least, most) = self.limits.latency;
        let is_slow = self.entropy.fraction() < 0.01;
        let span = if is_slow { self.limits.slowest } else { most };
        (least + span.saturating_sub(least).mul_f64(self.entropy.fraction())) / 2
    }

    /// Waits before a repeat.
    async fn pause(&self, repeat: u32) {
        if repeat > 0 {
            self.wait(max_delay(repeat).mul_f64(self.entropy.fraction())).await;
        }
    }

    fn throttled(&self) -> StoreError {
        self.state.lock().used.failed += 1;
        StoreError::Throttled {
            retry_after: Duration::from_millis(200),
            message: "the table is over its capacity".into(),
        }
    }

    /// Reads at most a hundred keys in one request.
    async fn get_some(&self, keys: &[Key]) -> Result<Vec<(Key, Option<Item>)>, StoreError> {
        let (mut left, mut found) = (keys.to_vec(), Vec::new());
        let mut repeat = 0;
        while repeat <= max_repeats(!found.is_empty()) {
            self.pause(repeat).await;
            repeat += 1;
            let half = self.half_of_a_request();
            self.wait(half).await;
            let mut refused = Vec::new();
            for key in left {
                if !self.admits(Kind::Read, [key.p.as_str()]) {
                    refused.push(key);
                    continue;
                }
                let item = self.table.get(std::slice::from_ref(&key)).await?.pop().flatten();
                self.charge(Kind::Read, &key.p, read_units(item.as_ref().map_or(0, Item::size)));
                found.push((key, item));
            }
            self.wait(half).await;
            if refused.is_empty() {
                return Ok(found);
            }
            left = refused;
        }
        Err(self.throttled())
    }

    /// Makes at most 25 changes in one request. `wrote` says whether the call to which they belong
    /// made some.
    async fn write_some(
        &self,
        changes: &[&Change],
        wrote: &AtomicBool,
    ) -> Result<Vec<bool>, StoreError> {
        let mut outcomes: Vec<Option<bool>> = vec![None; changes.len()];
        let mut repeat = 0;
        while repeat <= max_repeats(wrote.load(Ordering::Relaxed)) {
            self.pause(repeat).await;
            let half = self.half_of_a_request();
            self.wait(half).await;
            for (change, outcome) in changes.iter().zip(&mut outcomes) {
                if outcome.is_some() || !self.admits(Kind::Write, [change.key().p.as_str()]) {
                    continue;
                }
                let key = std::slice::from_ref(change.key());
                let current = self.table.get(key).await?.pop().flatten();
                let taken = self.table.write(std::slice::from_ref(*change)).await?[0];
                self.charge_change(change, current.as_ref(), taken, 1.0);
                wrote.store(true, Ordering::Relaxed);
                *outcome = Some(taken);
            }
            self.wait(half).await;
            if outcomes.iter().all(Option::is_some) {
                return Ok(outcomes.into_iter().flatten().collect());
            }
            repeat += 1;
        }
        if outcomes.iter().all(Option::is_none) {
            return Err(self.throttled());
        }
        self.state.lock().used.failed += 1;
        Err(StoreError::unavailable("the table processed only some of the writes"))
    }
}

#[async_trait]
impl<T: Table> Table for LimitedTable<T> {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        let mut unique = keys.to_vec();
        unique.sort_unstable();
        unique.dedup();
        let chunks: Vec<Vec<Key>> = unique.chunks(MAX_BATCH_KEYS).map(<[Key]>::to_vec).collect();
        let requests = chunks.into_iter().map(|keys| async move { self.get_some(&keys).await });
        let found: Vec<Vec<(Key, Option<Item>)>> =
            stream::iter(requests).buffered(MAX_CONCURRENT_REQUESTS).try_collect().await?;
        let found: BTreeMap<Key, Option<Item>> = found.into_iter().flatten().collect();
        Ok(keys.iter().map(|key| found.get(key).cloned().flatten()).collect())
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        if query.from > query.to {
            return Ok(Page::default());
        }
        for repeat in 0..=MAX_REPEATS {
            self.pause(repeat).await;
            let half = self.half_of_a_request();
            self.wait(half).await;
            if self.admits(Kind::Read, [query.p.as_str()]) {
                let page = self.table.query(query).await?;
                let units = read_units(page.items.iter().map(Item::size).sum());
                self.charge(Kind::Read, &query.p, units);
                self.wait(half).await;
                return Ok(page);
            }
            self.wait(half).await;
        }
        Err(self.throttled())
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        // No function scans a table.
        self.table.scan(prefix, after, limit).await
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let (conditional, plain): (Vec<usize>, Vec<usize>) =
            (0..changes.len()).partition(|index| changes[*index].is_conditional());
        let chunks: Vec<Vec<usize>> = conditional
            .chunks(MAX_BATCH_WRITES)
            .chain(plain.chunks(MAX_BATCH_WRITES))
            .map(<[usize]>::to_vec)
            .collect();
        let wrote = &AtomicBool::new(false);
        let requests = chunks.into_iter().map(|chunk| async move {
            let some: Vec<&Change> = chunk.iter().map(|index| &changes[*index]).collect();
            let done = self.write_some(&some, wrote).await;
            (chunk, done)
        });
        let done: Vec<(Vec<usize>, Result<Vec<bool>, StoreError>)> =
            stream::iter(requests).buffered(MAX_CONCURRENT_REQUESTS).collect().await;
        let wrote = done.iter().any(|(_, done)| !matches!(done, Err(StoreError::Throttled { .. })));
        let mut outcomes = vec![false; changes.len()];
        for (chunk, done) in done {
            let done = match done {
                Err(StoreError::Throttled { message, .. }) if wrote => {
                    return Err(StoreError::unavailable(message));
                }
                done => done?,
            };
            for (index, outcome) in chunk.into_iter().zip(done) {
                outcomes[index] = outcome;
            }
        }
        Ok(outcomes)
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        for repeat in 0..=MAX_REPEATS {
            self.pause(repeat).await;
            let half = self.half_of_a_request();
            self.wait(half).await;
            if self.admits(Kind::Write, changes.iter().map(|change| change.key().p.as_str())) {
                let keys: Vec<Key> = changes.iter().map(|change| change.key().clone()).collect();
                let current = self.table.get(&keys).await?;
                let taken = self.table.together(changes).await?;
                for (change, current) in changes.iter().zip(&current) {
                    self.charge_change(change, current.as_ref(), taken, 2.0);
                }
                self.wait(half).await;
                return Ok(taken);
            }
            self.wait(half).await;
        }
        Err(self.throttled())
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        for repeat in 0..=MAX_REPEATS {
            self.pause(repeat).await;
            let half = self.half_of_a_request();
            self.wait(half).await;
            if self.admits(Kind::Write, [exchange.key.p.as_str()]) {
                let before = self.table.exchange(exchange).await?;
                let after = exchange.applied(before.as_ref()).size();
                let units = write_units(before.as_ref().map_or(0, Item::size).max(after));
                self.charge(Kind::Write, &exchange.key.p, units);
                self.wait(half).await;
                return Ok(before);
            }
            self.wait(half).await;
        }
        Err(self.throttled())
    }
}
