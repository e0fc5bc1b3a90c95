//! What a home says when it is asked how it is: its disks, tables, queues, rights and clocks.
//!
//! The one thing to know: a checkup leaves nothing behind, and what it finds is a value. It never fails as a whole.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckLevel {
    /// Something is broken, lost or open to strangers.
    Error,
    /// Something is likely to hurt.
    Warning,
    /// Good to know.
    Note,
    /// As it should be.
    Ok,
}

impl CheckLevel {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
            Self::Ok => "ok",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// How bad it is.
    pub level: CheckLevel,
    /// What it is about.
    pub about: String,
    /// What was found.
    #[serde(rename = "finding")]
    pub found: String,
    /// What to do; nothing if it is as it should be.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

impl Check {
    /// Something that a person should know.
    pub fn new(
        level: CheckLevel,
        about: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { level, about: about.into(), found: found.into(), advice: advice.into() }
    }

    /// Something that is as it should be.
    pub fn ok(about: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(CheckLevel::Ok, about, found, "")
    }
}

/// A home that can look at itself.
#[async_trait]
pub trait HealthCheck: Send + Sync {
    /// Everything that was looked at, in the order in which it depends on each other. It takes a few seconds at most.
    async fn checks(&self) -> Vec<Check>;
}
