//! Health checks of a deployment: its disks, tables, queues, permissions and clocks.
//!
//! A health check changes nothing. Each finding is a value, and the check never fails as a whole.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckLevel {
    /// Something is broken, lost or accessible to everyone.
    Error,
    /// Something is likely to cause a problem.
    Warning,
    /// For information.
    Note,
    /// As it should be.
    Ok,
}

impl CheckLevel {
    /// The name of the level.
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
            Self::Ok => "ok",
        }
    }
}

/// One checked item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The severity of a finding.
    pub level: CheckLevel,
    /// The subject.
    pub about: String,
    /// The finding.
    #[serde(rename = "finding")]
    pub found: String,
    /// What to do; empty if nothing is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

impl Check {
    /// A finding at this level.
    pub fn new(
        level: CheckLevel,
        about: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { level, about: about.into(), found: found.into(), advice: advice.into() }
    }

    /// A finding that nothing is wrong.
    pub fn ok(about: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(CheckLevel::Ok, about, found, "")
    }
}

/// A deployment that can check itself.
#[async_trait]
pub trait HealthCheck: Send + Sync {
    /// Every checked item, each after those that it depends on. Takes a few seconds at most.
    async fn checks(&self) -> Vec<Check>;

    /// Why no work can be accepted now, such as a full disk; none if it can. Takes microseconds.
    fn refusal(&self) -> Option<String> {
        None
    }
}
