//! What a plugin can access during one call: its log, its state, the running set and the data of
//! jobs.
//!
//! Neither fuel nor the watch interrupts the host itself. Each function here is therefore small or
//! counted, and no argument of a guest makes the host's memory grow without bound.

mod candidates;
mod imports;
mod limiter;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::Arc,
};

use super::{
    bounds::{self, cut},
    contract::throttler::tidegate::plugin::{log::Level, running::Dimension},
};
pub(super) use limiter::Limiter;
use tidegate_core::{
    port::policy::{Fault, FaultKind, PolicyState, RetryCall, RunningSet, ThrottleCall},
    queue::{
        Grant,
        plugin::{ANY_ATTRIBUTE, Description, PluginVersion, Role},
        waiting::{Waiting, WaitingCount},
    },
    time::Timestamp,
};

/// The subject of a call.
pub(super) enum Subject {
    /// The candidates of a tick.
    Throttle(Arc<ThrottleCall>),
    /// A failed attempt.
    Retry(Arc<RetryCall>),
    /// The plugin itself: its description, or a configuration.
    Itself(Role),
}

impl Subject {
    fn role(&self) -> Role {
        match self {
            Self::Throttle(_) => Role::Throttler,
            Self::Retry(_) => Role::Retry,
            Self::Itself(role) => *role,
        }
    }

    fn now(&self) -> Timestamp {
        match self {
            Self::Throttle(call) => call.now,
            Self::Retry(call) => call.now,
            Self::Itself(_) => Timestamp::EPOCH,
        }
    }

    fn seed(&self) -> u64 {
        match self {
            Self::Throttle(call) => call.seed,
            Self::Retry(call) => call.seed,
            Self::Itself(_) => 0,
        }
    }

    fn running(&self) -> Option<&RunningSet> {
        match self {
            Self::Throttle(call) => Some(&call.running),
            Self::Retry(_) | Self::Itself(_) => None,
        }
    }
}

/// A change of one of the plugin's metrics.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MetricChange {
    pub kind: MetricKind,
    pub name: String,
    pub label: String,
    pub value: f64,
}

/// The kind of a plugin's metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MetricKind {
    /// The value is added.
    Counter,
    /// The value is set.
    Gauge,
}

/// The number and the weight of the running jobs by value, sorted by value.
type Groups = BTreeMap<String, (u32, u64)>;

/// So many values of the running jobs are found by comparing them, which takes less time than a hash.
const COMPARED_VALUES: usize = 8;

/// The plugin's side of one call.
pub(super) struct Guest {
    version: Option<Arc<PluginVersion>>,
    subject: Subject,
    /// The bounds of its memories and tables.
    pub limiter: Limiter,
    /// How many imports it has called.
    pub host_calls: u32,
    paged: u32,
    /// The lines that it has logged.
    pub log: Vec<(Level, String)>,
    log_bytes: usize,
    /// How many lines were dropped over the bound.
    pub log_dropped: u32,
    /// The state, if it has changed it.
    pub changed: Option<PolicyState>,
    /// The changes of its metrics.
    pub metrics: Vec<MetricChange>,
    /// How many changes were dropped over the bound, or because they were invalid.
    pub metrics_dropped: u32,
    /// The position in the sequence of random numbers.
    random: u64,
    /// The number and the weight of all running jobs.
    totals: Option<(u32, u64)>,
    by_type: Option<Groups>,
    by_priority: Option<Groups>,
    by_attribute: HashMap<String, Groups>,
}

/// The error of a host function: an exceeded bound, or an undeclared use.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Denied(pub Fault);

fn denied(kind: FaultKind, message: impl Into<String>) -> wasmtime::Error {
    wasmtime::Error::new(Denied(Fault { kind, message: message.into() }))
}

impl Guest {
    /// A guest for a call about `subject`. `version` is unknown while the plugin describes itself.
    pub(super) fn new(version: Option<Arc<PluginVersion>>, subject: Subject) -> Self {
        Self {
            version,
            random: subject.seed(),
            metrics: Vec::new(),
            metrics_dropped: 0,
            subject,
            limiter: Limiter::default(),
            host_calls: 0,
            paged: 0,
            log: Vec::new(),
            log_bytes: 0,
            log_dropped: 0,
            changed: None,
            totals: None,
            by_type: None,
            by_priority: None,
            by_attribute: HashMap::new(),
        }
    }

    fn count_call(&mut self) -> wasmtime::Result<()> {
        self.host_calls += 1;
        if self.host_calls > bounds::HOST_CALLS {
            return Err(denied(
                FaultKind::ResourceExhausted,
                format!("called what it imports more than {} times", bounds::HOST_CALLS),
            ));
        }
        Ok(())
    }

    /// Whether the plugin declares something. While it describes itself, everything is allowed,
    /// because there is no data to access.
    fn declares(&self, condition: impl FnOnce(&Description) -> bool) -> bool {
        let description =
            self.version.as_ref().and_then(|version| version.description(self.subject.role()));
        description.is_none_or(condition)
    }

    fn state(&self) -> wasmtime::Result<Cow<'_, PolicyState>> {
        match (&self.changed, &self.subject) {
            (Some(changed), _) => Ok(Cow::Borrowed(changed)),
            (None, Subject::Throttle(call)) => Ok(Cow::Borrowed(&call.state)),
            (None, Subject::Retry(call))
                if self.declares(|description| description.state_version > 0) =>
            {
                Ok(Cow::Borrowed(&call.state))
            }
            (None, Subject::Retry(_)) => Err(denied(
                FaultKind::InvalidAnswer,
                "used `state`, for which the `state-version` of a retry strategy must be at least 1",
            )),
            (None, Subject::Itself(_)) => Ok(Cow::Owned(PolicyState::default())),
        }
    }

    /// The state that the call leaves, without what has expired.
    fn change(&mut self) -> wasmtime::Result<&mut PolicyState> {
        let state = if let Some(changed) = self.changed.take() {
            changed
        } else {
            let mut state = self.state()?.into_owned();
            state.remove_expired(self.subject.now());
            state
        };
        Ok(self.changed.insert(state))
    }

    /// The number and the weight of the running jobs.
    fn totals(&mut self) -> (u32, u64) {
        let running = self.subject.running();
        *self.totals.get_or_insert_with(|| {
            let grants = running.into_iter().flat_map(RunningSet::iter);
            grants.fold((0, 0), |(count, weight), grant| {
                (count + 1, weight + u64::from(grant.weight))
            })
        })
    }

    fn groups(&mut self, by: Dimension) -> wasmtime::Result<&Groups> {
        if let Dimension::Attribute(name) = &by {
            if !self.declares(|description| {
                description
                    .group_by
                    .iter()
                    .any(|declared| declared == name || declared == ANY_ATTRIBUTE)
            }) {
                let name = cut(name.clone(), 64);
                return Err(denied(
                    FaultKind::InvalidAnswer,
                    format!(
                        "queried the running set by `{name}`, which its `group-by` does not name"
                    ),
                ));
            }
            if self.by_attribute.len() >= bounds::GROUPS && !self.by_attribute.contains_key(name) {
                return Err(denied(
                    FaultKind::ResourceExhausted,
                    format!("queried the running set by more than {} attributes", bounds::GROUPS),
                ));
            }
        }
        let Some(running) = self.subject.running() else {
            return Ok(self.by_type.get_or_insert_default());
        };
        Ok(match by {
            Dimension::JobType => self
                .by_type
                .get_or_insert_with(|| group_by(running, |grant| Some(grant.job_type.as_str()))),
            Dimension::Priority => self
                .by_priority
                .get_or_insert_with(|| group_by(running, |grant| Some(grant.priority))),
            // The check above bounds the number of names.
            Dimension::Attribute(name) => {
                self.by_attribute.entry(name).or_insert_with_key(|name| {
                    group_by(running, |grant| Some(grant.attributes.get(name)?.as_text()))
                })
            }
        })
    }
}

impl Guest {
    /// What waits in the queue; none if the plugin describes itself.
    fn waiting(&self) -> Option<&Waiting> {
        match &self.subject {
            Subject::Throttle(call) => Some(&call.waiting),
            Subject::Retry(_) | Subject::Itself(_) => None,
        }
    }

    /// The groups of the waiting jobs by the attribute `by`.
    fn waiting_by(&self, by: &str) -> wasmtime::Result<Option<&BTreeMap<String, WaitingCount>>> {
        let name = || cut(by.to_owned(), 64);
        if !self.declares(|description| description.groups_waiting_by(by)) {
            return Err(denied(
                FaultKind::InvalidAnswer,
                format!("queried what waits by `{}`, which its `waiting-by` does not name", name()),
            ));
        }
        let Some(waiting) = self.waiting() else { return Ok(None) };
        let groups = waiting.groups.get(by).ok_or_else(|| {
            denied(
                FaultKind::InvalidAnswer,
                format!(
                    "queried what waits by `{}`, which is neither `partition_by` nor \
                     `partition_then_by` of the queue",
                    name()
                ),
            )
        });
        groups.map(Some)
    }
}

/// Groups the running set by a value of each grant.
fn group_by<'a, V: Clone + Eq + Hash + ToString>(
    running: &'a RunningSet,
    value: impl Fn(&'a Grant) -> Option<V>,
) -> Groups {
    let mut groups: Vec<(V, (u32, u64))> = Vec::new();
    let mut places: HashMap<V, usize> = HashMap::new();
    for grant in running.iter() {
        let Some(value) = value(grant) else { continue };
        let first = groups.iter().take(COMPARED_VALUES).position(|(own, _)| *own == value);
        let place = first.or_else(|| places.get(&value).copied()).unwrap_or_else(|| {
            if groups.len() >= COMPARED_VALUES {
                places.insert(value.clone(), groups.len());
            }
            groups.push((value, (0, 0)));
            groups.len() - 1
        });
        let (count, weight) = &mut groups[place].1;
        *count += 1;
        *weight += u64::from(grant.weight);
    }
    groups.into_iter().map(|(value, sums)| (value.to_string(), sums)).collect()
}
