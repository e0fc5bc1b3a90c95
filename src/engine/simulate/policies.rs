//! The plugins of a simulation, and what is seen of them: every decision, and what each call used.

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
    job::JobId,
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

/// Most reasons that are told apart.
const REASONS: usize = 200;
/// What stands for those that are too many.
const OTHER: &str = "(other reasons)";

/// What a call of a plugin used, if whoever runs plugins tells.
pub type Meter = Arc<dyn Fn(&Plugin) -> Option<Usage> + Send + Sync>;

/// The plugins of a simulation.
#[derive(Clone)]
pub struct Plugins {
    /// Runs them.
    pub policy: Arc<dyn Policy>,
    /// Where their code is put, for `policy` to find.
    pub objects: Arc<dyn ObjectStore>,
    /// The throttler, and how the queue names it.
    pub throttler: Option<(NewVersion, Throttler)>,
    /// The retry strategy of every type, and its configuration where the type has none for a plugin.
    pub retry: Option<(NewVersion, Arc<serde_json::Value>)>,
    /// Asked after each call.
    pub meter: Option<Meter>,
}

impl Default for Plugins {
    /// None.
    fn default() -> Self {
        Self {
            policy: Arc::new(NoPolicy),
            objects: Arc::new(InMemory::new()),
            throttler: None,
            retry: None,
            meter: None,
        }
    }
}

/// The calls of a role's plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Calls {
    /// How many.
    pub calls: u64,
    /// How many gave no answer, by the kind of fault.
    pub faults: BTreeMap<String, u64>,
    /// What the first fault said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_fault: Option<String>,
    /// Fuel of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel: Option<Spread>,
    /// Bytes of memory at the end of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Spread>,
    /// How long a call took on this machine, in microseconds; not part of what is the same every time.
    #[serde(skip)]
    pub took_micros: Option<Spread>,
}

impl Calls {
    fn fail(&mut self, fault: &Fault) {
        *self.faults.entry(fault.kind.as_str().to_owned()).or_default() += 1;
        self.first_fault.get_or_insert_with(|| fault.message.clone());
    }
}

/// What is kept of calls while they are made.
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

/// What a plugin says of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Run,
    Hold,
    Reschedule(Timestamp),
    Drop,
    Retry(Timestamp),
    GiveUp,
}

/// A decision about a job that is not the one it had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decided {
    pub at: Timestamp,
    pub what: What,
    /// Why: an index into [`SeenDecisions::reasons`].
    pub reason: u32,
}

/// What was seen of a simulation's plugins.
#[derive(Debug, Default)]
pub(super) struct SeenDecisions {
    throttler: Tally,
    retry: Tally,
    /// The decisions about each job, where they changed.
    pub decided: HashMap<JobId, Vec<Decided>>,
    pub reasons: Vec<String>,
    known: HashMap<String, u32>,
    /// What the round under way has decided so far; of a job that is asked about again, the last counts.
    round: HashMap<JobId, (What, u32)>,
}

impl SeenDecisions {
    fn reason(&mut self, text: &str) -> u32 {
        let text = without_numbers(text);
        if let Some(index) = self.known.get(&text) {
            return *index;
        }
        let text = if self.reasons.len() < REASONS { text } else { OTHER.to_owned() };
        let index = self.known.get(&text).copied().unwrap_or(self.reasons.len() as u32);
        if index as usize == self.reasons.len() {
            self.reasons.push(text.clone());
            self.known.insert(text, index);
        }
        index
    }

    fn decide(&mut self, id: &JobId, at: Timestamp, what: What, reason: u32) {
        let decided = self.decided.entry(id.clone()).or_default();
        if decided.last().is_none_or(|last| last.what != what) {
            decided.push(Decided { at, what, reason });
        }
    }

    /// The round at `now` is over: who was held by the throttler, and why.
    pub fn round_over(&mut self, now: Timestamp) -> Vec<(JobId, String)> {
        let mut held = Vec::new();
        for (id, (what, reason)) in std::mem::take(&mut self.round) {
            self.decide(&id, now, what, reason);
            if what == What::Hold {
                held.push((id, self.reasons[reason as usize].clone()));
            }
        }
        held
    }

    /// The calls of the throttler and of the retry strategy, where there were any.
    pub fn calls(&mut self) -> BTreeMap<&'static str, Calls> {
        let (throttler, retry) =
            (std::mem::take(&mut self.throttler).calls(), std::mem::take(&mut self.retry).calls());
        [("throttler", throttler), ("retry", retry)]
            .into_iter()
            .filter(|(_, calls)| calls.calls > 0)
            .collect()
    }
}

/// A policy whose decisions are seen.
pub(super) struct Watched {
    pub policy: Arc<dyn Policy>,
    pub meter: Option<Meter>,
    pub seen: Arc<Mutex<SeenDecisions>>,
}

impl Watched {
    fn note<T>(
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
impl Policy for Watched {
    async fn throttle(
        &self,
        plugin: &Plugin,
        call: Arc<ThrottleCall>,
        purpose: Purpose,
    ) -> Result<ThrottleAnswer, Fault> {
        let answer = self.policy.throttle(plugin, Arc::clone(&call), purpose).await;
        self.note(plugin, |seen| &mut seen.throttler, &answer);
        let mut seen = self.seen.lock();
        // Many candidates of a call have one reason.
        let mut reasons: Vec<(&str, u32)> = Vec::new();
        for (job, decision) in
            call.candidates.iter().zip(answer.iter().flat_map(|answer| &answer.decisions))
        {
            let what = match decision.action {
                Action::Run => What::Run,
                Action::Hold(_) => What::Hold,
                Action::Reschedule(at) => What::Reschedule(at),
                Action::Drop => What::Drop,
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
            seen.round.insert(job.id.clone(), (what, reason));
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
        self.note(plugin, |seen| &mut seen.retry, &answer);
        if let Ok(answer) = &answer {
            let (what, reason) = match answer {
                RetryAnswer::Retry { at, .. } => (What::Retry(*at), ""),
                RetryAnswer::GiveUp(message) => {
                    (What::GiveUp, message.as_deref().unwrap_or_default())
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

/// `text` with each number as `#`, so that reasons which only count differently are one.
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
