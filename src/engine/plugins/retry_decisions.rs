//! Retry decisions: a retry strategy, which is a plugin, decides what follows a failed attempt.
//!
//! The one thing to know: the attempt is over, and its slot is free, before a strategy is called.
//! The job waits for its decision in a state of its own. No tick offers it and every sweep finds
//! it, so a failure here loses nothing. The decision is one conditional write at the version that
//! the strategy decided on, so one of several concurrent callers wins. A fault falls back to the
//! built-in backoff.
//!
//! The jobs of a strategy with a state are decided one after another: each decision is committed
//! with the state that it leaves ([`super::retry_state`]).

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream};

use super::{
    MIN_DEFERRAL,
    retry_state::{KeptState, has_state},
};
use crate::{
    Engine, Error,
    config::catalog::Catalog,
    jobs::enqueue::{check_weight, extract_again},
};
use tidegate_core::{
    job::{
        Body, Encoding, Event, Job, Payload, PluginName, QueueName, Spec, TypeName, Version,
        lifecycle::PluginRetry,
        retry::{Backoff, Retry},
        spec::{MAX_ORIGINAL_BYTES, Original},
    },
    port::{
        Committed, Txn,
        job_store::ItemKind,
        policy::{
            Call, Fault, FaultKind, Plugin, PolicyState, Purpose, RetryAnswer, RetryCall,
            RetryOutput, RetryPlan, cut,
        },
    },
    queue::plugin::Role,
    stored::UnknownFields,
    time::Timestamp,
};

/// Concurrent strategies, and concurrent calls of each: a slow strategy takes no more than its
/// share.
const MAX_CONCURRENT_STRATEGIES: usize = 16;
const MAX_CONCURRENT_CALLS: usize = 4;
/// Bytes of a target's name in a message.
const MAX_SHOWN_BYTES: usize = 64;
/// How long one call of [`Engine::decide_retries`] begins decisions on the jobs of a strategy with
/// a state, one after another.
const TURN_TIME: Duration = Duration::from_secs(10);
/// How often the decision on a job is made again because another one changed the strategy's state.
const MAX_STATE_CONFLICTS: usize = 5;

/// The outcome of [`Engine::decide_retries`].
#[derive(Debug, Default)]
pub struct RetryDecisions {
    /// The jobs whose decision was written, with the version that they left.
    pub changed: Vec<(Job, Version)>,
    /// The calls that failed.
    pub faults: Vec<RetryFault>,
    /// The answered calls of strategies that have a shadow version.
    pub shadowed_calls: Vec<AnsweredRetryCall>,
}

/// A call of a retry strategy, and its answer.
#[derive(Clone, Debug)]
pub struct AnsweredRetryCall {
    /// The plugin.
    pub plugin: Plugin,
    /// All inputs of its answer.
    pub call: Arc<RetryCall>,
    /// The answer.
    pub answer: RetryAnswer,
}

/// A call of a retry strategy that failed. The built-in backoff decided instead.
#[derive(Clone, Debug)]
pub struct RetryFault {
    /// The plugin; `None` if no plugin has the name.
    pub plugin: Option<Plugin>,
    /// The inputs of the call.
    pub call: Arc<RetryCall>,
    /// What went wrong.
    pub fault: Fault,
}

/// A decision that is not written yet.
struct DecidedJob {
    job: Job,
    /// Whether more than its lifecycle changed.
    all: bool,
    fault: Option<RetryFault>,
    shadowed_call: Option<AnsweredRetryCall>,
    /// The strategy's new state, if it changed.
    state: Option<PolicyState>,
}

impl Engine {
    /// Calls the retry strategies of those `jobs` that wait for a decision, and writes the
    /// decisions. Jobs that changed meanwhile stay as they are. Nothing is written before all
    /// strategies have answered. A caller that does not want the jobs of one strategy to wait for
    /// another makes one call per strategy: see [`by_strategy`].
    ///
    /// A strategy that failed is not called for 1 s, doubling up to 30 s. The built-in backoff
    /// decides meanwhile.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn decide_retries(&self, jobs: Vec<Job>) -> Result<RetryDecisions, Error> {
        let catalog = self.catalog().await?;
        let waiting: Vec<Job> =
            jobs.into_iter().filter(|job| job.life.awaits_retry_decision()).collect();
        let mut strategies = by_strategy(waiting);
        let mut decisions = RetryDecisions::default();
        let is_stateful = |name: &Option<PluginName>| {
            let plugin = name.as_ref().and_then(|name| catalog.plugin(name, Role::Retry));
            plugin.is_some_and(|plugin| has_state(&plugin))
        };
        let stateful: BTreeMap<_, _> =
            strategies.extract_if(.., |name, _| is_stateful(name)).collect();
        for jobs in stateful.values() {
            Box::pin(self.decide_in_turn(&catalog, jobs, &mut decisions)).await;
        }
        let each: Vec<_> =
            strategies.values().map(|jobs| self.decide_one_strategy(&catalog, jobs)).collect();
        let made: Vec<Vec<_>> =
            stream::iter(each).buffered(MAX_CONCURRENT_STRATEGIES).collect().await;
        let (mut changes, mut txns): (Vec<(Job, Version)>, Vec<Txn>) = (Vec::new(), Vec::new());
        for (before, made) in strategies.values().flatten().zip(made.into_iter().flatten()) {
            let made = match made {
                Ok(Some(made)) => made,
                Ok(None) => continue,
                // The job waits as before, and the next sweep finds it. Other jobs must not wait
                // for it.
                Err(error) => {
                    warn_undecided(before, &error);
                    continue;
                }
            };
            decisions.faults.extend(made.fault);
            decisions.shadowed_calls.extend(made.shadowed_call);
            txns.push(self.change_writes(before.life.revision, &made.job, made.all, self.now()));
            changes.push((made.job, before.life.version));
        }
        if txns.is_empty() {
            return Ok(decisions);
        }
        let outcomes = match self.ports.store.commit(txns).await {
            Ok(outcomes) => outcomes,
            // The decisions that are written already have followers. The next sweep finds the rest.
            Err(error) if !decisions.changed.is_empty() => {
                tracing::warn!(%error, "retry decisions were not written");
                return Ok(decisions);
            }
            Err(error) => return Err(error.into()),
        };
        decisions.changed.extend(
            changes.into_iter().zip(outcomes).filter_map(|(change, outcome)| {
                matches!(outcome, Committed::All).then_some(change)
            }),
        );
        Ok(decisions)
    }

    /// Decides on the jobs of a strategy that has a state, one after another, and writes each
    /// decision with the state that it leaves.
    async fn decide_in_turn(
        &self,
        catalog: &Catalog,
        jobs: &[Job],
        decisions: &mut RetryDecisions,
    ) {
        let mut states: HashMap<QueueName, KeptState> = HashMap::new();
        let stop_at = self.now() + TURN_TIME;
        for job in jobs {
            // The next sweep finds the others. Their decisions are made on a newer state.
            if self.now() >= stop_at {
                return;
            }
            if let Err(error) = self.decide_with_state(catalog, job, &mut states, decisions).await {
                // The job waits as before, and the next sweep finds it.
                warn_undecided(job, &error);
            }
        }
    }

    /// Decides on `job`, whose strategy has a state: of its queue, one of `states` if it was read
    /// before. After a conflict the decision is made again on the newer state. If conflicts do not
    /// end, the next sweep decides.
    async fn decide_with_state(
        &self,
        catalog: &Catalog,
        job: &Job,
        states: &mut HashMap<QueueName, KeptState>,
        decisions: &mut RetryDecisions,
    ) -> Result<(), Error> {
        let Retry::Plugin(name, _) = &job.spec.retry else { return Ok(()) };
        let queue = &job.spec.queue;
        for _ in 0..MAX_STATE_CONFLICTS {
            if !self.still_waits(job).await? {
                return Ok(());
            }
            let kept = match (states.remove(queue), catalog.plugin(name, Role::Retry)) {
                (Some(kept), _) => kept,
                (None, Some(plugin)) => self.retry_state(queue, &plugin).await?,
                (None, None) => return Ok(()),
            };
            let made = self.decide_retry(catalog, job, Arc::clone(&kept.state)).await?;
            let Some(made) = made else { return Ok(()) };
            let now = self.now();
            let nonce = self.ports.entropy.bits() as u64;
            let replaced = made.state.map(|state| kept.replace(state, now, nonce));
            let (mut txn, refused, after, kept) = match replaced {
                Some(writes) => (writes.before, writes.refused, writes.after, writes.kept),
                None => (Txn::new(), Txn::new(), Txn::new(), kept),
            };
            let of_state = txn.len();
            txn.extend(self.change_writes(job.life.revision, &made.job, made.all, now));
            txn.extend(after.clone());
            match self.ports.store.commit(vec![txn]).await?.pop() {
                Some(Committed::All) => {
                    states.insert(queue.clone(), kept);
                    decisions.faults.extend(made.fault);
                    decisions.shadowed_calls.extend(made.shadowed_call);
                    decisions.changed.push((made.job, job.life.version));
                    return Ok(());
                }
                // Another process has changed the state.
                Some(Committed::Conflict { step, .. }) if step < of_state => {
                    self.remove_pages(refused).await;
                }
                // The job has changed.
                _ => {
                    self.remove_pages(after).await;
                    return Ok(());
                }
            }
        }
        tracing::debug!(job = %job.id, plugin = %name, "the state of a retry strategy is contended");
        Ok(())
    }

    /// Whether `job` still waits for the decision. Where state and job are not written at once,
    /// another process may have decided, and its state counts the failure already.
    async fn still_waits(&self, job: &Job) -> Result<bool, Error> {
        if self.ports.store.capabilities().atomicity.is_atomic() {
            return Ok(true);
        }
        let stored = self.ports.store.get(std::slice::from_ref(&job.id)).await?.pop();
        let stored = stored.and_then(Result::ok).flatten();
        Ok(stored.is_some_and(|stored| stored.life.revision == job.life.revision))
    }

    /// Removes pages that no stored state names, where the transaction that wrote them was refused
    /// after its first writes.
    async fn remove_pages(&self, pages: Txn) {
        if pages.is_empty() || self.ports.store.capabilities().atomicity.is_atomic() {
            return;
        }
        let pages = pages.into_iter().map(|write| vec![write]).collect();
        if let Err(error) = self.ports.store.commit(pages).await {
            // They expire with the state.
            tracing::warn!(%error, "old pages of the state of a retry strategy were not removed");
        }
    }

    /// The decisions of the one strategy of `jobs`.
    async fn decide_one_strategy(
        &self,
        catalog: &Catalog,
        jobs: &[Job],
    ) -> Vec<Result<Option<DecidedJob>, Error>> {
        let calls: Vec<_> =
            jobs.iter().map(|job| self.decide_retry(catalog, job, Arc::default())).collect();
        stream::iter(calls).buffered(MAX_CONCURRENT_CALLS).collect().await
    }

    /// The job with the decision on its retry; none if the job changed and needs none. `state` is
    /// that of its strategy.
    async fn decide_retry(
        &self,
        catalog: &Catalog,
        job: &Job,
        state: Arc<PolicyState>,
    ) -> Result<Option<DecidedJob>, Error> {
        let Retry::Plugin(name, config) = &job.spec.retry else {
            return Ok(self.fall_back(job, None));
        };
        let now = self.now();
        let mut call = RetryCall {
            queue: job.spec.queue.clone(),
            now,
            seed: self.ports.entropy.bits() as u64,
            config: config.to_string().into(),
            job: job.clone(),
            data: None,
            not_before: job.life.run_at().filter(|at| *at > now),
            host: catalog.host_of(&job.spec),
            state,
        };
        // The job awaits its decision until the plugin can be read.
        catalog.refuse_unreadable(ItemKind::Plugin, name.as_str())?;
        let Some(plugin) = catalog.plugin(name, Role::Retry) else {
            let fault = Fault {
                kind: FaultKind::Unavailable,
                message: format!("there is no retry strategy {name}"),
            };
            return Ok(
                self.fall_back(job, Some(RetryFault { plugin: None, call: Arc::new(call), fault }))
            );
        };
        if self.breaker.is_open(&plugin, &call.config, now) {
            tracing::debug!(
                job = %job.id,
                plugin = %name,
                "the circuit of a retry strategy is open; the built-in backoff decides"
            );
            return Ok(self.fall_back(job, None));
        }
        if plugin.version.retry.as_ref().is_some_and(|says| says.needs_data) {
            call.data = self.json_data(job).await?;
        }
        self.call_strategy(catalog, job, plugin, Arc::new(call)).await
    }

    /// The data of `job` as JSON text; none if it is not JSON or its body is gone.
    async fn json_data(&self, job: &Job) -> Result<Option<String>, Error> {
        match self.data(job).await {
            Ok(data) => {
                Ok(data.to_json().ok().and_then(|json| String::from_utf8(json.into()).ok()))
            }
            // A body that is gone stays gone: the strategy decides without it.
            Err(Error::Internal(_) | Error::Unreadable(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Calls the strategy, and applies its answer to the job. A fault opens its circuit and falls
    /// back to the built-in backoff.
    async fn call_strategy(
        &self,
        catalog: &Catalog,
        job: &Job,
        plugin: Plugin,
        call: Arc<RetryCall>,
    ) -> Result<Option<DecidedJob>, Error> {
        let now = call.now;
        let answer = self
            .ports
            .policy
            .retry(&plugin, Arc::clone(&call), Purpose::Live)
            .await
            .and_then(|answer| answer.validated(&call));
        let made = match answer.clone() {
            Ok(RetryOutput { answer, state }) => {
                let followed = self.follow(catalog, job, answer, now).await?;
                if let Err(fault) = &followed {
                    self.ports.policy.report_fault(&plugin, &Call::Retry(Arc::clone(&call)), fault);
                }
                followed.map(|made| made.map(|made| DecidedJob { state, ..made }))
            }
            Err(fault) => Err(fault),
        };
        Ok(match made {
            Ok(made) => {
                self.breaker.answered(&plugin, &call.config);
                let item = catalog.plugins.get(&plugin.name);
                let shadowed = item.is_some_and(|item| item.shadow.is_some());
                let shadowed_call = answer
                    .ok()
                    .filter(|_| shadowed)
                    .map(|RetryOutput { answer, .. }| AnsweredRetryCall { plugin, call, answer });
                made.map(|made| DecidedJob { shadowed_call, ..made })
            }
            Err(fault) => {
                // A strategy that rejects one failure may answer others.
                if fault.kind != FaultKind::Rejected {
                    self.breaker.failed(&plugin, &call.config, now, self.now());
                }
                self.fall_back(job, Some(RetryFault { plugin: Some(plugin), call, fault }))
            }
        })
    }

    /// The job after the answer of the strategy, or what is wrong with the answer.
    async fn follow(
        &self,
        catalog: &Catalog,
        job: &Job,
        answer: RetryAnswer,
        now: Timestamp,
    ) -> Result<Result<Option<DecidedJob>, Fault>, Error> {
        let plan = match answer {
            RetryAnswer::GiveUp(message) => {
                return Ok(Ok(planned(job, PluginRetry::GiveUp(message), false, now, None)));
            }
            RetryAnswer::Retry(plan) => plan,
        };
        let all = plan.changes_job();
        let RetryPlan { at, data, priority, weight, attempts_left, timeout, target } = plan;
        let mut changed = job.clone();
        if all {
            let original = Some(Box::new(self.original(job, data.is_some()).await?));
            let counted = u32::from(job.life.counted_attempts());
            let most = |left: u32| u16::try_from(counted.saturating_add(left)).unwrap_or(u16::MAX);
            changed.spec = Arc::new(Spec {
                original,
                priority: priority.unwrap_or(job.spec.priority),
                weight: weight.unwrap_or(job.spec.weight),
                max_attempts: attempts_left.map_or(job.spec.max_attempts, most),
                timeout: timeout.unwrap_or(job.spec.timeout),
                retry_target: match target {
                    Some(target) => match chosen_target(catalog, &job.spec.job_type, target) {
                        Ok(target) => target,
                        Err(fault) => return Ok(Err(fault)),
                    },
                    None => job.spec.retry_target.clone(),
                },
                ..(*job.spec).clone()
            });
            // The job would never start, and nothing could lower its weight.
            if weight.is_some()
                && let Err(error) =
                    check_weight(&changed.spec, &catalog.limits(&changed.spec.queue))
            {
                return Ok(Err(invalid_answer(format!("its plan: {error}"))));
            }
        }
        if let Some(text) = data {
            let payload = match self.rewritten(job, text).await? {
                Ok(payload) => payload,
                Err(fault) => return Ok(Err(fault)),
            };
            let mut spec = (*changed.spec).clone();
            if let Err(error) = extract_again(catalog, &mut spec, &payload) {
                return Ok(Err(invalid_answer(format!("the attributes of its data: {error}"))));
            }
            changed.spec = Arc::new(spec);
            changed.data = if payload.bytes.len() > self.rules.object_bytes {
                self.put_object(&job.id, payload).await?
            } else {
                Body::Inline(payload)
            };
        }
        let at = at.max(now + MIN_DEFERRAL);
        Ok(Ok(planned(&changed, PluginRetry::Retry(at), all, now, None)))
    }

    /// The job as it came, before another change; with its data from the first change of these.
    async fn original(&self, job: &Job, changes_data: bool) -> Result<Original, Error> {
        let kept = job.spec.original.as_deref();
        let mut original = kept.cloned().unwrap_or_else(|| Original {
            priority: job.spec.priority,
            attributes: job.spec.attributes.clone(),
            data: None,
            weight: Some(job.spec.weight),
            max_attempts: Some(job.spec.max_attempts),
            timeout: Some(job.spec.timeout),
            data_changed: false,
            unknown: UnknownFields::default(),
        });
        if changes_data && !original.data_changed && original.data.is_none() {
            let data = self.json_data(job).await?;
            original.data = data.filter(|data| data.len() <= MAX_ORIGINAL_BYTES);
        }
        original.data_changed |= changes_data;
        Ok(original)
    }

    /// JSON text as the new data of `job`, in the encoding of its current data.
    async fn rewritten(&self, job: &Job, text: String) -> Result<Result<Payload, Fault>, Error> {
        let most = self.rules.max_data_bytes;
        let json = Payload::json(text);
        if json.bytes.len() > most {
            return Ok(Err(invalid_answer(format!("its data is larger than {most} bytes"))));
        }
        let encoding = match &job.data {
            Body::Inline(payload) => payload.encoding,
            Body::Object { encoding, .. } => *encoding,
            Body::Separate(_) => self.data(job).await?.encoding,
        };
        if encoding == Encoding::Json {
            return Ok(Ok(json));
        }
        Ok(match json.to_msgpack() {
            Ok(bytes) if bytes.len() <= most => Ok(Payload { encoding, bytes }),
            Ok(_) => Err(invalid_answer(format!("its data is larger than {most} bytes"))),
            Err(malformed) => {
                Err(invalid_answer(format!("its data is not MessagePack: {malformed}")))
            }
        })
    }

    /// The job with the built-in backoff as its decision.
    fn fall_back(&self, job: &Job, fault: Option<RetryFault>) -> Option<DecidedJob> {
        let now = self.now();
        let attempt = job.life.counted_attempts();
        let wait = Backoff::default().after(attempt, self.ports.entropy.fraction());
        planned(job, PluginRetry::Retry(now + wait), false, now, fault)
    }
}

/// Jobs grouped by the strategy to call. The group without a name has the jobs that use the
/// built-in backoff.
pub fn by_strategy(jobs: Vec<Job>) -> BTreeMap<Option<PluginName>, Vec<Job>> {
    let mut strategies: BTreeMap<_, Vec<Job>> = BTreeMap::new();
    for job in jobs {
        let name =
            if let Retry::Plugin(name, _) = &job.spec.retry { Some(name.clone()) } else { None };
        strategies.entry(name).or_default().push(job);
    }
    strategies
}

fn planned(
    job: &Job,
    plan: PluginRetry,
    all: bool,
    now: Timestamp,
    fault: Option<RetryFault>,
) -> Option<DecidedJob> {
    let job = job.apply(Event::DecideRetry { version: job.life.version, plan }, now).ok()?;
    Some(DecidedJob { job, all, fault, shadowed_call: None, state: None })
}

/// The target that a plan names, of those of the job's type; none for the type's own.
fn chosen_target(
    catalog: &Catalog,
    job_type: &TypeName,
    name: String,
) -> Result<Option<String>, Fault> {
    let targets = catalog.types.get(job_type).map(|item| &item.config.retry_targets);
    if name.is_empty() {
        return Ok(None);
    }
    if targets.is_some_and(|targets| targets.contains_key(&name)) {
        return Ok(Some(name));
    }
    let known: Vec<&str> = targets.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    Err(invalid_answer(format!(
        "its plan names the target {:?}, which is not in `retry_targets` of the type ({})",
        cut(name, MAX_SHOWN_BYTES),
        known.join(", ")
    )))
}

fn warn_undecided(job: &Job, error: &Error) {
    tracing::warn!(
        job = %job.id,
        %error,
        "the retry of a failed attempt cannot be decided now"
    );
}

fn invalid_answer(message: impl Into<String>) -> Fault {
    Fault { kind: FaultKind::InvalidAnswer, message: message.into() }
}
