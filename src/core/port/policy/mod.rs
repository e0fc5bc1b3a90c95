//! Decisions of plugins: a throttler decides on candidates, a retry strategy on a failure.
//!
//! A policy is a pure function of its call: the same call gets the same answer again. It is bounded
//! in time and memory, and never takes the engine down: an error in it is a [`Fault`].
//!
//! Read in this order: [`throttle`] and [`retry`] (the calls and their answers), [`fault`] (why a
//! call has no answer), [`recorded`] (which calls are stored), and the trait.

pub mod fault;
pub mod recorded;
pub mod retry;
pub mod throttle;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Serialize, Serializer};

pub use crate::queue::{
    plugin_state::{PolicyState, StatePage, StateValue},
    waiting::Waiting,
};
pub use fault::{Fault, FaultKind};
pub use recorded::Answer;
pub use retry::{RetryAnswer, RetryCall, RetryOutput, RetryPlan};
pub use throttle::{
    Action, Decision, Ended, RunningSet, TargetHosts, ThrottleAnswer, ThrottleCall,
};

use crate::{
    job::{PluginName, QueueName},
    queue::plugin::{PluginVersion, Role},
};

/// How far after its call an answer may name a time.
pub const AHEAD: Duration = Duration::from_hours(366 * 24);
/// Most bytes of a decision's reason; a longer one is cut.
pub const REASON_BYTES: usize = 200;
/// Most bytes of a message for people; a longer one is cut.
pub const MESSAGE_BYTES: usize = 2000;
/// Most bytes of candidates' data, as enqueued, in one call; a single candidate may have more.
pub const DATA_BYTES: usize = 16 << 20;

/// Most bytes of the details of ended attempts in one call.
pub const ENDED_DETAIL_BYTES: usize = 1 << 20;

/// One version of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Plugin {
    /// Its name.
    pub name: PluginName,
    /// The version.
    pub version: Arc<PluginVersion>,
}

/// A call of a plugin.
#[derive(Clone, Debug)]
pub enum Call {
    /// A call of a throttler.
    Throttle(Arc<ThrottleCall>),
    /// A call of a retry strategy.
    Retry(Arc<RetryCall>),
}

impl Call {
    /// The queue that it is about.
    pub fn queue(&self) -> &QueueName {
        match self {
            Self::Throttle(call) => &call.queue,
            Self::Retry(call) => &call.queue,
        }
    }
}

/// A fault in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// A JSON pointer into the configuration; empty for all of it.
    pub path: String,
    /// What the value must be.
    pub message: String,
}

/// The purpose of a call, by which metrics count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The engine follows its answer.
    Live,
    /// Its answer is compared with that of the live version.
    Shadow,
    /// Its answer explains to a user why a job waits.
    Explain,
    /// Its answer decides whether a queue or a type may have this configuration.
    Check,
}

impl Purpose {
    /// The purpose's name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Shadow => "shadow",
            Self::Explain => "explain",
            Self::Check => "check",
        }
    }
}

/// Runs plugins.
///
/// The caller validates each answer again ([`ThrottleAnswer::validated`],
/// [`RetryOutput::validated`]), because not every implementation does.
#[async_trait]
pub trait Policy: Send + Sync {
    /// The answer of the throttler `plugin` to `call`.
    async fn throttle(
        &self,
        plugin: &Plugin,
        call: Arc<ThrottleCall>,
        purpose: Purpose,
    ) -> Result<ThrottleAnswer, Fault>;

    /// The answer of the retry strategy `plugin` to `call`.
    async fn retry(
        &self,
        plugin: &Plugin,
        call: Arc<RetryCall>,
        purpose: Purpose,
    ) -> Result<RetryOutput, Fault>;

    /// The faults that `plugin` finds in a configuration (JSON text) for `role`; empty if none.
    async fn check(&self, plugin: &Plugin, role: Role, config: &str)
    -> Result<Vec<Problem>, Fault>;

    /// Records a fault of a live call that only its caller knows: the answer cannot be followed, or
    /// the call could not be made. It is counted and shown like any other fault.
    fn report_fault(&self, plugin: &Plugin, call: &Call, fault: &Fault);
}

/// Runs no plugins: every call is a fault.
#[derive(Clone, Copy, Debug)]
pub struct NoPolicy;

impl NoPolicy {
    fn fault<T>() -> Result<T, Fault> {
        Err(Fault { kind: FaultKind::Unavailable, message: "this program runs no plugins".into() })
    }
}

#[async_trait]
impl Policy for NoPolicy {
    async fn throttle(
        &self,
        _: &Plugin,
        _: Arc<ThrottleCall>,
        _: Purpose,
    ) -> Result<ThrottleAnswer, Fault> {
        Self::fault()
    }

    async fn retry(&self, _: &Plugin, _: Arc<RetryCall>, _: Purpose) -> Result<RetryOutput, Fault> {
        Self::fault()
    }

    async fn check(&self, _: &Plugin, _: Role, _: &str) -> Result<Vec<Problem>, Fault> {
        Self::fault()
    }

    fn report_fault(&self, _: &Plugin, _: &Call, _: &Fault) {}
}

/// The resources that one call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Fuel; unknown if it timed out.
    pub fuel: Option<u64>,
    /// Time, including the creation of its instance.
    #[serde(rename = "took_seconds", serialize_with = "seconds")]
    pub took: Duration,
    /// Bytes of memory at its end.
    pub memory_bytes: u64,
    /// Calls of imported functions.
    pub host_calls: u32,
}

fn seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

/// `text`, cut to at most `most` bytes at the boundary of a character.
pub fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.shrink_to_fit();
    }
    text
}
