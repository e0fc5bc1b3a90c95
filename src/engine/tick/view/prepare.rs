//! The ledger and the batches that a commit writes, and the view after it.

use std::sync::Arc;

use super::{Delta, LedgerView, NewState};
use tidegate_core::{
    job::Value,
    queue::{
        Grant, GrantBatch, Ledger, Limits,
        ledger::{BatchId, BatchRef, Bits, KeptPolicyState, StateLocation},
    },
    stored::UnknownFields,
    time::Timestamp,
};

/// Batches that a ledger has at most. More are merged, the emptiest first, so that the ledger stays
/// small.
const MAX_BATCHES: usize = 24;
/// The largest state of a throttler that is kept in the ledger. A larger one is a record of its
/// own.
const MAX_INLINE_STATE_BYTES: usize = 512;
/// The largest size of a batch's grants, as [`bytes()`] estimates it. A record of some stores has
/// at most 400 KB.
const MAX_BATCH_BYTES: usize = 256 << 10;
/// The offset from a commit's nonce that numbers the first page of a throttler's state. Batches use
/// smaller offsets.
const PAGE_OFFSET: u64 = 1 << 32;

/// The writes that commit a [`Delta`].
pub(crate) struct Prepared {
    /// The ledger after the commit.
    pub ledger: Ledger,
    /// Batches to write before the ledger.
    pub add: Vec<GrantBatch>,
    /// Batches to remove after it.
    pub remove: Vec<BatchId>,
}

impl LedgerView {
    /// The ledger after `delta`, with the batches to write and to remove. In `ledger`, everything
    /// but the batches is changed already.
    pub(crate) fn prepare(&self, mut ledger: Ledger, delta: &Delta) -> Prepared {
        for (job, version) in &delta.released {
            if let Some((batch, index)) =
                self.places.get(job).filter(|_| self.granted(job) == Some(*version))
                && let Some(reference) =
                    ledger.batches.iter_mut().find(|reference| reference.id == *batch)
            {
                reference.released.set(*index);
            }
        }
        for (id, check_at, resent) in &delta.checked {
            if let Some(reference) = ledger.batches.iter_mut().find(|reference| reference.id == *id)
            {
                reference.check_at = *check_at;
                reference.sends = resent.unwrap_or(reference.sends);
            }
        }
        for reference in
            ledger.batches.iter_mut().filter(|reference| delta.sent_batches.contains(&reference.id))
        {
            reference.sent = true;
        }
        let (live, exhausted): (Vec<_>, Vec<_>) = std::mem::take(&mut ledger.batches)
            .into_iter()
            .partition(|reference| reference.released.count() < reference.count as usize);
        let mut remove: Vec<BatchId> =
            exhausted.into_iter().map(|reference| reference.id).collect();
        ledger.batches = live;
        let mut add = Vec::new();
        for grants in parts(delta.granted.clone()) {
            let sends = u8::from(!delta.sent);
            append(&mut ledger, &mut add, grants, delta.check_at, delta.sent, sends);
        }
        self.merge(&mut ledger, &mut add, &mut remove);
        if let Some(new) = &delta.policy {
            self.keep_state(&mut ledger, new, &mut add, &mut remove);
        }
        Prepared { ledger, add, remove }
    }

    /// Stores a throttler's new state in `ledger`, or in records that `ledger` names: one for each
    /// page that differs from the stored one. The fields that a newer release added to the plugin's
    /// state stay where they were, as long as that page exists.
    fn keep_state(
        &self,
        ledger: &mut Ledger,
        new: &NewState,
        add: &mut Vec<GrantBatch>,
        remove: &mut Vec<BatchId>,
    ) {
        let NewState { plugin, state_version, state } = new;
        let old = ledger.policy.take();
        let mut ids = old.as_ref().map(|old| old.state.pages().to_vec()).unwrap_or_default();
        // Another plugin's fields are not kept.
        let old = old.filter(|old| old.plugin == *plugin);
        let unknown_of = |id: &BatchId| {
            let batch = self.batches.get(id).filter(|_| old.is_some());
            batch.map(|batch| batch.unknown.clone()).unwrap_or_default()
        };
        let fields: Vec<UnknownFields> = ids.iter().map(unknown_of).collect();
        let of_ledger = old.as_ref().map(|old| old.unknown.clone()).unwrap_or_default();
        let has = |fields: &UnknownFields| !fields.as_slice().is_empty();
        if state.is_empty() && !has(&of_ledger) && !fields.iter().any(has) {
            remove.append(&mut ids);
            return;
        }
        let is_small = state.bytes() <= MAX_INLINE_STATE_BYTES && !fields.iter().any(has);
        let state = if is_small {
            remove.append(&mut ids);
            let entries = state.iter().map(|(key, value)| (key.clone(), value.clone()));
            StateLocation::Inline(entries.collect())
        } else {
            // A page stays if it is the page of the same keys, with the same entries.
            let stored = self.state.pages();
            let same_keys = old.is_some() && ids.len() == state.pages().len();
            let empty = [Arc::default()];
            let pages = if state.is_empty() { &empty } else { state.pages() };
            let mut named = Vec::with_capacity(pages.len());
            for (nth, page) in pages.iter().enumerate() {
                let kept = ids.get(nth).filter(|_| same_keys && stored.get(nth) == Some(page));
                named.push(kept.copied().unwrap_or_else(|| {
                    let id = BatchId((ledger.nonce >> 1) ^ (PAGE_OFFSET + nth as u64));
                    add.push(GrantBatch {
                        id,
                        ledger_version: ledger.version,
                        grants: Vec::new(),
                        state: Some(Arc::clone(page)),
                        unknown: fields.get(nth).cloned().unwrap_or_default(),
                    });
                    id
                }));
            }
            remove.extend(ids.iter().filter(|id| !named.contains(id)));
            StateLocation::of_pages(named)
        };
        ledger.policy = Some(KeptPolicyState {
            plugin: plugin.clone(),
            state_version: *state_version,
            state,
            unknown: of_ledger,
        });
    }

    /// Merges the emptiest batches into one when there are too many, or two are under a quarter
    /// live.
    ///
    /// Batches that a tick claimed and batches that were sent stay apart: a claim that was not
    /// written must not be sent. So at most one of the two kinds is merged, first the larger one.
    fn merge(&self, ledger: &mut Ledger, add: &mut Vec<GrantBatch>, remove: &mut Vec<BatchId>) {
        let sent = ledger.batches.iter().filter(|reference| reference.sends > 0).count();
        let most_are_sent = sent * 2 > ledger.batches.len();
        let before = ledger.batches.len();
        self.merge_kind(most_are_sent, ledger, add, remove);
        if ledger.batches.len() == before {
            self.merge_kind(!most_are_sent, ledger, add, remove);
        }
    }

    /// Merges batches of those that were sent, or of those that were not.
    fn merge_kind(
        &self,
        are_sent: bool,
        ledger: &mut Ledger,
        add: &mut Vec<GrantBatch>,
        remove: &mut Vec<BatchId>,
    ) {
        let live = |reference: &BatchRef| reference.count as usize - reference.released.count();
        let kind = ledger.batches.iter().filter(|reference| (reference.sends > 0) == are_sent);
        let sparse =
            kind.clone().filter(|reference| live(reference) * 4 < reference.count as usize).count();
        if ledger.batches.len() <= MAX_BATCHES && sparse < 2 {
            return;
        }
        let mut order: Vec<(usize, BatchId)> = kind
            .filter(|reference| reference.sent && !self.is_extended(reference))
            .map(|reference| (live(reference), reference.id))
            .collect();
        order.sort_unstable();
        let many = ledger.batches.len().saturating_sub(MAX_BATCHES / 2).max(sparse).max(2);
        let chosen: Vec<BatchId> = order.iter().take(many).map(|(_, id)| *id).collect();
        if chosen.len() < 2 {
            return;
        }
        let size: usize = chosen.iter().flat_map(|id| self.bytes_of(ledger, add, *id)).sum();
        // Large batches are not merged.
        if size.div_ceil(MAX_BATCH_BYTES) * 2 > chosen.len() {
            return;
        }
        let mut grants = Vec::new();
        let mut check_at = Timestamp::MAX;
        let sends = ledger.batches.iter().filter(|reference| chosen.contains(&reference.id));
        let sends = sends.map(|reference| reference.sends).min().unwrap_or(0);
        let (merged, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut ledger.batches)
            .into_iter()
            .partition(|reference| chosen.contains(&reference.id));
        ledger.batches = kept;
        for reference in &merged {
            check_at = check_at.min(reference.check_at);
            if let Some(fresh) = add.iter().position(|batch| batch.id == reference.id) {
                grants.extend(add.remove(fresh).grants);
            } else {
                grants.extend(self.live_of(reference).cloned());
                remove.push(reference.id);
            }
        }
        for grants in parts(grants) {
            append(ledger, add, grants, check_at, true, sends);
        }
    }

    /// Whether a newer release has added fields to a batch, which a merged batch would not have.
    fn is_extended(&self, reference: &BatchRef) -> bool {
        let batch = self.batches.get(&reference.id);
        !reference.unknown.as_slice().is_empty()
            || batch.is_some_and(|batch| !batch.unknown.as_slice().is_empty())
    }

    /// The sizes of the live grants of a batch, which may be new.
    fn bytes_of(&self, ledger: &Ledger, add: &[GrantBatch], id: BatchId) -> Vec<usize> {
        if let Some(fresh) = add.iter().find(|batch| batch.id == id) {
            return fresh.grants.iter().map(bytes).collect();
        }
        let reference = ledger.batches.iter().find(|reference| reference.id == id);
        reference.map(|reference| self.live_of(reference).map(bytes).collect()).unwrap_or_default()
    }

    /// Updates the view after `prepared` was committed.
    pub(crate) fn committed(&mut self, prepared: Prepared, delta: &Delta, limits: &Arc<Limits>) {
        if self.is_counted(limits) {
            for (job, version) in &delta.released {
                if let Some(grant) =
                    self.grant(job).filter(|grant| grant.version == *version).cloned()
                {
                    self.usage.remove(limits, &grant);
                    self.places.remove(job);
                }
            }
            for grant in &delta.granted {
                self.usage.add(limits, grant);
            }
        } else {
            for (job, version) in &delta.released {
                if self.granted(job) == Some(*version) {
                    self.places.remove(job);
                }
            }
        }
        for id in &prepared.remove {
            self.batches.remove(id);
        }
        for batch in prepared.add {
            for (index, grant) in batch.grants.iter().enumerate() {
                self.places.insert(grant.job.clone(), (batch.id, index));
            }
            self.batches.insert(batch.id, Arc::new(batch));
        }
        self.ledger = prepared.ledger;
        if delta.policy.is_some() {
            self.state = self.read_state();
        }
    }
}

/// The approximate size of a grant in bytes.
fn bytes(grant: &Grant) -> usize {
    let value = |value: &Value| match value {
        Value::Text(text) => text.len(),
        Value::Number(_) => 20,
    };
    let attributes: usize =
        grant.attributes.iter().map(|(name, given)| name.len() + value(given) + 4).sum();
    grant.job.as_str().len() + grant.job_type.as_str().len() + attributes + 32
}

/// Splits `grants` into the parts that fit in one record each.
fn parts(grants: Vec<Grant>) -> Vec<Vec<Grant>> {
    let mut parts: Vec<Vec<Grant>> = Vec::new();
    let mut bytes_left = 0;
    for grant in grants {
        let size = bytes(&grant);
        if let Some(part) = parts.last_mut().filter(|_| size <= bytes_left) {
            part.push(grant);
        } else {
            bytes_left = MAX_BATCH_BYTES;
            parts.push(vec![grant]);
        }
        bytes_left = bytes_left.saturating_sub(size);
    }
    parts
}

/// Adds a batch of `grants` to `ledger`.
///
/// Its number comes from the commit's nonce. With ascending numbers two concurrent ticks would use
/// the same one, and the late write of the loser would replace a batch that the winner's ledger
/// names.
fn append(
    ledger: &mut Ledger,
    add: &mut Vec<GrantBatch>,
    grants: Vec<Grant>,
    check_at: Timestamp,
    sent: bool,
    sends: u8,
) {
    let mut numbers = (0..PAGE_OFFSET).map(|nth| BatchId((ledger.nonce >> 1) ^ nth));
    let id = numbers
        .find(|id| ledger.referenced_batches().all(|named| named != *id))
        .expect("there are more numbers than batches");
    ledger.batches.push(BatchRef {
        id,
        count: grants.len() as u32,
        released: Bits::default(),
        check_at,
        sent,
        sends,
        unknown: UnknownFields::default(),
    });
    add.push(GrantBatch {
        id,
        ledger_version: ledger.version,
        grants,
        state: None,
        unknown: UnknownFields::default(),
    });
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::testkit::builders::name;
    use tidegate_core::{job::Version, port::policy::PolicyState};

    /// The view of a ledger and its throttler's large state, each with a field of a newer release.
    fn extended() -> LedgerView {
        let field = |text: &str| UnknownFields::new([text.into()]);
        let policy = KeptPolicyState {
            plugin: name("fair"),
            state_version: 1,
            state: StateLocation::Batch(BatchId(7)),
            unknown: field("of the ledger"),
        };
        let batch = GrantBatch {
            id: BatchId(7),
            ledger_version: 1,
            grants: Vec::new(),
            state: Some(Arc::new([("k".into(), "v".repeat(600).into())].into())),
            unknown: field("of the batch"),
        };
        LedgerView::new(Ledger { policy: Some(policy), ..Ledger::default() }, vec![batch])
    }

    /// The unknown fields of the ledger's entry and of the batch, after a tick stored `state`.
    fn after(view: &mut LedgerView, plugin: &str, state: &[(&str, &str)]) -> [Vec<String>; 2] {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let mut state: PolicyState = state.iter().map(owned).collect();
        state.balance();
        let new = NewState { plugin: name(plugin), state_version: 1, state };
        let delta = Delta { policy: Some(new), ..Delta::default() };
        let nonce = view.ledger.nonce + 2;
        let prepared = view.prepare(Ledger { nonce, ..view.ledger.clone() }, &delta);
        view.committed(prepared, &delta, &Arc::default());
        let texts = |fields: &UnknownFields| {
            fields.as_slice().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let Some(policy) = &view.ledger.policy else { return [vec![], vec![]] };
        let [page] = policy.state.pages() else {
            return [texts(&policy.unknown), vec![]];
        };
        [texts(&policy.unknown), texts(&view.batches[page].unknown)]
    }

    #[test]
    fn a_replaced_state_keeps_the_fields_of_a_newer_release() {
        let mut view = extended();
        let large = "w".repeat(600);
        for state in [&[("k", large.as_str())][..], &[("k", "short")], &[]] {
            let kept = after(&mut view, "fair", state);
            assert_eq!(kept, [[r#""of the ledger""#], [r#""of the batch""#]], "{state:?}");
        }
        // They are of this plugin, not of the next.
        assert_eq!(after(&mut view, "other", &[("k", "v")]), [[""; 0]; 2]);
        assert_eq!(after(&mut view, "other", &[]), [[""; 0]; 2]);
        assert_eq!(view.ledger.policy, None);
    }

    #[test]
    fn claims_and_sent_work_are_not_merged_with_each_other() {
        for claimed in [3, 10, 15, 22] {
            let all = MAX_BATCHES + 1;
            let grant_of = |number: usize| Grant {
                job: format!("j{number}").parse().unwrap(),
                version: Version(1),
                job_type: name("work"),
                priority: 0,
                weight: 1,
                critical: false,
                attributes: BTreeMap::new(),
                granted_at: Timestamp::EPOCH,
                waits_until: None,
                unknown: UnknownFields::default(),
            };
            let batch = |number: usize| GrantBatch {
                id: BatchId(number as u64),
                ledger_version: 1,
                grants: vec![grant_of(number)],
                state: None,
                unknown: UnknownFields::default(),
            };
            let reference = |number: usize| BatchRef {
                id: BatchId(number as u64),
                count: 1,
                released: Bits::default(),
                check_at: Timestamp::EPOCH,
                sent: true,
                sends: u8::from(number >= claimed),
                unknown: UnknownFields::default(),
            };
            let ledger = Ledger { batches: (0..all).map(reference).collect(), ..Ledger::default() };
            let view = LedgerView::new(ledger.clone(), (0..all).map(batch).collect());
            let next = Ledger { nonce: 1 << 40, version: 2, ..ledger };
            let prepared = view.prepare(next, &Delta::default());
            assert!(prepared.ledger.batches.len() <= MAX_BATCHES, "{claimed} claimed");
            for merged in &prepared.add {
                let of_claims: HashSet<bool> = merged
                    .grants
                    .iter()
                    .map(|grant| grant.job.as_str()[1..].parse::<usize>().unwrap() < claimed)
                    .collect();
                assert_eq!(of_claims.len(), 1, "{claimed} claimed: {:?}", merged.grants);
            }
        }
    }
}
