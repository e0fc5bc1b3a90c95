//! What is shown of the calls of a plugin: their numbers, its log, and how its shadow version differs.
//!
//! It shows whether a plugin works. Nothing depends on it. A server alone, or a function, has it in
//! memory since its start. Servers that share a store keep in memory what they have not stored yet: one
//! of them [adds](added) up what all saw.

mod added;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use tidegate_api::{FaultView, LogView, PluginHealth, UsageView};

use super::{Server, plugin_calls::ShownCall, shadow::Comparison};
use tidegate_backends::wasm::diagnostics::{Calls, LogLine, PluginDiagnostics};
use tidegate_core::job::PluginName;
use tidegate_engine::{Catalog, Error};

/// What was seen of the calls of a plugin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PluginSeen {
    /// Calls whose answers took effect.
    pub live: SeenCalls,
    /// Calls of the latest shadow version.
    pub shadow: SeenCalls,
    /// The number of logged lines.
    pub logged: u64,
    /// The latest lines of its log, oldest first.
    pub log: VecDeque<LogView>,
    /// How the shadow version compares with the live one.
    pub comparison: Comparison,
}

/// The numbers of some calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SeenCalls {
    /// The version that was called last; 0 if none was.
    pub version: u32,
    /// The numbers.
    pub health: PluginHealth,
}

impl PluginSeen {
    /// What this process has in memory.
    fn new(seen: PluginDiagnostics, comparison: Comparison, catalog: &Catalog) -> Self {
        let PluginDiagnostics { live, shadow, logged, log } = seen;
        Self {
            live: SeenCalls::new(&live, catalog),
            shadow: SeenCalls::new(&shadow, catalog),
            logged,
            log: log.into_iter().map(log_view).collect(),
            comparison,
        }
    }
}

impl SeenCalls {
    fn new(seen: &Calls, catalog: &Catalog) -> Self {
        let by_kind = seen.faults.iter().map(|(kind, count)| ((*kind).into(), *count));
        let last_fault = seen.failed.back();
        let last_fault = last_fault.map(|failed| ShownCall::of_fault(failed, catalog));
        let health = PluginHealth {
            calls: seen.calls,
            faults: seen.faults.values().sum(),
            failing: seen.failing,
            faults_by_kind: by_kind.collect(),
            last_fault: last_fault.and_then(ShownCall::into_fault),
            last_usage: seen.last.as_ref().map(UsageView::from),
        };
        Self { version: seen.version, health }
    }
}

impl ShownCall {
    /// Its fault; none if it did not fail.
    pub fn into_fault(self) -> Option<FaultView> {
        let (kind, message) = self.fault?;
        let Self { at, version, shadow, role, .. } = self;
        Some(FaultView { at, version, shadow, role, kind: kind.into(), message })
    }
}

fn log_view(line: LogLine) -> LogView {
    let LogLine { number, at, version, role, level, text } = line;
    LogView { number, at, version, role, level: level.as_str().into(), message: text }
}

impl Server {
    /// What was seen of the calls of a plugin: by this process since its start, or by all servers that
    /// share the store. Of the latter, the last seconds are missing.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn plugin_seen(&self, name: &PluginName) -> Result<PluginSeen, Error> {
        let inner = &self.inner;
        if inner.shared.is_some() {
            return inner.added_plugin_seen(name).await;
        }
        let catalog = inner.engine.known_catalog().await?;
        let seen = inner.hosted.as_ref().map(|hosted| hosted.host.seen(name)).unwrap_or_default();
        let comparison = inner.shadow.differences(name).unwrap_or_default();
        Ok(PluginSeen::new(seen, comparison, &catalog))
    }

    /// How the decisions of the shadow version differ from those of the live one, as
    /// [`Self::plugin_seen`].
    ///
    /// # Errors
    ///
    /// 404; the store's.
    pub async fn plugin_differences(&self, name: &PluginName) -> Result<Comparison, Error> {
        let item = self.plugin(name).await?;
        let seen = self.plugin_seen(name).await?.comparison;
        if item.shadow.is_none_or(|number| number == seen.version) {
            return Ok(seen);
        }
        Ok(Comparison { version: item.shadow.unwrap_or(0), ..Comparison::default() })
    }
}
