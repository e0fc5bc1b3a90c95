//! Recorded calls in the store: a ring of records for each plugin and reason.
//!
//! A record has one of a fixed number of places, and a new call replaces the oldest one of its
//! reason, so that the number of records is bounded without counting them. Records expire after a
//! week. Two processes that store a call of one plugin at the same time may choose the same place;
//! one of the two calls is then lost.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    time::Duration,
};

use flate2::{Compression, read::ZlibDecoder, write::ZlibEncoder};
use tidegate_backends::wasm::recording::{Reason, Unstored};
use tidegate_core::{
    event::trigger::{digest, hex},
    job::PluginName,
    port::{
        Write,
        job_store::{Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
};
use tidegate_engine::{Catalog, Error};

use super::{Inner, ShownCall, Wanted, recording_of, redact::Bodies};

/// How long a call is stored.
const RETENTION: Duration = Duration::from_hours(7 * 24);
/// Most bytes of a record. Of a call that has more when it is compressed, only what was decided and
/// logged is stored.
const MAX_RECORD_BYTES: usize = 128 << 10;
/// Most bytes of a record when it is read and decompressed.
const MAX_CONTENT_BYTES: u64 = 8 << 20;
/// Most records of one read, and of one commit.
const PAGE_RECORDS: u32 = 16;
/// How long the places that a process read are valid if others write, too.
const MAX_PLACES_AGE: Duration = Duration::from_mins(1);
/// Most unexpired records: without a bound, because the number of places bounds them.
const MAX_RECORDS: u64 = u64::MAX;
/// Most records that one purge drops.
const MAX_PURGED_PER_CALL: u32 = 1000;
/// The kind of the records.
const RECORD_KIND: RecordKind = RecordKind::PluginCall;

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
fn group(plugin: &PluginName) -> String {
    let mut name = hex(&digest(&[plugin.as_str()]));
    name.truncate(32);
    name
}

/// The end of a record's name: `fault-012`.
fn place_name(reason: Reason, place: usize) -> String {
    format!("{}-{place:03}", reason.as_str())
}

/// The reason, as an index into [`PLACES`], and the place in the name of a record.
fn place_of(name: &str) -> Option<(usize, usize)> {
    let (_, name) = name.split_once('.')?;
    let (word, place) = name.split_once('-')?;
    let reason = PLACES.iter().position(|(reason, _)| reason.as_str() == word)?;
    Some((reason, place.parse().ok()?))
}

fn query(prefix: String, after: Option<String>) -> RecordQuery {
    RecordQuery { kind: RECORD_KIND, prefix, after, limit: PAGE_RECORDS }
}

/// `shown` as the content of a record: without the call if it is too large, and none if it is still
/// too large.
fn written(shown: &ShownCall) -> Option<Vec<u8>> {
    let fitting = |shown: &ShownCall| {
        let json = serde_json::to_vec(shown).ok()?;
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&json).ok()?;
        encoder.finish().ok().filter(|bytes| bytes.len() <= MAX_RECORD_BYTES)
    };
    let without_call = || ShownCall { call: None, ..shown.clone() };
    let bare = || ShownCall { answer: None, log: Vec::new(), ..without_call() };
    fitting(shown).or_else(|| fitting(&without_call())).or_else(|| fitting(&bare()))
}

/// The call in a record; none if it cannot be read.
fn read(record: &Record) -> Option<ShownCall> {
    let mut json = Vec::new();
    let unpacked = ZlibDecoder::new(&*record.bytes).take(MAX_CONTENT_BYTES).read_to_end(&mut json);
    let read = unpacked
        .map_err(|error| error.to_string())
        .and_then(|_| serde_json::from_slice(&json).map_err(|error| error.to_string()));
    read.inspect_err(|error| tracing::warn!(%error, "a recorded call cannot be read")).ok()
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
        let mut writes = Vec::new();
        for unstored in unstored {
            let plugin = &unstored.plugin;
            if !catalog.plugins.contains_key(plugin) {
                continue;
            }
            let Some(mut shown) = shown(&catalog, &unstored) else { continue };
            let now = self.engine.now();
            let is_valid =
                |ring: &Ring| !self.is_serverless() || now < ring.read_at + MAX_PLACES_AGE;
            if !rings.get(plugin).is_some_and(is_valid) {
                let ring = self.read_ring(plugin).await?;
                rings.insert(plugin.clone(), ring);
            }
            let Some(ring) = rings.get_mut(plugin) else { continue };
            let drawn = if self.is_serverless() {
                (self.engine.ports().entropy.bits() >> 96) as usize
            } else {
                0
            };
            let Some(place) = ring.place(unstored.reason, shown.at, drawn) else { continue };
            let place = place_name(unstored.reason, place);
            shown.id = format!("{place}-{}", shown.key());
            let Some(bytes) = written(&shown) else { continue };
            let name = format!("{}.{place}", group(plugin));
            let record = Record { kind: RECORD_KIND, name, until: shown.at + RETENTION, bytes };
            writes.push(vec![Write::PutRecord(record)]);
        }
        while !writes.is_empty() {
            let page = writes.split_off(writes.len().saturating_sub(PAGE_RECORDS as usize));
            self.engine.ports().store.commit(page).await?;
        }
        Ok(())
    }

    /// The places of the stored calls of a plugin.
    async fn read_ring(&self, plugin: &PluginName) -> Result<Ring, Error> {
        let mut ring = Ring::new(self.engine.now());
        self.each_record(plugin, "", |record| {
            let at = record.until.millis() - RETENTION.as_millis() as i64;
            ring.add(&record.name, Timestamp::from_millis(at));
        })
        .await?;
        Ok(ring)
    }

    /// Calls `each` with the records of a plugin whose names go on with `place`.
    async fn each_record(
        &self,
        plugin: &PluginName,
        place: &str,
        mut each: impl FnMut(&Record) + Send,
    ) -> Result<(), Error> {
        let mut query = query(format!("{}.{place}", group(plugin)), None);
        let most: usize = PLACES.iter().map(|(_, count)| count).sum();
        for _ in 0..=most.div_ceil(PAGE_RECORDS as usize) {
            let store = &self.engine.ports().store;
            let page = store.records(std::slice::from_ref(&query)).await?.pop().unwrap_or_default();
            page.iter().for_each(&mut each);
            match page.last() {
                Some(last) if page.len() as u32 == PAGE_RECORDS => {
                    query.after = Some(last.name.clone());
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// The stored calls of a plugin that have not expired.
    pub(super) async fn stored_calls(
        &self,
        plugin: &PluginName,
        wanted: Wanted,
        whole: bool,
    ) -> Result<Vec<ShownCall>, Error> {
        let place = match wanted {
            Wanted::All => "",
            Wanted::Faults => Reason::Fault.as_str(),
        };
        let (now, mut calls) = (self.engine.now(), Vec::new());
        self.each_record(plugin, place, |record| {
            let Some(mut call) = (now < record.until).then(|| read(record)).flatten() else {
                return;
            };
            if !whole {
                (call.call, call.answer) = (None, None);
            }
            calls.push(call);
        })
        .await?;
        Ok(calls)
    }

    /// The stored call with this id, unless another one has its place.
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
        let (now, mut found) = (self.engine.now(), None);
        self.each_record(plugin, &format!("{word}-{place:03}"), |record| {
            let call = (now < record.until).then(|| read(record)).flatten();
            found = found.take().or(call.filter(|call| call.id == id));
        })
        .await?;
        Ok(found)
    }

    /// Removes the stored calls of a deleted plugin.
    pub(in crate::runtime) async fn forget_plugin_calls(&self, plugin: &PluginName) {
        let mut rings = self.recorded_calls.rings.lock().await;
        rings.remove(plugin);
        let mut names = Vec::new();
        let found = self.each_record(plugin, "", |record| names.push(record.name.clone())).await;
        let remove = |name| vec![Write::RemoveRecord { kind: RECORD_KIND, name, until: None }];
        let removed = async {
            found?;
            let removes: Vec<_> = names.into_iter().map(remove).collect();
            for page in removes.chunks(PAGE_RECORDS as usize) {
                self.engine.ports().store.commit(page.to_vec()).await?;
            }
            Ok::<_, Error>(())
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

/// The call as it is stored; none if its queue stores none.
fn shown(catalog: &Catalog, unstored: &Unstored) -> Option<ShownCall> {
    let Unstored { reason, call, .. } = unstored;
    let queue = Some(recording_of(catalog, &call.queue)).filter(|queue| queue.store)?;
    Some(ShownCall::new(&**call, call.call.as_deref(), *reason, &queue, Bodies::Kept))
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
        let name = format!("{}.{}", group(&plugin), place_name(Reason::Filter, 7));
        assert_eq!(place_of(&name), Some((1, 7)));
        for name in ["", "a", "a.latest-001", "a.fault", "a.fault-x"] {
            assert_eq!(place_of(name), None, "{name}");
        }
    }
}
