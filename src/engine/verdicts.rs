//! `verdicts`: what a plugin says follows a failed attempt.
//!
//! The one thing to know: the attempt is over, and its slot is free, before anybody is asked. The job waits for its
//! verdict as a state of its own, in which no round offers it and every sweep finds it, so nothing that goes wrong
//! here loses it. The verdict is one conditional write at the version that was asked about: of two who ask, one wins.
//! A fault falls back to the built-in backoff.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};

use super::{
    Engine, Error,
    catalog::Catalog,
    enqueue::{attributes, partition},
};
use crate::{
    job::{
        Body, Encoding, Event, Job, Payload, Spec, Version,
        life::Plan,
        payload::MAX_DEPTH,
        retry::{Backoff, Retry},
    },
    port::{
        Committed, Txn,
        policy::{Fault, FaultKind, Plugin, RetryAnswer, RetryCall},
    },
    queue::{check, plugin::Role},
    time::Timestamp,
};

/// How far ahead a plugin may plan.
pub(super) const AHEAD: Duration = Duration::from_hours(366 * 24);
/// How many strategies are asked at once.
const AT_ONCE: usize = 16;

/// What [`Engine::verdicts`] did.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// The jobs whose verdict was written, with the version they left.
    pub changed: Vec<(Job, Version)>,
    /// The calls that failed.
    pub faults: Vec<RetryFault>,
}

/// A retry strategy that could not say what follows; the built-in backoff did instead.
#[derive(Clone, Debug)]
pub struct RetryFault {
    /// The plugin; none if there is none of the name.
    pub plugin: Option<Plugin>,
    /// What it was asked.
    pub call: Arc<RetryCall>,
    /// What went wrong.
    pub fault: Fault,
}

/// A verdict worked out.
struct Made {
    job: Job,
    /// Whether more than its life changed.
    all: bool,
    fault: Option<RetryFault>,
}

impl Engine {
    /// Asks the retry strategies of `jobs` that wait for a verdict, and writes what they say. Jobs that changed meanwhile
    /// are left as they are.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn verdicts(&self, jobs: Vec<Job>) -> Result<Verdicts, Error> {
        let catalog = self.catalog().await?;
        let waiting: Vec<Job> = jobs.into_iter().filter(|job| job.life.awaits_verdict()).collect();
        let asked: Vec<_> = waiting.iter().map(|job| self.verdict(&catalog, job)).collect();
        let made: Vec<_> = stream::iter(asked).buffered(AT_ONCE).collect().await;
        let mut verdicts = Verdicts::default();
        let (mut changes, mut txns): (Vec<(Job, Version)>, Vec<Txn>) = (Vec::new(), Vec::new());
        for (before, made) in waiting.iter().zip(made) {
            let Some(made) = made? else { continue };
            verdicts.faults.extend(made.fault);
            txns.push(self.change(before.life.revision, &made.job, made.all, self.now()));
            changes.push((made.job, before.life.version));
        }
        if txns.is_empty() {
            return Ok(verdicts);
        }
        let outcomes = self.ports.store.commit(txns).await?;
        verdicts
            .changed
            .extend(changes.into_iter().zip(outcomes).filter_map(|(change, outcome)| matches!(outcome, Committed::All).then_some(change)));
        Ok(verdicts)
    }

    /// The job with its verdict; none if none can follow any more.
    async fn verdict(&self, catalog: &Catalog, job: &Job) -> Result<Option<Made>, Error> {
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
        };
        let Some(plugin) = catalog.plugin(name, Role::Retry) else {
            let fault = Fault { kind: FaultKind::Unavailable, message: format!("there is no retry strategy {name}") };
            return Ok(self.fall_back(job, Some(RetryFault { plugin: None, call: Arc::new(call), fault })));
        };
        if plugin.version.retry.as_ref().is_some_and(|says| says.needs_data) {
            call.data = match self.data(job).await {
                Ok(data) => data.to_json().ok().and_then(|json| String::from_utf8(json.into()).ok()),
                // A body that is gone stays gone: better asked without it than never.
                Err(Error::Internal(_)) => None,
                Err(error) => return Err(error),
            };
        }
        let call = Arc::new(call);
        let answer = self.ports.policy.retry(&plugin, Arc::clone(&call)).await;
        let made = match answer {
            Ok(answer) => self.follow(catalog, job, answer, now).await?,
            Err(fault) => Err(fault),
        };
        Ok(match made {
            Ok(made) => made,
            Err(fault) => self.fall_back(job, Some(RetryFault { plugin: Some(plugin), call, fault })),
        })
    }

    /// What the strategy's answer makes of the job, or what is wrong with the answer.
    async fn follow(
        &self,
        catalog: &Catalog,
        job: &Job,
        answer: RetryAnswer,
        now: Timestamp,
    ) -> Result<Result<Option<Made>, Fault>, Error> {
        let (at, data, priority) = match answer {
            RetryAnswer::GiveUp(message) => return Ok(Ok(planned(job, Plan::GiveUp(message), false, now, None))),
            RetryAnswer::Retry { at, data, priority } => (at, data, priority),
        };
        if at > now + AHEAD {
            return Ok(Err(nonsense("its next attempt is more than 366 days away")));
        }
        let mut changed = job.clone();
        let all = data.is_some() || priority.is_some();
        if let Some(text) = data {
            let payload = match self.rewritten(job, text).await? {
                Ok(payload) => payload,
                Err(fault) => return Ok(Err(fault)),
            };
            let mut spec = (*job.spec).clone();
            if let Err(fault) = extract_anew(catalog, &mut spec, &payload) {
                return Ok(Err(fault));
            }
            changed.spec = Arc::new(spec);
            changed.data = if payload.bytes.len() > self.rules.object_bytes { self.put_object(payload).await? } else { Body::Inline(payload) };
        }
        if let Some(priority) = priority {
            changed.spec = Arc::new(Spec { priority, ..(*changed.spec).clone() });
        }
        Ok(Ok(planned(&changed, Plan::Retry(at), all, now, None)))
    }

    /// JSON text as the new data of `job`, in the encoding that its data has.
    async fn rewritten(&self, job: &Job, text: String) -> Result<Result<Payload, Fault>, Error> {
        let most = self.rules.max_data_bytes;
        let json = Payload::json(text);
        if json.bytes.len() > most {
            return Ok(Err(nonsense(format!("its data is larger than {most} bytes"))));
        }
        if let Err(malformed) = json.check(MAX_DEPTH) {
            return Ok(Err(nonsense(format!("its data is not JSON: {malformed}"))));
        }
        let encoding = match &job.data {
            Body::Inline(payload) => payload.encoding,
            Body::Object { encoding, .. } => *encoding,
            Body::Beside(_) => self.data(job).await?.encoding,
        };
        if encoding == Encoding::Json {
            return Ok(Ok(json));
        }
        Ok(match json.to_msgpack() {
            Ok(bytes) if bytes.len() <= most => Ok(Payload { encoding, bytes }),
            Ok(_) => Err(nonsense(format!("its data is larger than {most} bytes"))),
            Err(malformed) => Err(nonsense(format!("its data is not MessagePack: {malformed}"))),
        })
    }

    /// The job with the built-in backoff for its verdict.
    fn fall_back(&self, job: &Job, fault: Option<RetryFault>) -> Option<Made> {
        let now = self.now();
        let wait = Backoff::default().after(job.life.attempt, self.ports.entropy.fraction());
        planned(job, Plan::Retry(now + wait), false, now, fault)
    }
}

fn planned(job: &Job, plan: Plan, all: bool, now: Timestamp, fault: Option<RetryFault>) -> Option<Made> {
    let job = job.apply(Event::Verdict { version: job.life.version, plan }, now).ok()?;
    Some(Made { job, all, fault })
}

/// Takes the attributes of a job from its new data, as a PATCH does.
fn extract_anew(catalog: &Catalog, spec: &mut Spec, data: &Payload) -> Result<(), Fault> {
    let Some(item) = catalog.types.get(&spec.job_type) else { return Ok(()) };
    let found = attributes(&item.config.attributes, data, spec.attributes.clone()).map_err(|error| nonsense(error.to_string()))?;
    check::check_attributes(&found).map_err(|fault| nonsense(format!("the attributes of its data: {fault}")))?;
    spec.partition = partition(&catalog.limits(&spec.queue), &found);
    spec.attributes = found;
    Ok(())
}

fn nonsense(message: impl Into<String>) -> Fault {
    Fault { kind: FaultKind::InvalidAnswer, message: message.into() }
}
