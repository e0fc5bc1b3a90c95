//! `enqueue`: a job is accepted once, whatever is repeated.
//!
//! A job's keys are written before the job, and the job before the answer. A key that is taken leads
//! to its holder: a live one makes a clash (or, for `unique` and repeats, the answer), an ended one
//! gives the key up by compare-and-set.
//!
//! A job is added only while its type is as it was resolved under: a type that has moved to another queue
//! since, or is gone, makes the job be resolved anew.

use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidegate_core::error_code::ErrorCode;

use serde::Serialize;
use sha2::{Digest, Sha256};
use url::Url;

use crate::{
    Engine, Error,
    config::catalog::Catalog,
    ids,
    plugins::registry::Checked,
    request::{Enqueued, NewJob},
};
use tidegate_core::{
    calendar::window::{self, Window},
    job::{
        Attributes, Body, Job, JobId, JobOptions, Lifecycle, Payload, Revision, Spec, State,
        TypeName,
        extract::{TEXT_BYTES, extract},
        lifecycle::Waiting,
        name::ROUTE_WORDS,
        payload::MAX_DEPTH,
        retry::Retry,
        spec::{KeepResult, Unique, UniqueWhile},
        trace,
        type_config::{TypeConfig, TypeItem},
    },
    port::{
        Committed, Txn, Write,
        job_store::{CurrentRecord, Expect, ItemKind, Key},
    },
    time::{Seconds, Timestamp},
    validate,
};

/// The digest of a request that has no name to be repeated under: neither an id nor a key of its own.
const UNNAMED: [u8; 16] = [0; 16];
/// How often a key may change hands, or the type change, while one enqueue wants it.
const KEY_TRIES: usize = 8;

/// What is written with a job: the job is added if all of it can be, and where transactions are atomic only then.
#[derive(Clone, Default)]
pub(crate) struct With {
    /// What must stand before the job is added.
    pub require: Vec<Write>,
    /// What is written after it. Of items only.
    pub then: Vec<Write>,
    /// The revision that the job begins with, if it is not to be the first.
    pub revision: Option<Revision>,
}

/// A job on its way into the store.
struct EnqueueItem {
    index: usize,
    with: With,
    /// What was asked for, in case it is to be resolved anew.
    asked: NewJob,
    job: Job,
    /// The version of its type that it was resolved under.
    type_version: u64,
    keys: Keys,
}

/// The keys of a job, and what they must point at.
type Keys = Vec<(Key, Expect<JobId>)>;

impl EnqueueItem {
    /// What adds the job: what it requires, its type as it was, its keys, itself, and what follows it.
    fn writes(&self) -> Txn {
        let (kind, name) = (ItemKind::Type, self.job.spec.job_type.to_string());
        let mut writes = Vec::with_capacity(
            self.with.require.len() + self.keys.len() + 2 + self.with.then.len(),
        );
        writes.extend_from_slice(&self.with.require);
        writes.push(Write::RequireItem { kind, name, version: self.type_version });
        let keys = self.keys.iter();
        writes.extend(keys.map(|(key, was)| Write::SetKey {
            key: key.clone(),
            job: self.job.id.clone(),
            was: was.clone(),
        }));
        writes.push(Write::AddJob(self.job.clone()));
        writes.extend_from_slice(&self.with.then);
        writes
    }

    /// Which part of its writes number `step` is.
    fn part(&self, step: usize) -> Part {
        match step.checked_sub(self.with.require.len()) {
            Some(0) => Part::Type,
            Some(step) if step <= self.keys.len() => Part::Key(step - 1),
            Some(step) if step == self.keys.len() + 1 => Part::Job,
            _ => Part::With,
        }
    }
}

/// A part of an entry's writes that may be refused.
enum Part {
    Type,
    Key(usize),
    Job,
    With,
}

impl Engine {
    /// Accepts jobs: one answer each, in order. After `Ok` a job is durable.
    ///
    /// Repeating a call is harmless where the job has an id or an idempotency key.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Error>> {
        self.enqueue_with(jobs, Vec::new()).await
    }

    /// The same, each with the writes that stand in its place in `with`, as far as that goes: if one of those is refused, so
    /// is the job, with [`Error::Stale`]. Where the answer is a job that was there before, what was to follow is not written.
    pub(crate) async fn enqueue_with(
        &self,
        jobs: Vec<NewJob>,
        with: Vec<With>,
    ) -> Vec<Result<Enqueued, Error>> {
        let mut answers: Vec<Option<Result<Enqueued, Error>>> = jobs.iter().map(|_| None).collect();
        let mut catalog = match self.catalog().await {
            Ok(catalog) => catalog,
            Err(error) => return jobs.iter().map(|_| Err(error.clone())).collect(),
        };
        let now = self.now();
        let mut entries = Vec::with_capacity(jobs.len());
        let mut with = with.into_iter();
        let mut checked = Checked::default();
        for (index, job) in jobs.into_iter().enumerate() {
            let with = with.next().unwrap_or_default();
            match self.entry(&job, &mut catalog, &mut checked, now).await {
                Ok((mut made, type_version, keys)) => {
                    made.life.revision = with.revision.unwrap_or(made.life.revision);
                    entries.push(EnqueueItem {
                        index,
                        with,
                        asked: job,
                        job: made,
                        type_version,
                        keys,
                    });
                }
                Err(error) => {
                    answers[index] = Some(Box::pin(self.unless_repeated(&job, error)).await);
                }
            }
        }
        for _ in 0..KEY_TRIES {
            if entries.is_empty() {
                break;
            }
            entries = self.insert(entries, &mut answers).await;
        }
        for entry in entries {
            let message = "its type or its keys changed too often".to_owned();
            let refused =
                Err(Error::Conflict { code: ErrorCode::ConcurrentUpdate, message, holder: None });
            Box::pin(self.forget_refused(&entry.job.data, &refused)).await;
            answers[entry.index] = Some(refused);
        }
        answers
            .into_iter()
            .map(|answer| {
                answer.unwrap_or_else(|| Err(Error::Internal("an enqueue went unanswered".into())))
            })
            .collect()
    }

    /// One attempt to insert `entries`; those whose keys were given up by ended jobs, or whose type changed, come back.
    async fn insert(
        &self,
        entries: Vec<EnqueueItem>,
        answers: &mut [Option<Result<Enqueued, Error>>],
    ) -> Vec<EnqueueItem> {
        let txns: Vec<Txn> = entries.iter().map(EnqueueItem::writes).collect();
        let committed = match self.ports.store.commit(txns).await {
            Ok(committed) => committed,
            Err(error) => {
                for entry in entries {
                    answers[entry.index] = Some(Err(error.clone().into()));
                }
                return Vec::new();
            }
        };
        let mut again = Vec::new();
        for (mut entry, outcome) in entries.into_iter().zip(committed) {
            let (index, body) = (entry.index, entry.job.data.clone());
            let answer = match outcome {
                Committed::All => Some(Ok(Enqueued { job: entry.job, new: true })),
                Committed::Conflict { standing: CurrentRecord::Job(there), .. } => {
                    Some(same_request(&entry.job, *there))
                }
                Committed::Conflict { step, standing } => match (entry.part(step), standing) {
                    (Part::Key(key), CurrentRecord::Key { job, since }) => {
                        match Box::pin(self.contend(&mut entry, key, job, since)).await {
                            Ok(None) => {
                                again.push(entry);
                                None
                            }
                            Ok(Some(enqueued)) => Some(Ok(enqueued)),
                            Err(error) => Some(Err(error)),
                        }
                    }
                    (Part::Key(key), _) => {
                        // The key was freed since: ask again for an absent one.
                        entry.keys[key].1 = Expect::Absent;
                        again.push(entry);
                        None
                    }
                    (Part::Type, _) => match Box::pin(self.resolve_anew(&mut entry)).await {
                        Ok(()) => {
                            again.push(entry);
                            None
                        }
                        Err(error) => Some(Err(error)),
                    },
                    // What stood there is gone by now.
                    (Part::Job, _) => {
                        again.push(entry);
                        None
                    }
                    (Part::With, standing) => {
                        let version = if let CurrentRecord::Version(version) = standing {
                            version
                        } else {
                            0
                        };
                        Some(Err(Error::Stale { version }))
                    }
                },
            };
            if let (Body::Object { .. }, Some(answer)) = (&body, &answer) {
                Box::pin(self.forget_refused(&body, answer)).await;
            }
            answers[index] = answer;
        }
        again
    }

    /// What follows when key `step` of `entry` points at `holder` since then: the job is there already, the holder is the answer,
    /// it is a clash, or (`None`) the key can be had and `entry` says so now.
    async fn contend(
        &self,
        entry: &mut EnqueueItem,
        step: usize,
        holder: JobId,
        since: Option<Timestamp>,
    ) -> Result<Option<Enqueued>, Error> {
        let (key, was) = &mut entry.keys[step];
        let mut found = self.ports.store.get(&[entry.job.id.clone(), holder.clone()]).await?;
        let standing = found.pop().flatten();
        // A repeat is answered by its id, whoever has come to hold its keys since.
        if let Some(there) = found.pop().flatten() {
            return same_request(&entry.job, there).map(Some);
        }
        let Some(standing) = standing else {
            // A key without its job: pruned, or its enqueue is under way and may still insert. Where that can be,
            // the job is inserted under the id that the key fixed; the slow first one then finds it taken. An id that
            // somebody gave stands for his request alone: he waits, or is waited for.
            if holder != entry.job.id && self.may_be_under_way(since) {
                if entry.asked.id.is_some() || !ids::is_drawn(&holder) {
                    let message = format!("job {holder} is being added under the same key");
                    return Err(Error::Unavailable {
                        retry_after: Duration::from_secs(1),
                        message,
                    });
                }
                entry.job.id = holder.clone();
            }
            *was = Expect::Is(holder);
            return Ok(None);
        };
        let ended = standing.life.ended().is_some();
        let holds = match key {
            Key::Idempotency(_) => {
                return if standing.spec.request_digest == entry.job.spec.request_digest {
                    Ok(Some(Enqueued { job: standing, new: false }))
                } else {
                    let message = "another request was sent with this idempotency key".to_owned();
                    Err(Error::Conflict {
                        code: ErrorCode::IdempotencyKeyReused,
                        message,
                        holder: Some(holder),
                    })
                };
            }
            Key::Correlation(..) => !ended,
            Key::Unique(..) => {
                let unique = standing.spec.unique.as_ref();
                let in_period =
                    unique.and_then(|unique| unique.period_seconds).is_some_and(|period| {
                        entry.job.spec.created_at < standing.spec.created_at + period.duration()
                    });
                in_period
                    || match unique.map(|unique| unique.hold) {
                        Some(UniqueWhile::Scheduled) => {
                            matches!(standing.life.state, State::Scheduled { .. })
                                && standing.life.attempt == 0
                        }
                        Some(UniqueWhile::Live) | None => !ended,
                    }
            }
        };
        if !holds {
            if matches!(key, Key::Correlation(..)) {
                entry.job.life.inherit_replies(&standing.life);
            }
            *was = Expect::Is(holder);
            return Ok(None);
        }
        if matches!(key, Key::Unique(..)) {
            return Ok(Some(Enqueued { job: standing, new: false }));
        }
        Err(correlation_key_taken(holder))
    }

    /// Whether who pointed a key at a job that is not there, at `since`, may still add it. Clocks differ by less than a flight.
    fn may_be_under_way(&self, since: Option<Timestamp>) -> bool {
        let flight = self.ports.store.capabilities().atomicity.max_in_flight_write();
        !flight.is_zero() && since.is_none_or(|since| self.now() < since + 2 * flight)
    }

    /// The job that `new` asks for, with everything resolved and checked, and its keys.
    /// What is rare is boxed, so that it takes no room in the future of every enqueue.
    async fn entry(
        &self,
        new: &NewJob,
        catalog: &mut Arc<Catalog>,
        checked: &mut Checked,
        now: Timestamp,
    ) -> Result<(Job, u64, Keys), Error> {
        let job_type = self.type_of(&new.job_type, catalog).await?;
        let digest = if new.is_repeatable() { digest(new) } else { UNNAMED };
        let mut keys = Vec::new();
        if let Some(key) = &new.idempotency_key {
            keys.push((Key::Idempotency(key.clone()), Expect::Absent));
        }
        if let Some(key) = &new.correlation_key {
            keys.push((Key::Correlation(new.job_type.clone(), key.clone()), Expect::Absent));
        }
        if let Some(unique) = &new.options.unique {
            keys.push((Key::Unique(new.job_type.clone(), unique.key.clone()), Expect::Absent));
        }
        if let Some(retry @ Retry::Plugin(..)) =
            new.options.retry.as_ref().filter(|retry| **retry != job_type.config.retry)
        {
            Box::pin(self.check_retry(catalog, retry, checked)).await?;
        }
        let mut job = self.resolve(new, catalog, &job_type, digest, now)?;
        if let Some(large) = job
            .data
            .inline()
            .filter(|payload| payload.bytes.len() > self.rules.object_bytes)
            .cloned()
        {
            job.data = Box::pin(self.put_object(large)).await?;
        }
        Ok((job, job_type.version, keys))
    }

    /// The answer to a request that is refused now: the job that it made before, if it was sent and accepted before.
    async fn unless_repeated(&self, new: &NewJob, error: Error) -> Result<Enqueued, Error> {
        if !new.is_repeatable() {
            return Err(error);
        }
        let digest = digest(new);
        let mut ids: Vec<JobId> = new.id.iter().cloned().collect();
        if let Some(key) = &new.idempotency_key {
            ids.extend(
                self.ports
                    .store
                    .keys(&[Key::Idempotency(key.clone())])
                    .await?
                    .into_iter()
                    .flatten(),
            );
        }
        let found = self.ports.store.get(&ids).await?.into_iter().flatten();
        let same = found.into_iter().find(|job| job.spec.request_digest == digest);
        same.map(|job| Enqueued { job, new: false }).ok_or(error)
    }

    /// The same entry under its type as it stands now.
    async fn resolve_anew(&self, entry: &mut EnqueueItem) -> Result<(), Error> {
        let mut catalog = self.catalog().await?;
        let job_type = self.type_of(&entry.asked.job_type, &mut catalog).await?;
        let digest = entry.job.spec.request_digest;
        let Job { spec, mut life, .. } =
            self.resolve(&entry.asked, &catalog, &job_type, digest, self.now())?;
        // Its id stays, its revision, what it took over with its key, and its body, which may be an object by now.
        life.revision = entry.job.life.revision;
        life.processed_replies = std::mem::take(&mut entry.job.life.processed_replies);
        (entry.job.spec, entry.job.life, entry.type_version) = (spec, life, job_type.version);
        Ok(())
    }

    /// The type of a new job: made if the rules say so, and without the mark of somebody who means to move it.
    async fn type_of(
        &self,
        name: &TypeName,
        catalog: &mut Arc<Catalog>,
    ) -> Result<Arc<TypeItem>, Error> {
        for _ in 0..KEY_TRIES {
            *catalog = match catalog.types.get(name).filter(|_| !is_reserved(name.as_str())) {
                Some(item) if !item.leaving => return Ok(Arc::clone(item)),
                Some(_) => Box::pin(self.keep_type(name)).await?,
                None => Box::pin(self.create_unknown_type(name)).await?,
            };
        }
        Err(Error::Conflict {
            code: ErrorCode::ConcurrentUpdate,
            message: format!("type {name} keeps changing"),
            holder: None,
        })
    }

    /// The catalog with a type that it did not have.
    async fn create_unknown_type(&self, name: &TypeName) -> Result<Arc<Catalog>, Error> {
        if !self.rules.create_unknown_types || is_reserved(name.as_str()) {
            return Err(Error::NotFound {
                code: ErrorCode::JobTypeNotFound,
                what: format!("job type {name}"),
            });
        }
        match self.put_type(name, TypeConfig::default(), Some(0)).await {
            // Somebody else created it meanwhile: as good.
            Ok(_) | Err(Error::Stale { .. }) => {}
            Err(error) => return Err(error),
        }
        self.catalog().await
    }

    /// The job that `new` requests under its type, with every option settled and every bound checked.
    pub(crate) fn resolve(
        &self,
        new: &NewJob,
        catalog: &Catalog,
        item: &TypeItem,
        digest: [u8; 16],
        now: Timestamp,
    ) -> Result<Job, Error> {
        let config = &item.config;
        if new.id.as_ref().is_some_and(|id| ROUTE_WORDS.contains(&id.as_str())) {
            return Err(Error::invalid(
                "id",
                format!("must not be one of {}", ROUTE_WORDS.join(", ")),
            ));
        }
        validate::check_start(new.run_at, new.delay_seconds).map_err(fault)?;
        if let Some(deadline) = new.options.deadline_seconds {
            validate::check_deadline(deadline).map_err(fault)?;
        }
        if new.data.bytes.len() > self.rules.max_data_bytes {
            return Err(Error::TooLarge { field: "data", limit: self.rules.max_data_bytes });
        }
        new.data.check(MAX_DEPTH).map_err(|malformed| Error::malformed("data", &malformed))?;
        let limits = catalog.limits(&config.queue);
        let mut spec = new.options.resolve(&new.job_type, config, now);
        let weight = spec.weight;
        if let Some(most) =
            limits.queue.concurrency.filter(|most| *most > 0 && weight > *most && !spec.critical)
        {
            let message = format!("{weight} is over the limit {most} of queue {}", config.queue);
            return Err(Error::Invalid {
                code: ErrorCode::WeightOverLimit,
                field: "weight".into(),
                message,
            });
        }
        let given = std::mem::take(&mut spec.attributes);
        spec.attributes = attributes(&config.attributes, &new.data, given)?;
        spec.partition = partition(&limits, &spec.attributes);
        let asked = new
            .run_at
            .or_else(|| new.delay_seconds.map(|delay| now + delay.duration()))
            .unwrap_or(now)
            .max(now);
        let run_at = window::next_opening(&spec.windows, asked);
        let waiting = if run_at == asked { Waiting::Due } else { Waiting::Window { due: asked } };
        // A job that names its own trace does not belong to the request's, and a trace makes no good request a bad one.
        if trace::named(&spec.headers, trace::PARENT).is_none()
            && spec.headers.len() + new.trace.len() <= validate::MAX_HEADERS
        {
            spec.headers.extend(new.trace.clone());
        }
        spec.expires_at = new.expires_at;
        spec.correlation_key.clone_from(&new.correlation_key);
        spec.replay_of.clone_from(&new.replay_of);
        spec.retention = self.retention(new, config);
        spec.request_digest = digest;
        validate::check_job(&spec, config.delivery).map_err(fault)?;
        if let Some(url) =
            new.options.callback_url.as_ref().filter(|_| self.rules.refuse_unsafe_hosts)
        {
            validate::check_host("callback_url", url).map_err(fault)?;
        }
        let id = new
            .id
            .clone()
            .unwrap_or_else(|| self.ports.store.assign_id(self.draw_id(now), &spec, run_at));
        Ok(Job {
            id,
            spec: Arc::new(spec),
            data: Body::Inline(new.data.clone()),
            life: Lifecycle::new(run_at, waiting),
        })
    }

    /// How long the job is kept when it has ended. One that waits for a reply knows a second delivery for one, and so is kept as
    /// long as an early reply would be, even where others go at their end.
    fn retention(&self, new: &NewJob, config: &TypeConfig) -> Seconds {
        let waits =
            new.correlation_key.as_ref().map(|_| self.rules.events.reply_wait.as_millis() as u64);
        config.retention_seconds.max(Seconds::from_millis(waits.unwrap_or(0)))
    }
}

/// Takes the attributes of a job anew from its new data. What its type's pointers found in the old data and do not find in the new
/// is gone.
///
/// # Errors
///
/// 400 if what is found is out of bounds.
pub(crate) fn extract_anew(
    catalog: &Catalog,
    spec: &mut Spec,
    data: &Payload,
) -> Result<(), Error> {
    let Some(item) = catalog.types.get(&spec.job_type) else {
        return Ok(());
    };
    let pointers = &item.config.attributes;
    let given = spec.attributes.iter().filter(|(name, _)| !pointers.contains_key(*name));
    let given = given.map(|(name, value)| (name.clone(), value.clone())).collect();
    let found = attributes(pointers, data, given)?;
    validate::check_attributes(&found).map_err(fault)?;
    spec.partition = partition(&catalog.limits(&spec.queue), &found);
    spec.attributes = found;
    Ok(())
}

/// The partition of a job with `attributes`: the value of the queue's attribute; empty without one.
fn partition(limits: &tidegate_core::queue::Limits, attributes: &Attributes) -> String {
    limits
        .queue
        .partition_by
        .as_ref()
        .and_then(|name| attributes.get(name))
        .map(tidegate_core::job::Value::text)
        .unwrap_or_default()
}

/// The attributes of a job that carries `data`: those that `pointers` find win over the `given` ones.
fn attributes(
    pointers: &BTreeMap<String, String>,
    data: &Payload,
    mut given: Attributes,
) -> Result<Attributes, Error> {
    given.extend(
        extract(pointers, data, TEXT_BYTES)
            .map_err(|malformed| Error::malformed("data", &malformed))?,
    );
    Ok(given)
}

/// Whether a type's or queue's name is one of the server's own.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with("tidegate.")
}

/// A fault of a value as an answer.
pub fn fault(fault: validate::ValidationError) -> Error {
    Error::Invalid { code: fault.code, field: fault.field, message: fault.message }
}

/// The part of a request that a repeat must have in common with it, apart from data and replayed job.
///
/// Digests are stored with jobs, so names and order of these fields are fixed. A field that is added
/// later is skipped where it is absent.
#[derive(Serialize)]
struct DigestedRequest<'a> {
    job_type: &'a TypeName,
    priority: Option<i32>,
    weight: Option<u32>,
    critical: bool,
    run_at: Option<Timestamp>,
    delay_seconds: Option<Seconds>,
    expires_at: Option<Timestamp>,
    windows: &'a Option<Vec<Window>>,
    timeout_seconds: Option<Seconds>,
    deadline_seconds: Option<Seconds>,
    max_attempts: Option<u16>,
    retry: &'a Option<Retry>,
    correlation_key: Option<&'a str>,
    unique: &'a Option<Unique>,
    attributes: &'a Attributes,
    keep_result: Option<KeepResult>,
    callback_url: Option<&'a Url>,
    headers: BTreeMap<&'a str, &'a str>,
}

/// The digest of a request, by which a repeat is recognised.
pub(crate) fn digest(new: &NewJob) -> [u8; 16] {
    let JobOptions {
        priority,
        weight,
        critical,
        windows,
        timeout_seconds,
        deadline_seconds,
        max_attempts,
        retry,
        unique,
        attributes,
        keep_result,
        callback_url,
        headers,
    } = &new.options;
    // A repeat has a trace of its own.
    let is_trace = |name: &str| {
        name.eq_ignore_ascii_case(trace::PARENT) || name.eq_ignore_ascii_case(trace::STATE)
    };
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let request = DigestedRequest {
        job_type: &new.job_type,
        priority: *priority,
        weight: *weight,
        critical: *critical,
        run_at: new.run_at,
        delay_seconds: new.delay_seconds,
        expires_at: new.expires_at,
        windows,
        timeout_seconds: *timeout_seconds,
        deadline_seconds: *deadline_seconds,
        max_attempts: *max_attempts,
        retry,
        correlation_key: new.correlation_key.as_deref(),
        unique,
        attributes,
        keep_result: *keep_result,
        callback_url: callback_url.as_ref(),
        headers: headers.filter(|(name, _)| !is_trace(name)).collect(),
    };
    let mut hash = Sha256::new();
    hash.update(serde_json::to_vec(&request).unwrap_or_default());
    hash.update([u8::from(new.data.encoding == tidegate_core::job::Encoding::Json)]);
    hash.update(&new.data.bytes);
    if let Some(of) = &new.replay_of {
        hash.update(format!("replay of {of}"));
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hash.finalize()[..16]);
    short
}

fn correlation_key_taken(holder: JobId) -> Error {
    let message = format!("a live job of this type has this correlation key: {holder}");
    Error::Conflict { code: ErrorCode::CorrelationKeyTaken, message, holder: Some(holder) }
}

/// The answer where `wanted`'s id is taken by `there`.
fn same_request(wanted: &Job, there: Job) -> Result<Enqueued, Error> {
    // Whoever asks by no name shares an id only with who found the key that both have pointing at it, and came first.
    if wanted.spec.request_digest == UNNAMED && wanted.spec.correlation_key.is_some() {
        return Err(correlation_key_taken(there.id));
    }
    if wanted.spec.request_digest == there.spec.request_digest {
        return Ok(Enqueued { job: there, new: false });
    }
    let message = format!("another request made job {}", there.id);
    Err(Error::Conflict { code: ErrorCode::IdTaken, message, holder: Some(there.id) })
}
