//! Versions in the shadow: asked what the live one was asked, and compared with what it said.
//!
//! The one thing to know: a shadow is asked here, after the live version's answer was written, and by a task of its own. A slow one
//! holds nobody up; what it has no time for is counted as missed, and so is what comes while one that failed is left alone.
//! A throttler starts from the state that the live one had, so that each difference is of one decision; where the two have no state in common, from
//! its own.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;

use super::{Inner, WeakServer};
use tidegate_core::{
    job::{JobId, PluginName, QueueName},
    port::policy::{
        Action, Decision, Fault, FaultKind, Plugin, PolicyState, Purpose, RetryAnswer, RetryCall,
        ThrottleAnswer, ThrottleCall, cut,
    },
    queue::plugin::Role,
    time::Timestamp,
};
use tidegate_engine::CircuitBreaker;

/// Most differences that are kept of a plugin; the oldest go.
const MAX_DIFFERENCES: usize = 100;
/// Most calls that wait for the shadow.
const MAX_WAITING: usize = 64;
/// Most bytes of jobs' data in them.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Bytes of new data that are shown.
const MAX_SHOWN_DATA_BYTES: usize = 100;

/// What a plugin said of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ShadowDecision {
    /// `run`, `hold`, `reschedule` or `drop`; of a failed attempt `retry` or `give_up`.
    pub action: &'static str,
    /// Until when it holds the job, or when that is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Why; or what else changes before the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<&Decision> for ShadowDecision {
    fn from(Decision { action, reason }: &Decision) -> Self {
        let (action, until) = match action {
            Action::Run => ("run", None),
            Action::Hold(until) => ("hold", *until),
            Action::Reschedule(at) => ("reschedule", Some(*at)),
            Action::Drop => ("drop", None),
        };
        Self { action, until, reason: reason.clone() }
    }
}

impl From<&RetryAnswer> for ShadowDecision {
    fn from(answer: &RetryAnswer) -> Self {
        match answer {
            RetryAnswer::GiveUp(message) => {
                Self { action: "give_up", until: None, reason: message.clone() }
            }
            RetryAnswer::Retry { at, data, priority } => {
                let data = data
                    .as_ref()
                    .map(|data| format!("data {}", cut(data.clone(), MAX_SHOWN_DATA_BYTES)));
                let changes: Vec<String> = priority
                    .map(|priority| format!("priority {priority}"))
                    .into_iter()
                    .chain(data)
                    .collect();
                Self {
                    action: "retry",
                    until: Some(*at),
                    reason: (!changes.is_empty()).then(|| changes.join(", ")),
                }
            }
        }
    }
}

/// A job of which the live version and its shadow said different things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Difference {
    /// Its queue.
    pub queue: QueueName,
    /// The job.
    pub job: JobId,
    /// The time of the decision.
    pub at: Timestamp,
    /// What was done.
    pub live: ShadowDecision,
    /// What the shadow would have done.
    pub shadow: ShadowDecision,
}

/// How a version in the shadow does beside the live one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Comparison {
    /// The version in the shadow that this is about.
    pub version: u32,
    /// Decisions that were compared.
    pub compared: u64,
    /// Those that differed.
    pub different: u64,
    /// Calls of the shadow that failed.
    pub failed: u64,
    /// Calls that were not compared: there was no time, or the shadow had failed and was left alone.
    pub missed: u64,
    /// The latest differences, oldest first; of a job that is decided about again and again the latest.
    #[schema(value_type = Vec<Difference>)]
    pub differences: VecDeque<Difference>,
}

/// What the live version was asked, and said.
pub(super) enum LiveCall {
    /// In a round.
    Tick(Arc<ThrottleCall>, ThrottleAnswer),
    /// After a failed attempt.
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
            Self::Tick(call, _) => call.data.values().map(String::len).sum(),
            Self::Retry(call, _) => call.data.as_ref().map_or(0, String::len),
        }
    }
}

/// Asks versions in the shadow what the live ones were asked.
pub(super) struct Shadow {
    sender: mpsc::Sender<(Plugin, LiveCall)>,
    waiting_bytes: AtomicUsize,
    seen: Mutex<BTreeMap<PluginName, Comparison>>,
}

/// One job, and what both versions said of it where that differs.
type Compared = (JobId, Option<(ShadowDecision, ShadowDecision)>);

impl Shadow {
    /// Remembers nothing yet; the other half is what [`spawn`] takes.
    pub(super) fn new() -> (Self, mpsc::Receiver<(Plugin, LiveCall)>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self { sender, waiting_bytes: AtomicUsize::new(0), seen: Mutex::default() }, receiver)
    }

    /// Has the shadow of `plugin` asked, if there is room.
    pub(super) fn submit(&self, plugin: &Plugin, live: LiveCall) {
        let bytes = live.data_bytes();
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before == 0 || before + bytes <= MAX_WAITING_BYTES;
        if !fits || self.sender.try_send((plugin.clone(), live)).is_err() {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.seen.lock().entry(plugin.name.clone()).or_default().missed += 1;
        }
    }

    /// How the version in the shadow of `plugin` does; none if it was not asked yet.
    pub(super) fn differences(&self, plugin: &PluginName) -> Option<Comparison> {
        self.seen.lock().get(plugin).cloned()
    }

    /// Takes note of what came of asking version `version` of `plugin` what `live` was asked; none if it was left alone.
    fn note(
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
                    let Some((live_said, shadow)) = differs else {
                        continue;
                    };
                    comparison.different += 1;
                    comparison.differences.retain(|known| known.job != job);
                    if comparison.differences.len() >= MAX_DIFFERENCES {
                        comparison.differences.pop_front();
                    }
                    let (queue, at) = (live.queue().clone(), live.at());
                    comparison.differences.push_back(Difference {
                        queue,
                        job,
                        at,
                        live: live_said,
                        shadow,
                    });
                }
            }
        }
    }
}

/// The states of throttlers in the shadow that are of another shape than the live ones', by queue. Each is for one version of the plugin's
/// item, which every change of the two and of the configurations raises: after it the shadow starts anew.
type States = HashMap<(PluginName, QueueName), (u64, Arc<PolicyState>)>;

/// Asks the shadows, one call after the other.
pub(super) fn spawn(server: WeakServer, mut calls: mpsc::Receiver<(Plugin, LiveCall)>) {
    tokio::spawn(async move {
        let (mut states, troubles) = (States::new(), CircuitBreaker::default());
        while let Some((asked, live)) = calls.recv().await {
            let Some(inner) = server.upgrade() else { return };
            inner.shadow.waiting_bytes.fetch_sub(live.data_bytes(), Ordering::Relaxed);
            let Ok(catalog) = inner.engine.catalog().await else {
                continue;
            };
            states.retain(|(name, _), (of, _)| {
                catalog.plugins.get(name).is_some_and(|item| item.version == *of)
            });
            let Some(item) = catalog.plugins.get(&asked.name) else {
                continue;
            };
            let Some(version) = item.shadow.and_then(|number| item.numbered(number)) else {
                continue;
            };
            let shadow = Plugin { name: asked.name.clone(), version: Arc::clone(version) };
            let now = inner.engine.now();
            let compared = if version.description(live.role()).is_none() {
                let message = "the version in the shadow does not have the role in which the live one is asked".to_owned();
                Some(Err(Fault { kind: FaultKind::Unavailable, message }))
            } else if troubles.is_open(&shadow, live.config(), now) {
                None
            } else {
                let compared =
                    compare(&inner, (&mut states, item.version), &asked, &shadow, &live).await;
                match &compared {
                    Ok(_) => troubles.answered(&shadow, live.config()),
                    Err(_) => troubles.failed(&shadow, live.config(), now, inner.engine.now()),
                }
                Some(compared)
            };
            inner.shadow.note(&asked.name, shadow.version.number, &live, compared);
        }
    });
}

/// Asks `shadow` what `asked`, the live version, was asked. The states are those of this version of the plugin's item.
async fn compare(
    inner: &Inner,
    (states, item_version): (&mut States, u64),
    asked: &Plugin,
    shadow: &Plugin,
    live: &LiveCall,
) -> Result<Vec<Compared>, Fault> {
    let policy = &inner.engine.ports().policy;
    match live {
        LiveCall::Tick(call, answer) => {
            let shape =
                |plugin: &Plugin| plugin.version.throttler.as_ref().map(|says| says.state_version);
            let (key, alike) =
                ((shadow.name.clone(), call.queue.clone()), shape(asked) == shape(shadow));
            let own = || states.get(&key).map(|(_, state)| Arc::clone(state)).unwrap_or_default();
            let state = if alike { Arc::clone(&call.state) } else { own() };
            let call = Arc::new(ThrottleCall { state: Arc::clone(&state), ..(**call).clone() });
            let said = policy
                .throttle(shadow, Arc::clone(&call), Purpose::Shadow)
                .await
                .and_then(|said| said.validated(&call))?;
            if let Some(state) = said.state.filter(|_| !alike) {
                states.insert(key, (item_version, Arc::new(state)));
            }
            let both = answer.decisions.iter().zip(&said.decisions);
            let differs = both.map(|(live, shadow)| {
                (live.action != shadow.action).then(|| (live.into(), shadow.into()))
            });
            Ok(call.candidates.iter().map(|job| job.id.clone()).zip(differs).collect())
        }
        LiveCall::Retry(call, answer) => {
            let said = policy
                .retry(shadow, Arc::clone(call), Purpose::Shadow)
                .await
                .and_then(|said| said.sound(call))?;
            Ok(vec![(
                call.job.id.clone(),
                (*answer != said).then(|| (answer.into(), (&said).into())),
            )])
        }
    }
}
