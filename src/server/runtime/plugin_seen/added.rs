//! The calls of plugins by servers that share a store: each stores what it saw, and one adds it to the
//! record of each plugin.

use std::{collections::BTreeMap, time::Duration};

use super::{PluginSeen, SeenCalls};
use crate::runtime::{Error, Inner, plugin_calls::group, shadow::Comparison, shared::Subject};
use tidegate_api::{LogView, PluginHealth};
use tidegate_backends::wasm::diagnostics::PluginDiagnostics;
use tidegate_core::{
    job::PluginName,
    port::{
        Write,
        job_store::{Record, RecordKind, RecordQuery},
    },
};

/// Most lines of a plugin's log that are kept.
const MAX_LOG_LINES: usize = 500;
/// Most bytes of them.
const MAX_LOG_BYTES: usize = 64 << 10;
/// Most bytes of the lines of all plugins in a part.
const MAX_PART_LOG_BYTES: usize = 256 << 10;
/// How long it is kept what was seen of a plugin, after its latest call.
const RETENTION: Duration = Duration::from_hours(7 * 24);
/// Most records of one read.
const PAGE_RECORDS: usize = 25;
const KIND: RecordKind = RecordKind::PluginCall;

impl PluginSeen {
    /// Adds what one server saw, and numbers its lines. `shadow` is the shadow version now: what was seen
    /// of another one than before begins again with it.
    fn add(&mut self, part: Self, shadow: Option<u32>) {
        let Self { live, shadow: of_shadow, log, comparison, .. } = part;
        self.live.add(live);
        if of_shadow.version != self.shadow.version && shadow == Some(of_shadow.version) {
            self.shadow = SeenCalls { version: of_shadow.version, ..SeenCalls::default() };
        }
        if of_shadow.version == self.shadow.version {
            self.shadow.add(of_shadow);
        }
        self.comparison.add(comparison, shadow);
        for line in log {
            self.logged += 1;
            self.log.push_back(LogView { number: self.logged, ..line });
        }
        self.drop_lines(MAX_LOG_BYTES);
    }

    /// Drops the oldest lines, until the others have at most `most_bytes`. Returns how many they have.
    fn drop_lines(&mut self, most_bytes: usize) -> usize {
        let mut bytes: usize = self.log.iter().map(|line| line.message.len()).sum();
        while self.log.len() > MAX_LOG_LINES || bytes > most_bytes {
            bytes -= self.log.pop_front().map_or(bytes, |line| line.message.len());
        }
        bytes
    }
}

impl SeenCalls {
    /// Adds the numbers of one server.
    fn add(&mut self, part: Self) {
        let PluginHealth { calls, faults, failing, faults_by_kind, last_fault, last_usage } =
            part.health;
        if calls == 0 && faults == 0 {
            return;
        }
        self.version = part.version;
        let all = &mut self.health;
        all.calls += calls;
        all.faults += faults;
        all.failing = failing;
        for (kind, count) in faults_by_kind {
            *all.faults_by_kind.entry(kind).or_default() += count;
        }
        // A part has the latest fault of its server, which may be older than that of another one.
        let faults = all.last_fault.take().into_iter().chain(last_fault);
        all.last_fault = faults.max_by_key(|fault| fault.at);
        all.last_usage = last_usage.or_else(|| all.last_usage.take());
    }
}

impl Comparison {
    /// Adds what one server compared. `shadow` is the shadow version now.
    fn add(&mut self, part: Self, shadow: Option<u32>) {
        let Self { version, compared, different, failed, missed, differences } = part;
        if version != self.version && shadow == Some(version) {
            *self = Self { version, ..Self::default() };
        }
        // Calls that were missed before the first one of a server have no version.
        if version != self.version && version != 0 {
            return;
        }
        self.compared += compared;
        self.different += different;
        self.failed += failed;
        self.missed += missed;
        for difference in differences {
            self.add_difference(difference);
        }
    }
}

fn record_name(plugin: &PluginName) -> String {
    format!("{}.seen", group(plugin))
}

/// What is in a record; none if it cannot be read.
fn read(record: &Record) -> Option<PluginSeen> {
    serde_json::from_slice(&record.bytes)
        .inspect_err(|error| tracing::warn!(%error, "what was seen of a plugin cannot be read"))
        .ok()
}

impl Inner {
    /// Stores what this server saw of calls of plugins since the last call. Returns whether there was
    /// any.
    ///
    /// # Errors
    ///
    /// The store's; a repeat stores the same.
    pub(in crate::runtime) async fn store_plugin_part(&self) -> Result<bool, Error> {
        let (Some(_), Some(hosted)) = (&self.shared, &self.hosted) else { return Ok(false) };
        let catalog = self.engine.known_catalog().await?;
        let take = || {
            let seen = hosted.host.take_new().into_iter();
            let mut seen: BTreeMap<PluginName, (PluginDiagnostics, Comparison)> =
                seen.map(|(plugin, seen)| (plugin, (seen, Comparison::default()))).collect();
            for (plugin, comparison) in self.shadow.take() {
                seen.entry(plugin).or_default().1 = comparison;
            }
            let mut log_bytes = MAX_PART_LOG_BYTES;
            let of_one = |(plugin, (seen, comparison))| {
                let mut seen = PluginSeen::new(seen, comparison, &catalog);
                log_bytes -= seen.drop_lines(MAX_LOG_BYTES.min(log_bytes));
                (plugin, seen)
            };
            let part: Vec<(PluginName, PluginSeen)> = seen.into_iter().map(of_one).collect();
            (!part.is_empty()).then_some(part)
        };
        self.store_part(Subject::Plugins, take).await
    }

    /// Adds what all servers saw of calls of plugins. Plugins that are gone are left out.
    ///
    /// # Errors
    ///
    /// The store's; a repeat counts nothing twice.
    pub(in crate::runtime) async fn add_plugin_parts(&self) -> Result<(), Error> {
        let parts = self.parts(Subject::Plugins).await?;
        if parts.is_empty() {
            return Ok(());
        }
        let catalog = self.engine.catalog().await?;
        let mut new: BTreeMap<PluginName, Vec<PluginSeen>> = BTreeMap::new();
        let contents = parts.contents::<Vec<(PluginName, PluginSeen)>>();
        for (plugin, seen) in contents.into_iter().flatten() {
            if catalog.plugins.contains_key(&plugin) {
                new.entry(plugin).or_default().push(seen);
            }
        }
        let plugins: Vec<PluginName> = new.keys().cloned().collect();
        let stored = self.stored_seen(&plugins).await?;
        let until = self.engine.now() + RETENTION;
        let mut writes = Vec::with_capacity(plugins.len());
        for ((plugin, of_servers), mut all) in new.into_iter().zip(stored) {
            let shadow = catalog.plugins.get(&plugin).and_then(|item| item.shadow);
            for seen in of_servers {
                all.add(seen, shadow);
            }
            let bytes = serde_json::to_vec(&all);
            let bytes = bytes.map_err(|error| Error::Internal(error.to_string()))?;
            let name = record_name(&plugin);
            writes.push(Write::PutRecord(Record { kind: KIND, name, until, bytes }));
        }
        self.add_parts(parts, writes).await?;
        Ok(())
    }

    /// What all servers saw of a plugin, as far as it was added.
    pub(super) async fn added_plugin_seen(&self, plugin: &PluginName) -> Result<PluginSeen, Error> {
        let mut stored = self.stored_seen(std::slice::from_ref(plugin)).await?;
        Ok(stored.pop().unwrap_or_default())
    }

    /// The records of `plugins`, in their order.
    async fn stored_seen(&self, plugins: &[PluginName]) -> Result<Vec<PluginSeen>, Error> {
        let mut seen = Vec::with_capacity(plugins.len());
        for names in plugins.chunks(PAGE_RECORDS) {
            let query = |plugin| RecordQuery {
                kind: KIND,
                prefix: record_name(plugin),
                after: None,
                limit: 1,
            };
            let queries: Vec<RecordQuery> = names.iter().map(query).collect();
            let found = self.engine.ports().store.records(&queries).await?;
            seen.extend(found.iter().map(|page| page.first().and_then(read).unwrap_or_default()));
        }
        Ok(seen)
    }

    /// Removes what servers that share the store saw of a deleted plugin.
    pub(in crate::runtime) async fn forget_plugin_seen(&self, plugin: &PluginName) {
        if self.shared.is_none() {
            return;
        }
        let write = Write::RemoveRecord { kind: KIND, name: record_name(plugin), until: None };
        if let Err(error) = self.engine.ports().store.commit(vec![vec![write]]).await {
            tracing::warn!(%error, "what was seen of a deleted plugin was not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegate_api::{Difference, ShadowDecision};
    use tidegate_core::{queue::plugin::Role, time::Timestamp};
    use tidegate_engine::testkit::builders::name;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn calls(version: u32, calls: u64, faults_at: &[i64]) -> SeenCalls {
        let fault = |at: &i64| {
            let at = Timestamp::from_millis(*at);
            let fault = json!({"at": at, "version": version, "shadow": false, "role": "throttler",
                "kind": "trapped", "message": "no"});
            serde_json::from_value(fault).unwrap()
        };
        let faults = faults_at.len() as u64;
        let health = PluginHealth {
            calls,
            faults,
            failing: faults > 0,
            faults_by_kind: [("trapped".into(), faults)].into(),
            last_fault: faults_at.last().map(fault),
            last_usage: None,
        };
        SeenCalls { version, health }
    }

    fn line(text: &str) -> LogView {
        LogView {
            number: 7,
            at: at(1),
            version: 1,
            role: Role::Throttler,
            level: "info".into(),
            message: text.to_owned(),
        }
    }

    fn difference(job: &str) -> Difference {
        let decision = |action: &'static str| ShadowDecision {
            action: action.into(),
            until: None,
            reason: None,
        };
        Difference {
            queue: name("q"),
            job: name(job),
            at: at(1),
            live: decision("run"),
            shadow: decision("hold"),
        }
    }

    #[test]
    fn the_calls_of_all_servers_are_added() {
        let mut all = PluginSeen::default();
        let one = PluginSeen { live: calls(1, 3, &[10, 90]), ..PluginSeen::default() };
        let other = PluginSeen { live: calls(2, 4, &[50]), ..PluginSeen::default() };
        for part in [one, other, PluginSeen::default()] {
            all.add(part, None);
        }
        let SeenCalls { version, health } = all.live;
        assert_eq!((version, health.calls, health.faults, health.failing), (2, 7, 3, true));
        assert_eq!(health.faults_by_kind["trapped"], 3);
        assert_eq!(health.last_fault.unwrap().at, at(90));
    }

    #[test]
    fn lines_of_all_servers_are_numbered_and_bounded() {
        let mut all = PluginSeen::default();
        let part = |text: &str| PluginSeen { log: [line(text)].into(), ..PluginSeen::default() };
        all.add(part("a"), None);
        all.add(part("b"), None);
        let shown: Vec<_> = all.log.iter().map(|line| (line.number, &*line.message)).collect();
        assert_eq!(shown, [(1, "a"), (2, "b")]);
        all.add(part(&"x".repeat(MAX_LOG_BYTES)), None);
        assert_eq!(all.log.iter().map(|line| line.number).collect::<Vec<_>>(), [3]);
        for _ in 0..MAX_LOG_LINES {
            all.add(part(""), None);
        }
        assert_eq!((all.log.len(), all.logged), (MAX_LOG_LINES, 503));
    }

    #[test]
    fn a_new_shadow_version_begins_again() {
        let part = |version: u32, jobs: &[&str]| PluginSeen {
            shadow: calls(version, 1, &[]),
            comparison: Comparison {
                version,
                compared: 5,
                different: jobs.len() as u64,
                differences: jobs.iter().map(|job| difference(job)).collect(),
                ..Comparison::default()
            },
            ..PluginSeen::default()
        };
        let mut all = PluginSeen::default();
        all.add(part(2, &["a", "b"]), Some(2));
        all.add(part(2, &["a"]), Some(2));
        let jobs = |all: &PluginSeen| {
            let jobs = all.comparison.differences.iter().map(|of| of.job.to_string());
            jobs.collect::<Vec<_>>().join(" ")
        };
        assert_eq!((all.comparison.compared, jobs(&all)), (10, "b a".to_owned()));
        all.add(part(3, &["c"]), Some(3));
        // Of a version that is the shadow no more.
        all.add(part(2, &["d"]), Some(3));
        assert_eq!((all.comparison.version, all.shadow.version), (3, 3));
        assert_eq!((all.comparison.compared, jobs(&all)), (5, "c".to_owned()));
        let missed = Comparison { missed: 4, ..Comparison::default() };
        all.add(PluginSeen { comparison: missed, ..PluginSeen::default() }, Some(3));
        assert_eq!((all.comparison.missed, all.shadow.health.calls), (4, 1));
    }
}
