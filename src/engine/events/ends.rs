//! The ends of jobs as events, for the triggers that name their types.
//!
//! The commit that ends a job adds a job of the server's own, which carries the event: as durable as
//! the end itself, and retried until its triggers were applied. The event's id is that of the job
//! with its final state, so what a trigger makes of it is made once, however often the job runs.

use super::ingest::{HOPS_HEADER, Ingestion};
use crate::{Engine, Error, jobs::job_writes::notice};
use tidegate_core::{
    event::{
        Event, read,
        value::{Extension, HOPS},
    },
    job::{
        Encoding, Job, Payload, TypeName, Value, lifecycle::word, spec::KeepResult, trace,
        type_config::TypeConfig,
    },
    port::job_store::ItemKind,
    target::{Push, TargetConfig},
    time::{Seconds, Timestamp},
};

/// The type of the jobs that carry events about ends of jobs.
pub const END_EVENT_TYPE: &str = "tidegate.event";
/// The queue of these jobs.
pub const END_EVENT_QUEUE: &str = "tidegate.events";
/// Most attempts to apply the triggers: with the longest wait of an hour, more than three days.
const MAX_ATTEMPTS: u16 = 100;
/// Most bytes of a header that becomes an extension.
const MAX_EXTENSION_BYTES: usize = 512;

/// The configuration of the jobs that carry events. A process delivers them to itself.
pub(crate) fn end_event_type() -> TypeConfig {
    TypeConfig {
        queue: END_EVENT_QUEUE.parse().expect("it is a valid name"),
        target: Some(TargetConfig::Push(Box::new(Push::to("http://event.invalid")))),
        max_attempts: Some(MAX_ATTEMPTS),
        timeout_seconds: Seconds::new(60),
        keep_result: KeepResult::None,
        retention_seconds: Seconds::new(86_400),
        ..TypeConfig::default()
    }
}

/// The event about the end of `job` at `now`.
fn end_event(job: &Job, now: Timestamp) -> Event {
    let spec = &job.spec;
    let state = word(&job.life.state);
    let header = |name: &str| trace::named(&spec.headers, name).map(|(_, value)| value);
    let text = |name: &str| {
        let value = header(name).filter(|value| value.len() <= MAX_EXTENSION_BYTES)?;
        Some((name.to_owned(), Extension::Text(value.clone())))
    };
    let hops = header(HOPS_HEADER).and_then(|hops| hops.parse().ok());
    let hops = hops.map(|hops: i32| (HOPS.to_owned(), Extension::Whole(hops)));
    let extensions = [hops, text(trace::PARENT), text(trace::STATE)];
    let bytes = notice(job, now, Some(&spec.attributes)).into();
    Event {
        id: format!("{}.{state}", job.id),
        source: format!("/v1/jobs/{}", spec.job_type),
        event_type: format!("job.{state}"),
        subject: Some(job.id.to_string()),
        time: Some(now.to_string()),
        data_content_type: Some("application/json".into()),
        data_schema: None,
        extensions: extensions.into_iter().flatten().collect(),
        data: Some(Payload { encoding: Encoding::Json, bytes }),
    }
}

impl Engine {
    /// Whether a trigger handles ends of jobs of `job_type`, as far as this process has read.
    pub fn handles_ends_of(&self, job_type: &TypeName) -> bool {
        self.catalog.load().rules.handle_ends_of(job_type)
    }

    /// The job that carries the event about the end of `job`, if a trigger matches that.
    pub(crate) fn end_event_job(&self, job: &Job, now: Timestamp) -> Option<Job> {
        let catalog = self.catalog.load();
        let job_type = &job.spec.job_type;
        if !catalog.rules.handle_ends_of(job_type) {
            return None;
        }
        let event = end_event(job, now);
        let matches = catalog.rules.match_end(job_type, &event);
        let json = serde_json::to_string(&event).expect("an event can be written as JSON");
        matches.then(|| self.internal_job(END_EVENT_TYPE, &end_event_type(), job, json, now))
    }

    /// Applies every trigger that matches to the event that `job` carries, of the type
    /// [`END_EVENT_TYPE`]. There is one answer. After an error the job must be attempted again; a
    /// repeat makes nothing twice.
    pub async fn ingest_end(&self, job: &Job) -> Ingestion {
        self.try_ingest_end(job)
            .await
            .unwrap_or_else(|error| Ingestion { answers: vec![Err(error)], ..Ingestion::default() })
    }

    async fn try_ingest_end(&self, job: &Job) -> Result<Ingestion, Error> {
        let malformed =
            |why: &str| Error::Internal(format!("job {} carries no event: {why}", job.id));
        let data = self.data(job).await?;
        let event = read::structured(&data.bytes).map_err(|fault| malformed(&fault.message))?;
        let job_type: TypeName = match job.spec.attributes.get("type") {
            Some(Value::Text(name)) => {
                name.parse().map_err(|_| malformed("its type is no name"))?
            }
            _ => return Err(malformed("it names no type")),
        };
        let catalog = self.catalog().await?;
        catalog.refuse_partial(&[ItemKind::Trigger])?;
        let decided = catalog.rules.decide_end(&job_type, &event);
        Ok(self.ingest_decided(event, decided).await)
    }
}
