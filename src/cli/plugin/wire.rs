//! What the server's answers on plugins hold, as far as people are shown it. `--json` never passes through here.

use std::fmt;

use serde::Deserialize;

use crate::cli::plugin::local;
use tidegate_core::port::policy;
use tidegate_core::time::Timestamp;

/// A plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Plugin {
    pub name: String,
    pub roles: Vec<String>,
    pub live: u32,
    /// Whether there is code of that version for the server's release; none if the server does not say.
    pub runnable: Option<bool>,
    pub shadow: Option<u32>,
    /// The version that has the bytes that were sent; only the answer to a push has it.
    pub pushed: Option<u32>,
    pub throttler: Option<Description>,
    pub retry: Option<Description>,
    pub used_by: Vec<User>,
    pub health: Health,
    /// How the calls of the version in the shadow go; none without one.
    pub shadow_health: Option<Health>,
}

/// What a plugin says of itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Description {
    pub about: String,
}

/// A queue or a job type.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct User {
    pub kind: String,
    pub name: String,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.replace('_', " "), self.name)
    }
}

/// How a plugin's calls went.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Health {
    pub calls: u64,
    pub faults: u64,
    pub failing: bool,
    pub last_fault: Option<Fault>,
    pub last_usage: Option<Usage>,
}

/// What a call used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Usage {
    fuel: Option<u64>,
    took_seconds: f64,
    memory_bytes: u64,
    host_calls: u32,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = std::time::Duration::try_from_secs_f64(self.took_seconds).unwrap_or_default();
        let Self { fuel, memory_bytes, host_calls, .. } = *self;
        f.write_str(&local::used(&policy::Usage { fuel, took, memory_bytes, host_calls }))
    }
}

/// A call that gave no answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fault {
    pub at: Option<Timestamp>,
    pub version: u32,
    pub kind: String,
    pub message: String,
}
