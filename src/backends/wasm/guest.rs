//! What a plugin reaches during one call: its log, its state, the running set, the data of jobs, and nothing else.
//!
//! Neither fuel nor the watch interrupts the host itself. Each function here is therefore small or counted, and
//! nothing that a guest names makes the host grow without bound.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use wasmtime::ResourceLimiter;

use super::{
    bounds::{self, cut},
    contract::throttler::tidegate::plugin::{
        jobs,
        log::{self, Level},
        running::{self, Dimension, Group, RunningJob},
        state::{self, StateError},
        types::{self, AttributeResult},
    },
    lower::millis,
};
use tidegate_core::{
    port::policy::{Fault, FaultKind, PolicyState, RetryCall, RunningSet, ThrottleCall},
    queue::{
        Grant,
        plugin::{PluginVersion, Role},
    },
};

/// What stands for every attribute in `group-by`.
const ANY: &str = "*";

/// What a call is about.
pub(super) enum Subject {
    /// Candidates.
    Throttle(Arc<ThrottleCall>),
    /// A failed attempt.
    Retry(Arc<RetryCall>),
    /// Nothing but the plugin itself: its description, or a configuration.
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

    fn running(&self) -> Option<&RunningSet> {
        match self {
            Self::Throttle(call) => Some(&call.running),
            Self::Retry(_) | Self::Itself(_) => None,
        }
    }
}

/// How many of the running jobs have a value, and what they weigh.
type Groups = HashMap<String, (u32, u64)>;

/// The plugin's side of one call.
pub(super) struct Guest {
    version: Option<Arc<PluginVersion>>,
    subject: Subject,
    /// Its memory and tables.
    pub limiter: Limiter,
    /// How often it called what it imports.
    pub host_calls: u32,
    paged: u32,
    /// What it logged.
    pub log: Vec<(Level, String)>,
    log_bytes: usize,
    /// How many lines were over the bound.
    pub log_dropped: u32,
    /// The state as it changed it.
    pub changed: Option<PolicyState>,
    by_type: Option<Groups>,
    by_priority: Option<Groups>,
    by_attribute: HashMap<String, Groups>,
}

/// A bound that was met, or something that was not declared: what a host function traps with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Denied(pub Fault);

fn denied(kind: FaultKind, message: impl Into<String>) -> wasmtime::Error {
    wasmtime::Error::new(Denied(Fault { kind, message: message.into() }))
}

impl Guest {
    /// A call about `subject` of the plugin in `version`, which is not known before it has described itself.
    pub(super) fn new(version: Option<Arc<PluginVersion>>, subject: Subject) -> Self {
        Self {
            version,
            subject,
            limiter: Limiter::default(),
            host_calls: 0,
            paged: 0,
            log: Vec::new(),
            log_bytes: 0,
            log_dropped: 0,
            changed: None,
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

    /// What the plugin declares; while it describes itself there is nothing that it could ask for.
    fn declares(
        &self,
        what: impl FnOnce(&tidegate_core::queue::plugin::Description) -> bool,
    ) -> bool {
        let description =
            self.version.as_ref().and_then(|version| version.description(self.subject.role()));
        description.is_none_or(what)
    }

    fn state(&self) -> wasmtime::Result<Cow<'_, PolicyState>> {
        match (&self.changed, &self.subject) {
            (Some(changed), _) => Ok(Cow::Borrowed(changed)),
            (None, Subject::Throttle(call)) => Ok(Cow::Borrowed(&call.state)),
            (None, Subject::Itself(Role::Throttler)) => Ok(Cow::Owned(PolicyState::new())),
            (None, Subject::Retry(_) | Subject::Itself(Role::Retry)) => Err(denied(
                FaultKind::InvalidAnswer,
                "used `state`, which a retry strategy does not have: failures are handled concurrently",
            )),
        }
    }

    fn change(&mut self) -> wasmtime::Result<&mut PolicyState> {
        let state = match self.changed.take() {
            Some(changed) => changed,
            None => self.state()?.into_owned(),
        };
        Ok(self.changed.insert(state))
    }

    fn groups(&mut self, by: Dimension) -> wasmtime::Result<&Groups> {
        if let Dimension::Attribute(name) = &by {
            if !self.declares(|description| {
                description.group_by.iter().any(|declared| declared == name || declared == ANY)
            }) {
                let name = cut(name.clone(), 64);
                return Err(denied(
                    FaultKind::InvalidAnswer,
                    format!(
                        "asked the running set by `{name}`, which its `group-by` does not name"
                    ),
                ));
            }
            if self.by_attribute.len() >= bounds::GROUPS && !self.by_attribute.contains_key(name) {
                return Err(denied(
                    FaultKind::ResourceExhausted,
                    format!("asked the running set by more than {} attributes", bounds::GROUPS),
                ));
            }
        }
        let Some(running) = self.subject.running() else {
            return Ok(self.by_type.get_or_insert_default());
        };
        Ok(match by {
            Dimension::JobType => self.by_type.get_or_insert_with(|| {
                divide(running, |grant| Some(grant.job_type.as_str().into()))
            }),
            Dimension::Priority => self.by_priority.get_or_insert_with(|| {
                divide(running, |grant| Some(grant.priority.to_string().into()))
            }),
            // No more than the bound come here, so that the guest's names do not add up.
            Dimension::Attribute(name) => {
                self.by_attribute.entry(name).or_insert_with_key(|name| {
                    divide(running, |grant| Some(grant.attributes.get(name)?.as_text()))
                })
            }
        })
    }
}

/// The running set, divided by a value of each.
fn divide<'a>(
    running: &'a RunningSet,
    value: impl Fn(&'a Grant) -> Option<Cow<'a, str>>,
) -> Groups {
    let mut groups = Groups::new();
    for grant in running.iter() {
        let Some(value) = value(grant) else { continue };
        let (count, weight) = match groups.get_mut(value.as_ref()) {
            Some(group) => group,
            None => groups.entry(value.into_owned()).or_default(),
        };
        *count += 1;
        *weight += u64::from(grant.weight);
    }
    groups
}

impl types::Host for Guest {}

impl log::Host for Guest {
    fn write(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        self.count_call()?;
        let room = bounds::LOG_BYTES - self.log_bytes;
        if self.log.len() >= bounds::LOG_LINES || room == 0 {
            self.log_dropped += 1;
            return Ok(());
        }
        let line = cut(message, room.min(bounds::LOG_LINE_BYTES));
        self.log_bytes += line.len();
        self.log.push((level, line));
        Ok(())
    }
}

impl state::Host for Guest {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        self.count_call()?;
        Ok(self.state()?.get(&key).cloned())
    }

    fn set(&mut self, key: String, value: String) -> wasmtime::Result<Result<(), StateError>> {
        self.count_call()?;
        if key.len() > bounds::STATE_KEY_BYTES {
            return Ok(Err(StateError::KeyTooLong));
        }
        let state = self.state()?;
        if state.get(&key) == Some(&value) {
            return Ok(Ok(()));
        }
        let others = state.iter().filter(|(other, _)| **other != key);
        let (keys, bytes) = others
            .fold((1, key.len() + value.len()), |(keys, bytes), (key, value)| {
                (keys + 1, bytes + key.len() + value.len())
            });
        if keys > bounds::STATE_KEYS || bytes > bounds::STATE_BYTES {
            return Ok(Err(StateError::Full));
        }
        self.change()?.insert(key, value);
        Ok(Ok(()))
    }

    fn delete(&mut self, key: String) -> wasmtime::Result<()> {
        self.count_call()?;
        if self.state()?.contains_key(&key) {
            self.change()?.remove(&key);
        }
        Ok(())
    }

    fn keys(&mut self) -> wasmtime::Result<Vec<String>> {
        self.count_call()?;
        Ok(self.state()?.keys().cloned().collect())
    }
}

impl running::Host for Guest {
    fn count(&mut self) -> wasmtime::Result<u32> {
        self.count_call()?;
        Ok(self.groups(Dimension::JobType)?.values().map(|(count, _)| count).sum())
    }

    fn weight(&mut self) -> wasmtime::Result<u64> {
        self.count_call()?;
        Ok(self.groups(Dimension::JobType)?.values().map(|(_, weight)| weight).sum())
    }

    fn groups(&mut self, by: Dimension) -> wasmtime::Result<Vec<Group>> {
        self.count_call()?;
        let groups = Self::groups(self, by)?.iter();
        let mut groups: Vec<Group> = groups
            .map(|(value, (count, weight))| Group {
                value: value.clone(),
                count: *count,
                weight: *weight,
            })
            .collect();
        // A map has no order, and an answer must not depend on one.
        groups.sort_unstable_by(|a, b| a.value.cmp(&b.value));
        Ok(groups)
    }

    fn in_group(&mut self, by: Dimension, value: String) -> wasmtime::Result<Group> {
        self.count_call()?;
        let (count, weight) = Self::groups(self, by)?.get(&value).copied().unwrap_or_default();
        Ok(Group { value, count, weight })
    }

    fn page(&mut self, offset: u32, limit: u32) -> wasmtime::Result<Vec<RunningJob>> {
        self.count_call()?;
        if !self.declares(|description| description.needs_running_jobs) {
            return Err(denied(
                FaultKind::InvalidAnswer,
                "called `running.page`, for which its description must say `needs-running-jobs`",
            ));
        }
        let running = self.subject.running().into_iter().flat_map(RunningSet::iter);
        let page: Vec<_> = running
            .skip(offset as usize)
            .take(limit.min(bounds::PAGE) as usize)
            .map(running_job)
            .collect();
        self.paged += page.len() as u32;
        if self.paged > bounds::PAGED {
            return Err(denied(
                FaultKind::ResourceExhausted,
                format!("paged through more than {} running jobs", bounds::PAGED),
            ));
        }
        Ok(page)
    }
}

fn running_job(grant: &Grant) -> RunningJob {
    let attribute = |(name, value): (&String, &tidegate_core::job::Value)| AttributeResult {
        name: name.clone(),
        value: value.text(),
    };
    RunningJob {
        id: grant.job.as_str().into(),
        job_type: grant.job_type.as_str().into(),
        priority: grant.priority,
        weight: grant.weight,
        critical: grant.critical,
        attributes: grant.attributes.iter().map(attribute).collect(),
        granted_at: millis(grant.granted_at),
    }
}

impl jobs::Host for Guest {
    fn data(&mut self, id: String) -> wasmtime::Result<Option<String>> {
        self.count_call()?;
        if !self.declares(|description| description.needs_data) {
            return Err(denied(
                FaultKind::InvalidAnswer,
                "called `jobs.data`, for which its description must say `needs-data`",
            ));
        }
        Ok(match &self.subject {
            Subject::Throttle(call) => call.data.get(id.as_str()).cloned(),
            Subject::Retry(call) if call.job.id.as_str() == id => call.data.clone(),
            Subject::Retry(_) | Subject::Itself(_) => None,
        })
    }
}

/// Holds memories and tables to their bounds.
#[derive(Default)]
pub(super) struct Limiter {
    /// Bytes of all memories.
    pub memory: usize,
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // A component may have several memories, and each asks by itself.
        let sum = self.memory - current + desired;
        if sum > bounds::MEMORY {
            return Err(denied(
                FaultKind::ResourceExhausted,
                format!("wanted more than {} MiB of memory", bounds::MEMORY >> 20),
            ));
        }
        self.memory = sum;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > bounds::TABLE {
            return Err(denied(
                FaultKind::ResourceExhausted,
                format!("wanted a table of more than {} elements", bounds::TABLE),
            ));
        }
        Ok(true)
    }

    // A component made from Python has 38 modules.
    fn instances(&self) -> usize {
        64
    }

    fn tables(&self) -> usize {
        16
    }

    fn memories(&self) -> usize {
        4
    }
}

#[cfg(test)]
mod tests {
    use super::{running::Host as _, *};

    #[test]
    fn the_calls_of_what_is_imported_are_counted() {
        let mut guest = Guest::new(None, Subject::Itself(Role::Throttler));
        for _ in 0..bounds::HOST_CALLS {
            guest.count().unwrap();
        }
        let error = guest.count().unwrap_err();
        assert_eq!(error.downcast_ref::<Denied>().unwrap().0.kind, FaultKind::ResourceExhausted);
    }

    #[test]
    fn names_that_a_guest_makes_up_are_not_kept() {
        let mut guest = Guest::new(None, Subject::Itself(Role::Throttler));
        for n in 0..1000 {
            guest.in_group(Dimension::Attribute(format!("a{n}")), "x".into()).unwrap();
        }
        assert!(guest.by_attribute.is_empty());
    }

    #[test]
    fn the_memory_of_all_memories_is_bounded_together() {
        let mut limiter = Limiter::default();
        assert!(limiter.memory_growing(0, 40 << 20, None).unwrap());
        assert!(limiter.memory_growing(0, 20 << 20, None).unwrap());
        assert!(limiter.memory_growing(20 << 20, 24 << 20, None).unwrap());
        assert_eq!(limiter.memory, bounds::MEMORY);
        limiter.memory_growing(40 << 20, (40 << 20) + 1, None).unwrap_err();
    }
}
