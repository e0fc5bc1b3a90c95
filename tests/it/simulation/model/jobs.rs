//! The allowed changes of a job.

use tidegate_core::{
    job::{
        Job, JobId, Lifecycle, Outcome, State, lifecycle::ReplyId, spec::Unique,
        type_config::Delivery, unique::Merged,
    },
    time::Timestamp,
};
use tidegate_engine::{
    CALLBACK_TYPE, END_EVENT_TYPE,
    events::reply::Replied,
    request::{Enqueued, NewJob},
};

use super::{
    super::{
        plugins,
        releases::{known, known_spec, lost_of_job},
    },
    MAX_CLOCK_SKEW, MAX_RELEASES, Model, NOT_RECEIVED,
};

impl Model {
    pub(super) fn add(&mut self, job: &Job) {
        if self.removed.contains(&job.id) {
            // A client may send its request again after the job was pruned.
            self.removed.remove(&job.id);
        }
        if job.spec.job_type.as_str() == CALLBACK_TYPE {
            let body: serde_json::Value =
                serde_json::from_slice(&job.data.inline().expect("callbacks are small").bytes)
                    .expect("callbacks are JSON");
            let about = body["id"].as_str().expect("a callback names its job").to_owned();
            let reported = self.callbacks.entry(about.clone()).or_default();
            *reported += 1;
            if *reported > 1 {
                self.fault(format!("the end of {about} was reported twice"));
            }
        }
        if job.spec.job_type.as_str() == END_EVENT_TYPE {
            let data = &job.data.inline().expect("these events are small").bytes;
            let event: serde_json::Value = serde_json::from_slice(data).expect("they are JSON");
            let event = event["id"].as_str().expect("an event has an id").to_owned();
            let carried = self.ends.entry(event.clone()).or_default();
            *carried += 1;
            if *carried > 1 {
                self.fault(format!("two jobs carry the event {event}"));
            }
            self.count("ends as events");
            self.accepted.insert(job.id.clone());
        }
        if let Some(of) = &job.spec.replay_of
            && let Some(first) = self.replays.insert(of.clone(), job.id.clone())
        {
            self.fault(format!("{of} was replayed twice, as {first} and {}", job.id));
        }
        self.note(format!(
            "{} + {} {} {:?}",
            job.spec.created_at, job.id, job.spec.job_type, job.life.state
        ));
        self.jobs.insert(job.id.clone(), job.clone());
    }

    pub(super) fn set(&mut self, job: &Job, all: bool, now: Timestamp) {
        let Some(old) = self.jobs.get(&job.id).cloned() else {
            return self.fault(format!("{} was changed and does not exist", job.id));
        };
        let mut new = job.clone();
        if !all {
            new.spec = std::sync::Arc::clone(&old.spec);
        }
        self.note(format!(
            "{now} {} v{} a{} {:?}",
            job.id, new.life.version.0, new.life.attempt, new.life.state
        ));
        if let Some(place) = lost_of_job((&old.spec, &old.life), (&new.spec, &new.life)) {
            self.fault(format!("{}: {place} lost a field of the next release", job.id));
        }
        self.check_change(&old, &new, now);
        self.jobs.insert(job.id.clone(), new);
    }

    fn check_change(&mut self, old: &Job, new: &Job, now: Timestamp) {
        let id = &old.id;
        if new.life.version < old.life.version || new.life.revision <= old.life.revision {
            self.fault(format!("{id}: its version or revision went back"));
        }
        if old.life.ended().is_some() {
            return self.check_ended(old, new);
        }
        self.check_history(new);
        self.check_checkpoint(old, new);
        self.check_merge(old, new);
        if let (State::Scheduled { run_at, .. }, State::Running(_)) =
            (&old.life.state, &new.life.state)
        {
            return self.check_claim(old, new, *run_at, now);
        }
        if new.life.attempt != old.life.attempt && !self.is_unclaimed_result(old, new) {
            self.fault(format!(
                "I6: {id}: an attempt was used up without a claim: {:?} -> {:?}",
                old.life, new.life
            ));
        }
        self.check_hand_back(old, new);
        if let (State::Running(was), State::Running(run)) = (&old.life.state, &new.life.state)
            && (was.token != run.token || old.life.version != new.life.version)
        {
            self.fault(format!("{id}: another attempt took the place of a running one"));
        }
        match new.life.ended() {
            Some(Outcome::Failed) if new.life.attempt == 0 && new.spec.deadline_at.is_none() => {
                self.fault(format!("I6: {id} failed without an attempt"));
            }
            Some(Outcome::Expired)
                if new.spec.expires_at.is_none_or(|at| now + MAX_CLOCK_SKEW < at) =>
            {
                self.fault(format!("{id} expired early"));
            }
            Some(_) => self.count("ended"),
            None => {}
        }
    }

    /// Checks that a job takes the data of other requests only before it starts. Later only a retry
    /// plugin changes them.
    fn check_merge(&mut self, old: &Job, new: &Job) {
        let (Some(was), Some(is)) = (old.data.inline(), new.data.inline()) else { return };
        if was != is && *is.bytes != *plugins::RETRY_DATA.as_bytes() {
            if old.life.attempt > 0 || new.life.attempt > 0 {
                self.fault(format!("{}: its data changed after it had started", old.id));
            }
            self.carried.insert((new.id.clone(), is.bytes.clone()));
        }
    }

    /// Checks the answer to a request that a waiting job took.
    pub fn merged(&mut self, request: &NewJob, answer: &Enqueued) {
        let id = &answer.job.id;
        self.count(match answer.merged.map(|merged| merged.how) {
            Some(Merged::Replaced) => "replaced",
            _ => "debounced",
        });
        let takes = request.options.unique.as_ref().is_some_and(Unique::replaces);
        if takes && !self.carried.contains(&(id.clone(), request.data.bytes.clone())) {
            self.fault(format!("{id} never had the data of a request that it took"));
        }
        if !self.jobs.contains_key(id) && !self.removed.contains(id) {
            self.fault(format!("I5: {id} took a request and is not in the store"));
        }
        self.accepted.insert(id.clone());
    }

    /// Checks that an attempt that was handed back does not count, and that only some follow one
    /// another.
    fn check_hand_back(&mut self, old: &Job, new: &Job) {
        let is_new = old.life.history.last().map(|entry| entry.attempt) != Some(new.life.attempt);
        let last = new.life.history.last().filter(|entry| entry.attempt == new.life.attempt);
        if !is_new || last.is_none_or(|entry| entry.hand_back.is_none()) {
            return;
        }
        self.count("handed back");
        let said = last.and_then(|entry| entry.hand_back.as_ref()?.message.as_deref());
        if said == Some(NOT_RECEIVED) {
            self.count("leases not received");
            if self.begun.contains(&(new.id.clone(), new.life.attempt)) {
                self.fault(format!("I6: {} was handed back while its worker works", new.id));
            }
        }
        let (id, total) =
            (&old.id, |job: &Job| job.life.hand_backs.as_ref().map_or(0, |of| of.total));
        if total(new) != total(old) + 1 {
            self.fault(format!("I6: {id}: an attempt that was handed back counts"));
        }
        // Those that no worker received neither count nor end a row.
        let said = new.life.history.iter().rev().map_while(|entry| entry.hand_back.as_ref());
        let in_a_row = said.filter(|said| said.message.as_deref() != Some(NOT_RECEIVED)).count();
        if in_a_row > usize::from(MAX_RELEASES) {
            self.fault(format!("{id} was handed back {in_a_row} times in a row"));
        }
        if self.is_at_most_once(new) {
            // Its worker says that it has not begun.
            self.claims.entry(id.clone()).and_modify(|claims| *claims -= 1);
        }
    }

    /// Checks that only a running attempt changes a checkpoint, and that a success clears it.
    fn check_checkpoint(&mut self, old: &Job, new: &Job) {
        let (id, kept) = (&old.id, new.life.checkpoint.as_ref());
        // A job that was to be cancelled ends so, also if its attempt succeeds.
        let last = new.life.history.last().filter(|_| new.life.ended().is_some());
        let has_succeeded = last.is_some_and(|entry| entry.outcome == Outcome::Succeeded);
        if has_succeeded && kept.is_some() {
            self.fault(format!("{id} succeeded and keeps a checkpoint"));
        }
        if kept == old.life.checkpoint.as_ref() {
            return;
        }
        self.count("checkpoints");
        // The first write about an unclaimed dispatch has its result, or its first heartbeat.
        let ran = old.life.running().is_some() || new.life.attempt > old.life.attempt;
        if !has_succeeded && (!ran || kept.is_none()) {
            self.fault(format!("{id}: a checkpoint was lost: {:?} -> {:?}", old.life, new.life));
        }
    }

    fn is_at_most_once(&self, job: &Job) -> bool {
        let item = self.types.get(&job.spec.job_type);
        item.is_some_and(|item| item.config.delivery == Delivery::AtMostOnce)
    }

    /// Checks a change of a job that had ended.
    fn check_ended(&mut self, old: &Job, new: &Job) {
        let id = &old.id;
        // Allowed: its result is deleted, it records a late reply, or it names its replay. With the
        // result if the time of that is over, which hides it from its readers.
        let (was, is) = (known(old.life.clone()), known(new.life.clone()));
        let with_reply = Lifecycle {
            processed_replies: is.processed_replies.clone(),
            replayed_by: is.replayed_by.clone(),
            revision: is.revision,
            ..was
        };
        let without_result = Lifecycle { result: None, ..with_reply.clone() };
        if (without_result != is && with_reply != is)
            || known_spec(&old.spec) != known_spec(&new.spec)
        {
            self.fault(format!(
                "I5: {id} had ended as {:?} and changed: {:?} -> {:?}",
                old.life.state, old.life, new.life
            ));
        }
    }

    /// Checks that each attempt has one result, and that each reply is about one job.
    fn check_history(&mut self, new: &Job) {
        let id = &new.id;
        // A reply may be about an attempt that was over. Every other result is recorded once per
        // attempt.
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
            self.fault(format!("{id} processed a reply twice"));
        }
        for reply in replies {
            let first = self.replied.entry(reply).or_insert_with(|| id.clone()).clone();
            if first != *id {
                self.fault(format!("a second delivery of a reply to {first} was applied to {id}"));
            }
        }
    }

    /// Checks the answer to a replay of `id`.
    pub fn replayed(&mut self, id: &JobId, replay: &Enqueued) {
        self.count(if replay.new { "replays" } else { "replays known" });
        self.accept(&replay.job.id);
        let named = self
            .jobs
            .get(id)
            .is_none_or(|job| job.life.replayed_by.as_ref() == Some(&replay.job.id));
        if !named {
            self.fault(format!("{id} was replayed as {}, and does not name it", replay.job.id));
        }
    }

    /// Checks the answer to a reply.
    pub fn answered(&mut self, reply: ReplyId, answer: &Replied) {
        let processed =
            |job: &JobId| self.jobs.get(job).is_none_or(|job| job.life.has_processed(reply));
        match answer {
            Replied::Settled(job) | Replied::Recorded(job) | Replied::AlreadyProcessed(job)
                if !processed(job) =>
            {
                self.fault(format!("a reply to {job} was answered and is not in its history"));
            }
            Replied::Settled(_) => self.count("replies settled"),
            Replied::Recorded(_) => self.count("replies recorded"),
            Replied::AlreadyProcessed(_) => self.count("replies known"),
            Replied::Late(_) => self.count("replies late"),
            Replied::Pending(_) => self.count("replies kept"),
        }
    }

    fn check_claim(&mut self, old: &Job, new: &Job, run_at: Timestamp, now: Timestamp) {
        self.count("claims");
        self.check_line(old);
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
        self.check_claim_of_unclaimed(old, run.token);
        let once = self.is_at_most_once(old);
        let claims = self.claims.entry(id.clone()).or_default();
        *claims += 1;
        if once && *claims > 1 {
            self.fault(format!("I6: {id} is at_most_once and started twice"));
        }
        if now + MAX_CLOCK_SKEW < run_at {
            self.fault(format!("{id} started at {now}, before its due time {run_at}"));
        }
        // A decision made in time may be written late.
        if old.spec.expires_at.is_some_and(|at| at <= run.started_at) {
            self.fault(format!("{id} started after it expired"));
        }
        let Some(ledger) = self.ledgers.get(&old.spec.queue) else {
            if run.granted {
                self.fault(format!("I2: {id} says a grant counts it, and its queue has no ledger"));
            }
            return;
        };
        let settling = ledger.settling_until.is_some();
        if !run.granted {
            self.count("claims under way at the first limit");
        }
        let live = self.live(&old.spec.queue);
        let grant = live.get(&(id.clone(), version));
        let granted = grant.is_some_and(|grant| grant.waits_until.is_none());
        // The first heartbeat of an unclaimed dispatch claims it, and not the tick that started it.
        let dispatched = !run.granted && self.was_dispatched_unclaimed(&(id.clone(), version));
        if !granted && (run.granted || !settling) && !dispatched {
            self.fault(format!("I2: {id} started at version {} without a live grant", version.0));
        }
    }

    /// Checks that the job of a message is of a type that is pushed.
    pub fn check_sent(&mut self, id: &JobId) {
        if self.jobs.get(id).is_some_and(|job| job.spec.job_type.as_str().starts_with("pull")) {
            self.fault(format!("{id}, which workers lease, was sent through the work queue"));
        }
    }

    pub(super) fn remove(&mut self, id: &JobId, now: Timestamp) {
        let Some(job) = self.jobs.remove(id) else {
            return self.fault(format!("{id} was removed and does not exist"));
        };
        self.note(format!("{now} - {id}"));
        match job.life.state {
            State::Ended { at, .. }
                if at + job.spec.retention.duration() <= now + MAX_CLOCK_SKEW => {}
            // With retention 0 one write ends and removes the job.
            _ if job.spec.retention.millis() == 0 => self.count("ended"),
            _ => self.fault(format!("I5: {id} was removed before its time: {:?}", job.life.state)),
        }
        self.removed.insert(id.clone());
    }
}
