//! The invariants of DESIGN section 2, checked after every write that happens.
//!
//! The model keeps its own copy of what was written and shares no code with the engine: usage is added up
//! here from the grants, by hand.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::Duration,
};

use super::plugins::RAN;
use tidegate_core::{
    job::{
        Job, JobId, Lifecycle, Outcome, QueueName, State, TypeName, Version,
        lifecycle::ReplyId,
        type_config::{Delivery, TypeItem},
    },
    port::job_store::{ItemKind, Txn, Write},
    queue::{
        Grant, GrantBatch, Ledger, Limits,
        config::{Constraint, QueueItem, Rate},
        ledger::{BatchId, StateLocation},
        matcher::Subject,
    },
    time::Timestamp,
};
use tidegate_engine::{CALLBACK_TYPE, events::reply::Replied};

/// How wrong a process's clock may be, and a little more.
pub const SKEW: Duration = Duration::from_secs(1);
/// Every grant is looked at this often.
const AUDIT: Duration = Duration::from_mins(1);

/// A grant, and the queue it is of.
type Granted = BTreeMap<(JobId, Version), Grant>;

/// The starts that a rate allows, and when there were some.
struct Starts {
    rate: Rate,
    at: Vec<Timestamp>,
}

/// What was written, and what was broken by it.
#[derive(Default)]
pub struct Model {
    pub jobs: HashMap<JobId, Job>,
    pub heads: HashMap<QueueName, Ledger>,
    batches: HashMap<(QueueName, BatchId), GrantBatch>,
    queues: HashMap<QueueName, QueueItem>,
    types: HashMap<TypeName, TypeItem>,
    /// Every shape that a configuration version had; only a store that writes one by one has several.
    limits: HashMap<(QueueName, u64), Vec<Limits>>,
    /// The configuration versions that were answered.
    promised: HashMap<QueueName, u64>,
    /// Jobs whose enqueue was answered.
    accepted: HashSet<JobId>,
    /// Jobs that ended and were rightly removed.
    removed: HashSet<JobId>,
    claimed: HashSet<(JobId, Version)>,
    claims: HashMap<JobId, u32>,
    starts: HashMap<(QueueName, String, String), Starts>,
    /// Since when a grant is kept although its job left the version.
    idle: HashMap<(JobId, Version), Timestamp>,
    callbacks: HashMap<String, u32>,
    /// Which job each reply changed.
    replied: HashMap<ReplyId, JobId>,
    pub counts: BTreeMap<&'static str, u64>,
    pub trace: VecDeque<String>,
    pub broken: Option<String>,
}

impl Model {
    /// Something does not hold: the first one counts.
    pub fn fault(&mut self, what: String) {
        self.note(format!("BROKEN {what}"));
        self.broken.get_or_insert(what);
    }

    /// Adds a line to the story of the run.
    pub fn note(&mut self, line: String) {
        if self.trace.len() >= 4000 {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// An enqueue was answered.
    pub fn accept(&mut self, job: &JobId) {
        self.accepted.insert(job.clone());
        if !self.jobs.contains_key(job) && !self.removed.contains(job) {
            self.fault(format!("I5: {job} was acknowledged and is not in the store"));
        }
    }

    /// A change of the configuration was answered.
    pub fn promise(&mut self, queue: &QueueName, version: u64) {
        let promised = self.promised.entry(queue.clone()).or_default();
        *promised = version.max(*promised);
    }

    /// The grants of `queue` that are not released.
    pub fn live(&self, queue: &QueueName) -> Granted {
        self.heads.get(queue).map(|head| self.live_of(queue, head)).unwrap_or_default()
    }

    fn live_of(&self, queue: &QueueName, head: &Ledger) -> Granted {
        let mut live = Granted::new();
        for named in &head.batches {
            let grants =
                self.batches.get(&(queue.clone(), named.id)).map_or(&[][..], |batch| &batch.grants);
            for (_, grant) in
                grants.iter().enumerate().filter(|(index, _)| !named.released.has(*index))
            {
                live.insert((grant.job.clone(), grant.version), grant.clone());
            }
        }
        live
    }

    /// Takes note of writes that happened together.
    pub fn see(&mut self, txn: &Txn, now: Timestamp) {
        for write in txn {
            match write {
                Write::AddJob(job) => self.add(job),
                Write::SetJob { job, all, .. } => self.set(job, *all, now),
                Write::RemoveJob { id, .. } => self.remove(id, now),
                Write::AddBatch(queue, batch) => self.add_batch(queue, batch),
                Write::RemoveBatch(queue, id) => self.remove_batch(queue, *id),
                Write::SetLedger { queue, head, .. } => self.set_head(queue, head, now),
                Write::SetItem { kind, name, bytes, version, .. } => {
                    self.configure(*kind, name, bytes.as_deref(), *version);
                }
                Write::Together(writes) => self.see(writes, now),
                Write::SetKey { .. }
                | Write::RequireItem { .. }
                | Write::PutRecord(_)
                | Write::RemoveRecord { .. } => {}
            }
        }
    }

    fn add(&mut self, job: &Job) {
        if self.removed.contains(&job.id) {
            // A client may send its request again after the job was pruned.
            self.removed.remove(&job.id);
        }
        if job.spec.job_type.as_str() == CALLBACK_TYPE {
            let body: serde_json::Value =
                serde_json::from_slice(&job.data.inline().expect("callbacks are small").bytes)
                    .expect("callbacks are JSON");
            let about = body["id"].as_str().expect("a callback names its job").to_owned();
            let told = self.callbacks.entry(about.clone()).or_default();
            *told += 1;
            if *told > 1 {
                self.fault(format!("the end of {about} was told twice"));
            }
        }
        self.note(format!(
            "{} + {} {} {:?}",
            job.spec.created_at, job.id, job.spec.job_type, job.life.state
        ));
        self.jobs.insert(job.id.clone(), job.clone());
    }

    fn set(&mut self, job: &Job, all: bool, now: Timestamp) {
        let Some(old) = self.jobs.get(&job.id).cloned() else {
            return self.fault(format!("{} was changed and is not there", job.id));
        };
        let mut new = job.clone();
        if !all {
            new.spec = std::sync::Arc::clone(&old.spec);
        }
        self.note(format!(
            "{now} {} v{} a{} {:?}",
            job.id, new.life.version.0, new.life.attempt, new.life.state
        ));
        self.check_change(&old, &new, now);
        self.jobs.insert(job.id.clone(), new);
    }

    fn check_change(&mut self, old: &Job, new: &Job, now: Timestamp) {
        let id = &old.id;
        if new.life.version < old.life.version || new.life.revision <= old.life.revision {
            self.fault(format!("{id}: its version or revision went back"));
        }
        if old.life.ended().is_some() {
            // Its result goes, or it hears a reply that comes too late.
            let forgets =
                Lifecycle { result: None, revision: new.life.revision, ..old.life.clone() };
            let hears = Lifecycle {
                processed_replies: new.life.processed_replies.clone(),
                revision: new.life.revision,
                ..old.life.clone()
            };
            if (forgets != new.life && hears != new.life) || old.spec != new.spec {
                self.fault(format!(
                    "I5: {id} had ended as {:?} and changed to {:?}",
                    old.life.state, new.life.state
                ));
            }
            return;
        }
        // A reply may say something of an attempt that was over; everything else is said once.
        let attempts: Vec<u16> = new
            .life
            .history
            .iter()
            .filter(|entry| entry.reply.is_none())
            .map(|entry| entry.attempt)
            .collect();
        if attempts.windows(2).any(|pair| pair[0] >= pair[1]) {
            self.fault(format!("{id}: two results for one attempt: {attempts:?}"));
        }
        let mut replies: Vec<ReplyId> =
            new.life.history.iter().filter_map(|entry| entry.reply).collect();
        replies.sort_unstable_by_key(|reply| reply.0);
        if replies.windows(2).any(|pair| pair[0] == pair[1]) {
            self.fault(format!("{id} heard a reply twice"));
        }
        for reply in replies {
            let first = self.replied.entry(reply).or_insert_with(|| id.clone()).clone();
            if first != *id {
                self.fault(format!(
                    "a second delivery of a reply to {first} was taken for one to {id}"
                ));
            }
        }
        if let (State::Scheduled { run_at, .. }, State::Running(_)) =
            (&old.life.state, &new.life.state)
        {
            return self.check_claim(old, new, *run_at, now);
        }
        if new.life.attempt != old.life.attempt {
            self.fault(format!(
                "I6: {id}: an attempt was used up without a claim: {:?} -> {:?}",
                old.life, new.life
            ));
        }
        if let (State::Running(was), State::Running(run)) = (&old.life.state, &new.life.state)
            && (was.token != run.token || old.life.version != new.life.version)
        {
            self.fault(format!("{id}: another attempt took the place of a running one"));
        }
        match new.life.ended() {
            Some(Outcome::Failed) if new.life.attempt == 0 && new.spec.deadline_at.is_none() => {
                self.fault(format!("I6: {id} failed without an attempt"));
            }
            Some(Outcome::Expired) if new.spec.expires_at.is_none_or(|at| now + SKEW < at) => {
                self.fault(format!("{id} expired early"));
            }
            Some(_) => self.count("ended"),
            None => {}
        }
    }

    /// A reply was answered: what it says is so.
    pub fn answered(&mut self, reply: ReplyId, answer: &Replied) {
        let heard =
            |job: &JobId| self.jobs.get(job).is_none_or(|job| job.life.has_processed(reply));
        match answer {
            Replied::Settled(job) | Replied::Recorded(job) | Replied::Known(job) if !heard(job) => {
                self.fault(format!("a reply to {job} was answered and is not in its history"));
            }
            Replied::Settled(_) => self.count("replies settled"),
            Replied::Recorded(_) => self.count("replies recorded"),
            Replied::Known(_) => self.count("replies known"),
            Replied::Late(_) => self.count("replies late"),
            Replied::Kept(_) => self.count("replies kept"),
        }
    }

    fn check_claim(&mut self, old: &Job, new: &Job, run_at: Timestamp, now: Timestamp) {
        self.count("claims");
        let (id, version) = (old.id.clone(), old.life.version);
        let run = new.life.running().expect("the caller saw it run");
        if new.life.attempt != old.life.attempt + 1 || new.life.version != version {
            self.fault(format!(
                "I6: {id}: a claim made attempt {} of {}",
                new.life.attempt, old.life.attempt
            ));
        }
        if !self.claimed.insert((id.clone(), version)) {
            self.fault(format!("I2: {id} was claimed twice at version {}", version.0));
        }
        let claims = self.claims.entry(id.clone()).or_default();
        *claims += 1;
        let once = self
            .types
            .get(&old.spec.job_type)
            .is_some_and(|item| item.config.delivery == Delivery::AtMostOnce);
        if once && *claims > 1 {
            self.fault(format!("I6: {id} is at_most_once and started twice"));
        }
        if now + SKEW < run_at {
            self.fault(format!("{id} started at {now}, before its due time {run_at}"));
        }
        // A decision made in time may be written late.
        if old.spec.expires_at.is_some_and(|at| at <= run.started_at) {
            self.fault(format!("{id} started after it expired"));
        }
        let Some(head) = self.heads.get(&old.spec.queue) else {
            if run.granted {
                self.fault(format!("I2: {id} says a grant counts it, and its queue has no head"));
            }
            return;
        };
        let settling = head.settling_until.is_some();
        if !run.granted {
            self.count("claims under way at the first limit");
        }
        let granted = self.live(&old.spec.queue).contains_key(&(id.clone(), version));
        if !granted && (run.granted || !settling) {
            self.fault(format!("I2: {id} started at version {} without a live grant", version.0));
        }
    }

    fn remove(&mut self, id: &JobId, now: Timestamp) {
        let Some(job) = self.jobs.remove(id) else {
            return self.fault(format!("{id} was removed and is not there"));
        };
        self.note(format!("{now} - {id}"));
        match job.life.state {
            State::Ended { at, .. } if at + job.spec.retention.duration() <= now + SKEW => {}
            // With retention 0 the end and the removal are one.
            _ if job.spec.retention.millis() == 0 => self.count("ended"),
            _ => self.fault(format!("I5: {id} was removed before its time: {:?}", job.life.state)),
        }
        self.removed.insert(id.clone());
    }

    fn add_batch(&mut self, queue: &QueueName, batch: &GrantBatch) {
        let named = self
            .heads
            .get(queue)
            .is_some_and(|head| head.referenced_batches().any(|id| id == batch.id));
        if named {
            self.fault(format!("batch {} was written again while the head names it", batch.id.0));
        }
        self.batches.insert((queue.clone(), batch.id), batch.clone());
    }

    fn remove_batch(&mut self, queue: &QueueName, id: BatchId) {
        if self
            .heads
            .get(queue)
            .is_some_and(|head| head.referenced_batches().any(|named| named == id))
        {
            self.fault(format!("batch {} was removed while the head names it", id.0));
        }
        self.batches.remove(&(queue.clone(), id));
    }

    fn set_head(&mut self, queue: &QueueName, head: &Ledger, now: Timestamp) {
        let old = self.heads.get(queue).cloned().unwrap_or_default();
        self.count("commits");
        if head.version != old.version + 1 {
            self.fault(format!("the head went from version {} to {}", old.version, head.version));
        }
        if head.config_version < old.config_version || head.time < old.time {
            self.fault(format!(
                "the head's configuration or time went back: {} to {}",
                old.config_version, head.config_version
            ));
        }
        for named in &head.batches {
            let count =
                self.batches.get(&(queue.clone(), named.id)).map(|batch| batch.grants.len());
            if count != Some(named.count as usize) {
                self.fault(format!(
                    "the head names batch {} with {} grants, and there are {count:?}",
                    named.id.0, named.count
                ));
            }
            if named.check_at > now + AUDIT + SKEW {
                self.fault(format!(
                    "I4: batch {} is not looked at until {}",
                    named.id.0, named.check_at
                ));
            }
        }
        let (before, after) = (self.live_of(queue, &old), self.live_of(queue, head));
        let all: usize =
            head.batches.iter().map(|named| named.count as usize - named.released.count()).sum();
        if all != after.len() {
            self.fault("a job is granted twice at one version".into());
        }
        for (key, _) in before.iter().filter(|(key, _)| !after.contains_key(*key)) {
            if self.jobs.get(&key.0).is_some_and(|job| job.life.version == key.1) {
                self.fault(format!(
                    "I3: the grant of {} was released while it is at version {}",
                    key.0, key.1.0
                ));
            }
            self.idle.remove(key);
        }
        // Adoption may exceed a limit, as lowering one does. A job may have ended since it was seen running.
        let settled = old.settling_until.is_some() && head.settling_until.is_none();
        let added: Vec<&Grant> = after
            .iter()
            .filter(|(key, _)| {
                !before.contains_key(*key) && (!settled || !self.claimed.contains(key))
            })
            .map(|(_, grant)| grant)
            .collect();
        self.note(format!(
            "{now} head {} c{} {:?} + {:?}",
            head.version,
            head.config_version,
            head.batches
                .iter()
                .map(|named| (named.id.0, named.count, named.released.count(), named.sends))
                .collect::<Vec<_>>(),
            added.iter().map(|grant| (grant.job.as_str(), grant.version.0)).collect::<Vec<_>>()
        ));
        if head.settling_until.is_some() && !added.is_empty() {
            self.fault("something was admitted while running jobs may still appear".into());
        }
        if !added.is_empty() && head.config_version < self.promised.get(queue).copied().unwrap_or(0)
        {
            self.fault(format!(
                "admitted under configuration {}, after a newer one was answered",
                head.config_version
            ));
        }
        let shapes =
            self.limits.get(&(queue.clone(), head.config_version)).cloned().unwrap_or_default();
        let faults: Vec<Option<String>> =
            shapes.iter().map(|limits| over(limits, &added, &after)).collect();
        if let Some(Some(fault)) = faults.iter().min() {
            self.fault(format!("I1: {fault} (configuration {})", head.config_version));
        }
        if settled {
            let granted = |job: &Job| after.contains_key(&(job.id.clone(), job.life.version));
            let missed = self.jobs.values().find(|job| {
                job.spec.queue == *queue && job.life.running().is_some() && !granted(job)
            });
            if let Some(id) = missed.map(|job| job.id.clone()) {
                self.fault(format!(
                    "I1: {id} runs and was not taken as a grant when the head was settled"
                ));
            }
        }
        if !settled {
            self.check_state(queue, &old, head, &shapes, &added);
        }
        let admitted: Vec<Grant> = added.into_iter().cloned().collect();
        if let [limits] = &shapes[..] {
            self.check_rates(queue, limits, &admitted, head.time);
        }
        self.heads.insert(queue.clone(), head.clone());
    }

    /// The throttler remembers exactly the jobs that it was committed to have let run.
    fn check_state(
        &mut self,
        queue: &QueueName,
        old: &Ledger,
        head: &Ledger,
        shapes: &[Limits],
        added: &[&Grant],
    ) {
        if shapes.is_empty() || shapes.iter().any(|limits| limits.queue.throttler.is_none()) {
            return;
        }
        let shape = |head: &Ledger| head.policy.as_ref().map(|policy| policy.state_version);
        let before = if shape(old) == shape(head) { self.ran(queue, old) } else { Some(0) };
        let (Some(before), Some(after)) = (before, self.ran(queue, head)) else {
            return self.fault("the throttler's state is gone".into());
        };
        let started = added.iter().filter(|grant| !grant.critical).count() as u64;
        if started > 0 {
            self.count("commits under a throttler");
        }
        if after != before + started {
            self.fault(format!(
                "{started} jobs were let run, and the throttler remembers {after} after {before}"
            ));
        }
    }

    /// How many jobs the throttler remembers, as `head` has it or names it.
    fn ran(&self, queue: &QueueName, head: &Ledger) -> Option<u64> {
        let Some(policy) = &head.policy else {
            return Some(0);
        };
        let state = match &policy.state {
            StateLocation::Inline(state) => state,
            StateLocation::Batch(id) => self.batches.get(&(queue.clone(), *id))?.state.as_ref()?,
        };
        state.get(RAN)?.parse().ok()
    }

    /// No stretch of time sees more starts than a full bucket and what came back in it.
    fn check_rates(
        &mut self,
        queue: &QueueName,
        limits: &Limits,
        admitted: &[Grant],
        now: Timestamp,
    ) {
        let rates: BTreeMap<&str, Rate> = limits
            .queue
            .constraints
            .iter()
            .filter_map(|constraint| Some((constraint.name.as_str(), constraint.rate?)))
            .collect();
        self.starts.retain(|(of, name, _), starts| {
            of != queue || rates.get(name.as_str()) == Some(&starts.rate)
        });
        for grant in admitted.iter().filter(|grant| !grant.critical) {
            for constraint in &limits.queue.constraints {
                let (Some(rate), Some(value)) = (constraint.rate, value(constraint, grant)) else {
                    continue;
                };
                let starts = self
                    .starts
                    .entry((queue.clone(), constraint.name.clone(), value))
                    .or_insert_with(|| Starts { rate, at: Vec::new() });
                starts.at.push(now);
                let (count, burst) =
                    (f64::from(rate.count), f64::from(rate.burst.unwrap_or(rate.count)));
                let over = starts.at.iter().enumerate().any(|(index, from)| {
                    let back = now.since(*from).as_secs_f64() * count / rate.per_seconds.as_f64();
                    (starts.at.len() - index) as f64 > burst + back + 1e-6
                });
                if over {
                    self.fault(format!("the rate of {} was exceeded", constraint.name));
                }
            }
        }
    }

    fn configure(&mut self, kind: ItemKind, name: &str, bytes: Option<&[u8]>, version: u64) {
        let bytes = bytes.unwrap_or(b"{}");
        match kind {
            ItemKind::Queue => {
                let mut item: QueueItem = serde_json::from_slice(bytes).expect("a queue");
                item.version = version;
                self.note(format!(
                    "queue {name} v{version} paused {} {:?}",
                    item.paused, item.config
                ));
                self.queues.insert(name.parse().expect("a queue's name"), item);
            }
            ItemKind::Type => {
                let item: TypeItem = serde_json::from_slice(bytes).expect("a type");
                self.types.insert(name.parse().expect("a type's name"), item);
            }
            ItemKind::Token
            | ItemKind::Operation
            | ItemKind::Plugin
            | ItemKind::Horizon
            | ItemKind::Schedule
            | ItemKind::ScheduleState
            | ItemKind::Trigger
            | ItemKind::Drain => return,
        }
        for (queue, item) in &self.queues {
            let types = self
                .types
                .iter()
                .filter(|(_, of)| of.config.queue == *queue)
                .filter_map(|(name, of)| Some((name.clone(), of.config.concurrency?)))
                .collect();
            let limits = Limits {
                version: item.version,
                queue: item.config.clone(),
                paused: item.paused,
                types,
                throttler: None,
            };
            let shapes = self.limits.entry((queue.clone(), item.version)).or_default();
            if !shapes.contains(&limits) {
                shapes.push(limits);
            }
        }
    }

    /// Checks what no write shows: grants kept for nothing, and jobs that no query would find.
    pub fn look(&mut self, now: Timestamp, faults_until: Timestamp) {
        let mut faults = Vec::new();
        for queue in self.heads.keys() {
            for key in self.live(queue).into_keys() {
                if self.jobs.get(&key.0).is_some_and(|job| job.life.version == key.1) {
                    continue;
                }
                let since = *self.idle.entry(key.clone()).or_insert(now);
                if now > since.max(faults_until) + AUDIT + Duration::from_secs(10) {
                    faults.push(format!(
                        "the slot of {} is kept since {since}, though it left version {}",
                        key.0, key.1.0
                    ));
                }
            }
        }
        for job in self.jobs.values() {
            if let State::Running(run) = &job.life.state
                && run.granted
                && !self.live(&job.spec.queue).contains_key(&(job.id.clone(), job.life.version))
            {
                faults.push(format!("I4: {} runs, and no grant watches it", job.id));
            }
        }
        for fault in faults {
            self.fault(fault);
        }
    }

    /// The accepted jobs that have not ended.
    pub fn unfinished(&self) -> Vec<&Job> {
        self.accepted
            .iter()
            .filter_map(|id| self.jobs.get(id))
            .filter(|job| job.life.ended().is_none())
            .collect()
    }

    /// What must be true when everything has ended and every grant was looked at.
    pub fn finish(&mut self) {
        let mut faults = Vec::new();
        for job in self.unfinished() {
            faults.push(format!("{} never ended: {:?}", job.id, job.life));
        }
        for queue in self.heads.keys() {
            for ((id, version), _) in self.live(queue) {
                faults.push(format!("the slot of {id} at version {} was never freed", version.0));
            }
        }
        for id in &self.accepted {
            if !self.jobs.contains_key(id) && !self.removed.contains(id) {
                faults.push(format!("I5: {id} was acknowledged and is gone"));
            }
        }
        for job in self
            .jobs
            .values()
            .filter(|job| job.life.ended().is_some() && job.spec.job_type.as_str() != CALLBACK_TYPE)
        {
            if job.spec.callback_url.is_some() && !self.callbacks.contains_key(job.id.as_str()) {
                faults.push(format!("nobody was told of the end of {}", job.id));
            }
        }
        for fault in faults {
            self.fault(fault);
        }
    }
}

/// The value under which `constraint` counts `grant`, if it does.
fn value(constraint: &Constraint, grant: &Grant) -> Option<String> {
    let subject = Subject {
        job_type: &grant.job_type,
        priority: grant.priority,
        attributes: &grant.attributes,
    };
    let value = match &constraint.per {
        None => String::new(),
        Some(name) => grant.attributes.get(name)?.text(),
    };
    constraint.matcher.matches(subject).then_some(value)
}

/// What of `limits` the live grants are over, if `added` adds to it.
fn over(limits: &Limits, added: &[&Grant], live: &Granted) -> Option<String> {
    if limits.paused && !added.is_empty() {
        return Some("admitted while paused".into());
    }
    let weight = |counts: &dyn Fn(&Grant) -> bool| -> u64 {
        live.values()
            .filter(|grant| !grant.critical && counts(grant))
            .map(|grant| u64::from(grant.weight))
            .sum()
    };
    for grant in added.iter().filter(|grant| !grant.critical && grant.weight > 0) {
        if let Some(most) = limits.queue.concurrency {
            let used = weight(&|_| true);
            if used > u64::from(most) {
                return Some(format!("{used} is granted, and the queue's limit is {most}"));
            }
        }
        if let Some(most) = limits.types.get(&grant.job_type) {
            let used = weight(&|other| other.job_type == grant.job_type);
            if used > u64::from(*most) {
                return Some(format!(
                    "{used} is granted, and the limit of type {} is {most}",
                    grant.job_type
                ));
            }
        }
        for constraint in &limits.queue.constraints {
            let (Some(most), Some(of)) = (constraint.concurrency, value(constraint, grant)) else {
                continue;
            };
            let used = weight(&|other| value(constraint, other).as_ref() == Some(&of));
            if used > u64::from(most) {
                return Some(format!(
                    "{used} is granted, and the limit of constraint {} for {of:?} is {most}",
                    constraint.name
                ));
            }
        }
    }
    None
}
