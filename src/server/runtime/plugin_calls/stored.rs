//! Recorded calls in the store: a ring of records for each plugin and reason.
//!
//! A call has one of a fixed number of places, and a new call replaces the oldest one of its
//! reason, so that the number of records is bounded without counting them. Records expire after a
//! week. Two processes that store a call of one plugin at the same time may choose the same place.
//! Then one of the two calls is lost, and perhaps the body of the other.
//!
//! A call has up to two records, so that lists read no inputs:
//!
//! | name | content |
//! |---|---|
//! | `GROUP.fault-012` | the call without its input and answer |
//! | `GROUP.body-fault-012` | its body: its id, its input and its answer |
//!
//! Servers that share a store have a record more of each plugin, `GROUP.seen`, which has no call
//! ([`plugin_seen`](crate::runtime::plugin_seen)).
//!
//! They are written in one transaction, which a store may make in steps. A body belongs to the call
//! in its place only if it has the id of that call.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    time::Duration,
};

use flate2::{Compression, read::ZlibDecoder, write::ZlibEncoder};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tidegate_backends::wasm::recording::{Reason, Unstored};
use tidegate_core::{
    event::trigger::{digest, hex},
    job::PluginName,
    port::{
        Write,
        job_store::{Record, RecordKind, RecordQuery, Txn},
    },
    time::Timestamp,
};
use tidegate_engine::{Catalog, Error};

use super::{Inner, ShownCall, Wanted, recording_of, redact::Bodies};

/// How long a call is stored.
const RETENTION: Duration = Duration::from_hours(7 * 24);
/// Most bytes of a record, compressed. A larger body is stored without its input, or else not at
/// all. A larger call is stored without its log, or else not at all.
const MAX_RECORD_BYTES: usize = 128 << 10;
/// Most bytes of a record when it is read and decompressed.
const MAX_CONTENT_BYTES: u64 = 8 << 20;
/// Most records of each reason in one read.
const PAGE_RECORDS: u32 = 64;
/// Most calls of one commit, each with two records.
const MAX_COMMITTED_CALLS: usize = 8;
/// How long the places that a process read are valid if others write, too.
const MAX_PLACES_AGE: Duration = Duration::from_mins(1);
/// Most unexpired records: without a bound, because the number of places bounds them.
const MAX_RECORDS: u64 = u64::MAX;
/// Most records that one purge drops.
const MAX_PURGED_PER_CALL: u32 = 1000;
/// The kind of the records.
pub(super) const RECORD_KIND: RecordKind = RecordKind::PluginCall;

/// The reasons for which calls are stored, and how many of each.
const PLACES: [(Reason, usize); 3] =
    [(Reason::Fault, 50), (Reason::Filter, 100), (Reason::Sample, 60)];

/// The places of a plugin's stored calls.
pub(super) struct Ring {
    read_at: Timestamp,
    /// When the call in each place was made, by reason.
    places: [Vec<Option<Timestamp>>; 3],
}

impl Ring {
    fn new(read_at: Timestamp) -> Self {
        Self { read_at, places: PLACES.map(|(_, count)| vec![None; count]) }
    }

    /// Records that a call is stored under this name.
    fn add(&mut self, name: &str, at: Timestamp) {
        if let Some((reason, place)) = place_of(name)
            && let Some(slot) = self.places[reason].get_mut(place)
        {
            *slot = Some(at);
        }
    }

    /// The place of a new call: an empty one, `drawn` among them, or that of the oldest call.
    fn place(&mut self, reason: Reason, at: Timestamp, drawn: usize) -> Option<usize> {
        let index = PLACES.iter().position(|(of, _)| *of == reason)?;
        let places = &mut self.places[index];
        let empty: Vec<usize> =
            (0..places.len()).filter(|place| places[*place].is_none()).collect();
        let place = if empty.is_empty() {
            (0..places.len()).min_by_key(|place| places[*place])?
        } else {
            empty[drawn % empty.len()]
        };
        places[place] = Some(at);
        Some(place)
    }
}

/// The group of a plugin's records.
pub(in crate::runtime) fn group(plugin: &PluginName) -> String {
    let mut name = hex(&digest(&[plugin.as_str()]));
    name.truncate(32);
    name
}

/// A call's place: `fault-012`.
fn place_name(reason: Reason, place: usize) -> String {
    format!("{}-{place:03}", reason.as_str())
}

/// The names of the records of a call: its own, and that of its body.
fn record_names(group: &str, place: &str) -> [String; 2] {
    [format!("{group}.{place}"), format!("{group}.body-{place}")]
}

/// The reason, as an index into [`PLACES`], and the place in the name of a call's record.
fn place_of(name: &str) -> Option<(usize, usize)> {
    let (_, name) = name.split_once('.')?;
    let (word, place) = name.split_once('-')?;
    let reason = PLACES.iter().position(|(reason, _)| reason.as_str() == word)?;
    Some((reason, place.parse().ok()?))
}

fn query(prefix: String, limit: u32) -> RecordQuery {
    RecordQuery { kind: RECORD_KIND, prefix, after: None, limit }
}

/// The input and the answer of a stored call.
#[derive(Serialize, Deserialize)]
struct Body {
    /// The id of the call.
    id: String,
    /// Its input; none if it is too large.
    call: Option<Box<RawValue>>,
    answer: Option<Box<RawValue>>,
}

impl Body {
    /// The content of its record: without the input if it is too large, and none if it is still too
    /// large or empty.
    fn written(&self) -> Option<Vec<u8>> {
        let without_input = || {
            let answer = Some(self.answer.clone()?);
            packed(&Self { id: self.id.clone(), call: None, answer })
        };
        match self.call {
            Some(_) => packed(self).or_else(without_input),
            None => without_input(),
        }
    }
}

/// `content` as the content of a record; none if it is too large.
fn packed(content: &impl Serialize) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(content).ok()?;
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&json).ok()?;
    encoder.finish().ok().filter(|bytes| bytes.len() <= MAX_RECORD_BYTES)
}

/// The content of a record; none if it cannot be read.
fn unpacked<T: DeserializeOwned>(record: &Record) -> Option<T> {
    let mut json = Vec::new();
    let unpacked = ZlibDecoder::new(&*record.bytes).take(MAX_CONTENT_BYTES).read_to_end(&mut json);
    let read = unpacked
        .map_err(|error| error.to_string())
        .and_then(|_| serde_json::from_slice(&json).map_err(|error| error.to_string()));
    read.inspect_err(|error| {
        tracing::warn!(%error, name = record.name, "a record of a plugin's call cannot be read");
    })
    .ok()
}

/// The call in a record that has not expired, without its body.
fn read(record: &Record, now: Timestamp) -> Option<ShownCall> {
    let shown: ShownCall = (now < record.until).then(|| unpacked(record)).flatten()?;
    Some(ShownCall { call: None, answer: None, ..shown })
}

/// What stores a call in its place of `group`; none if it is too large even without its body and
/// its log.
///
/// The call is written before its body: a body without its call would not be found when the plugin
/// is deleted.
fn stored(group: &str, place: &str, mut shown: ShownCall) -> Option<Txn> {
    let body = Body { id: shown.id.clone(), call: shown.call.take(), answer: shown.answer.take() };
    let bytes =
        packed(&shown).or_else(|| packed(&ShownCall { log: Vec::new(), ..shown.clone() }))?;
    let until = shown.at + RETENTION;
    let record = |name, bytes| Record { kind: RECORD_KIND, name, until, bytes };
    let [name, name_of_body] = record_names(group, place);
    let body = match body.written() {
        Some(bytes) => Write::PutRecord(record(name_of_body, bytes)),
        None => remove(name_of_body),
    };
    Some(vec![Write::PutRecord(record(name, bytes)), body])
}

fn remove(name: String) -> Write {
    Write::RemoveRecord { kind: RECORD_KIND, name, until: None }
}

impl Inner {
    /// Stores the calls that wait for it. An error loses them, because a plugin that fails while
    /// the store does is called again.
    pub(in crate::runtime) async fn store_plugin_calls(&self) {
        let Some(hosted) = &self.hosted else { return };
        let unstored = hosted.host.take_unstored();
        if unstored.is_empty() {
            return;
        }
        let count = unstored.len();
        if let Err(error) = self.store_calls(unstored).await {
            tracing::warn!(%error, count, "recorded calls of plugins were not stored");
        }
    }

    /// Stores these calls, except those of deleted plugins and of queues that store none.
    pub(super) async fn store_calls(&self, unstored: Vec<Unstored>) -> Result<(), Error> {
        let plugins: Vec<PluginName> =
            unstored.iter().map(|unstored| unstored.plugin.clone()).collect();
        let mut rings = self.recorded_calls.rings.lock().await;
        let stored = self.store_in(&mut rings, unstored).await;
        if stored.is_err() {
            // Their places may be taken by calls that are not stored.
            rings.retain(|plugin, _| !plugins.contains(plugin));
        }
        stored
    }

    async fn store_in(
        &self,
        rings: &mut HashMap<PluginName, Ring>,
        unstored: Vec<Unstored>,
    ) -> Result<(), Error> {
        // A plugin is deleted before its records. With the lock on the rings, a catalog that still
        // has the plugin is older than the removal of its records.
        let catalog = self.engine.catalog().await?;
        let stores = |unstored: &Unstored| {
            catalog.plugins.contains_key(&unstored.plugin)
                && recording_of(&catalog, &unstored.call.queue).store
        };
        let unstored = unstored.into_iter().filter(stores).collect();
        let mut txns = Vec::new();
        for unstored in self.without_claimed_minutes(unstored).await? {
            let plugin = &unstored.plugin;
            let mut shown = shown(&catalog, &unstored);
            let now = self.engine.now();
            let is_valid =
                |ring: &Ring| !self.shares_store() || now < ring.read_at + MAX_PLACES_AGE;
            if !rings.get(plugin).is_some_and(is_valid) {
                let ring = self.read_ring(plugin).await?;
                rings.insert(plugin.clone(), ring);
            }
            let Some(ring) = rings.get_mut(plugin) else { continue };
            let drawn = if self.shares_store() {
                (self.engine.ports().entropy.bits() >> 96) as usize
            } else {
                0
            };
            let Some(place) = ring.place(unstored.reason, shown.at, drawn) else { continue };
            let place = place_name(unstored.reason, place);
            shown.id = format!("{place}-{}", shown.key());
            txns.extend(stored(&group(plugin), &place, shown));
        }
        self.commit_calls(txns).await
    }

    /// Commits the transactions of calls in their order, because a later one may be about the same
    /// place.
    async fn commit_calls(&self, txns: Vec<Txn>) -> Result<(), Error> {
        let mut txns = txns.into_iter();
        loop {
            let page: Vec<Txn> = txns.by_ref().take(MAX_COMMITTED_CALLS).collect();
            if page.is_empty() {
                return Ok(());
            }
            self.engine.ports().store.commit(page).await?;
        }
    }

    /// The places of the stored calls of a plugin.
    async fn read_ring(&self, plugin: &PluginName) -> Result<Ring, Error> {
        let mut ring = Ring::new(self.engine.now());
        self.each_record(plugin, Wanted::All, |record| {
            let at = record.until.millis() - RETENTION.as_millis() as i64;
            ring.add(&record.name, Timestamp::from_millis(at));
        })
        .await?;
        Ok(ring)
    }

    /// Calls `each` with the records of a plugin's calls. Those of their bodies are not read.
    async fn each_record(
        &self,
        plugin: &PluginName,
        wanted: Wanted,
        mut each: impl FnMut(&Record) + Send,
    ) -> Result<(), Error> {
        let group = group(plugin);
        let reasons = PLACES.into_iter().filter(|(reason, _)| wanted.has(*reason));
        let prefix = |(reason, _): (Reason, usize)| format!("{group}.{}-", reason.as_str());
        let mut queries: Vec<RecordQuery> =
            reasons.map(prefix).map(|prefix| query(prefix, PAGE_RECORDS)).collect();
        let most = PLACES.iter().map(|(_, count)| *count).max().unwrap_or(0);
        for _ in 0..=most.div_ceil(PAGE_RECORDS as usize) {
            if queries.is_empty() {
                break;
            }
            let pages = self.engine.ports().store.records(&queries).await?;
            let mut unfinished = Vec::new();
            for (query, page) in queries.into_iter().zip(pages) {
                page.iter().for_each(&mut each);
                if let Some(last) = page.last().filter(|_| page.len() as u32 == PAGE_RECORDS) {
                    unfinished.push(RecordQuery { after: Some(last.name.clone()), ..query });
                }
            }
            queries = unfinished;
        }
        Ok(())
    }

    /// The stored calls of a plugin that have not expired, without their inputs and answers.
    pub(super) async fn stored_calls(
        &self,
        plugin: &PluginName,
        wanted: Wanted,
    ) -> Result<Vec<ShownCall>, Error> {
        let (now, mut calls) = (self.engine.now(), Vec::new());
        self.each_record(plugin, wanted, |record| calls.extend(read(record, now))).await?;
        Ok(calls)
    }

    /// The stored call with this id, unless another one has its place. It has no input and no
    /// answer if these are not stored, or are already those of another call.
    pub(super) async fn stored_call(
        &self,
        plugin: &PluginName,
        id: &str,
    ) -> Result<Option<ShownCall>, Error> {
        let mut parts = id.splitn(3, '-');
        let (Some(word), Some(place), Some(_)) = (parts.next(), parts.next(), parts.next()) else {
            return Ok(None);
        };
        let is_stored = PLACES.iter().any(|(reason, _)| reason.as_str() == word);
        let Some(place) = place.parse::<u16>().ok().filter(|_| is_stored) else {
            return Ok(None);
        };
        let queries =
            record_names(&group(plugin), &format!("{word}-{place:03}")).map(|name| query(name, 1));
        let found = self.engine.ports().store.records(&queries).await?;
        let mut found = found.into_iter().map(|page| page.into_iter().next());
        let (call, body) = (found.next().flatten(), found.next().flatten());
        let now = self.engine.now();
        let Some(call) = call.and_then(|record| read(&record, now)).filter(|call| call.id == id)
        else {
            return Ok(None);
        };
        let body = body.and_then(|record| unpacked(&record)).filter(|body: &Body| body.id == id);
        let (input, answer) = body.map(|body| (body.call, body.answer)).unwrap_or_default();
        Ok(Some(ShownCall { call: input, answer, ..call }))
    }

    /// Removes the stored calls of a deleted plugin.
    pub(in crate::runtime) async fn forget_plugin_calls(&self, plugin: &PluginName) {
        let mut rings = self.recorded_calls.rings.lock().await;
        rings.remove(plugin);
        let (group, mut txns) = (group(plugin), Vec::new());
        let removed = async {
            self.each_record(plugin, Wanted::All, |record| {
                if let Some((_, place)) = record.name.split_once('.') {
                    // The call is removed last: a repeat finds the body by it.
                    let [name, name_of_body] = record_names(&group, place);
                    txns.push(vec![remove(name_of_body), remove(name)]);
                }
            })
            .await?;
            self.commit_calls(txns).await
        };
        if let Err(error) = removed.await {
            tracing::warn!(%error, "recorded calls of a deleted plugin were not removed");
        }
    }

    /// Drops a bounded number of expired calls.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub(in crate::runtime) async fn drop_old_plugin_calls(&self) -> Result<(), Error> {
        let store = &self.engine.ports().store;
        store.purge(RECORD_KIND, self.engine.now(), MAX_RECORDS, MAX_PURGED_PER_CALL).await?;
        Ok(())
    }
}

/// The call as it is stored.
fn shown(catalog: &Catalog, unstored: &Unstored) -> ShownCall {
    let Unstored { reason, call, .. } = unstored;
    let queue = recording_of(catalog, &call.queue);
    ShownCall::new(&**call, call.call.as_deref(), *reason, &queue, Bodies::Kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_takes_empty_places_and_then_the_oldest_one() {
        let mut ring = Ring::new(Timestamp::EPOCH);
        let at = Timestamp::from_millis;
        let mut taken: Vec<usize> =
            (0..50).map(|n| ring.place(Reason::Fault, at(n), n as usize * 7).unwrap()).collect();
        let fourth = taken[3];
        taken.sort_unstable();
        assert_eq!(taken, (0..50).collect::<Vec<_>>());
        let oldest: Vec<usize> =
            (50..54).map(|n| ring.place(Reason::Fault, at(n), 9).unwrap()).collect();
        assert_eq!(oldest[3], fourth);
        assert_eq!(ring.place(Reason::Filter, at(1), 0), Some(0), "each reason has its own");
        assert_eq!(ring.place(Reason::Latest, at(1), 0), None);
    }

    #[test]
    fn a_place_is_read_from_the_name_of_its_record() {
        let plugin: PluginName = "share".parse().unwrap();
        let names = record_names(&group(&plugin), &place_name(Reason::Filter, 7));
        assert_eq!(names.map(|name| place_of(&name)), [Some((1, 7)), None]);
        for name in ["", "a", "a.latest-001", "a.fault", "a.fault-x", "a.body-fault-001"] {
            assert_eq!(place_of(name), None, "{name}");
        }
    }
}
