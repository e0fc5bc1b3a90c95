//! Schedules on every store: each occurrence makes one job, through restarts, crashes, other
//! engines and clock changes.

mod ahead;
mod lifecycle;
mod occurrences;
mod options;
mod random;

use std::{collections::BTreeSet, time::Duration};

use tidegate_core::{
    job::{Job, Payload, ScheduleName, type_config::TypeConfig},
    port::job_store::ListQuery,
    schedule::{ScheduleConfig, ScheduleState, occurrence_id},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{Engine, Error, Materialized, testkit::builders::name};

use super::harness::Harness;

/// The start of a harness's clock.
const START: i64 = 1_767_225_600_000;

fn beat() -> ScheduleName {
    name("beat")
}

/// A job of type `work` every ten seconds.
fn tens() -> ScheduleConfig {
    ScheduleConfig::every(name("work"), Seconds::new(10))
}

fn second(second: u64) -> Timestamp {
    Timestamp::from_millis(START) + Duration::from_secs(second)
}

impl Harness {
    async fn scheduled(self, config: ScheduleConfig) -> Self {
        self.set_type("work", TypeConfig::default()).await;
        self.put(config).await;
        self
    }

    async fn put(&self, config: ScheduleConfig) {
        self.engine.put_schedule(&beat(), config, Payload::json("{\"n\":1}"), None).await.unwrap();
    }

    /// Materializes occurrences at `at`; returns what was enqueued, and when to continue.
    async fn occur_at(&self, at: Timestamp) -> Materialized {
        self.clock.set(at);
        self.engine.materialize(Duration::ZERO).await.unwrap()
    }

    async fn jobs(&self) -> Vec<Job> {
        self.store.list(&ListQuery { limit: 1000, ..ListQuery::default() }).await.unwrap().jobs
    }

    /// The ids of all jobs.
    async fn ids(&self) -> BTreeSet<String> {
        self.jobs().await.iter().map(|job| job.id.to_string()).collect()
    }

    async fn state(&self) -> ScheduleState {
        self.engine.schedule(&beat()).await.unwrap().1
    }
}

/// The ids of the occurrences at these seconds.
fn at_seconds(seconds: impl IntoIterator<Item = u64>) -> BTreeSet<String> {
    seconds.into_iter().map(|n| occurrence_id(&beat(), second(n)).to_string()).collect()
}

fn made(occurred: &Materialized) -> Vec<String> {
    occurred.made.iter().map(|(_, enqueued)| enqueued.job.id.to_string()).collect()
}

/// The waiting jobs, with their data.
async fn waiting(harness: &Harness) -> BTreeSet<(u64, String)> {
    let jobs = harness
        .jobs()
        .await
        .into_iter()
        .filter(|job| job.life.run_at().is_some_and(|at| at > harness.now()));
    let data = |job: &Job| String::from_utf8(job.data.inline().unwrap().bytes.to_vec()).unwrap();
    jobs.map(|job| (job.life.run_at().unwrap().since(second(0)).as_secs(), data(&job))).collect()
}

/// A change of a schedule whose next jobs were enqueued ahead.
#[derive(Clone, Copy, Debug)]
enum Change {
    Data,
    Rule,
    Pause,
    Delete,
}

impl Change {
    const ALL: [Self; 4] = [Self::Data, Self::Rule, Self::Pause, Self::Delete];

    async fn make(self, engine: &Engine) -> Result<(), Error> {
        let every = |span| ScheduleConfig { every_seconds: Some(Seconds::new(span)), ..tens() };
        let put = async |span, data| {
            engine.put_schedule(&beat(), every(span), Payload::json(data), None).await.map(drop)
        };
        match self {
            Self::Data => put(10, "2").await,
            Self::Rule => put(15, "{\"n\":1}").await,
            Self::Pause => engine.pause_schedule(&beat(), true).await.map(drop),
            Self::Delete => engine.delete_schedule(&beat(), None).await,
        }
    }

    /// The waiting jobs after it, a minute ahead.
    fn leaves(self) -> BTreeSet<(u64, String)> {
        match self {
            Self::Data => minute_of(10, "2"),
            Self::Rule => minute_of(15, "{\"n\":1}"),
            Self::Pause | Self::Delete => BTreeSet::new(),
        }
    }
}

/// The jobs of the first minute, one every `span` seconds, in the form of [`waiting`].
fn minute_of(span: usize, data: &str) -> BTreeSet<(u64, String)> {
    (span as u64..=60).step_by(span).map(|at| (at, data.to_owned())).collect()
}
