//! The throttler's part of a tick: the queue's plugin decides within the native limits.
//!
//! ```text
//!   page ─▶ each alone: does it fit the limits now? ─▶ call the plugin about those that do
//!                                                          │ what runs is tried on a copy of
//!                                                          │ the admission, in order
//!            call again without those that did not fit ◀───┤ some do not fit together
//!                                                          ▼ all fit
//!                              the copy counts, and the state of this answer
//! ```
//!
//! The one thing to know: **only the last answer of a page counts**. A plugin is a pure function of
//! its call, so it may be called again about fewer jobs, and its state then matches what was
//! admitted. Its state is committed with the ledger, or not at all.
//!
//! A fault is no answer: the page is held or run natively as the owner chose, and the plugin's
//! circuit opens.

pub(crate) mod explain;
mod page;
mod reconcile;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::plan::TickPlan;
use crate::{
    Engine, Error, LedgerView, jobs::waiting::groups_waiting,
    plugins::circuit_breaker::OpenCircuit, tick::view::NewState,
};
use tidegate_core::{
    job::{Job, JobId, PluginName},
    port::policy::{
        DATA_BYTES, ENDED_DETAIL_BYTES, Ended, Fault, Plugin, PolicyState, ThrottleAnswer,
        ThrottleCall,
    },
    queue::{
        Grant, Limits, QueueConfig, Rule,
        plugin::{Description, OnFailure, Throttler},
        waiting::{Waiting, WaitingEstimate},
    },
    time::Timestamp,
};

/// The fewest candidates of a throttler's page, even if workers take fewer.
pub(super) const MIN_THROTTLER_PAGE: u32 = 100;
/// Ended attempts that one tick reports at most.
const MAX_ENDED: usize = 1000;

/// A throttler's call and its result.
#[derive(Clone, Debug)]
pub struct ThrottlerCall {
    /// The plugin.
    pub plugin: Plugin,
    /// The input that its answer depends on.
    pub call: Arc<ThrottleCall>,
    /// The answer or the fault.
    pub answer: Result<ThrottleAnswer, Fault>,
}

/// The throttler of the tick's queue.
pub(super) struct Throttling {
    name: PluginName,
    /// Its live version; none if there is no such plugin.
    plugin: Option<Plugin>,
    /// Whether it failed in this tick or its circuit is open: it is not called again, but its
    /// earlier decisions count.
    failed: bool,
    /// The version of the plugin's item, under which a commit is made.
    item_version: u64,
    on_failure: OnFailure,
    /// Its configuration as JSON text.
    text: Arc<str>,
    /// As the last answer left it.
    state: Arc<PolicyState>,
    /// Ended attempts that no answer has processed yet.
    ended: Arc<Vec<Ended>>,
    /// The bytes of their details.
    ended_detail_bytes: usize,
    shadowed: bool,
    answered: bool,
    waiting: WaitingView,
}

/// What waits in the queue, as a tick knows it.
#[derive(Default)]
struct WaitingView {
    /// Whether a version that is called groups the waiting jobs.
    is_needed: bool,
    /// Without the jobs that this tick has started; none before the tick's first call.
    estimate: Option<WaitingEstimate>,
    /// The groups of `estimate`, since the first call.
    groups: Option<Arc<Waiting>>,
}

impl Throttling {
    /// The throttler of a queue with `limits`, if it has one. It is not called while
    /// `open_circuit` is open. The attempts in `unreported` are still to be reported to it.
    pub(super) fn of(
        catalog: &crate::Catalog,
        limits: &Limits,
        view: &LedgerView,
        open_circuit: Option<&OpenCircuit>,
        unreported: &Arc<Vec<Ended>>,
        now: Timestamp,
    ) -> Option<Self> {
        let Throttler { plugin: name, config, on_failure } = limits.queue.throttler.clone()?;
        let plugin = limits.throttler.clone().map(|version| Plugin { name: name.clone(), version });
        let state = plugin.as_ref().map(|plugin| view.state(plugin)).unwrap_or_default();
        let text = if plugin.is_some() { config.to_string() } else { String::new() }.into();
        let is_open = |open_circuit: &OpenCircuit| {
            now < open_circuit.until
                && plugin.as_ref().is_some_and(|plugin| open_circuit.is_of(plugin, &text))
        };
        let failed = open_circuit.is_some_and(is_open);
        let item = catalog.plugins.get(&name);
        let (item_version, shadowed) =
            item.map_or((0, false), |item| (item.version, item.shadow.is_some()));
        let (ended, ended_detail_bytes, answered) = (Arc::default(), 0, false);
        let mut throttling = Self {
            name,
            plugin,
            failed,
            item_version,
            on_failure,
            text,
            state,
            ended,
            ended_detail_bytes,
            shadowed,
            answered,
            waiting: WaitingView {
                is_needed: groups_waiting(catalog, limits),
                ..WaitingView::default()
            },
        };
        if throttling.needs_ended() {
            throttling.ended = Arc::clone(unreported);
            let details = unreported.iter().filter_map(|ended| ended.details.as_ref());
            throttling.ended_detail_bytes = details.map(String::len).sum();
        }
        Some(throttling)
    }

    /// Whether it may be called.
    fn may_be_called(&self) -> bool {
        self.plugin.is_some() && !self.failed
    }

    fn description(&self) -> Option<&Description> {
        self.plugin.as_ref()?.version.throttler.as_ref()
    }

    fn rule(&self) -> Rule {
        Rule::Throttler(self.name.clone())
    }

    /// Whether the plugin needs ended attempts.
    pub(super) fn needs_ended(&self) -> bool {
        self.description().is_some_and(|description| description.needs_ended)
    }

    /// Whether what waits is to be estimated for it.
    pub(super) fn needs_estimate(&self) -> bool {
        self.waiting.is_needed && self.may_be_called() && self.waiting.estimate.is_none()
    }

    /// Sets what waits.
    pub(super) fn set_estimate(&mut self, estimate: WaitingEstimate) {
        (self.waiting.estimate, self.waiting.groups) = (Some(estimate), None);
    }

    /// Records that `job` of `queue` waits no longer. The groups of a tick are made once: each of its calls
    /// would add their cost.
    fn record_started(&mut self, queue: &QueueConfig, job: &Job) {
        let WaitingView { estimate: Some(estimate), groups, .. } = &mut self.waiting else {
            return;
        };
        let (partition, weight) = (&job.spec.partition, job.spec.weight);
        let is_in_groups = estimate.started(partition, weight);
        if let Some(groups) = groups.as_mut().filter(|_| is_in_groups) {
            Arc::make_mut(groups).started(queue, partition, weight);
        }
    }

    /// What waits in its queue, by the attributes that make the queue's partitions.
    fn groups(&mut self, queue: &QueueConfig) -> Arc<Waiting> {
        let WaitingView { estimate, groups, .. } = &mut self.waiting;
        let of = || estimate.as_ref().map(|estimate| estimate.groups(queue)).unwrap_or_default();
        Arc::clone(groups.get_or_insert_with(|| Arc::new(of())))
    }

    /// Records the end of the attempt that `grant` allowed; `job` has its history.
    pub(super) fn record_ended(&mut self, grant: &Grant, job: &Job) {
        // An unclaimed grant allowed no attempt: the last entry of the history is older then.
        let entry = job.life.history.last().filter(|entry| entry.ended_at >= grant.granted_at);
        let Some(entry) = entry.filter(|_| self.needs_ended() && self.ended.len() < MAX_ENDED)
        else {
            return;
        };
        let error = entry.error.as_ref();
        let reason = error.map(|error| error.reason.as_str());
        let handed_back = entry.hand_back.is_some().then(|| entry.ended_as().as_str());
        let room = ENDED_DETAIL_BYTES.saturating_sub(self.ended_detail_bytes);
        let details = error.and_then(|error| error.details.as_ref());
        let details = details.filter(|details| details.len() <= room).cloned();
        self.ended_detail_bytes += details.as_ref().map_or(0, String::len);
        let counted = job.life.counted_attempts();
        Arc::make_mut(&mut self.ended).push(Ended {
            id: job.id.clone(),
            job_type: job.spec.job_type.clone(),
            priority: grant.priority,
            weight: grant.weight,
            attributes: job.spec.attributes.clone(),
            retry_target: job.spec.retry_target.clone(),
            attempt: if entry.hand_back.is_some() { counted.saturating_add(1) } else { counted },
            started_at: entry.started_at,
            ended_at: entry.ended_at,
            succeeded: entry.outcome == tidegate_core::job::Outcome::Succeeded,
            reason: reason.or(handed_back).map(str::to_owned),
            message: error.and_then(|error| error.message.clone()),
            status: error.and_then(|error| error.status),
            details,
            not_before: error
                .and_then(|error| error.retry_after)
                .map(|wait| entry.ended_at + wait.duration()),
        });
    }

    /// Ended attempts that no answer has processed: the next tick reports them.
    pub(super) fn unreported(&self) -> &Arc<Vec<Ended>> {
        &self.ended
    }

    /// The version of the plugin's item that decided in this tick, if the plugin was called.
    pub(super) fn decided_under(&self) -> Option<(&PluginName, u64)> {
        self.answered.then_some((&self.name, self.item_version))
    }

    /// The plugin's state, if it differs from the ledger's.
    pub(super) fn new_state(&self, view: &LedgerView) -> Option<NewState> {
        let plugin = self.plugin.as_ref().filter(|_| self.answered)?;
        let state_version = self.description()?.state_version;
        let differs = *view.state(plugin) != *self.state;
        differs.then(|| NewState {
            plugin: self.name.clone(),
            state_version,
            state: PolicyState::clone(&self.state),
        })
    }
}

impl TickPlan {
    /// Whether the plugin is to be called.
    pub(super) fn may_call_throttler(&self) -> bool {
        self.throttling.as_ref().is_some_and(Throttling::may_be_called)
    }

    /// Whether a throttler that cannot be called holds all jobs. They count as held without a read.
    pub(super) fn throttler_holds_all(&mut self) -> bool {
        let holds = |throttling: &&Throttling| {
            !throttling.may_be_called() && throttling.on_failure == OnFailure::Hold
        };
        let Some(rule) = self.throttling.as_ref().filter(holds).map(Throttling::rule) else {
            return false;
        };
        self.held.entry(rule).or_insert(1);
        let until = self.open_circuit.as_ref().map(|open_circuit| open_circuit.until);
        self.wake(until);
        true
    }
}

impl Engine {
    /// Collects the attempts whose grants this tick has released so far, for the throttler.
    pub(in crate::tick) async fn collect_ended(
        &self,
        view: &LedgerView,
        plan: &mut TickPlan,
    ) -> Result<(), Error> {
        let Some(throttling) =
            plan.throttling.as_mut().filter(|throttling| throttling.needs_ended())
        else {
            return Ok(());
        };
        let left =
            plan.delta.released.iter().filter_map(|(job, version)| {
                view.grant(job).filter(|grant| grant.version == *version)
            });
        let grants: Vec<&Grant> = left.take(MAX_ENDED).collect();
        let mut jobs: HashMap<&JobId, Job> =
            plan.before.iter().map(|change| (&change.job.id, change.job.clone())).collect();
        let missing: Vec<JobId> = grants
            .iter()
            .map(|grant| grant.job.clone())
            .filter(|job| !jobs.contains_key(job))
            .collect();
        if !missing.is_empty() {
            let read = self.ports.store.get(&missing).await?;
            jobs.extend(missing.iter().zip(read).filter_map(|(id, job)| Some((id, job.ok()??))));
        }
        for grant in grants {
            if let Some(job) = jobs.get(&grant.job) {
                throttling.record_ended(grant, job);
            }
        }
        Ok(())
    }

    /// The data of candidates as JSON text, if the plugin needs it. A body that no longer exists is
    /// left out. The caller bounds the size.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if some cannot be read now: to a plugin it would seem to be deleted.
    async fn data_for<'a>(
        &self,
        throttling: &Throttling,
        jobs: impl Iterator<Item = &'a Job> + Send,
    ) -> Result<BTreeMap<JobId, String>, Error> {
        if !throttling.description().is_some_and(|description| description.needs_data) {
            return Ok(BTreeMap::new());
        }
        let text = |job: &Job| String::from_utf8(job.data.inline()?.to_json().ok()?.into()).ok();
        let mut data = BTreeMap::new();
        for loaded in self.load_each(jobs.cloned().collect()).await {
            match loaded {
                Ok(job) => data.extend(text(&job).map(|text| (job.id, text))),
                Err(Error::Internal(_) | Error::Unreadable(_) | Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(data)
    }
}

/// How many of `jobs`, from the front, one call contains: as many as have at most [`DATA_BYTES`] of
/// data together, and at least one. A plugin that needs no data gets all of them at once.
fn first_call_len(throttling: Option<&Throttling>, jobs: &[Job]) -> usize {
    let needs_data = throttling
        .and_then(Throttling::description)
        .is_some_and(|description| description.needs_data);
    needs_data.then(|| call_bound(jobs.iter())).flatten().unwrap_or(jobs.len())
}

/// How many of `jobs`, from the front, fit into one call; none if all do.
fn call_bound<'a>(jobs: impl Iterator<Item = &'a Job>) -> Option<usize> {
    let mut bytes = 0;
    jobs.enumerate().position(|(index, job)| {
        bytes += job.data.len();
        bytes > DATA_BYTES && index > 0
    })
}
