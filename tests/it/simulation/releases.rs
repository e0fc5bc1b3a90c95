//! Two releases on one store: half of the engines write each record as the next release would, with
//! a field more, and no engine may lose such a field.

use std::sync::Arc;

use tidegate_core::{
    job::{Lifecycle, Spec, State},
    port::job_store::{Txn, Write},
    queue::Ledger,
    stored::UnknownFields,
};

/// The field of the next release in items of configuration.
const FIELD: &str = "of_the_next_release";

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

/// The release of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    This,
    /// This one with the planted bug.
    Forgetful,
    Next,
}

impl Release {
    /// Changes what an engine of this release writes into the form of the release.
    pub fn encode(self, txns: &mut [Txn]) {
        let each: fn(&mut UnknownFields) = match self {
            Self::This => return,
            Self::Forgetful => |fields| *fields = UnknownFields::default(),
            Self::Next => |fields| *fields = UnknownFields::new([rmpv::Value::from(FIELD)]),
        };
        for write in txns.iter_mut().flatten() {
            self.encode_write(write, each);
        }
    }

    fn encode_write(self, write: &mut Write, each: fn(&mut UnknownFields)) {
        match write {
            Write::AddJob(job) | Write::SetJob { job, .. } => {
                each(&mut Arc::make_mut(&mut job.spec).unknown);
                fields_of(&mut job.life).for_each(each);
            }
            Write::AddBatch(_, batch) => {
                each(&mut batch.unknown);
                batch.grants.iter_mut().for_each(|grant| each(&mut grant.unknown));
            }
            Write::SetLedger { ledger, .. } => {
                each(&mut ledger.unknown);
                ledger.batches.iter_mut().for_each(|named| each(&mut named.unknown));
                ledger.starts.values_mut().for_each(|starts| each(&mut starts.unknown));
            }
            Write::SetItem { bytes: Some(bytes), .. } => {
                let mut item: serde_json::Value = serde_json::from_slice(bytes).expect("JSON");
                let Some(fields) = item.as_object_mut() else { return };
                match self {
                    Self::Next => fields.insert(FIELD.into(), true.into()),
                    _ => fields.remove(FIELD),
                };
                *bytes = item.to_string().into_bytes();
            }
            Write::Together(writes) => self.encode(std::slice::from_mut(writes)),
            _ => {}
        }
    }
}

/// The unknown fields of a lifecycle on every level.
fn fields_of(life: &mut Lifecycle) -> impl Iterator<Item = &mut UnknownFields> {
    let Lifecycle { state, history, unknown, .. } = life;
    let run = match state {
        State::Running(run) => Some(&mut run.unknown),
        _ => None,
    };
    history.iter_mut().map(|entry| &mut entry.unknown).chain(run).chain([unknown])
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
