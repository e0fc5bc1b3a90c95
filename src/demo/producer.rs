//! The producer: it configures the server and enqueues jobs.
//!
//! It enqueues every job without a response again, with the same id: the server may be killed at
//! any time.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    event_log::EventLog,
    plan::{JobKind, Planned, PlannedOutcome, RANKED, REPEATS, SHOP, Wave, queues},
    until_answered,
};
use crate::cli::{
    client::{Client, Error, Problem},
    context::pause,
};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, time::Timestamp};

/// The time between two jobs of the trickle.
const TRICKLE: Duration = Duration::from_millis(80);

/// The answers of the server.
#[derive(Clone, Debug, Default)]
pub struct Accepted {
    /// When each job was first sent, and when it was acknowledged, by id.
    pub jobs: HashMap<String, (Timestamp, Timestamp)>,
    /// The number of jobs enqueued twice, and how many of those the server recognised.
    pub repeats: (usize, usize),
    /// Whether all jobs are enqueued.
    pub done: bool,
}

/// One answer of a batch.
#[derive(Deserialize)]
struct Answer {
    status: u16,
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Answers {
    results: Vec<Answer>,
}

/// Enqueues jobs, and stores the answers of the server.
pub struct Producer {
    pub client: Client,
    pub accepted: Arc<Mutex<Accepted>>,
}

impl Producer {
    /// Creates the queues and the job types; pushes go to `worker` and are signed with `secret`.
    ///
    /// # Errors
    ///
    /// The server rejects a request.
    pub async fn configure(&self, worker: &str, secret: &str) -> Result<(), Error> {
        for (queue, config) in queues() {
            self.client.put(&["queues", queue]).json(&config).send().await?;
        }
        for kind in JobKind::ALL {
            self.client
                .put(&["job-types", kind.name()])
                .json(&kind.config(worker, secret))
                .send()
                .await?;
        }
        Ok(())
    }

    /// Enqueues all `jobs`: the backlog as one batch, the jobs after it, then the rest one by one. Cancels
    /// the job of the backlog that is to be cancelled before the rest; `event_log` shows when it runs.
    ///
    /// # Errors
    ///
    /// The server rejects a request.
    pub async fn run(&self, jobs: &[Planned], event_log: &EventLog) -> Result<(), Error> {
        let of = |wave| jobs.iter().filter(move |job| job.wave == wave).collect::<Vec<_>>();
        // The queue is paused until all jobs are enqueued, so that they start in the order of the
        // queue.
        self.operate(RANKED, "pause").await?;
        let backlog = of(Wave::Backlog);
        let requests: Vec<Value> =
            backlog.iter().map(|job| job.request(SystemClock.now())).collect();
        for (jobs, requests) in backlog.chunks(500).zip(requests.chunks(500)) {
            self.batch(jobs, requests).await?;
        }
        self.operate(RANKED, "resume").await?;
        for job in of(Wave::Behind) {
            self.one(job).await?;
        }
        self.again(&requests[..REPEATS.min(requests.len())]).await?;
        for job in jobs.iter().filter(|job| job.fate == PlannedOutcome::Cancelled) {
            while !event_log.read(|pages| pages.starts.iter().any(|start| start.id == job.id)) {
                pause(Duration::from_millis(20)).await;
            }
            until_answered(|| self.client.delete(&["jobs", job.kind.name(), &job.id])).await?;
        }
        for job in of(Wave::Trickle) {
            self.one(job).await?;
            pause(TRICKLE).await;
        }
        self.accepted.lock().done = true;
        Ok(())
    }

    async fn operate(&self, queue: &str, verb: &str) -> Result<(), Error> {
        until_answered(|| self.client.post(&["queues", queue, verb])).await.map(drop)
    }

    /// Enqueues a batch. A rejected job is an error of the plan.
    async fn batch(&self, jobs: &[&Planned], requests: &[Value]) -> Result<(), Error> {
        let sent = SystemClock.now();
        let body = json!({"jobs": requests});
        let answers: Answers =
            until_answered(|| self.client.post(&["jobs", "batch"]).json(&body)).await?.read()?;
        let now = SystemClock.now();
        for (job, answer) in jobs.iter().zip(answers.results) {
            if let Some(problem) = answer.error {
                return Err(Error::Problem(Box::new(problem)));
            }
            self.accepted.lock().jobs.insert(job.id.clone(), (sent, now));
        }
        Ok(())
    }

    async fn one(&self, job: &Planned) -> Result<(), Error> {
        let sent = SystemClock.now();
        let request = job.request(sent);
        until_answered(|| self.client.put(&["jobs", job.kind.name(), &job.id]).json(&request))
            .await?;
        self.accepted.lock().jobs.insert(job.id.clone(), (sent, SystemClock.now()));
        Ok(())
    }

    /// Enqueues accepted jobs once more.
    async fn again(&self, requests: &[Value]) -> Result<(), Error> {
        let body = json!({"jobs": requests});
        let answers: Answers =
            until_answered(|| self.client.post(&["jobs", "batch"]).json(&body)).await?.read()?;
        let known = answers.results.iter().filter(|answer| answer.status == 200).count();
        self.accepted.lock().repeats = (requests.len(), known);
        Ok(())
    }
}

impl Accepted {
    /// Returns the number of jobs in the limited queue that the server acknowledged before `job`
    /// was sent and that started after it.
    pub fn overtaken(
        &self,
        job: &Planned,
        jobs: &[Planned],
        begun: impl Fn(&str) -> Option<usize>,
    ) -> usize {
        let (Some((sent, _)), Some(mine)) = (self.jobs.get(&job.id), begun(&job.id)) else {
            return 0;
        };
        let before = |other: &&Planned| {
            other.kind.queue() == SHOP
                && self.jobs.get(&other.id).is_some_and(|(_, known)| known <= sent)
                && begun(&other.id).is_some_and(|place| place > mine)
        };
        jobs.iter().filter(before).count()
    }
}
