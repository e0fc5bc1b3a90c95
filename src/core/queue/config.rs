//! The configuration of a queue: plain data in the shapes of the API.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    matcher::Matcher,
    plugin::{PluginVersion, Throttler},
    plugin_calls::PluginCalls,
};
use crate::{job::TypeName, queue::Rule, time::Seconds};

/// Most candidates that one tick reads.
pub const SCAN_BOUND: u32 = 1000;

/// Most live grants of a queue; critical jobs are exempt.
pub const MAX_RUNNING: u64 = 10_000;

/// Most bytes of what a queue's rates have counted.
///
/// Each value counts as its constraint's name, its text, [`VALUE_BYTES`], and [`START_BYTES`] for
/// each instant. The counts are part of the ledger, which is one item of a DynamoDB table, and an
/// item has at most 400 KB.
pub const MAX_RATE_BYTES: usize = 200_000;

/// Most bytes of what a rate counts for a value, without the names and the instants.
pub const VALUE_BYTES: usize = 32;

/// Most bytes of an instant at which attempts started under a rate.
pub const START_BYTES: usize = 10;

/// Most constraints of a queue.
pub(crate) const MAX_CONSTRAINTS: usize = 32;

/// How a queue admits jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Most weight that runs at once; absent means unlimited, 0 admits nothing.
    pub concurrency: Option<u32>,
    /// Which candidate goes first (default `time`).
    pub order: OrderKind,
    /// The step to which `order: time` rounds due times (default 60; 0 to 300, 0 means exact).
    pub order_step_seconds: Seconds,
    /// With `order: priority`, this long a wait counts as one step of priority (0.001 to 31536000).
    pub ageing_seconds: Option<Seconds>,
    /// The attribute whose values take turns: a name of 1 to 64 bytes. The value at the enqueue
    /// counts. A change applies to jobs that are enqueued, or whose data is changed, afterwards.
    pub partition_by: Option<String>,
    /// A second attribute, so that the combinations of both values take turns. It needs
    /// `partition_by`, names another attribute than that, and excludes `strict_order`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_then_by: Option<String>,
    /// Whether the jobs of a partition start one after another, in the order of their first due
    /// times: the oldest holds back the rest until it has ended, also while it waits for another
    /// attempt. It needs `partition_by`, and excludes `partition_then_by`, a throttler and
    /// `order: priority`. Critical jobs, and jobs without the attribute, have no such order
    /// (default false).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(value_type = Option<bool>)]
    pub strict_order: bool,
    /// Limits on jobs that match a condition: at most 32, with distinct names.
    pub constraints: Vec<Constraint>,
    /// The plugin that decides on candidates within the limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttler: Option<Throttler>,
    /// What is recorded of the calls of plugins about the queue's jobs: by its throttler, and by
    /// the retry strategies of its types. Absent: every call whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin_calls: Option<PluginCalls>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            concurrency: None,
            order: OrderKind::Time,
            order_step_seconds: Seconds::new(60),
            ageing_seconds: None,
            partition_by: None,
            partition_then_by: None,
            strict_order: false,
            constraints: Vec::new(),
            throttler: None,
            plugin_calls: None,
        }
    }
}

/// Which candidate goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OrderKind {
    /// Due time in steps, then priority, then exact time, then id.
    #[default]
    Time,
    /// Priority, then due time, then id.
    Priority,
}

/// A limit on the jobs that match a condition. With `per`, each value of an attribute has its own
/// limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Constraint {
    /// Its name in explanations: unique in its queue, 1 to 64 bytes.
    pub name: String,
    /// Which jobs it counts (default: every job). At most 8 levels and 64 conditions.
    #[serde(default, deserialize_with = "crate::strict::or_default", rename = "match")]
    pub matcher: Matcher,
    /// The attribute whose values each have their own limit: a name of 1 to 64 bytes. A job without
    /// it is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// Most weight that runs at once. At least one of this and `rate` must be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Most attempts that start in a period. The rates of a queue count in at most 200,000 bytes:
    /// for each value of `per` that has started lately its text, the constraint's name and 32
    /// bytes, and 10 for each instant of a start (at most 33 for each value). A start beyond that
    /// waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// How many attempts may start in a period, whatever their weight.
///
/// Without `burst`, at most `count` start in any window of `per_seconds`, wherever it begins. With
/// `burst`, it is a token bucket of that capacity, refilled by `count` per `per_seconds`: at most
/// `burst` start at once, and up to `burst + count` in one period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Most starts in a window, or the tokens that are added in a period (1 to 1000000). A count
    /// over 32 is kept in 32 parts of the window: never exceeded, and at most 1/32 less.
    pub count: u32,
    /// The period (0.001 to 2592000).
    pub per_seconds: Seconds,
    /// The capacity of a token bucket (1 to 1000000). Absent: a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// A queue as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueItem {
    /// Its configuration.
    pub config: QueueConfig,
    /// Whether it holds every job.
    pub paused: bool,
    /// Raised by every change of the queue or of a limit of one of its types.
    pub version: u64,
}

/// Everything that a queue's admissions depend on, as one tick reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// The version of the queue that was read.
    pub version: u64,
    /// The queue's own configuration.
    pub queue: QueueConfig,
    /// Whether it holds every job.
    pub paused: bool,
    /// Whether its configuration cannot be read. It is then paused.
    pub unreadable: bool,
    /// The limits of its types that have one.
    pub types: BTreeMap<TypeName, u32>,
    /// The live version of its throttler's plugin; also none if the plugin does not exist.
    pub throttler: Option<Arc<PluginVersion>>,
}

impl Limits {
    /// Whether anything is limited, so that the queue needs a ledger.
    pub fn any(&self) -> bool {
        let Self { queue, paused, types, .. } = self;
        *paused
            || queue.concurrency.is_some()
            || !queue.constraints.is_empty()
            || !types.is_empty()
            || queue.throttler.is_some()
            || queue.strict_order
    }

    /// Whether what `rule` holds starts when time passes, and not when another job ends: it is a rate
    /// without a concurrency.
    pub fn is_rate(&self, rule: &Rule) -> bool {
        let Rule::Constraint(name, _) = rule else { return false };
        let mut named = self.queue.constraints.iter().filter(|one| one.name == *name);
        named.any(|one| one.rate.is_some() && one.concurrency.is_none())
    }

    /// Why it holds every job, if it does.
    pub fn pause_reason(&self) -> Option<&'static str> {
        match self {
            Self { unreadable: true, .. } => {
                Some("the configuration of the queue cannot be read: see the doctor")
            }
            Self { paused: true, .. } => Some("the queue is paused"),
            _ => None,
        }
    }

    /// The attributes that constraints and the throttler read, which a grant must store.
    pub fn declared(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        for constraint in &self.queue.constraints {
            constraint.matcher.declare(&mut names);
            names.extend(constraint.per.as_deref());
        }
        let declared = self.throttler.as_ref().and_then(|version| version.throttler.as_ref());
        names.extend(
            declared.into_iter().flat_map(|declared| &declared.group_by).map(String::as_str),
        );
        names
    }
}
