//! Plugins as data: the throttler of a queue, and the versions of a plugin.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::plugin_calls::CallRecording;
use crate::{job::PluginName, time::Timestamp};

/// Most versions of a plugin. The oldest one that is neither live nor the shadow is removed first.
pub const MAX_VERSIONS: usize = 50;
/// Most bytes of a plugin's item, which has all versions and their configuration schemas. A store
/// needs to accept items of 400 KB at most.
pub const MAX_ITEM_BYTES: usize = 350 << 10;

/// A queue's throttler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Throttler {
    /// The plugin, whose live version decides.
    pub plugin: PluginName,
    /// Its configuration: an object of at most 64 KiB that the plugin itself checks (default `{}`).
    #[serde(default = "no_config", deserialize_with = "config")]
    #[schema(value_type = Object)]
    pub config: Arc<serde_json::Value>,
    /// What happens to candidates when a call fails (default `hold`).
    #[serde(default, deserialize_with = "crate::strict::or_default")]
    pub on_failure: OnFailure,
}

/// Reads a configuration; null is an empty one.
fn config<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<serde_json::Value>, D::Error> {
    Option::deserialize(deserializer).map(|config| config.unwrap_or_else(no_config))
}

fn no_config() -> Arc<serde_json::Value> {
    Arc::new(serde_json::json!({}))
}

/// What happens to candidates when their throttler's call fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// They wait: no job starts without a decision.
    #[default]
    Hold,
    /// They start: only the queue's own limits hold them.
    Run,
}

/// The roles of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It decides which candidates start.
    Throttler,
    /// It decides what follows a failed attempt.
    Retry,
}

/// The description that a plugin gives of itself in one role: `description` in `plugins/wit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a declaration of the contract")]
pub struct Description {
    /// A sentence for operators.
    pub about: String,
    /// JSON Schema of its configuration.
    pub config_schema: Option<String>,
    /// The format of its state; a version with another number starts with an empty state.
    pub state_version: u32,
    /// Attributes by which it groups the running jobs.
    pub group_by: Vec<String>,
    /// Whether it reads the running jobs one by one.
    pub needs_running_jobs: bool,
    /// Whether it reads jobs' data.
    pub needs_data: bool,
    /// Whether it reads the attempts that ended.
    pub needs_ended: bool,
    /// Whether it reads the earlier attempts of candidates.
    #[serde(default)]
    pub needs_earlier: bool,
    /// Attributes by which it groups the waiting jobs.
    #[serde(default)]
    pub waiting_by: Vec<String>,
}

/// The name in `group_by` and `waiting_by` that permits every attribute.
pub const ANY_ATTRIBUTE: &str = "*";

impl Description {
    /// Whether it groups the waiting jobs.
    pub fn groups_waiting(&self) -> bool {
        !self.waiting_by.is_empty()
    }

    /// Why a throttler with this description does not suit a queue whose partitions have these
    /// attributes; none if it does.
    pub fn waiting_problem<'a>(
        &self,
        partition_attributes: impl Iterator<Item = &'a str>,
    ) -> Option<String> {
        let attributes: Vec<&str> = partition_attributes.collect();
        let is_missing = |name: &&String| {
            let is_any = *name == ANY_ATTRIBUTE;
            if is_any { attributes.is_empty() } else { !attributes.contains(&name.as_str()) }
        };
        let missing = self.waiting_by.iter().find(is_missing)?;
        let which = if missing == ANY_ATTRIBUTE { "an attribute".into() } else { missing.clone() };
        Some(format!("must name {which}, by which the throttler groups the waiting jobs"))
    }

    /// Whether it groups the waiting jobs by `attribute`.
    pub fn groups_waiting_by(&self, attribute: &str) -> bool {
        self.waiting_by.iter().any(|name| name == attribute || name == ANY_ATTRIBUTE)
    }
}

/// One version of a plugin. Its objects never change: their keys are hashes of their bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginVersion {
    /// Counted up from 1.
    pub number: u32,
    /// The SHA-256 of the component, in hexadecimal: the object `plugins/<it>.wasm`.
    pub sha256: String,
    /// The component's bytes.
    pub bytes: u64,
    /// When it was pushed.
    pub pushed_at: Timestamp,
    /// Its description as a throttler, if it is one.
    pub throttler: Option<Description>,
    /// Its description as a retry strategy, if it is one.
    pub retry: Option<Description>,
    /// Its compiled forms.
    pub compiled: Vec<Compiled>,
}

impl PluginVersion {
    /// The key of the component's object.
    pub fn object_key(&self) -> String {
        format!("plugins/{}.wasm", self.sha256)
    }

    /// The keys of all objects of the version.
    pub fn object_keys(&self) -> impl Iterator<Item = String> {
        std::iter::once(self.object_key()).chain(self.compiled.iter().map(Compiled::object_key))
    }

    /// Its description in `role`, if it has that role.
    pub fn description(&self, role: Role) -> Option<&Description> {
        match role {
            Role::Throttler => self.throttler.as_ref(),
            Role::Retry => self.retry.as_ref(),
        }
    }
}

/// Machine code that a trusted process compiled from a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiled {
    /// The machine, as a target triple.
    pub target: String,
    /// The engine and its settings; another engine cannot load it.
    pub engine: String,
    /// The SHA-256 of the code, in hexadecimal: the object `plugins/<it>.cwasm`. It is compared
    /// before the code is loaded.
    pub sha256: String,
}

impl Compiled {
    /// The key of the code's object.
    pub fn object_key(&self) -> String {
        format!("plugins/{}.cwasm", self.sha256)
    }
}

/// A plugin as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginItem {
    /// Raised by every change.
    pub version: u64,
    /// The number of the version that decides.
    pub live: u32,
    /// The number of the version that is called too, to compare its answers with the live ones.
    pub shadow: Option<u32>,
    /// The numbers of the versions that were live before, the latest last. A rollback to one
    /// removes the later ones, so that a second rollback does not return to them.
    #[serde(default)]
    pub was_live: Vec<u32>,
    /// The versions, oldest first.
    pub versions: Vec<Arc<PluginVersion>>,
    /// Which of its calls are stored for a time, in addition to those that fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<CallRecording>,
}

impl PluginItem {
    /// The version with this number.
    pub fn numbered(&self, number: u32) -> Option<&Arc<PluginVersion>> {
        self.versions.iter().find(|version| version.number == number)
    }

    /// The number of the version that was live before this one.
    pub fn previous(&self) -> Option<u32> {
        self.was_live.last().copied()
    }

    /// Makes version `number` live.
    pub fn make_live(&mut self, number: u32) {
        match self.was_live.iter().position(|was| *was == number) {
            Some(index) => self.was_live.truncate(index),
            None if self.live != 0 && self.live != number => self.was_live.push(self.live),
            None => {}
        }
        self.live = number;
        self.shadow = self.shadow.filter(|shadow| *shadow != number);
    }

    /// Removes all versions but the live one, the shadow, the one that a rollback would return to,
    /// and the latest `keep` (at least 1, so that no number is used twice). Returns the removed
    /// numbers in order.
    pub fn prune(&mut self, keep: usize) -> Vec<u32> {
        let named = [Some(self.live), self.shadow, self.previous()];
        let old = self.versions.len().saturating_sub(keep.max(1));
        let old = self.versions[..old].iter().map(|version| version.number);
        let removed: Vec<u32> = old.filter(|number| !named.contains(&Some(*number))).collect();
        self.versions.retain(|version| !removed.contains(&version.number));
        self.was_live.retain(|was| !removed.contains(was));
        removed
    }

    /// Removes the oldest version that is not needed, and returns whether there was one.
    ///
    /// The version that a rollback would return to is removed only if there is no other.
    pub fn forget_oldest(&mut self) -> bool {
        let kept = [Some(self.live), self.shadow, self.previous()];
        let unneeded = |kept: &[Option<u32>]| {
            self.versions.iter().position(|version| !kept.contains(&Some(version.number)))
        };
        let Some(oldest) = unneeded(&kept).or_else(|| unneeded(&kept[..2])) else {
            return false;
        };
        let forgotten = self.versions.remove(oldest).number;
        self.was_live.retain(|was| *was != forgotten);
        true
    }
}
