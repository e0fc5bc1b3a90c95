//! Plugins, their versions, and what is known of their calls.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use tidegate_core::{
    job::{JobId, PluginName, QueueName},
    port::policy::Usage,
    queue::{
        plugin::{Description, PluginItem, PluginVersion, Role},
        plugin_calls::{CallFilter, CallRecording, RedactedPart},
    },
    time::Timestamp,
};

use crate::AnyValue;

/// A plugin.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Plugin)]
pub struct PluginView {
    /// Its name.
    #[schema(value_type = String)]
    pub name: PluginName,
    /// The roles of its live version.
    pub roles: Vec<Role>,
    /// The number of the live version, which decides.
    pub live: u32,
    /// Whether there is code of that version for this release and machine: without it every call
    /// fails.
    pub runnable: bool,
    /// The number of the shadow version, which is called for comparison alone; null if there is
    /// none.
    pub shadow: Option<u32>,
    /// The number of the version that has the pushed bytes; only the answer to a push has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pushed: Option<u32>,
    /// The description of its live version as a throttler, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttler: Option<Description>,
    /// The description of its live version as a retry strategy, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Description>,
    /// The queues and job types that use it.
    pub used_by: Vec<PluginUser>,
    /// Statistics of the live version's calls.
    pub health: PluginHealth,
    /// Statistics of the shadow version's calls; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow_health: Option<PluginHealth>,
    /// Which of its calls are stored for a time, in addition to those that fail; absent if none
    /// are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<CallRecording>,
    /// Raised by every change; the `ETag` contains it.
    pub version: u64,
}

/// A queue or a job type that uses a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PluginUser {
    /// `queue` or `job_type`.
    #[schema(value_type = String)]
    pub kind: Cow<'static, str>,
    /// Its name.
    pub name: String,
}

/// Statistics of a plugin's calls since the server started.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PluginHealth {
    /// How often it was called.
    pub calls: u64,
    /// How many calls failed.
    pub faults: u64,
    /// Whether the latest call failed.
    pub failing: bool,
    /// Failed calls by the kind of fault: `rejected`, `timeout`, `resource_exhausted`, `trapped`,
    /// `invalid_answer`, `unavailable`.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub faults_by_kind: BTreeMap<Cow<'static, str>, u64>,
    /// The latest fault, if there was one.
    pub last_fault: Option<FaultView>,
    /// What the latest call used.
    pub last_usage: Option<UsageView>,
}

/// What a call used.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginUsage)]
pub struct UsageView {
    /// Fuel, of 500 million; unknown after a timeout.
    pub fuel: Option<u64>,
    /// Time, of 0.25 s.
    pub took_seconds: f64,
    /// Memory, of 64 MiB.
    pub memory_bytes: u64,
    /// Calls of imported functions, of 100,000.
    pub host_calls: u32,
}

impl From<&Usage> for UsageView {
    fn from(usage: &Usage) -> Self {
        let Usage { fuel, took, memory_bytes, host_calls } = *usage;
        Self { fuel, took_seconds: took.as_secs_f64(), memory_bytes, host_calls }
    }
}

/// A page of plugins.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PluginPage {
    /// The plugins, by name.
    pub plugins: Vec<PluginView>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A version of a plugin.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginVersion)]
pub struct VersionView {
    /// Counted up from 1.
    pub number: u32,
    /// Whether it decides.
    pub live: bool,
    /// Whether it is called for comparison with the live version.
    pub shadow: bool,
    /// When it was pushed.
    pub pushed_at: Timestamp,
    /// The SHA-256 of the component, in hexadecimal.
    pub sha256: String,
    /// The component's bytes.
    pub bytes: u64,
    /// Its roles.
    pub roles: Vec<Role>,
    /// Its description as a throttler, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttler: Option<Description>,
    /// Its description as a retry strategy, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Description>,
    /// Its machine code: a target triple and an engine each.
    pub compiled: Vec<CompiledView>,
}

/// Machine code of a version.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginCode)]
pub struct CompiledView {
    /// For which machine, as a target triple.
    pub target: String,
    /// For which engine and settings.
    pub engine: String,
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
            roles: Self::roles(version),
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

    /// The roles of `version`.
    pub fn roles(version: &PluginVersion) -> Vec<Role> {
        [Role::Throttler, Role::Retry]
            .into_iter()
            .filter(|role| version.description(*role).is_some())
            .collect()
    }
}

/// A page of versions.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginVersionPage)]
pub struct VersionPage {
    /// The versions, oldest first.
    pub versions: Vec<VersionView>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A call that failed.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginFault)]
pub struct FaultView {
    /// When.
    pub at: Timestamp,
    /// The number of the plugin's version.
    pub version: u32,
    /// Whether it was the shadow version, which decides nothing.
    pub shadow: bool,
    /// The role in which it was called.
    pub role: Role,
    /// The kind: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer` or
    /// `unavailable`.
    #[schema(value_type = String)]
    pub kind: Cow<'static, str>,
    /// What went wrong, for the plugin's author.
    pub message: String,
}

/// A call that failed, with its input.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = RecordedPluginFault)]
pub struct RecordedFault {
    /// The fault.
    #[serde(flatten)]
    pub fault: FaultView,
    /// The call, as `tidegate plugin test` repeats it.
    pub call: AnyValue,
}

/// The latest faults.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginFaults)]
pub struct RecordedFaults {
    /// The faults, latest first.
    pub faults: Vec<RecordedFault>,
}

/// A line of a plugin's log.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginLogLine)]
pub struct LogView {
    /// Counted up from 1 since the server started: the parameter `after` refers to it.
    pub number: u64,
    /// When the call was that logged it.
    pub at: Timestamp,
    /// The number of the plugin's version.
    pub version: u32,
    /// The role in which it was called.
    pub role: Role,
    /// The level: `debug`, `info`, `warn` or `error`.
    #[schema(value_type = String)]
    pub level: Cow<'static, str>,
    /// The text.
    pub message: String,
}

/// The latest lines of a plugin's log.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginLogs)]
pub struct LogsView {
    /// The lines, oldest first.
    pub logs: Vec<LogView>,
}

/// How the shadow version compares with the live one.
#[allow(clippy::struct_field_names, reason = "the names of the API")]
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginDifferences)]
pub struct ShadowView {
    /// The shadow version; null if there is none.
    pub version: Option<u32>,
    /// Decisions that were compared.
    pub compared: u64,
    /// Those that differed.
    pub different: u64,
    /// Calls of the shadow version that failed.
    pub failed: u64,
    /// Calls that were not compared for lack of time.
    pub missed: u64,
    /// The latest differences, latest first.
    pub differences: Vec<Difference>,
}

/// A job about which the live version and its shadow decided differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Difference {
    /// Its queue.
    pub queue: QueueName,
    /// The job.
    pub job: JobId,
    /// The time of the decision.
    pub at: Timestamp,
    /// What was done.
    pub live: ShadowDecision,
    /// What the shadow would have done.
    pub shadow: ShadowDecision,
}

/// The decision of a plugin about one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ShadowDecision {
    /// `run`, `hold`, `reschedule` or `drop`; of a failed attempt `retry` or `give_up`.
    #[schema(value_type = String)]
    pub action: Cow<'static, str>,
    /// Until when it holds the job, or when the job is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Why; or what else changes before the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Which version becomes live.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = PluginRollback)]
pub struct RollbackBody {
    /// The version that becomes live; absent, the previously live one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// Which version becomes the shadow.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PluginShadow)]
pub struct ShadowBody {
    /// The version that is called for comparison with the live one.
    pub version: u32,
}

/// How many versions a prune keeps.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PluginPrune)]
pub struct PruneBody {
    /// The latest versions that are kept, 1 to 50 (default 5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<u32>,
}

/// What a prune removed.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PrunedPlugin)]
pub struct PrunedView {
    /// The numbers of the removed versions, or of those that a dry run would remove, in order.
    pub removed: Vec<u32>,
    /// The numbers of the versions that are left, in order.
    pub kept: Vec<u32>,
}

/// Which calls are stored, and how long.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = PluginRecordingRequest)]
pub struct RecordingBody {
    /// Which calls (default: all).
    #[serde(deserialize_with = "tidegate_core::strict::or_default")]
    pub filter: CallFilter,
    /// How long from now, 1 to 86400 (default 3600).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_seconds: Option<u32>,
}

/// A recorded call.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = RecordedPluginCall)]
pub struct RecordedCallView {
    /// Its id.
    pub id: String,
    /// Why it was recorded: `latest` (in memory), `fault`, `filter` or `sample`.
    #[schema(value_type = String)]
    pub reason: Cow<'static, str>,
    /// When it was made.
    pub at: Timestamp,
    /// The number of the plugin's version.
    pub version: u32,
    /// Whether it was the shadow version, which decides nothing.
    pub shadow: bool,
    /// The role in which it was called.
    pub role: Role,
    /// The queue that it is about.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// The number of jobs by what was decided about them: `run`, `hold`, `reschedule`, `drop`,
    /// `retry` or `give_up`.
    pub decided: BTreeMap<String, u64>,
    /// The fault, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<CallFault>,
    /// What the plugin logged in this call.
    pub log: Vec<CallLogLine>,
    /// What it used.
    pub usage: UsageView,
    /// What it lacks, as the setting `plugin_calls` of its queue defines.
    #[schema(value_type = Vec<String>)]
    pub redacted: Vec<RedactedPart>,
    /// The answer, as the field `expect` of a case has it. A list of calls does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnyValue>,
    /// The call, as `tidegate plugin replay` repeats it; absent if it was too large. A list of
    /// calls does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<AnyValue>,
}

/// Why a call failed.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginCallFault)]
pub struct CallFault {
    /// The kind: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer` or
    /// `unavailable`.
    pub kind: String,
    /// What went wrong, for the plugin's author.
    pub message: String,
}

/// A line that a plugin logged in a call.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginCallLogLine)]
pub struct CallLogLine {
    /// The level: `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The text.
    pub message: String,
}

/// Recorded calls.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = RecordedPluginCalls)]
pub struct RecordedCalls {
    /// The calls, latest first.
    pub calls: Vec<RecordedCallView>,
}
