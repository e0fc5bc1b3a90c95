//! Shadow versions of plugins: called with the calls of the live version, and compared with it.
//!
//! A shadow version is called after the live version's decision was written, by a task of its own,
//! so a slow one delays nothing. Calls that it has no time for, or that arrive while its circuit is
//! open, count as missed. A shadow throttler starts from the live version's state, so that each
//! difference concerns one decision. If the two versions have different state versions, the shadow
//! keeps its own state.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidegate_api::{Difference, ShadowDecision};
use tokio::sync::mpsc;

use super::Inner;
use tidegate_core::{
    job::{JobId, PluginName, QueueName},
    port::policy::{
        Action, Decision, Ended, Fault, FaultKind, Plugin, PolicyState, Purpose, RetryAnswer,
        RetryCall, ThrottleAnswer, ThrottleCall,
    },
    queue::plugin::Role,
    time::Timestamp,
};
use tidegate_engine::CircuitBreaker;

/// The calls that shadow versions are to repeat.
pub(super) type ShadowCalls = mpsc::Receiver<(Plugin, LiveCall)>;

/// Most differences that are kept of a plugin; the oldest are dropped.
const MAX_DIFFERENCES: usize = 100;
/// Most calls that wait for their shadow version.
const MAX_WAITING: usize = 64;
/// Most bytes of jobs' data in them.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Most bytes of new data that are shown.
const MAX_SHOWN_DATA_BYTES: usize = 100;

fn of_decision(Decision { action, reason }: &Decision) -> ShadowDecision {
    let (action, until) = match action {
        Action::Run => ("run", None),
        Action::Hold(until) => ("hold", *until),
        Action::Reschedule(at) => ("reschedule", Some(*at)),
        Action::Drop => ("drop", None),
    };
    ShadowDecision { action: action.into(), until, reason: reason.clone() }
}

fn of_answer(answer: &RetryAnswer) -> ShadowDecision {
    match answer {
        RetryAnswer::GiveUp(message) => {
            ShadowDecision { action: "give_up".into(), until: None, reason: message.clone() }
        }
        RetryAnswer::Retry(plan) => ShadowDecision {
            action: "retry".into(),
            until: Some(plan.at),
            reason: plan.changes_job().then(|| plan.changes(MAX_SHOWN_DATA_BYTES)),
        },
    }
}

/// How a shadow version compares with the live one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Comparison {
    /// The shadow version.
    pub version: u32,
    /// Decisions that were compared.
    pub compared: u64,
    /// Those that differed.
    pub different: u64,
    /// Calls of the shadow version that failed.
    pub failed: u64,
    /// Calls that were not compared: there was no time, or the circuit of the shadow version was
    /// open.
    pub missed: u64,
    /// The latest differences, oldest first, at most one per job.
    pub differences: VecDeque<Difference>,
}

impl Comparison {
    /// Keeps a difference, in place of an earlier one of its job.
    pub(super) fn add_difference(&mut self, difference: Difference) {
        self.differences.retain(|known| known.job != difference.job);
        if self.differences.len() >= MAX_DIFFERENCES {
            self.differences.pop_front();
        }
        self.differences.push_back(difference);
    }
}

/// A call of the live version, with its answer.
pub(super) enum LiveCall {
    /// A throttler call of a tick.
    Tick(Arc<ThrottleCall>, ThrottleAnswer),
    /// A retry call after a failed attempt.
    Retry(Arc<RetryCall>, RetryAnswer),
}

impl LiveCall {
    fn queue(&self) -> &QueueName {
        match self {
            Self::Tick(call, _) => &call.queue,
            Self::Retry(call, _) => &call.queue,
        }
    }

    fn at(&self) -> Timestamp {
        match self {
            Self::Tick(call, _) => call.now,
            Self::Retry(call, _) => call.now,
        }
    }

    fn config(&self) -> &Arc<str> {
        match self {
            Self::Tick(call, _) => &call.config,
            Self::Retry(call, _) => &call.config,
        }
    }

    fn role(&self) -> Role {
        match self {
            Self::Tick(..) => Role::Throttler,
            Self::Retry(..) => Role::Retry,
        }
    }

    fn data_bytes(&self) -> usize {
        match self {
            Self::Tick(call, _) => {
                let texts = |ended: &Ended| {
                    let texts = [&ended.message, &ended.details];
                    texts.into_iter().flatten().map(String::len).sum::<usize>()
                };
                let data: usize = call.data.values().map(String::len).sum();
                data + call.ended.iter().map(texts).sum::<usize>()
            }
            Self::Retry(call, _) => call.data.as_ref().map_or(0, String::len),
        }
    }
}

/// Receives the calls of live versions, and keeps the comparisons.
pub(super) struct Shadow {
    sender: mpsc::Sender<(Plugin, LiveCall)>,
    waiting_bytes: AtomicUsize,
    seen: Mutex<BTreeMap<PluginName, Comparison>>,
}

/// One job, with the live and the shadow decision if they differ.
type Compared = (JobId, Option<(ShadowDecision, ShadowDecision)>);

impl Shadow {
    /// Without comparisons; the receiver is for [`spawn`].
    pub(super) fn new() -> (Self, ShadowCalls) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self { sender, waiting_bytes: AtomicUsize::new(0), seen: Mutex::default() }, receiver)
    }

    /// Submits a call to the shadow version of `plugin`, if the queue has room.
    pub(super) fn submit(&self, plugin: &Plugin, live: LiveCall) {
        let bytes = live.data_bytes();
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before == 0 || before + bytes <= MAX_WAITING_BYTES;
        if !fits || self.sender.try_send((plugin.clone(), live)).is_err() {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.seen.lock().entry(plugin.name.clone()).or_default().missed += 1;
        }
    }

    /// The comparison of the shadow version of `plugin`; `None` if it was not called yet.
    pub(super) fn differences(&self, plugin: &PluginName) -> Option<Comparison> {
        self.seen.lock().get(plugin).cloned()
    }

    /// Takes what was compared since the latest call, of all plugins.
    pub(super) fn take(&self) -> BTreeMap<PluginName, Comparison> {
        std::mem::take(&mut *self.seen.lock())
    }

    /// Records the result of one call of shadow version `version`; `None`: it was not called.
    fn record(
        &self,
        plugin: &PluginName,
        version: u32,
        live: &LiveCall,
        compared: Option<Result<Vec<Compared>, Fault>>,
    ) {
        let mut seen = self.seen.lock();
        let comparison = seen.entry(plugin.clone()).or_default();
        if comparison.version != version {
            *comparison =
                Comparison { version, missed: comparison.missed, ..Comparison::default() };
        }
        match compared {
            None => comparison.missed += 1,
            Some(Err(_)) => comparison.failed += 1,
            Some(Ok(jobs)) => {
                for (job, differs) in jobs {
                    comparison.compared += 1;
                    let Some((live_decision, shadow)) = differs else {
                        continue;
                    };
                    comparison.different += 1;
                    let (queue, at) = (live.queue().clone(), live.at());
                    let live = live_decision;
                    comparison.add_difference(Difference { queue, job, at, live, shadow });
                }
            }
        }
    }
}

/// The own states of shadow throttlers, by plugin and queue. Each belongs to one version of the
/// plugin's item. Every change of the versions or configurations raises it, and the shadow version
/// then starts without a state.
type States = HashMap<(PluginName, QueueName), (u64, Arc<PolicyState>)>;

/// Starts the task that calls the shadow versions, one call after the other.
pub(super) fn spawn(inner: &Arc<Inner>, mut calls: ShadowCalls) {
    let server = Arc::downgrade(inner);
    inner.spawn(async move {
        let (mut states, breaker) = (States::new(), CircuitBreaker::default());
        while let Some((plugin, live)) = calls.recv().await {
            let Some(inner) = server.upgrade() else { return };
            inner.shadow.waiting_bytes.fetch_sub(live.data_bytes(), Ordering::Relaxed);
            let Ok(catalog) = inner.engine.catalog().await else {
                continue;
            };
            states.retain(|(name, _), (of, _)| {
                catalog.plugins.get(name).is_some_and(|item| item.version == *of)
            });
            let Some(item) = catalog.plugins.get(&plugin.name) else {
                continue;
            };
            let Some(version) = item.shadow.and_then(|number| item.numbered(number)) else {
                continue;
            };
            let shadow = Plugin { name: plugin.name.clone(), version: Arc::clone(version) };
            let now = inner.engine.now();
            let compared = if version.description(live.role()).is_none() {
                let message =
                    "the shadow version does not have the role in which the live one is called"
                        .to_owned();
                Some(Err(Fault { kind: FaultKind::Unavailable, message }))
            } else if breaker.is_open(&shadow, live.config(), now) {
                None
            } else {
                let compared =
                    compare(&inner, (&mut states, item.version), &plugin, &shadow, &live).await;
                match &compared {
                    Ok(_) => breaker.answered(&shadow, live.config()),
                    Err(_) => breaker.failed(&shadow, live.config(), now, inner.engine.now()),
                }
                Some(compared)
            };
            inner.shadow.record(&plugin.name, shadow.version.number, &live, compared);
        }
    });
}

/// Calls `shadow` with a call of `plugin`, the live version, and compares the answers.
async fn compare(
    inner: &Inner,
    (states, item_version): (&mut States, u64),
    plugin: &Plugin,
    shadow: &Plugin,
    live: &LiveCall,
) -> Result<Vec<Compared>, Fault> {
    let policy = &inner.engine.ports().policy;
    match live {
        LiveCall::Tick(call, answer) => {
            let state_version =
                |plugin: &Plugin| plugin.version.throttler.as_ref().map(|role| role.state_version);
            let (key, shares_state) = (
                (shadow.name.clone(), call.queue.clone()),
                state_version(plugin) == state_version(shadow),
            );
            let own = || states.get(&key).map(|(_, state)| Arc::clone(state)).unwrap_or_default();
            let state = if shares_state { Arc::clone(&call.state) } else { own() };
            let call = Arc::new(ThrottleCall { state: Arc::clone(&state), ..(**call).clone() });
            let answered = policy
                .throttle(shadow, Arc::clone(&call), Purpose::Shadow)
                .await
                .and_then(|answer| answer.validated(&call))?;
            if let Some(mut state) = answered.state.filter(|_| !shares_state) {
                state.balance();
                states.insert(key, (item_version, Arc::new(state)));
            }
            let both = answer.decisions.iter().zip(&answered.decisions);
            let differs = both.map(|(live, shadow)| {
                (live.action != shadow.action).then(|| (of_decision(live), of_decision(shadow)))
            });
            Ok(call.candidates.iter().map(|job| job.id.clone()).zip(differs).collect())
        }
        LiveCall::Retry(call, answer) => {
            let answered = policy
                .retry(shadow, Arc::clone(call), Purpose::Shadow)
                .await
                .and_then(|answer| answer.validated(call))?;
            let answered = answered.answer;
            Ok(vec![(
                call.job.id.clone(),
                (*answer != answered).then(|| (of_answer(answer), of_answer(&answered))),
            )])
        }
    }
}
