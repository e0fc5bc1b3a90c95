//! The allowed changes of a ledger, its batches of grants and the state of its throttler.

use tidegate_core::{
    job::{Job, QueueName},
    port::policy::StatePage,
    queue::{
        Grant, GrantBatch, Ledger, Limits,
        ledger::{BatchId, StateLocation},
    },
    time::Timestamp,
};

use super::{
    super::{plugins::STARTED, releases::lost_of_ledger},
    AUDIT_INTERVAL, Granted, MAX_CLOCK_SKEW, Model,
    limits::exceeded_limit,
};

impl Model {
    pub(super) fn add_batch(&mut self, queue: &QueueName, batch: &GrantBatch) {
        let named = self
            .ledgers
            .get(queue)
            .is_some_and(|ledger| ledger.referenced_batches().any(|id| id == batch.id));
        if named {
            self.fault(format!("batch {} was written again while the ledger names it", batch.id.0));
        }
        self.batches.insert((queue.clone(), batch.id), batch.clone());
    }

    pub(super) fn remove_batch(&mut self, queue: &QueueName, id: BatchId) {
        if self
            .ledgers
            .get(queue)
            .is_some_and(|ledger| ledger.referenced_batches().any(|named| named == id))
        {
            self.fault(format!("batch {} was removed while the ledger names it", id.0));
        }
        self.batches.remove(&(queue.clone(), id));
    }

    pub(super) fn set_ledger(&mut self, queue: &QueueName, ledger: &Ledger, now: Timestamp) {
        let old = self.ledgers.get(queue).cloned().unwrap_or_default();
        self.count("commits");
        if lost_of_ledger(&old, ledger) {
            self.fault(format!("ledger {} lost a field of the next release", ledger.version));
        }
        self.check_order(&old, ledger);
        self.check_batches(queue, ledger, now);
        let (before, after) = (self.live_of(queue, &old), self.live_of(queue, ledger));
        self.check_released(ledger, &before, &after);
        // Adopting running jobs may exceed a limit, as lowering a limit does. A job may have ended
        // since it was read as running. A process adopts its own unclaimed dispatches later.
        let settled = old.settling_until.is_some() && ledger.settling_until.is_none();
        let added: Vec<&Grant> = after
            .iter()
            .filter(|(key, grant)| {
                // A waiting grant admits nothing, and one that replaces it does.
                grant.waits_until.is_none()
                    && before.get(*key).is_none_or(|was| was.waits_until.is_some())
                    && (!settled || !self.claimed.contains(key))
                    && !self.runs_unclaimed(key)
            })
            .map(|(_, grant)| grant)
            .collect();
        self.note(format!(
            "{now} ledger {} c{} {:?} + {:?}",
            ledger.version,
            ledger.config_version,
            ledger
                .batches
                .iter()
                .map(|named| (named.id.0, named.count, named.released.count(), named.sends))
                .collect::<Vec<_>>(),
            added.iter().map(|grant| (grant.job.as_str(), grant.version.0)).collect::<Vec<_>>()
        ));
        self.check_admitted(queue, ledger, &added);
        let shapes =
            self.limits.get(&(queue.clone(), ledger.config_version)).cloned().unwrap_or_default();
        let faults: Vec<Option<String>> =
            shapes.iter().map(|limits| exceeded_limit(limits, &added, &after)).collect();
        if let Some(Some(fault)) = faults.iter().min() {
            self.fault(format!("I1: {fault} (configuration {})", ledger.config_version));
        }
        if settled {
            self.check_adopted(queue, &after);
        }
        if !settled {
            self.check_state(queue, &old, ledger, &shapes, &added);
        }
        let admitted: Vec<Grant> = added.into_iter().cloned().collect();
        if let [limits] = &shapes[..] {
            self.check_rates(queue, limits, &admitted, ledger.time);
        }
        self.ledgers.insert(queue.clone(), ledger.clone());
    }

    /// Checks that the version, the configuration and the time of a ledger only go forward.
    fn check_order(&mut self, old: &Ledger, ledger: &Ledger) {
        if ledger.version != old.version + 1 {
            self.fault(format!(
                "the ledger went from version {} to {}",
                old.version, ledger.version
            ));
        }
        if ledger.config_version < old.config_version || ledger.time < old.time {
            self.fault(format!(
                "the ledger's configuration or time went back: {} to {}",
                old.config_version, ledger.config_version
            ));
        }
    }

    /// Checks that the batches that the ledger names are stored, and are audited in time.
    fn check_batches(&mut self, queue: &QueueName, ledger: &Ledger, now: Timestamp) {
        for named in &ledger.batches {
            let count =
                self.batches.get(&(queue.clone(), named.id)).map(|batch| batch.grants.len());
            if count != Some(named.count as usize) {
                self.fault(format!(
                    "the ledger names batch {} with {} grants, and there are {count:?}",
                    named.id.0, named.count
                ));
            }
            if named.check_at > now + AUDIT_INTERVAL + MAX_CLOCK_SKEW {
                self.fault(format!(
                    "I4: batch {} is not audited until {}",
                    named.id.0, named.check_at
                ));
            }
        }
    }

    /// Checks that no job is granted twice, and that only unused grants are released.
    fn check_released(&mut self, ledger: &Ledger, before: &Granted, after: &Granted) {
        let all: usize =
            ledger.batches.iter().map(|named| named.count as usize - named.released.count()).sum();
        if all != after.len() {
            self.fault("a job is granted twice at one version".into());
        }
        for (key, grant) in before.iter().filter(|(key, _)| !after.contains_key(*key)) {
            // A waiting grant takes no slot, and ends with the strict order of its queue.
            if grant.waits_until.is_none()
                && self.jobs.get(&key.0).is_some_and(|job| job.life.version == key.1)
            {
                self.fault(format!(
                    "I3: the grant of {} was released while it is at version {}",
                    key.0, key.1.0
                ));
            }
            self.idle.remove(key);
        }
    }

    /// Checks that the ledger may admit jobs at all, under this configuration.
    fn check_admitted(&mut self, queue: &QueueName, ledger: &Ledger, added: &[&Grant]) {
        if ledger.settling_until.is_some() && !added.is_empty() {
            self.fault("something was admitted while running jobs may still appear".into());
        }
        if !added.is_empty() && ledger.config_version < self.promised(queue) {
            self.fault(format!(
                "admitted under configuration {}, after a newer one was answered",
                ledger.config_version
            ));
        }
    }

    /// Checks that the first settled ledger has a grant for every running job.
    fn check_adopted(&mut self, queue: &QueueName, after: &Granted) {
        let granted = |job: &Job| {
            let key = (job.id.clone(), job.life.version);
            // The first heartbeat of an unclaimed dispatch may be written after the adoption.
            after.contains_key(&key) || self.was_dispatched_unclaimed(&key)
        };
        let missed = self
            .jobs
            .values()
            .find(|job| job.spec.queue == *queue && job.life.running().is_some() && !granted(job));
        if let Some(id) = missed.map(|job| job.id.clone()) {
            self.fault(format!(
                "I1: {id} runs and was not adopted as a grant when the ledger was settled"
            ));
        }
    }

    /// Checks that the state of the throttler counts exactly the jobs whose start was committed
    /// with it.
    fn check_state(
        &mut self,
        queue: &QueueName,
        old: &Ledger,
        ledger: &Ledger,
        shapes: &[Limits],
        added: &[&Grant],
    ) {
        if shapes.is_empty() || shapes.iter().any(|limits| limits.queue.throttler.is_none()) {
            return;
        }
        let shape = |ledger: &Ledger| ledger.policy.as_ref().map(|policy| policy.state_version);
        let before = if shape(old) == shape(ledger) {
            self.started_by_throttler(queue, old)
        } else {
            Some(0)
        };
        let (Some(before), Some(after)) = (before, self.started_by_throttler(queue, ledger)) else {
            return self.fault("the state of the throttler is missing".into());
        };
        let started = added.iter().filter(|grant| !grant.critical).count() as u64;
        if started > 0 {
            self.count("commits under a throttler");
        }
        if after != before + started {
            self.fault(format!(
                "{started} jobs were started, and the throttler counts {after} after {before}"
            ));
        }
    }

    /// How many jobs the state of the throttler counts, stored in `ledger` or in a batch that it
    /// names.
    fn started_by_throttler(&self, queue: &QueueName, ledger: &Ledger) -> Option<u64> {
        let Some(policy) = &ledger.policy else {
            return Some(0);
        };
        let page = |id: &BatchId| self.batches.get(&(queue.clone(), *id))?.state.as_deref();
        let pages: Vec<&StatePage> = match &policy.state {
            StateLocation::Inline(page) => vec![page],
            location => location.pages().iter().map(page).collect::<Option<_>>()?,
        };
        // An empty state is kept for the fields that a newer release added to it.
        if pages.iter().all(|page| page.is_empty()) {
            return Some(0);
        }
        pages.into_iter().find_map(|page| page.get(STARTED))?.text.parse().ok()
    }
}
