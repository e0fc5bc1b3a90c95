//! Plugins and their versions as answers show them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::seen::FaultView;
use crate::runtime::{PluginUser, Server};
use tidegate_backends::wasm::{ENGINE, TARGET, diagnostics::Calls};
use tidegate_core::{
    job::PluginName,
    port::policy::Usage,
    queue::plugin::{Description, PluginItem, PluginVersion, Role},
    time::Timestamp,
};
use tidegate_engine::Error;

/// A plugin.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Plugin)]
pub struct PluginView {
    /// Its name.
    #[schema(value_type = String)]
    pub name: PluginName,
    /// What its live version can be.
    pub roles: Vec<Role>,
    /// The number of the version that decides.
    pub live: u32,
    /// Whether there is code of that version for this release and machine: without it every call fails.
    pub runnable: bool,
    /// The number of the version that is asked too, to see where it differs; null if none is.
    pub shadow: Option<u32>,
    /// The number of the version that has the bytes that were sent; only the answer to a push has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pushed: Option<u32>,
    /// What its live version says as a throttler, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttler: Option<Description>,
    /// What its live version says as a retry strategy, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Description>,
    /// Whose jobs it decides on.
    pub used_by: Vec<PluginUser>,
    /// How the calls go whose answers are done.
    pub health: Health,
    /// How the calls of the version in its shadow go; absent if none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow_health: Option<Health>,
    /// Raised by every change; what the `ETag` says.
    pub version: u64,
}

impl PluginView {
    /// `item` with its users and its health.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn of(server: &Server, name: &PluginName, item: &PluginItem) -> Result<Self, Error> {
        let (live, seen) = (item.numbered(item.live), server.plugin_seen(name));
        let shadow = item.shadow.map(|number| {
            if seen.shadow.version == number { seen.shadow.clone() } else { Calls::default() }
        });
        Ok(Self {
            name: name.clone(),
            roles: live.map(|version| roles(version)).unwrap_or_default(),
            live: item.live,
            runnable: live.is_some_and(|version| {
                version.compiled.iter().any(|code| code.target == TARGET && code.engine == ENGINE)
            }),
            shadow: item.shadow,
            pushed: None,
            throttler: live.and_then(|version| version.throttler.clone()),
            retry: live.and_then(|version| version.retry.clone()),
            used_by: server.plugin_users(name).await?,
            health: Health::of(&seen.live, false),
            shadow_health: shadow.map(|calls| Health::of(&calls, true)),
            version: item.version,
        })
    }
}

fn roles(version: &PluginVersion) -> Vec<Role> {
    [Role::Throttler, Role::Retry]
        .into_iter()
        .filter(|role| version.description(*role).is_some())
        .collect()
}

/// How a plugin's calls went since the server started.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginHealth)]
pub struct Health {
    /// How often it was called.
    calls: u64,
    /// How many calls gave no answer.
    faults: u64,
    /// Whether the latest call gave none.
    failing: bool,
    /// The same by the kind of fault: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer`, `unavailable`.
    faults_by_kind: BTreeMap<&'static str, u64>,
    /// The latest fault, if there was one.
    last_fault: Option<FaultView>,
    /// What the latest call used.
    last_usage: Option<UsageView>,
}

impl Health {
    fn of(seen: &Calls, shadow: bool) -> Self {
        Self {
            calls: seen.calls,
            faults: seen.faults.values().sum(),
            failing: seen.failing,
            faults_by_kind: seen.faults.clone(),
            last_fault: seen.failed.back().map(|failed| FaultView::new(failed, shadow)),
            last_usage: seen.last.as_ref().map(UsageView::new),
        }
    }
}

/// What a call used.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginUsage)]
pub struct UsageView {
    /// Fuel, of 500 million; unknown when it ran out of time.
    fuel: Option<u64>,
    /// Time, of 0.25 s.
    took_seconds: f64,
    /// Memory, of 64 MiB.
    memory_bytes: u64,
    /// Calls of what it imports, of 100,000.
    host_calls: u32,
}

impl UsageView {
    fn new(usage: &Usage) -> Self {
        let Usage { fuel, took, memory_bytes, host_calls } = *usage;
        Self { fuel, took_seconds: took.as_secs_f64(), memory_bytes, host_calls }
    }
}

/// A page of plugins.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PluginPage {
    /// The plugins, by name.
    pub plugins: Vec<PluginView>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A version of a plugin.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginVersion)]
pub struct VersionView {
    /// Counted up from 1.
    pub number: u32,
    /// Whether it decides.
    live: bool,
    /// Whether it is asked beside the live one.
    shadow: bool,
    /// When it was pushed.
    pushed_at: Timestamp,
    /// The SHA-256 of the component, in hexadecimal.
    sha256: String,
    /// The component's bytes.
    bytes: u64,
    /// What it can be.
    roles: Vec<Role>,
    /// What it says as a throttler, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    throttler: Option<Description>,
    /// What it says as a retry strategy, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Description>,
    /// What it was compiled to: a target triple and an engine each.
    compiled: Vec<CompiledView>,
}

/// Machine code of a version.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginCode)]
struct CompiledView {
    /// For what machine, as a target triple.
    target: String,
    /// For what engine and settings.
    engine: String,
}

impl VersionView {
    /// A version of `item`.
    pub fn new(item: &PluginItem, version: &PluginVersion) -> Self {
        let compiled = version.compiled.iter();
        Self {
            number: version.number,
            live: item.live == version.number,
            shadow: item.shadow == Some(version.number),
            pushed_at: version.pushed_at,
            sha256: version.sha256.clone(),
            bytes: version.bytes,
            roles: roles(version),
            throttler: version.throttler.clone(),
            retry: version.retry.clone(),
            compiled: compiled
                .map(|code| CompiledView {
                    target: code.target.clone(),
                    engine: code.engine.clone(),
                })
                .collect(),
        }
    }
}

/// A page of versions.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = PluginVersionPage)]
pub struct VersionPage {
    /// The versions, oldest first.
    pub versions: Vec<VersionView>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
