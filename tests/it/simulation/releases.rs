//! Two releases on one store: half of the engines write each record as the next release would, with
//! a field more, and no engine may lose such a field.

use tidegate_core::{
    job::{Lifecycle, Spec, State},
    queue::Ledger,
    stored::UnknownFields,
};
pub use tidegate_engine::testkit::releases::Release;
use tidegate_engine::testkit::releases::{FIELD, fields_of};

/// The releases in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Releases {
    /// This one.
    One,
    /// This one and the next.
    Two,
    /// The same, and this one loses the fields of the next: a planted bug.
    OneForgets,
}

/// `life` without unknown fields.
pub fn known(mut life: Lifecycle) -> Lifecycle {
    fields_of(&mut life).for_each(|fields| *fields = UnknownFields::default());
    life
}

/// `spec` without unknown fields.
pub fn known_spec(spec: &Spec) -> Spec {
    Spec { unknown: UnknownFields::default(), ..spec.clone() }
}

/// Where a change from `old` to `new` loses a field of the next release, if it does.
pub fn lost_of_job(old: (&Spec, &Lifecycle), new: (&Spec, &Lifecycle)) -> Option<&'static str> {
    let lost = |old: &UnknownFields, new: &UnknownFields| {
        !old.as_slice().is_empty() && new.as_slice().is_empty()
    };
    let (spec, life) = (lost(&old.0.unknown, &new.0.unknown), lost(&old.1.unknown, &new.1.unknown));
    let history = old.1.history.iter().any(|entry| {
        let same = new.1.history.iter().find(|same| {
            (same.attempt, same.ended_at, same.reply)
                == (entry.attempt, entry.ended_at, entry.reply)
        });
        same.is_some_and(|same| lost(&entry.unknown, &same.unknown))
    });
    let run = match (&old.1.state, &new.1.state) {
        (State::Running(was), State::Running(run)) if was.token == run.token => {
            lost(&was.unknown, &run.unknown)
        }
        _ => false,
    };
    [
        (spec, "the specification"),
        (life, "the lifecycle"),
        (history, "the history"),
        (run, "the run"),
    ]
    .into_iter()
    .find_map(|(lost, place)| lost.then_some(place))
}

/// Whether a commit from `old` to `new` loses a field of the next release.
pub fn lost_of_ledger(old: &Ledger, new: &Ledger) -> bool {
    let lost = |old: &UnknownFields, new: &UnknownFields| {
        !old.as_slice().is_empty() && new.as_slice().is_empty()
    };
    let named = |named: &tidegate_core::queue::ledger::BatchRef| {
        let same = new.batches.iter().find(|same| same.id == named.id);
        same.is_some_and(|same| lost(&named.unknown, &same.unknown))
    };
    lost(&old.unknown, &new.unknown) || old.batches.iter().any(named)
}

/// Whether an item of configuration has the field of the next release.
pub fn has_field(item: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(item).is_ok_and(|item| item.get(FIELD).is_some())
}
