//! Plugins as the server has them: the verbs, and what it remembers of calls whose shadow said otherwise.
//!
//! The one thing to know: a shadow is asked here, after its round was committed, and by a task of its own. A slow one
//! holds nobody up; what it has no time for is counted as missed.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;

use super::{Home, Inner, Server};
use crate::{
    engine::{
        Asked, Error,
        plugins::{NewVersion, Pushed, Stage},
        verdicts::RetryFault,
    },
    job::{JobId, PluginName, QueueName},
    port::policy::{Action, Decision, Fault, Plugin, PolicyState, ThrottleCall},
    queue::plugin::PluginItem,
    time::Timestamp,
};

/// Most differences that are kept of a plugin; the oldest go.
const KEPT: usize = 100;
/// Most calls that wait for the shadow.
const WAITING: usize = 64;

/// What a plugin said of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Said {
    /// `run`, `hold`, `reschedule` or `drop`.
    pub action: &'static str,
    /// Until when it holds the job, or when that is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<&Decision> for Said {
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

/// A job of which the live version and its shadow said different things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Difference {
    /// Its queue.
    pub queue: QueueName,
    /// The job.
    pub job: JobId,
    /// The round's time.
    pub at: Timestamp,
    /// What was done.
    pub live: Said,
    /// What the shadow would have done.
    pub shadow: Said,
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
    /// Calls that there was no time to compare.
    pub missed: u64,
    /// The latest differences, oldest first.
    #[schema(value_type = Vec<Difference>)]
    pub differences: VecDeque<Difference>,
}

/// Asks versions in the shadow what the live ones were asked.
pub(super) struct Shadow {
    sender: mpsc::Sender<(QueueName, Asked)>,
    seen: Mutex<BTreeMap<PluginName, Comparison>>,
}

/// What the server does beside its rounds when plugins are called. Each fault is kept with its call by whoever runs
/// plugins; here it is told to the log.
pub(super) struct Plugins {
    pub(super) shadow: Shadow,
}

impl Plugins {
    /// Remembers nothing yet; the other half is what [`follow`] takes.
    pub(super) fn new() -> (Self, mpsc::Receiver<(QueueName, Asked)>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { shadow: Shadow { sender, seen: Mutex::default() } }, receiver)
    }

    /// Takes note of what a round's throttler said.
    pub(super) fn round(&self, queue: &QueueName, asked: Vec<Asked>, faults: Vec<Asked>) {
        for asked in asked {
            self.shadow.ask(queue, asked);
        }
        for Asked { plugin, answer, .. } in faults {
            if let Err(fault) = answer {
                failed(&plugin, queue, &fault);
            }
        }
    }

    /// Takes note of a retry strategy that failed.
    pub(super) fn retry_failed(RetryFault { plugin, call, fault }: &RetryFault) {
        if let Some(plugin) = plugin {
            failed(plugin, &call.queue, fault);
        } else {
            tracing::warn!(job = %call.job.id, %fault, "the built-in backoff stood in for a retry strategy");
        }
    }
}

fn failed(plugin: &Plugin, queue: &QueueName, fault: &Fault) {
    tracing::warn!(plugin = %plugin.name, version = plugin.version.number, %queue, kind = fault.kind.as_str(), %fault, "a plugin failed");
}

fn push<T>(kept: &mut VecDeque<T>, item: T, most: usize) {
    if kept.len() >= most {
        kept.pop_front();
    }
    kept.push_back(item);
}

impl Shadow {
    fn ask(&self, queue: &QueueName, asked: Asked) {
        let name = asked.plugin.name.clone();
        if self.sender.try_send((queue.clone(), asked)).is_err() {
            self.seen.lock().entry(name).or_default().missed += 1;
        }
    }

    /// How the version in the shadow of `plugin` does; none if it was not asked yet.
    pub(super) fn differences(&self, plugin: &PluginName) -> Option<Comparison> {
        self.seen.lock().get(plugin).cloned()
    }

    /// Compares the answers to one call.
    fn compare(&self, queue: &QueueName, asked: &Asked, version: u32, shadow: Result<Vec<Decision>, Fault>) {
        let Ok(live) = &asked.answer else { return };
        let mut seen = self.seen.lock();
        let comparison = seen.entry(asked.plugin.name.clone()).or_default();
        if comparison.version != version {
            *comparison = Comparison { version, missed: comparison.missed, ..Comparison::default() };
        }
        let Ok(shadow) = shadow else {
            comparison.failed += 1;
            return;
        };
        for ((job, live), shadow) in asked.call.candidates.iter().zip(&live.decisions).zip(&shadow) {
            comparison.compared += 1;
            if live.action != shadow.action {
                comparison.different += 1;
                let (job, at) = (job.id.clone(), asked.call.now);
                let difference = Difference { queue: queue.clone(), job, at, live: live.into(), shadow: shadow.into() };
                push(&mut comparison.differences, difference, KEPT);
            }
        }
    }
}

/// Asks the shadows, one call after the other: each has a state of its own, which starts from the live one's.
pub(super) fn follow(home: Home, mut calls: mpsc::Receiver<(QueueName, Asked)>) {
    tokio::spawn(async move {
        let mut states: HashMap<(PluginName, QueueName), (u32, Arc<PolicyState>)> = HashMap::new();
        while let Some((queue, asked)) = calls.recv().await {
            let Some(inner) = home.upgrade() else { return };
            let Ok(catalog) = inner.engine.catalog().await else { continue };
            let name = asked.plugin.name.clone();
            let item = catalog.plugins.get(&name);
            let Some(version) = item.and_then(|item| item.numbered(item.shadow?)).cloned() else { continue };
            let Some(says) = &version.throttler else { continue };
            let number = version.number;
            let same_shape = asked.plugin.version.throttler.as_ref().is_some_and(|live| live.state_version == says.state_version);
            let start = || if same_shape { Arc::clone(&asked.call.state) } else { Arc::default() };
            let key = (name.clone(), queue.clone());
            let state = match states.get(&key) {
                Some((of, state)) if *of == number => Arc::clone(state),
                _ => start(),
            };
            let call = Arc::new(ThrottleCall { state: Arc::clone(&state), ..(*asked.call).clone() });
            let plugin = Plugin { name, version };
            let answer = inner.engine.ports().policy.throttle(&plugin, call).await.map(|answer| {
                states.insert(key, (number, answer.state.map_or(state, Arc::new)));
                answer.decisions
            });
            inner.plugins.shadow.compare(&queue, &asked, number, answer);
        }
    });
}

impl Inner {
    /// Plugins changed: every queue is looked at under them.
    fn plugins_changed(self: &Arc<Self>) {
        self.wake_known();
    }
}

impl Server {
    /// Adds a version of a plugin, live at the next round of every queue, or in the shadow of the live one.
    ///
    /// # Errors
    ///
    /// As for [`crate::engine::Engine::push_plugin`].
    pub async fn push_plugin(&self, name: &PluginName, version: NewVersion, stage: Stage) -> Result<Pushed, Error> {
        let pushed = self.inner.engine.push_plugin(name, version, stage).await?;
        self.inner.plugins_changed();
        Ok(pushed)
    }

    /// Every plugin, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn plugins(&self) -> Result<Vec<(PluginName, Arc<PluginItem>)>, Error> {
        self.inner.engine.plugins().await
    }

    /// A plugin with all its versions.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn plugin(&self, name: &PluginName) -> Result<Arc<PluginItem>, Error> {
        self.inner.engine.plugin(name).await
    }

    /// Makes version `to` live, or without a number the latest before the live one.
    ///
    /// # Errors
    ///
    /// 404; 409 `config_refused` or `plugin_in_use`.
    pub async fn rollback_plugin(&self, name: &PluginName, to: Option<u32>) -> Result<PluginItem, Error> {
        self.prepare(name, |item| to.or(item.previous())).await?;
        let item = self.inner.engine.rollback_plugin(name, to).await?;
        self.inner.plugins_changed();
        Ok(item)
    }

    /// Has version `number` asked beside the live one, or with none nothing.
    ///
    /// # Errors
    ///
    /// 404; 400 for the live version.
    pub async fn shadow_plugin(&self, name: &PluginName, number: Option<u32>) -> Result<PluginItem, Error> {
        self.prepare(name, |_| number).await?;
        self.inner.engine.shadow_plugin(name, number).await
    }

    /// Removes a plugin with all its versions.
    ///
    /// # Errors
    ///
    /// 404; 409 `plugin_in_use`.
    pub async fn delete_plugin(&self, name: &PluginName) -> Result<(), Error> {
        self.inner.engine.delete_plugin(name).await?;
        if let Some(hosted) = &self.inner.hosted {
            hosted.host.forget(name);
        }
        Ok(())
    }

    /// Where the version in the shadow of a plugin differs from the live one, as far as this process asked it.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn plugin_differences(&self, name: &PluginName) -> Result<Comparison, Error> {
        let item = self.plugin(name).await?;
        let seen = self.inner.plugins.shadow.differences(name).filter(|seen| item.shadow.is_none_or(|number| number == seen.version));
        Ok(seen.unwrap_or_else(|| Comparison { version: item.shadow.unwrap_or(0), ..Comparison::default() }))
    }
}
