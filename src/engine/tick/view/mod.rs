//! A queue's ledger with its grants, as one engine keeps it between ticks.
//!
//! A view is a cache: the commit compares the ledger's version, so an old view costs a lost race and a
//! new read, never a wrong admission.

mod prepare;

pub(crate) use prepare::Prepared;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use crate::Error;
use tidegate_core::{
    job::{JobId, PluginName, Version},
    port::policy::{Plugin, PolicyState},
    queue::{
        Grant, GrantBatch, Ledger, Limits, Usage,
        ledger::{BatchId, BatchRef, Bits, KeptPolicyState, StateLocation},
    },
    time::Timestamp,
};

/// Every grant's job is read at least this often, so that a lost hint leaks no slot for longer.
pub const AUDIT: Duration = Duration::from_mins(1);
/// A ledger, and the grants its batches hold.
#[derive(Clone, Debug)]
pub struct View {
    /// The ledger as it was read or committed last.
    pub ledger: Ledger,
    batches: HashMap<BatchId, Arc<GrantBatch>>,
    places: HashMap<JobId, (BatchId, usize)>,
    /// Batches whose jobs were not read since the ledger was: hints about them may have been lost.
    unread: HashSet<BatchId>,
    usage: Usage,
    /// The limits that `usage` was counted for. Two of one version may differ where items are written one by one.
    counted: Option<Arc<Limits>>,
    /// What the throttler remembers.
    state: Arc<PolicyState>,
}

/// What a tick does to the grants: computed apart, applied when it is committed.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// Grants whose jobs left the granted version.
    pub released: Vec<(JobId, Version)>,
    /// New grants.
    pub granted: Vec<Grant>,
    /// When the new grants are checked next.
    pub check_at: Timestamp,
    /// Whether the new grants' work needs no sending.
    pub sent: bool,
    /// Batches whose jobs were read.
    pub read: Vec<BatchId>,
    /// New check times of batches whose time had come, and whether they were sent once more.
    pub checked: Vec<(BatchId, Timestamp, bool)>,
    /// Batches whose work was sent.
    pub sent_batches: Vec<BatchId>,
    /// What the throttler remembers, if that changed.
    pub policy: Option<NewState>,
}

/// What a throttler remembers from now on.
#[derive(Clone, Debug)]
pub(crate) struct NewState {
    pub plugin: PluginName,
    pub state_version: u32,
    pub state: PolicyState,
}

impl View {
    /// The view of a ledger and its batches. Every grant's job is read once, whoever wrote it.
    pub fn new(ledger: Ledger, batches: Vec<GrantBatch>) -> Self {
        let unread = ledger.batches.iter().map(|reference| reference.id).collect();
        let batches = batches.into_iter().map(|batch| (batch.id, Arc::new(batch))).collect();
        let (usage, state) = (Usage::default(), Arc::default());
        let mut view =
            Self { ledger, batches, places: HashMap::new(), unread, usage, counted: None, state };
        view.index();
        view.state = view.read_state();
        view
    }

    /// The same, of what a store gave.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if a batch is missing that the ledger names: its grants would be taken for released.
    pub(crate) fn whole(ledger: Ledger, batches: Vec<GrantBatch>) -> Result<Self, Error> {
        let there: HashSet<BatchId> = batches.iter().map(|batch| batch.id).collect();
        let missing = ledger.referenced_batches().find(|id| !there.contains(id));
        match missing {
            Some(id) => Err(Error::Internal(format!(
                "the ledger names batch {:016x}, which is not there",
                id.0
            ))),
            None => Ok(Self::new(ledger, batches)),
        }
    }

    fn read_state(&self) -> Arc<PolicyState> {
        let kept = self.ledger.policy.as_ref().map(|policy| &policy.state);
        Arc::new(match kept {
            Some(StateLocation::Inline(state)) => state.clone(),
            Some(StateLocation::Batch(id)) => {
                self.batches.get(id).and_then(|batch| batch.state.clone()).unwrap_or_default()
            }
            None => PolicyState::new(),
        })
    }

    /// What `plugin` remembers: nothing, if what is kept is another plugin's or of another shape.
    pub fn state(&self, plugin: &Plugin) -> Arc<PolicyState> {
        let shape = plugin.version.throttler.as_ref().map(|says| says.state_version);
        let fits = |policy: &KeptPolicyState| {
            policy.plugin == plugin.name && Some(policy.state_version) == shape
        };
        if self.ledger.policy.as_ref().is_some_and(fits) {
            Arc::clone(&self.state)
        } else {
            Arc::default()
        }
    }

    /// The end of what is kept for a throttler that the queue has no more.
    pub(crate) fn forgotten_state(&self, limits: &Limits) -> Option<NewState> {
        let KeptPolicyState { plugin, state_version, .. } = self.ledger.policy.as_ref()?;
        let gone =
            limits.queue.throttler.as_ref().is_none_or(|throttler| throttler.plugin != *plugin);
        gone.then(|| NewState {
            plugin: plugin.clone(),
            state_version: *state_version,
            state: PolicyState::new(),
        })
    }

    /// The batches, each with those of its grants that are released, or are in `released`.
    pub(crate) fn running(&self, released: &[(JobId, Version)]) -> Vec<(Arc<GrantBatch>, Bits)> {
        let named = self.ledger.batches.iter().filter_map(|named| {
            Some((Arc::clone(self.batches.get(&named.id)?), named.released.clone()))
        });
        let mut running: Vec<(Arc<GrantBatch>, Bits)> = named.collect();
        for (job, _) in released.iter().filter(|(job, version)| self.granted(job) == Some(*version))
        {
            if let Some((batch, index)) = self.places.get(job)
                && let Some((_, bits)) = running.iter_mut().find(|(of, _)| of.id == *batch)
            {
                bits.set(*index);
            }
        }
        running
    }

    fn index(&mut self) {
        self.places.clear();
        for reference in &self.ledger.batches {
            let grants = self.batches.get(&reference.id).map_or(&[][..], |batch| &batch.grants);
            for (index, grant) in
                grants.iter().enumerate().filter(|(index, _)| !reference.released.has(*index))
            {
                self.places.insert(grant.job.clone(), (reference.id, index));
            }
        }
    }

    /// The grants that are not released.
    pub fn live(&self) -> impl Iterator<Item = &Grant> {
        self.ledger.batches.iter().flat_map(|reference| self.live_of(reference))
    }

    /// The live grants of one batch.
    pub(crate) fn live_of<'a>(
        &'a self,
        reference: &'a BatchRef,
    ) -> impl Iterator<Item = &'a Grant> {
        let grants = self.batches.get(&reference.id).map_or(&[][..], |batch| &batch.grants);
        grants
            .iter()
            .enumerate()
            .filter(|(index, _)| !reference.released.has(*index))
            .map(|(_, grant)| grant)
    }

    /// The version at which `job` is granted, if it is.
    pub fn granted(&self, job: &JobId) -> Option<Version> {
        self.grant(job).map(|grant| grant.version)
    }

    /// The grant of `job`, if it has one.
    pub(crate) fn grant(&self, job: &JobId) -> Option<&Grant> {
        let (batch, index) = self.places.get(job)?;
        self.batches.get(batch)?.grants.get(*index)
    }

    /// The weight that live grants take, as it was counted last.
    pub fn weight(&self) -> u64 {
        self.usage.weight()
    }

    /// What live grants take of `limits`.
    pub fn usage(&mut self, limits: &Arc<Limits>) -> &Usage {
        if !self.is_counted(limits) {
            self.usage = Usage::of(limits, self.live().collect::<Vec<_>>());
            self.counted = Some(Arc::clone(limits));
        }
        &self.usage
    }

    fn is_counted(&self, limits: &Arc<Limits>) -> bool {
        self.counted
            .as_ref()
            .is_some_and(|counted| Arc::ptr_eq(counted, limits) || **counted == **limits)
    }

    /// The batches to be looked at by `now`, and those that were not yet.
    pub(crate) fn due_checks(&self, now: Timestamp) -> impl Iterator<Item = &BatchRef> {
        self.ledger.batches.iter().filter(move |reference| {
            reference.check_at <= now || self.unread.contains(&reference.id)
        })
    }

    /// Takes note of the batches whose jobs were read.
    pub(crate) fn note_read(&mut self, delta: &Delta) {
        for id in &delta.read {
            self.unread.remove(id);
        }
    }

    /// The next instant at which a batch is looked at.
    pub fn next_check(&self) -> Option<Timestamp> {
        self.ledger.batches.iter().map(|reference| reference.check_at).min()
    }
}
