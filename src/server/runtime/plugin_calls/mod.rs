//! Recorded calls of plugins: rules, redaction, storage and reading.
//!
//! ```text
//!   host ──latest calls and faults, in memory──────────────▶ redact ──▶ API
//!       └──calls to store──▶ redact ──▶ records of the store ─────────▶ API
//! ```
//!
//! The queue of a call defines what its records lack. That is removed before a record is stored,
//! and from records in memory before they are shown.

mod redact;
mod samples;
mod stored;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate_api::UsageView;

pub(super) use self::stored::group;
use self::{redact::Bodies, samples::SAMPLE_INTERVAL};
use super::{Inner, Server};
use tidegate_backends::wasm::{
    record,
    recording::{MAX_LATEST_CALLS, Reason, RecordedCall, RecordingRules},
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{PluginName, QueueName},
    port::policy::Answer,
    queue::{
        plugin::{PluginItem, Role},
        plugin_calls::{CallRecording, PluginCalls, RedactedPart},
    },
    time::Timestamp,
};
use tidegate_engine::{Catalog, Error, config::configure::DEFAULT_QUEUE};

/// A recorded call as it is stored and shown: without what its queue redacts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownCall {
    /// Its id, by which it is found again.
    pub id: String,
    /// Why it was recorded: `latest`, `fault`, `filter` or `sample`.
    pub reason: String,
    /// When the call was made.
    pub at: Timestamp,
    /// The number of the plugin's version.
    pub version: u32,
    /// Whether it was called for comparison with the live version.
    pub shadow: bool,
    /// The role in which it was called.
    pub role: Role,
    /// The queue that it is about.
    pub queue: QueueName,
    /// What it used.
    pub usage: UsageView,
    /// The number of jobs by what was decided about them.
    pub decided: BTreeMap<String, u64>,
    /// The kind and the message of its fault.
    pub fault: Option<(String, String)>,
    /// What the plugin logged: levels and texts.
    pub log: Vec<(String, String)>,
    /// What it lacks.
    pub redacted: Vec<RedactedPart>,
    /// The answer, as a case expects it.
    pub answer: Option<Box<RawValue>>,
    /// The call, to repeat it; none if it is too large.
    pub call: Option<Box<RawValue>>,
}

impl ShownCall {
    /// `recorded` without the parts that `queue` redacts. With [`Bodies::Dropped`], `call` is
    /// needed only if the queue redacts a part.
    fn new<C>(
        recorded: &RecordedCall<C>,
        call: Option<&str>,
        reason: Reason,
        queue: &PluginCalls,
        bodies: Bodies,
    ) -> Self {
        let answer = recorded.answer.as_ref().ok();
        let fault = recorded.answer.as_ref().err();
        let log = recorded.log.iter();
        let mut shown = Self {
            id: id_in_memory(recorded, reason),
            reason: reason.as_str().to_owned(),
            at: recorded.at,
            version: recorded.version,
            shadow: recorded.shadow,
            role: recorded.role,
            queue: recorded.queue.clone(),
            usage: UsageView::from(&recorded.usage),
            decided: answer.map(counts).unwrap_or_default(),
            fault: fault.map(|fault| (fault.kind.as_str().to_owned(), fault.message.clone())),
            log: log.map(|(level, text)| (level.as_str().to_owned(), text.clone())).collect(),
            redacted: queue.redact.clone(),
            answer: answer.and_then(|answer| raw(record::answer_to_json(answer))),
            call: call.and_then(|call| raw(call.to_owned())),
        };
        redact::redact(&mut shown, bodies);
        shown
    }

    /// A failed call of this process, without the parts that its queue redacts, and without its
    /// input.
    pub fn of_fault(failed: &RecordedCall, catalog: &Catalog) -> Self {
        Self::of_failed(failed, catalog, Bodies::Dropped)
    }

    fn of_failed(failed: &RecordedCall, catalog: &Catalog, bodies: Bodies) -> Self {
        let queue = recording_of(catalog, &failed.queue);
        Self::new(failed, failed.call.as_deref(), Reason::Fault, &queue, bodies)
    }

    /// The part of the id that the records of one call share.
    fn key(&self) -> &str {
        let mut dashes = self.id.rmatch_indices('-').map(|(index, _)| index + 1);
        dashes.nth(1).map_or(&*self.id, |start| &self.id[start..])
    }
}

fn raw(json: String) -> Option<Box<RawValue>> {
    RawValue::from_string(json).ok()
}

fn counts(answer: &Answer) -> BTreeMap<String, u64> {
    answer.counts().into_iter().map(|(word, count)| (word.to_owned(), count)).collect()
}

/// Names a call of this deployment: two processes rarely make calls of one number in a millisecond.
fn key(at: Timestamp, number: u64) -> String {
    format!("{:x}-{number:x}", at.millis().max(0))
}

/// The id of a call in the memory of this process.
fn id_in_memory<C>(recorded: &RecordedCall<C>, reason: Reason) -> String {
    format!("{}-{}", reason.as_str(), key(recorded.at, recorded.number))
}

/// What a server knows of the recorded calls.
#[derive(Default)]
pub(super) struct RecordedCalls {
    /// The version of the catalog whose filters are in force.
    ruled_by: Mutex<Option<u64>>,
    /// The places of stored calls, by plugin. Held while calls are stored.
    rings: tokio::sync::Mutex<HashMap<PluginName, stored::Ring>>,
}

fn no_call(id: &str) -> Error {
    Error::NotFound { code: ErrorCode::PluginCallNotFound, what: format!("recorded call {id}") }
}

/// How the calls about `queue` are recorded. Of a deleted queue, nothing is stored and every part
/// is redacted: what its configuration redacted is unknown.
fn recording_of(catalog: &Catalog, queue: &QueueName) -> PluginCalls {
    match catalog.queues.get(queue) {
        Some(item) => item.config.plugin_calls.clone().unwrap_or_default(),
        // It exists without a configuration.
        None if queue.as_str() == DEFAULT_QUEUE => PluginCalls::default(),
        None => PluginCalls {
            store: false,
            redact: vec![
                RedactedPart::Data,
                RedactedPart::State,
                RedactedPart::Failures,
                RedactedPart::Texts,
                RedactedPart::Attributes,
            ],
        },
    }
}

impl Inner {
    /// Applies the filters of `catalog` to the calls from now on.
    pub(super) fn apply_recording_rules(&self, catalog: &Catalog) {
        let Some(hosted) = &self.hosted else { return };
        let mut ruled_by = self.recorded_calls.ruled_by.lock();
        // Another task may have read a later catalog.
        if ruled_by.is_some_and(|version| version >= catalog.version) {
            return;
        }
        *ruled_by = Some(catalog.version);
        let filter = |(name, item): (&PluginName, &Arc<PluginItem>)| {
            Some((name.clone(), item.recording.clone()?))
        };
        hosted.host.set_recording_rules(RecordingRules {
            filters: catalog.plugins.iter().filter_map(filter).collect(),
            ..self.recording_rules()
        });
    }

    /// Applies the filters of the configuration that a tick of this process read last. It costs no
    /// read, so a new filter is in force one tick later.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(super) async fn refresh_recording_rules(&self) -> Result<(), Error> {
        if self.hosted.is_some() && self.engine.seen_version() > 0 {
            self.apply_recording_rules(&*self.engine.known_catalog().await?);
        }
        Ok(())
    }

    /// Removes the filter of a deleted plugin from the rules. If the catalog cannot be read, the
    /// next task that reads it does that.
    pub(super) async fn end_recording_rules_of(&self, plugin: &PluginName) {
        match self.engine.catalog().await {
            Ok(catalog) => self.apply_recording_rules(&catalog),
            Err(error) => {
                tracing::warn!(%error, %plugin, "the filter of a deleted plugin was not removed");
            }
        }
    }

    /// Records calls from now on, without the filters.
    pub(super) fn start_recording(&self) {
        if let Some(hosted) = &self.hosted {
            hosted.host.set_recording_rules(self.recording_rules());
        }
    }

    /// The rules without the filters. No request reaches the memory of a function, and that of a
    /// server has only its own calls. So processes that share a store store samples.
    fn recording_rules(&self) -> RecordingRules {
        RecordingRules {
            latest: !self.is_serverless(),
            faults: true,
            sample: self.shares_store().then_some(SAMPLE_INTERVAL),
            filters: HashMap::new(),
        }
    }

    /// The recorded calls of a plugin in memory that `wants` selects by reason and id. What is not
    /// selected is neither written nor redacted.
    fn calls_in_memory(
        &self,
        plugin: &PluginName,
        catalog: &Catalog,
        bodies: Bodies,
        wants: impl Fn(Reason, &str) -> bool,
    ) -> Vec<ShownCall> {
        let Some(hosted) = &self.hosted else { return Vec::new() };
        let mut calls = Vec::new();
        for call in hosted.host.latest_calls(plugin) {
            let reason = Reason::Latest;
            if !wants(reason, &id_in_memory(&call, reason)) {
                continue;
            }
            let queue = recording_of(catalog, &call.queue);
            let is_read = bodies == Bodies::Kept || !queue.redact.is_empty();
            let written = is_read.then(|| call.written().call).flatten();
            calls.push(ShownCall::new(&call, written.as_deref(), reason, &queue, bodies));
        }
        let seen = hosted.host.seen(plugin);
        for call in seen.live.failed.iter().chain(&seen.shadow.failed) {
            if wants(Reason::Fault, &id_in_memory(call, Reason::Fault)) {
                calls.push(ShownCall::of_failed(call, catalog, bodies));
            }
        }
        calls
    }
}

/// Which recorded calls are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All.
    All,
    /// The failed ones.
    Faults,
}

impl Wanted {
    fn has(self, reason: Reason) -> bool {
        self == Self::All || reason == Reason::Fault
    }
}

impl Server {
    /// The recorded calls of a plugin, latest first, each at most once. At most 20 of the latest
    /// calls of this process, and of the stored ones 50 that failed, 100 that matched a filter and
    /// 60 samples. They have no call and no answer: [`Server::plugin_call`] reads those of one.
    ///
    /// # Errors
    ///
    /// 404; the store's.
    pub async fn plugin_calls(
        &self,
        plugin: &PluginName,
        wanted: Wanted,
    ) -> Result<Vec<ShownCall>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        self.plugin(plugin).await?;
        let mut calls = self.inner.stored_calls(plugin, wanted).await?;
        let wants = |reason, _: &str| wanted.has(reason);
        for call in self.inner.calls_in_memory(plugin, &catalog, Bodies::Dropped, wants) {
            if calls.iter().all(|known| known.key() != call.key()) {
                calls.push(call);
            }
        }
        calls.sort_by(|a, b| (b.at, b.key()).cmp(&(a.at, a.key())));
        Ok(calls)
    }

    /// The recorded call with this id, with its input and its answer if they are stored.
    ///
    /// # Errors
    ///
    /// 404 `plugin_not_found`, or `plugin_call_not_found` if later calls have replaced it; the
    /// store's.
    pub async fn plugin_call(&self, plugin: &PluginName, id: &str) -> Result<ShownCall, Error> {
        let catalog = self.inner.engine.catalog().await?;
        self.plugin(plugin).await?;
        if let Some(call) = self.inner.stored_call(plugin, id).await? {
            return Ok(call);
        }
        let has_id = |_, of: &str| of == id;
        let found = self.inner.calls_in_memory(plugin, &catalog, Bodies::Kept, has_id);
        found.into_iter().next().ok_or_else(|| no_call(id))
    }

    /// Stores the calls of a plugin that `recording` selects; `None` ends it.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn record_plugin_calls(
        &self,
        plugin: &PluginName,
        recording: Option<CallRecording>,
    ) -> Result<PluginItem, Error> {
        let item = self.inner.engine.record_plugin_calls(plugin, recording).await?;
        self.inner.apply_recording_rules(&*self.inner.engine.catalog().await?);
        Ok(item)
    }
}

// The documents of the API and of the command line name this number.
const _: () = assert!(MAX_LATEST_CALLS == 20);

#[cfg(test)]
mod tests;
