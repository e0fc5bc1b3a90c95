//! `explain`: why a job waits, found by deciding again without committing.

use std::collections::{BTreeMap, HashMap};

use crate::{
    Engine, Error, View,
    request::{Explanation, HeldBy},
    tick::Turns,
};
use tidegate_core::{
    job::{
        Job, JobId, QueueName, State, TypeName,
        lifecycle::{self, Waiting},
        retry::Retry,
    },
    port::job_store::DueQuery,
    queue::{
        Admission, AdmissionDecision, Candidate, Limits, Rule, Usage, config::SCAN_BOUND,
        order::Order,
    },
    time::Timestamp,
};

impl Engine {
    /// Why the job waits. `asked` says whether anybody takes jobs of its type at present.
    ///
    /// # Errors
    ///
    /// 404 `job_not_found`; the store's.
    pub async fn explain(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        asked: impl Fn(&Job) -> bool,
    ) -> Result<Explanation, Error> {
        let job = self.job(id, job_type).await?;
        let now = self.now();
        let state = lifecycle::word(&job.life.state);
        let State::Scheduled { run_at, waiting } = job.life.state else {
            let reason = if job.life.running().is_some() {
                "an attempt is under way"
            } else {
                "it has ended"
            };
            return Ok(Explanation {
                state,
                held_by: None,
                since: job.life.started_at,
                reason: reason.into(),
                earliest_at: None,
            });
        };
        let held = |kind, name, since, reason: String, earliest_at| Explanation {
            state,
            held_by: Some(HeldBy { kind, name }),
            since,
            reason,
            earliest_at,
        };
        if waiting == Waiting::RetryDecision {
            let since = job.life.history.last().map(|entry| entry.ended_at);
            let name = if let Retry::Plugin(name, _) = &job.spec.retry {
                Some(name.to_string())
            } else {
                None
            };
            return Ok(held(
                "retry",
                name,
                since,
                "its retry strategy is being asked what follows".into(),
                None,
            ));
        }
        if run_at > now {
            let (kind, reason) = match waiting {
                Waiting::Due => ("due_time", "its due time has not come"),
                Waiting::Window { .. } => ("window", "its windows are closed"),
                Waiting::Retry | Waiting::RetryDecision => {
                    ("retry", "its next attempt is planned for later")
                }
                Waiting::Throttler => (
                    "throttler",
                    job.life
                        .deferral_reason
                        .as_deref()
                        .unwrap_or("the throttler gave it a later time"),
                ),
            };
            let by = if waiting == Waiting::Throttler {
                self.throttler_of(&job.spec.queue).await?
            } else {
                None
            };
            let since = job.life.history.last().map_or(job.spec.created_at, |entry| entry.ended_at);
            return Ok(held(kind, by, Some(since), reason.into(), Some(run_at)));
        }
        let catalog = self.catalog().await?;
        let limits = catalog.limits(&job.spec.queue);
        let view = self
            .ports
            .store
            .ledger(&job.spec.queue)
            .await?
            .map(|(head, batches)| View::new(head, batches));
        let known = view.as_ref().map(|view| view.ledger.held.clone()).unwrap_or_default();
        let since = |rule: &Rule| known.get(rule).copied().or(Some(run_at));
        if view.as_ref().is_some_and(|view| view.granted(&job.id) == Some(job.life.version)) {
            let reason = "it is admitted, and about to be handed to a worker";
            return Ok(held("worker", None, Some(run_at), reason.into(), Some(now)));
        }
        if limits.paused {
            return Ok(held(
                "paused",
                None,
                since(&Rule::Paused),
                "the queue is paused".into(),
                None,
            ));
        }
        if !asked(&job) {
            let push = catalog
                .types
                .get(&job.spec.job_type)
                .is_some_and(|item| self.is_pushed(&item.config));
            let reason = if push {
                "every delivery slot of its queue is in use"
            } else {
                "no worker asks for jobs of its type"
            };
            return Ok(held("worker", None, Some(run_at), reason.into(), None));
        }
        let verdict = self.decide(&job, &limits, view, &asked, now).await?;
        Ok(match verdict {
            Some(AdmissionDecision::Hold(hold)) => {
                let (kind, name) = match &hold.rule {
                    _ if hold.reserved => ("order", None),
                    Rule::Paused => ("paused", None),
                    Rule::Concurrency => ("concurrency", None),
                    Rule::TypeConcurrency(name) => ("type_concurrency", Some(name.to_string())),
                    Rule::Constraint(name, None) => ("constraint", Some(name.clone())),
                    Rule::Constraint(name, Some(value)) => {
                        ("constraint", Some(format!("{name} ({value})")))
                    }
                    Rule::Throttler(name) => ("throttler", Some(name.to_string())),
                };
                held(kind, name, since(&hold.rule), hold.reason, hold.earliest_at)
            }
            Some(AdmissionDecision::Move(at)) => {
                held("window", None, Some(run_at), "its windows are closed".into(), Some(at))
            }
            Some(AdmissionDecision::Run) => held(
                "worker",
                None,
                Some(run_at),
                "nothing holds it: it is about to be handed to a worker".into(),
                Some(now),
            ),
            None => held("order", None, Some(run_at), "others go before it".into(), None),
        })
    }

    /// The name of the plugin that throttles `queue`.
    async fn throttler_of(&self, queue: &QueueName) -> Result<Option<String>, Error> {
        let limits = self.catalog().await?.limits(queue);
        Ok(limits.queue.throttler.as_ref().map(|throttler| throttler.plugin.to_string()))
    }

    /// The verdict on `job`, others that somebody takes being offered before it; `None` if more go before it than a tick looks at.
    async fn decide(
        &self,
        job: &Job,
        limits: &std::sync::Arc<Limits>,
        mut view: Option<View>,
        asked: impl Fn(&Job) -> bool,
        now: Timestamp,
    ) -> Result<Option<AdmissionDecision>, Error> {
        let (usage, buckets) = match &mut view {
            Some(view) => (view.usage(limits).clone(), view.ledger.buckets.clone()),
            None => (Usage::default(), BTreeMap::new()),
        };
        let mut admission = Admission::new(limits, usage, buckets, now);
        let order = Order::of(&limits.queue);
        let types: Vec<TypeName> =
            self.catalog().await?.types_of(&job.spec.queue).map(|(name, _)| name.clone()).collect();
        let query = DueQuery {
            queue: job.spec.queue.clone(),
            critical: job.spec.critical,
            types: if types.contains(&job.spec.job_type) {
                types
            } else {
                vec![job.spec.job_type.clone()]
            },
            partition: None,
            order,
            until: now,
            after: None,
            limit: SCAN_BOUND,
        };
        let by_turns = limits.queue.partition_by.is_some() && !job.spec.critical;
        let queries = if by_turns {
            // Partitions take turns, and whoever of another goes first may reserve what this one needs.
            let turn = view.as_ref().and_then(|view| view.ledger.last_partition.as_deref());
            let names = self.partitions_in_turn(&job.spec.queue, &query.types, turn).await?;
            let limit = (SCAN_BOUND / names.len().max(1) as u32).max(1);
            names
                .into_iter()
                .map(|name| DueQuery { partition: Some(name), limit, ..query.clone() })
                .collect()
        } else {
            vec![query]
        };
        let mut lanes: Vec<_> = self
            .ports
            .store
            .due(&queries)
            .await?
            .into_iter()
            .map(|page| page.jobs.into_iter())
            .collect();
        let throttler = limits.queue.throttler.as_ref().filter(|_| !job.spec.critical).and(view);
        let mut before = Vec::new();
        // A round looks at those alone whom somebody takes.
        let mut taken: HashMap<TypeName, bool> = HashMap::from([(job.spec.job_type.clone(), true)]);
        let looked_at = |other: &Job| {
            !other.life.awaits_retry_decision()
                && match taken.get(&other.spec.job_type) {
                    Some(taken) => *taken,
                    None => {
                        *taken.entry(other.spec.job_type.clone()).or_insert_with(|| asked(other))
                    }
                }
        };
        for other in Turns::of(&mut lanes).filter(looked_at) {
            let candidate = Candidate::of(&other.spec);
            let Some(view) = &throttler else {
                let verdict = admission.try_admit(candidate);
                if other.id == job.id {
                    return Ok(Some(verdict));
                }
                continue;
            };
            // The throttler is asked about those that fit the limits one by one, as in a round.
            let (verdict, last) = (admission.check(candidate), other.id == job.id);
            if verdict == AdmissionDecision::Run
                && view.granted(&other.id) != Some(other.life.version)
            {
                before.push(other);
            }
            if last && verdict == AdmissionDecision::Run {
                let held = self.ask_about(limits, view, &job.spec.queue, &before, now).await?;
                return Ok(Some(held.map_or(AdmissionDecision::Run, AdmissionDecision::Hold)));
            }
            if last {
                return Ok(Some(verdict));
            }
        }
        // Beyond what a tick looks at from the front: the job is told what would hold it if its turn came.
        Ok(match admission.try_admit(Candidate::of(&job.spec)) {
            AdmissionDecision::Run => None,
            verdict => Some(verdict),
        })
    }
}
