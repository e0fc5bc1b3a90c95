//! The verbs as methods of the server: each asks the engine and tells the queue's task what it must know.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{Server, bulk::state_word, lease::unknown};
use crate::{
    runtime::{autoscaling, embedded::queue_task::Message},
    telemetry::metrics,
};
use tidegate_core::{
    job::{
        Job, JobId, Payload, QueueName, TraceContext, TypeName,
        type_config::{TypeConfig, TypeItem},
    },
    port::job_store::{Depth, DueQuery, ItemKind, ListPage, ListQuery, StateFilter},
    queue::{Order, QueueConfig, config::QueueItem},
    time::Timestamp,
    validate::check_lease,
};
use tidegate_engine::{
    Error, fault,
    request::{
        Beat, Cancelled, Enqueued, Explanation, Heartbeat, JobPatch, NewJob, QueueStatus,
        ReplayWith, Report,
    },
};

/// Due jobs are counted so far. Where there are more, every scheduled one is taken to be due.
const COUNTED: u32 = 1000;
/// How often a wait for a result looks at the job, in case it ended where this process is not told.
const RESULT_POLL_INTERVAL: Duration = Duration::from_secs(1);

impl Server {
    /// Accepts a job. After `Ok` it is durable.
    ///
    /// # Errors
    ///
    /// As for [`Server::enqueue_many`].
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued, Error> {
        self.enqueue_many(vec![job]).await.pop().unwrap_or_else(|| Err(unknown()))
    }

    /// Accepts jobs: one answer each, in order.
    ///
    /// Each may be refused: 400 for a bad value, 404 for an unknown type, 409 for a clash, 413 for too much data.
    pub async fn enqueue_many(&self, mut jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Error>> {
        let traced = self.inner.traces.as_ref().map(|traces| {
            let entropy = &*self.inner.engine.ports().entropy;
            let begun: Vec<_> = jobs
                .iter_mut()
                .map(|job| traces.begin(&mut job.headers, &mut job.trace, entropy))
                .collect();
            (traces, begun, self.now())
        });
        let answers = self.inner.engine.enqueue(jobs).await;
        if let Some((traces, begun, from)) = traced {
            let to = self.now();
            begun
                .iter()
                .zip(&answers)
                .for_each(|(begun, answer)| traces.enqueued(begun, answer, None, from, to));
        }
        metrics::enqueued(answers.iter().flatten());
        self.inner.on_enqueued(
            answers.iter().flatten().filter(|enqueued| enqueued.new).map(|enqueued| &enqueued.job),
        );
        answers
    }

    /// A job, of the type if one is named.
    ///
    /// # Errors
    ///
    /// 404 `job_not_found`.
    pub async fn job(&self, id: &JobId, job_type: Option<&TypeName>) -> Result<Job, Error> {
        self.inner.engine.job(id, job_type).await
    }

    /// The jobs with every body and result read in.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn load(&self, jobs: Vec<Job>) -> Result<Vec<Job>, Error> {
        self.inner.engine.load(jobs).await
    }

    /// A page of jobs, newest first; an empty one for a cursor that is none.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn list(&self, query: &ListQuery) -> Result<ListPage, Error> {
        Ok(self.inner.engine.ports().store.list(query).await?)
    }

    /// Changes a scheduled job.
    ///
    /// # Errors
    ///
    /// 404; 409 `not_scheduled` or `already_dispatched`; 412; 400 and 413 for bad values.
    pub async fn patch(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        patch: JobPatch,
        if_match: Option<u64>,
    ) -> Result<Job, Error> {
        let (before, job) = self.inner.engine.patch(id, job_type, patch, if_match).await?;
        self.inner.on_superseded(&job.spec.queue, &job, before.life.version);
        Ok(job)
    }

    /// Cancels a job.
    ///
    /// # Errors
    ///
    /// 404; 409 `ended` or `already_dispatched`.
    pub async fn cancel(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        force: bool,
    ) -> Result<Cancelled, Error> {
        let (before, cancelled) = self.inner.engine.cancel(id, job_type, force).await?;
        if cancelled.ended {
            self.inner.on_superseded(
                &cancelled.job.spec.queue,
                &cancelled.job,
                before.life.version,
            );
        }
        Ok(cancelled)
    }

    /// Settles reports: one answer each, in order, the job as it stands then.
    pub async fn report(&self, reports: Vec<Report>) -> Vec<Result<Job, Error>> {
        let queues = match self.queues_of(&reports).await {
            Ok(queues) => queues,
            Err(error) => return reports.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut answers: Vec<Option<Result<Job, Error>>> = reports.iter().map(|_| None).collect();
        let mut batches: BTreeMap<QueueName, (Vec<usize>, Vec<Report>)> = BTreeMap::new();
        for (index, (report, queue)) in reports.into_iter().zip(queues).enumerate() {
            let Some(queue) = queue else {
                answers[index] = Some(Err(Error::no_job(&report.id)));
                continue;
            };
            match self.inner.engine.prepare_report(report).await {
                Ok(report) => {
                    let (places, batch) = batches.entry(queue).or_default();
                    places.push(index);
                    batch.push(report);
                }
                Err(error) => answers[index] = Some(Err(error)),
            }
        }
        let mut pending = Vec::with_capacity(batches.len());
        for (queue, (places, batch)) in batches {
            if self.inner.serverless.is_some() {
                for (place, answer) in
                    places.into_iter().zip(self.settle_serverless(&queue, batch).await)
                {
                    answers[place] = Some(answer);
                }
                continue;
            }
            let (reply, answer) = oneshot::channel();
            self.inner.queue(&queue).send(Message::Reports(batch, reply));
            pending.push((places, answer));
        }
        for (places, answer) in pending {
            let settled = answer.await.unwrap_or_default();
            let mut settled = settled.into_iter();
            for place in places {
                answers[place] = Some(settled.next().unwrap_or_else(|| Err(unknown())));
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unknown()))).collect()
    }

    /// The queue of each report's job.
    pub(super) async fn queues_of(
        &self,
        reports: &[Report],
    ) -> Result<Vec<Option<QueueName>>, Error> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<JobId> = reports.iter().map(|report| report.id.clone()).collect();
        let jobs = self.inner.engine.cached_jobs(&ids).await?;
        Ok(jobs.into_iter().map(|job| job.map(|job| job.spec.queue.clone())).collect())
    }

    /// Extends the lease of a running attempt.
    ///
    /// # Errors
    ///
    /// 400 for a lease out of bounds; 404; 409 `stale_attempt`; 403.
    pub async fn heartbeat(&self, beat: Heartbeat) -> Result<Beat, Error> {
        beat.lease_seconds.map_or(Ok(()), check_lease).map_err(fault)?;
        self.inner.engine.heartbeat(beat).await
    }

    /// A new job that does the same again, now; or the one that the same request made before.
    ///
    /// # Errors
    ///
    /// 404; 409 `job_not_finished`; as for enqueue.
    pub async fn replay(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        mut with: ReplayWith,
        idempotency_key: Option<String>,
    ) -> Result<Enqueued, Error> {
        let (engine, from) = (&self.inner.engine, self.now());
        let entropy = &*engine.ports().entropy;
        let traces = self.inner.traces.as_ref();
        let traced = traces
            .map(|traces| (traces, traces.begin(&mut BTreeMap::new(), &mut with.trace, entropy)));
        let answer = engine.replay(id, job_type, with, idempotency_key).await;
        if let Some((traces, begun)) = traced {
            let to = self.now();
            let replayed = engine
                .job(id, job_type)
                .await
                .ok()
                .and_then(|job| TraceContext::of(&job.spec.headers));
            traces.enqueued(&begun, &answer, replayed, from, to);
        }
        let enqueued = answer?;
        self.inner.on_enqueued([&enqueued.job]);
        Ok(enqueued)
    }

    /// The result of a job, waiting for its end for at most `wait` (0 to 60 s): `Some(None)` if it has
    /// none (any more); `None` if the wait ended first. Without a wait, a job that has not ended has none yet.
    ///
    /// # Errors
    ///
    /// 404; 400 for a longer wait.
    pub async fn result(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        wait: Duration,
    ) -> Result<Option<Option<Payload>>, Error> {
        self.result_if(id, job_type, wait, |_| true).await
    }

    /// The same, but a result that may be read once and does not `fit` where it goes stays to be read.
    ///
    /// # Errors
    ///
    /// As for [`Server::result`].
    pub async fn result_if(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        wait: Duration,
        fits: impl Fn(&Payload) -> bool,
    ) -> Result<Option<Option<Payload>>, Error> {
        if wait > Duration::from_mins(1) {
            return Err(Error::invalid("wait", "must be 0 to 60"));
        }
        let engine = &self.inner.engine;
        let until = engine.now() + wait;
        loop {
            let notify = self.inner.waiters.of(id);
            let told = notify.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let job = engine.job(id, job_type).await?;
            if job.life.ended().is_some() {
                return engine.take_result_if(&job, fits).await.map(Some);
            }
            let now = engine.now();
            if now >= until {
                return Ok(wait.is_zero().then_some(None));
            }
            tokio::select! {
                () = told => {}
                () = engine.ports().clock.sleep_until(until.min(now + RESULT_POLL_INTERVAL)) => {}
            }
        }
    }

    /// Why a job waits.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn explain(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
    ) -> Result<Explanation, Error> {
        let engine = Arc::clone(&self.inner.engine);
        let catalog = engine.catalog().await?;
        let inner = Arc::clone(&self.inner);
        let asked = move |job: &Job| {
            // Who asks elsewhere is not known here: whoever wants jobs of the type is taken to be there.
            if inner.serverless.is_some() {
                return true;
            }
            let shown = inner.queue(&job.spec.queue).shown.lock().clone();
            let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
            if let Some(handler) = inner.handlers.get(&job.spec.job_type) {
                return handler.concurrency
                    > shown.handling.get(&job.spec.job_type).copied().unwrap_or(0);
            }
            if config.is_some_and(|config| inner.engine.is_pushed(config)) {
                return shown.push_free.unwrap_or(1) > 0;
            }
            shown.wanted.get(&job.spec.job_type).is_some_and(|wanted| *wanted > 0)
        };
        engine.explain(id, job_type, asked).await
    }

    /// Sets a queue's configuration as a whole; whether it is new.
    ///
    /// # Errors
    ///
    /// 400; 403; 412 if `if_match` is not its version.
    pub async fn put_queue(
        &self,
        name: &QueueName,
        config: QueueConfig,
        if_match: Option<u64>,
    ) -> Result<(QueueItem, bool), Error> {
        let done = self.inner.engine.put_queue(name, config, if_match).await?;
        self.inner.wake(name);
        Ok(done)
    }

    /// A queue's configuration.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn queue(&self, name: &QueueName) -> Result<QueueItem, Error> {
        self.inner.engine.queue(name).await
    }

    /// Every configured queue, and the default one, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn queues(&self) -> Result<Vec<(QueueName, QueueItem)>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        let mut queues: BTreeMap<QueueName, QueueItem> =
            catalog.queues.iter().map(|(name, item)| (name.clone(), item.clone())).collect();
        queues
            .entry(tidegate_engine::config::configure::DEFAULT_QUEUE.parse().expect("a good name"))
            .or_default();
        Ok(queues.into_iter().collect())
    }

    /// What a queue looks like: depth, running weight, what holds its candidates, the workers it could use.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn queue_status(&self, name: &QueueName) -> Result<QueueStatus, Error> {
        let depth = self.inner.engine.ports().store.depth().await?;
        self.status_in(name, &depth).await
    }

    /// The same of many queues, for one look at the depth of all; none for one that is not there.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn queue_statuses<'a>(
        &self,
        names: impl Iterator<Item = &'a QueueName> + Send,
    ) -> Result<Vec<Option<QueueStatus>>, Error> {
        let depth = self.inner.engine.ports().store.depth().await?;
        let mut statuses = Vec::new();
        for name in names {
            statuses.push(match self.status_in(name, &depth).await {
                Ok(status) => Some(status),
                Err(Error::NotFound { .. }) => None,
                Err(error) => return Err(error),
            });
        }
        Ok(statuses)
    }

    async fn status_in(&self, name: &QueueName, depths: &[Depth]) -> Result<QueueStatus, Error> {
        let engine = &self.inner.engine;
        engine.queue(name).await?;
        let catalog = engine.catalog().await?;
        let mut depth: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut types: Vec<TypeName> =
            catalog.types_of(name).map(|(name, _)| name.clone()).collect();
        let mut waiting = BTreeMap::new();
        for one in depths.iter().filter(|one| one.queue == *name) {
            *depth.entry(state_word(one.state)).or_default() += one.jobs;
            if one.state == StateFilter::Scheduled && one.jobs > 0 {
                if !types.contains(&one.job_type) {
                    types.push(one.job_type.clone());
                }
                waiting.insert(one.job_type.clone(), one.jobs);
            }
        }
        let now = engine.now();
        let due = engine.ports().store.count_due(name, &types, now, COUNTED).await?;
        let oldest = if due.is_empty() { None } else { self.oldest_due(name, &types, now).await? };
        let shown = match &self.inner.serverless {
            Some(_) => crate::runtime::serverless::snapshot(engine, name).await?,
            None => self.inner.queue(name).shown.lock().clone(),
        };
        let whole = due.values().sum::<u64>() < COUNTED.into();
        let backlog = if whole { due } else { waiting };
        let desired_workers =
            autoscaling::desired_workers(&catalog, name, &backlog, shown.mean_run_seconds);
        Ok(QueueStatus {
            depth,
            running_weight: shown.running_weight,
            oldest_due_at: oldest,
            held: shown.held,
            desired_workers,
            lateness_seconds: shown.mean_lateness_seconds,
            constraints: engine.constraints_in_use(name).await?,
        })
    }

    /// When the job is due that waits the longest.
    async fn oldest_due(
        &self,
        name: &QueueName,
        types: &[TypeName],
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let (order, types) = (Order::Time { step_millis: 0 }, types.to_vec());
        let query = DueQuery {
            queue: name.clone(),
            critical: false,
            types,
            partition: None,
            order,
            until: now,
            after: None,
            limit: 1,
        };
        let queries = [DueQuery { critical: true, ..query.clone() }, query];
        let pages = self.inner.engine.ports().store.due(&queries).await?;
        Ok(pages.iter().filter_map(|page| page.jobs.first()?.life.run_at()).min())
    }

    /// Removes a queue's configuration.
    ///
    /// # Errors
    ///
    /// 404; 409 `queue_has_live_jobs` or `queue_in_use`; 412.
    pub async fn delete_queue(&self, name: &QueueName, if_match: Option<u64>) -> Result<(), Error> {
        self.inner.engine.delete_queue(name, if_match).await
    }

    /// Pauses a queue, or lets it go on.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn pause_queue(&self, name: &QueueName, paused: bool) -> Result<QueueItem, Error> {
        let item = self.inner.engine.pause_queue(name, paused).await?;
        self.inner.wake(name);
        Ok(item)
    }

    /// Sets a type's configuration as a whole; whether it is new.
    ///
    /// # Errors
    ///
    /// 400; 403; 404 `queue_not_found`; 409 `type_has_live_jobs`; 412.
    pub async fn put_type(
        &self,
        name: &TypeName,
        config: TypeConfig,
        if_match: Option<u64>,
    ) -> Result<(TypeItem, bool), Error> {
        let left =
            self.inner.engine.job_type(name).await.ok().map(|item| item.config.queue.clone());
        let (item, new) = self.inner.engine.put_type(name, config, if_match).await?;
        self.inner.wake(&item.config.queue);
        // The queue that it left has one type less to look for.
        if let Some(left) = left.filter(|left| *left != item.config.queue) {
            self.inner.wake(&left);
        }
        Ok((item, new))
    }

    /// A type's configuration.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn job_type(&self, name: &TypeName) -> Result<TypeItem, Error> {
        self.inner.engine.job_type(name).await.map(|item| (*item).clone())
    }

    /// Every type, by name; the server's own are left out.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn job_types(&self) -> Result<Vec<(TypeName, TypeItem)>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        let types =
            catalog.types.iter().filter(|(name, _)| !name.as_str().starts_with("tidegate."));
        let types: BTreeMap<TypeName, TypeItem> =
            types.map(|(name, item)| (name.clone(), (**item).clone())).collect();
        Ok(types.into_iter().collect())
    }

    /// Removes a type.
    ///
    /// # Errors
    ///
    /// 404; 409 `type_has_live_jobs`; 412.
    pub async fn delete_type(&self, name: &TypeName, if_match: Option<u64>) -> Result<(), Error> {
        let left = self.inner.engine.job_type(name).await?.config.queue.clone();
        self.inner.engine.delete_type(name, if_match).await?;
        self.inner.wake(&left);
        Ok(())
    }

    /// Stores a token's item.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn put_token(&self, id: &str, json: Vec<u8>) -> Result<(), Error> {
        self.inner.engine.put_item(ItemKind::Token, id, Some(json)).await?;
        self.publish_tokens().await
    }

    /// Has `tell` told the items of all tokens after every change of one, before the change is answered.
    pub fn watch_tokens(&self, tell: impl Fn(Vec<Vec<u8>>) + Send + Sync + 'static) {
        *self.inner.tokens.lock() = Some(Arc::new(tell));
    }

    /// Reads the tokens anew, for whoever [watches](Self::watch_tokens) them: another process may have changed one.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn publish_tokens(&self) -> Result<(), Error> {
        let tell = self.inner.tokens.lock().clone();
        if let Some(tell) = tell {
            tell(self.tokens().await?);
        }
        Ok(())
    }

    /// The items of all tokens.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn tokens(&self) -> Result<Vec<Vec<u8>>, Error> {
        Ok(self
            .inner
            .engine
            .ports()
            .store
            .items(ItemKind::Token)
            .await?
            .into_iter()
            .map(|item| item.bytes)
            .collect())
    }

    /// Removes a token; whether there was one.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn delete_token(&self, id: &str) -> Result<bool, Error> {
        let there = self
            .inner
            .engine
            .ports()
            .store
            .items(ItemKind::Token)
            .await?
            .iter()
            .any(|item| item.name == id);
        if there {
            self.inner.engine.put_item(ItemKind::Token, id, None).await?;
            self.publish_tokens().await?;
        }
        Ok(there)
    }
}
