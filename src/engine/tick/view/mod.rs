//! A queue's ledger with its grants, as one engine keeps it between ticks.
//!
//! A view is a cache. The commit compares the ledger's version, so an old view costs a lost race
//! and a new read, but never a wrong admission.

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

/// The longest time between two reads of a grant's job. A slot whose hint was lost is free after
/// it.
pub const AUDIT_INTERVAL: Duration = Duration::from_mins(1);
/// A ledger and the grants of its batches.
#[derive(Clone, Debug)]
pub struct LedgerView {
    /// The ledger as last read or committed.
    pub ledger: Ledger,
    batches: HashMap<BatchId, Arc<GrantBatch>>,
    /// The batch of each live grant, and the grant's index in it.
    places: HashMap<JobId, (BatchId, usize)>,
    /// Batches whose jobs were not read since the ledger was read. Hints about them may be lost.
    unread: HashSet<BatchId>,
    usage: Usage,
    /// The limits that `usage` was counted for. Two values of one version may differ, because a
    /// queue's limits also depend on its types and its plugin, which are separate items.
    counted: Option<Arc<Limits>>,
    /// The throttler's state.
    state: Arc<PolicyState>,
}

/// The changes that a tick makes to the grants. They are applied to the view after the commit.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// Grants whose jobs left the granted version.
    pub released: Vec<(JobId, Version)>,
    /// New grants.
    pub granted: Vec<Grant>,
    /// When the new grants are checked next.
    pub check_at: Timestamp,
    /// Whether the work of the new grants is not sent: this tick claims it.
    pub sent: bool,
    /// Batches whose jobs were read.
    pub read: Vec<BatchId>,
    /// The new check time of each batch whose check time has come, and its number of sends if its
    /// work is sent again.
    pub checked: Vec<(BatchId, Timestamp, Option<u8>)>,
    /// Batches whose work was sent.
    pub sent_batches: Vec<BatchId>,
    /// The throttler's new state, if it changed.
    pub policy: Option<NewState>,
}

impl Delta {
    /// Has the new grants checked at `at` or before.
    pub(crate) fn check_by(&mut self, at: Timestamp) {
        let unset = self.check_at == Timestamp::EPOCH;
        self.check_at = if unset { at } else { self.check_at.min(at) };
    }
}

/// The new state of a throttler.
#[derive(Clone, Debug)]
pub(crate) struct NewState {
    pub plugin: PluginName,
    pub state_version: u32,
    pub state: PolicyState,
}

impl LedgerView {
    /// The view of a ledger and its batches. The next tick reads the job of every grant.
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

    /// The view of a ledger and its batches as a store returned them.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if a batch is missing that the ledger names. Without it, its grants
    /// would seem to be released.
    pub(crate) fn whole(ledger: Ledger, batches: Vec<GrantBatch>) -> Result<Self, Error> {
        let there: HashSet<BatchId> = batches.iter().map(|batch| batch.id).collect();
        let missing = ledger.referenced_batches().find(|id| !there.contains(id));
        match missing {
            Some(id) => Err(Error::Internal(format!(
                "the ledger names batch {:016x}, which is missing",
                id.0
            ))),
            None => Ok(Self::new(ledger, batches)),
        }
    }

    /// The throttler's state in the ledger, or in the records that the ledger names.
    fn read_state(&self) -> Arc<PolicyState> {
        let page = |id| self.batches.get(id).and_then(|batch| batch.state.clone());
        let pages = match self.ledger.policy.as_ref().map(|policy| &policy.state) {
            Some(StateLocation::Inline(page)) => vec![Arc::new(page.clone())],
            Some(location) => {
                location.pages().iter().map(|id| page(id).unwrap_or_default()).collect()
            }
            None => Vec::new(),
        };
        Arc::new(PolicyState::of_pages(pages))
    }

    /// The state of `plugin`. Empty if the ledger has the state of another plugin or of another
    /// state version.
    pub fn state(&self, plugin: &Plugin) -> Arc<PolicyState> {
        let state_version =
            plugin.version.throttler.as_ref().map(|description| description.state_version);
        let fits = |policy: &KeptPolicyState| {
            policy.plugin == plugin.name && Some(policy.state_version) == state_version
        };
        if self.ledger.policy.as_ref().is_some_and(fits) {
            Arc::clone(&self.state)
        } else {
            Arc::default()
        }
    }

    /// The empty state that replaces the stored one, if the queue has another throttler now, or
    /// none.
    pub(crate) fn forgotten_state(&self, limits: &Limits) -> Option<NewState> {
        let KeptPolicyState { plugin, state_version, .. } = self.ledger.policy.as_ref()?;
        let gone =
            limits.queue.throttler.as_ref().is_none_or(|throttler| throttler.plugin != *plugin);
        // An empty state stays with the fields that a newer release added to it.
        (gone && !self.state.is_empty()).then(|| NewState {
            plugin: plugin.clone(),
            state_version: *state_version,
            state: PolicyState::default(),
        })
    }

    /// The batches, each with the bits of its released grants. Those in `released` count as
    /// released.
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

    /// Fills `places` with the live grants.
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

    /// The weight of the live grants, as last counted.
    pub fn weight(&self) -> u64 {
        self.usage.weight()
    }

    /// The part of `limits` that the live grants use.
    pub fn usage(&mut self, limits: &Arc<Limits>) -> &Usage {
        if !self.is_counted(limits) {
            self.usage = Usage::of(limits, self.live().collect::<Vec<_>>());
            self.counted = Some(Arc::clone(limits));
        }
        &self.usage
    }

    /// Whether `usage` was counted for `limits`.
    fn is_counted(&self, limits: &Arc<Limits>) -> bool {
        self.counted
            .as_ref()
            .is_some_and(|counted| Arc::ptr_eq(counted, limits) || **counted == **limits)
    }

    /// The batches whose check time has come at `now`, and those whose jobs were not read yet.
    pub(crate) fn due_checks(&self, now: Timestamp) -> impl Iterator<Item = &BatchRef> {
        self.ledger.batches.iter().filter(move |reference| {
            reference.check_at <= now || self.unread.contains(&reference.id)
        })
    }

    /// Records that the jobs of some batches were read.
    pub(crate) fn note_read(&mut self, delta: &Delta) {
        for id in &delta.read {
            self.unread.remove(id);
        }
    }

    /// The next check time of any batch.
    pub(crate) fn next_check(&self) -> Option<Timestamp> {
        self.ledger.batches.iter().map(|reference| reference.check_at).min()
    }
}
