//! The plugins of a simulation, and the observation of their decisions and of the resources of each
//! call.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use object_store::{ObjectStore, memory::InMemory};
use parking_lot::Mutex;
use serde::Serialize;

use super::report::Spread;
use crate::plugins::registry::NewVersion;
use tidegate_core::{
    job::{JobId, PluginName},
    port::{
        Policy,
        policy::{
            Action, Call, Fault, NoPolicy, Plugin, Problem, Purpose, RetryAnswer, RetryCall,
            ThrottleAnswer, ThrottleCall, Usage,
        },
    },
    queue::plugin::{Role, Throttler},
    time::Timestamp,
};

/// Most reasons that are counted separately.
const MAX_REASONS: usize = 200;
/// The reason that replaces further ones.
const OTHER_REASONS: &str = "(other reasons)";

/// Returns the resources of the last call of a plugin, if the host measures them.
pub type Meter = Arc<dyn Fn(&Plugin) -> Option<Usage> + Send + Sync>;

/// The plugins of a simulation.
#[derive(Clone)]
pub struct Plugins {
    /// Runs them.
    pub policy: Arc<dyn Policy>,
    /// Where their code is put, for `policy` to find.
    pub objects: Arc<dyn ObjectStore>,
    /// The throttler, and its use by the queue.
    pub throttler: Option<(NewVersion, Throttler)>,
    /// The retry strategy of every type, with the configuration for types that have none for a
    /// plugin.
    pub retry: Option<(NewVersion, Arc<serde_json::Value>)>,
    /// Further retry strategies, by the names that types use.
    pub strategies: BTreeMap<PluginName, NewVersion>,
    /// Called after each call of a plugin.
    pub meter: Option<Meter>,
}

impl Default for Plugins {
    /// No plugins.
    fn default() -> Self {
        Self {
            policy: Arc::new(NoPolicy),
            objects: Arc::new(InMemory::new()),
            throttler: None,
            retry: None,
            strategies: BTreeMap::new(),
            meter: None,
        }
    }
}

/// The calls of plugins in one role.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Calls {
    /// How many.
    pub calls: u64,
    /// The number of calls without an answer, by the kind of fault.
    pub faults: BTreeMap<String, u64>,
    /// The message of the first fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_fault: Option<String>,
    /// Fuel of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel: Option<Spread>,
    /// Bytes of memory at the end of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Spread>,
    /// How long a call took on this machine, in microseconds. It is not part of the reproducible
    /// report.
    #[serde(skip)]
    pub took_micros: Option<Spread>,
}

impl Calls {
    fn fail(&mut self, fault: &Fault) {
        *self.faults.entry(fault.kind.as_str().to_owned()).or_default() += 1;
        self.first_fault.get_or_insert_with(|| fault.message.clone());
    }
}

/// The measurements of calls during the simulation.
#[derive(Debug, Default)]
struct Tally {
    calls: Calls,
    fuel: Vec<u64>,
    memory: Vec<u64>,
    took: Vec<u64>,
}

impl Tally {
    fn calls(self) -> Calls {
        Calls {
            fuel: Spread::of(self.fuel),
            memory_bytes: Spread::of(self.memory),
            took_micros: Spread::of(self.took),
            ..self.calls
        }
    }
}

/// A decision of a plugin about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PluginDecision {
    Run,
    Hold,
    Reschedule(Timestamp),
    Drop,
    Retry(Timestamp),
    GiveUp,
}

/// A decision about a job that differs from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DecisionChange {
    pub at: Timestamp,
    pub what: PluginDecision,
    /// The reason: an index into [`SeenDecisions::reasons`].
    pub reason: u32,
}

/// The observed decisions and calls of plugins.
#[derive(Debug, Default)]
pub(super) struct SeenDecisions {
    throttler: Tally,
    retry: Tally,
    /// The changes of the decision about each job.
    pub decided: HashMap<JobId, Vec<DecisionChange>>,
    pub reasons: Vec<String>,
    known: HashMap<String, u32>,
    /// The decisions of the current tick. If a job is evaluated again, the last decision counts.
    tick: HashMap<JobId, (PluginDecision, u32)>,
}

impl SeenDecisions {
    fn reason(&mut self, text: &str) -> u32 {
        let text = without_numbers(text);
        if let Some(index) = self.known.get(&text) {
            return *index;
        }
        let text = if self.reasons.len() < MAX_REASONS { text } else { OTHER_REASONS.to_owned() };
        let index = self.known.get(&text).copied().unwrap_or(self.reasons.len() as u32);
        if index as usize == self.reasons.len() {
            self.reasons.push(text.clone());
            self.known.insert(text, index);
        }
        index
    }

    fn decide(&mut self, id: &JobId, at: Timestamp, what: PluginDecision, reason: u32) {
        let decided = self.decided.entry(id.clone()).or_default();
        if decided.last().is_none_or(|last| last.what != what) {
            decided.push(DecisionChange { at, what, reason });
        }
    }

    /// Ends the tick at `now`. Returns the jobs that the throttler held, with the reasons.
    pub(crate) fn tick_over(&mut self, now: Timestamp) -> Vec<(JobId, String)> {
        let mut held = Vec::new();
        for (id, (what, reason)) in std::mem::take(&mut self.tick) {
            self.decide(&id, now, what, reason);
            if what == PluginDecision::Hold {
                held.push((id, self.reasons[reason as usize].clone()));
            }
        }
        held
    }

    /// The calls of the throttler and of the retry strategy, if there were any.
    pub fn calls(&mut self) -> BTreeMap<&'static str, Calls> {
        let (throttler, retry) =
            (std::mem::take(&mut self.throttler).calls(), std::mem::take(&mut self.retry).calls());
        [("throttler", throttler), ("retry", retry)]
            .into_iter()
            .filter(|(_, calls)| calls.calls > 0)
            .collect()
    }
}

/// A policy whose decisions are observed.
pub(super) struct ObservedPolicy {
    pub policy: Arc<dyn Policy>,
    pub meter: Option<Meter>,
    pub seen: Arc<Mutex<SeenDecisions>>,
}

impl ObservedPolicy {
    fn observe<T>(
        &self,
        plugin: &Plugin,
        tally: impl FnOnce(&mut SeenDecisions) -> &mut Tally,
        answer: &Result<T, Fault>,
    ) {
        let usage = self.meter.as_ref().and_then(|meter| meter(plugin));
        let mut seen = self.seen.lock();
        let tally = tally(&mut seen);
        tally.calls.calls += 1;
        if let Err(fault) = answer {
            tally.calls.fail(fault);
        }
        if let Some(Usage { fuel, took, memory_bytes, .. }) = usage {
            tally.fuel.extend(fuel);
            tally.memory.push(memory_bytes);
            tally.took.push(took.as_micros() as u64);
        }
    }
}

#[async_trait]
impl Policy for ObservedPolicy {
    async fn throttle(
        &self,
        plugin: &Plugin,
        call: Arc<ThrottleCall>,
        purpose: Purpose,
    ) -> Result<ThrottleAnswer, Fault> {
        let answer = self.policy.throttle(plugin, Arc::clone(&call), purpose).await;
        self.observe(plugin, |seen| &mut seen.throttler, &answer);
        let mut seen = self.seen.lock();
        // Many candidates of a call have one reason.
        let mut reasons: Vec<(&str, u32)> = Vec::new();
        for (job, decision) in
            call.candidates.iter().zip(answer.iter().flat_map(|answer| &answer.decisions))
        {
            let what = match decision.action {
                Action::Run => PluginDecision::Run,
                Action::Hold(_) => PluginDecision::Hold,
                Action::Reschedule(at) => PluginDecision::Reschedule(at),
                Action::Drop => PluginDecision::Drop,
            };
            let text = decision.reason.as_deref().unwrap_or_default();
            let known = reasons
                .iter()
                .rev()
                .take(8)
                .find(|(known, _)| *known == text)
                .map(|(_, reason)| *reason);
            let reason = known.unwrap_or_else(|| {
                let reason = seen.reason(text);
                reasons.push((text, reason));
                reason
            });
            seen.tick.insert(job.id.clone(), (what, reason));
        }
        answer
    }

    async fn retry(
        &self,
        plugin: &Plugin,
        call: Arc<RetryCall>,
        purpose: Purpose,
    ) -> Result<RetryAnswer, Fault> {
        let answer = self.policy.retry(plugin, Arc::clone(&call), purpose).await;
        self.observe(plugin, |seen| &mut seen.retry, &answer);
        if let Ok(answer) = &answer {
            let (what, reason) = match answer {
                RetryAnswer::Retry(plan) => (PluginDecision::Retry(plan.at), ""),
                RetryAnswer::GiveUp(message) => {
                    (PluginDecision::GiveUp, message.as_deref().unwrap_or_default())
                }
            };
            let mut seen = self.seen.lock();
            let reason = seen.reason(reason);
            seen.decide(&call.job.id, call.now, what, reason);
        }
        answer
    }

    async fn check(
        &self,
        plugin: &Plugin,
        role: Role,
        config: &str,
    ) -> Result<Vec<Problem>, Fault> {
        self.policy.check(plugin, role, config).await
    }

    fn report_fault(&self, plugin: &Plugin, call: &Call, fault: &Fault) {
        let mut seen = self.seen.lock();
        let tally = match call {
            Call::Throttle(_) => &mut seen.throttler,
            Call::Retry(_) => &mut seen.retry,
        };
        tally.calls.fail(fault);
        self.policy.report_fault(plugin, call, fault);
    }
}

/// `text` with each number as `#`, so that reasons which differ only in numbers are counted as one.
fn without_numbers(text: &str) -> String {
    let mut short = String::with_capacity(text.len());
    let mut number = false;
    for letter in text.chars() {
        let more = letter.is_ascii_digit() || (number && letter == '.');
        if !more {
            short.push(letter);
        } else if !number {
            short.push('#');
        }
        number = more;
    }
    short
}
