//! Clients: they enqueue, change and cancel jobs, and reply to them.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    event::trigger::{Reply, TriggerOutcome},
    job::{
        Job, JobId, Payload, Value,
        lifecycle::ReplyId,
        spec::{Unique, UniqueWhile},
        unique::{Debounce, MergePolicy, OnConflict},
    },
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Engine, Error,
    events::reply::ReplyMatches,
    request::{JobPatch, NewJob, ReplayWith, WorkerStatus},
    testkit::builders::name,
};

use super::{
    super::model::ProcessNumber, FAULT_PERIOD, PLAIN_TYPE, TIME_OFF, World,
    owner::every_other_minute, unclaimed::EngineProcess,
};

impl World {
    pub(super) fn start_clients(self: &Arc<Self>) {
        for index in 0..self.config.jobs {
            let at = self.instant_for_client(0.8);
            let world = Arc::clone(self);
            self.scheduler.spawn(async move {
                world.scheduler.elapse_until(at).await;
                world.enqueue(index).await;
            });
        }
        for _ in 0..self.config.jobs / 2 {
            let at = self.instant_for_client(1.0);
            let world = Arc::clone(self);
            self.scheduler.spawn(async move {
                world.scheduler.elapse_until(at).await;
                world.act_as_client().await;
            });
        }
        for _ in 0..self.config.jobs / 2 {
            let at = self.instant_for_client(1.0);
            let world = Arc::clone(self);
            self.scheduler.spawn(async move {
                world.scheduler.elapse_until(at).await;
                world.answer().await;
            });
        }
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.change_limits().await });
    }

    /// An instant in the first `part` of the fault period. If ticks are off for a day in it, some
    /// clients act during that day, and some after it.
    fn instant_for_client(&self, part: f64) -> Timestamp {
        let s = &self.scheduler;
        let at = s.now() + s.span(FAULT_PERIOD.as_secs_f64() * part);
        match self.ticks_off {
            Some((off_at, _)) if off_at < at && s.happens(0.5) => at + TIME_OFF,
            _ => at,
        }
    }

    /// Another system replies to a job by its correlation key: before, during or after its attempt,
    /// one or several times.
    async fn answer(&self) {
        let s = &self.scheduler;
        let said = if s.happens(0.6) {
            TriggerOutcome::Succeeded(Some(Payload::json("1")))
        } else {
            TriggerOutcome::Failed {
                message: Some("no".into()),
                details: None,
                retryable: s.happens(0.8),
            }
        };
        let reply = Reply {
            id: ReplyId(s.draw(1_000_000) as u128),
            job_type: name(s.pick(self.job_types())),
            correlation_key: format!("key-{}", s.draw(4)),
            attempt: s.pick(&[None, None, None, Some(1), Some(2)]),
            said,
        };
        let mut stored = false;
        for _ in 0..6 {
            let ReplyMatches { mut answers, changed } =
                self.any_engine().reply(std::slice::from_ref(&reply)).await;
            for (job, version) in changed {
                self.hint(&job, version);
            }
            match answers.pop().expect("one answer each") {
                Ok(answered) => {
                    stored = true;
                    self.model.lock().answered(reply.id, &answered);
                }
                Err(Error::Unavailable { .. }) => {}
                Err(error) => panic!("a reply was answered with {error:?}"),
            }
            if stored && !s.happens(0.3) {
                return;
            }
            s.elapse(Duration::from_millis(300)).await;
        }
    }

    async fn enqueue(&self, index: usize) {
        let s = &self.scheduler;
        let now = s.now();
        // Few start in the short time before the first limit, so there are more of them.
        let plain = self.config.late_limit && s.happens(0.3);
        let job_type = if plain { PLAIN_TYPE } else { s.pick(self.job_types()) };
        let mut job = NewJob::new(name(job_type), Payload::null());
        job.id = Some(name(&format!("j{index}")));
        job.options.priority = Some(s.pick(&[1, 5, 100]));
        job.options.weight = Some(s.pick(&[0, 1, 1, 1, 2, 3]));
        job.options.critical = s.happens(0.1);
        job.options
            .attributes
            .insert("tenant".into(), Value::Text(s.pick(&["a", "b", "c"]).into()));
        if s.happens(0.5) {
            job.options
                .attributes
                .insert("region".into(), Value::Text(s.pick(&["east", "west"]).into()));
        }
        job.run_at =
            s.pick(&[None, None, Some(5), Some(20)]).map(|later| now + Duration::from_secs(later));
        job.expires_at = s.happens(0.1).then(|| now + Duration::from_secs(10) + s.span(60.0));
        job.options.deadline_seconds =
            s.happens(0.1).then(|| Seconds::from_millis(20_000 + s.draw(100_000) as u64));
        job.options.windows = s.happens(0.15).then(every_other_minute);
        job.options.callback_url =
            s.happens(0.3).then(|| "http://127.0.0.1:1/callback".parse().expect("a URL"));
        job.correlation_key = s.happens(0.2).then(|| format!("key-{}", s.draw(4)));
        if job.correlation_key.is_none() && s.happens(0.3) {
            job.data = Payload::json(format!("{index}"));
            job.options.unique = Some(self.merging_rule());
            if job.options.unique.as_ref().is_some_and(|unique| unique.debounce.is_some()) {
                job.run_at = None;
            }
        }
        for _ in 0..4 {
            let answer =
                self.any_engine().enqueue(vec![job.clone()]).await.pop().expect("one answer each");
            match answer {
                Ok(enqueued) => {
                    self.request_tick(enqueued.job.life.run_at().unwrap_or(now));
                    if let Some(merged) = enqueued.merged {
                        self.hint(&enqueued.job, merged.left);
                        self.model.lock().merged(&job, &enqueued);
                    }
                    if enqueued.new || enqueued.job.id.as_str() == format!("j{index}") {
                        self.model.lock().accept(&enqueued.job.id);
                        self.in_flight.lock().jobs.push(enqueued.job.id);
                    }
                    return;
                }
                Err(Error::Unavailable { .. }) => s.elapse(Duration::from_millis(300)).await,
                Err(Error::Conflict { .. } | Error::Invalid { .. }) => return,
                Err(error) => panic!("an enqueue was answered with {error:?}"),
            }
        }
    }

    /// A rule by which a waiting job takes the requests of others.
    fn merging_rule(&self) -> Unique {
        let s = &self.scheduler;
        let hold = s.pick(&[UniqueWhile::Scheduled, UniqueWhile::Live]);
        let rule = Unique::new(format!("u-{}", s.draw(3)), hold);
        if s.happens(0.4) {
            return Unique { on_conflict: OnConflict::Replace, ..rule };
        }
        let (seconds, max_seconds) = (Seconds::new(8), Seconds::new(20));
        let merge = s.pick(&[MergePolicy::Last, MergePolicy::Last, MergePolicy::First]);
        Unique { debounce: Some(Debounce { seconds, max_seconds, merge }), ..rule }
    }

    /// A client replays a job, and repeats the call if its answer was lost, or in doubt.
    async fn replay(&self, engine: &Engine, id: &JobId) {
        let s = &self.scheduler;
        for _ in 0..4 {
            match engine.replay(id, None, ReplayWith::default(), None).await {
                Ok(enqueued) => {
                    self.request_tick(enqueued.job.life.run_at().unwrap_or(s.now()));
                    self.model.lock().replayed(id, &enqueued);
                    self.in_flight.lock().jobs.push(enqueued.job.id);
                    if s.happens(0.7) {
                        return;
                    }
                }
                Err(Error::Unavailable { .. }) => {}
                Err(_) => return,
            }
            s.elapse(Duration::from_millis(300)).await;
        }
    }

    /// A bulk operation cancels, changes or drops several jobs, which it read some time ago.
    async fn act_in_bulk(&self, process: ProcessNumber, engine: &Engine, jobs: &[JobId]) {
        let s = &self.scheduler;
        let ids: Vec<JobId> = (0..=s.draw(4)).map(|_| jobs[s.draw(jobs.len())].clone()).collect();
        let Ok(read) = engine.ports().store.get(&ids).await else { return };
        let read: Vec<Job> = read.into_iter().flatten().flatten().collect();
        if s.happens(0.5) {
            s.elapse(Duration::from_millis(200)).await;
        }
        let altered = match s.draw(3) {
            0 => {
                let cancelled = engine.cancel_each(read, false, &|_, _| true).await.into_iter();
                cancelled.map(|answer| answer.map(|(before, after)| (before, after.job))).collect()
            }
            1 => {
                let run_at = Some(s.now() + Duration::from_secs(4));
                let patch = JobPatch { run_at, ..JobPatch::default() };
                engine.patch_each(read, patch, &|_, _| true).await.unwrap_or_default()
            }
            _ => engine.drop_each(read, "purged", &|_, _| true).await,
        };
        for (before, after) in altered.into_iter().flatten() {
            self.model.lock().change(process, &before, &after);
            self.hint(&after, before.life.version);
            self.request_tick(after.life.run_at().unwrap_or(s.now()));
        }
    }

    /// A client changes, cancels, drops, replays or explains some job.
    async fn act_as_client(self: &Arc<Self>) {
        let s = &self.scheduler;
        let jobs = self.in_flight.lock().jobs.clone();
        if jobs.is_empty() {
            return;
        }
        let id = &jobs[s.draw(jobs.len())];
        let EngineProcess { number: process, engine } = self.changing_process();
        match s.draw(5) {
            0 => {
                let run_at = s
                    .pick(&[None, Some(0), Some(4), Some(15)])
                    .map(|later| s.now() + Duration::from_secs(later));
                let patch = JobPatch {
                    run_at,
                    priority: s.happens(0.5).then_some(Some(2)),
                    ..JobPatch::default()
                };
                if let Ok((before, after)) = engine.patch(id, None, patch, None).await {
                    self.model.lock().change(process, &before, &after);
                    self.hint(&after, before.life.version);
                    self.request_tick(after.life.run_at().unwrap_or(s.now()));
                }
            }
            1 => {
                let force = s.happens(0.4);
                if let Ok((before, cancelled)) = engine.cancel(id, None, force).await {
                    self.model.lock().change(process, &before, &cancelled.job);
                    self.hint(&cancelled.job, before.life.version);
                }
            }
            2 => self.act_in_bulk(process, &engine, &jobs).await,
            3 => self.replay(&engine, id).await,
            _ => {
                if let Ok(job) = engine.job(id, None).await
                    && let Ok(explained) = engine.explain(&job, &|_| WorkerStatus::default()).await
                    && explained.state == "scheduled"
                {
                    assert!(
                        explained.held_by.is_some(),
                        "a waiting job has an explanation: {explained:?}"
                    );
                }
            }
        }
    }
}
