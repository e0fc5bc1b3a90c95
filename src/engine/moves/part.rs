//! What there is to move, in the order in which it is copied.

use std::fmt;

use serde::{Deserialize, Serialize};

use tidegate_core::port::job_store::{ItemKind, RecordKind};

/// A part of what a store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Large bodies and the code of plugins. They come first, because jobs name them.
    Objects,
    /// Jobs, with their bodies and the keys that point at them.
    Jobs,
    /// Ledgers, with the batches that they name.
    Ledgers,
    /// Records of a kind.
    Records(RecordKind),
    /// Items of a kind.
    Items(ItemKind),
}

impl Part {
    /// Every part, in order. In none are the records of servers, which each writes for itself, and the
    /// horizon: it is how far the jobs were dispatched through the work queues of this deployment.
    pub fn all() -> Vec<Self> {
        let records = RecordKind::ALL.into_iter().filter(|kind| *kind != RecordKind::Server);
        let items = ItemKind::ALL.into_iter().filter(|kind| *kind != ItemKind::Horizon);
        let parts = [Self::Objects, Self::Jobs, Self::Ledgers];
        let parts = parts.into_iter().chain(records.map(Self::Records));
        parts.chain(items.map(Self::Items)).collect()
    }

    /// The part of this name.
    fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|part| part.to_string() == name)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Objects => f.write_str("objects"),
            Self::Jobs => f.write_str("jobs"),
            Self::Ledgers => f.write_str("ledgers"),
            Self::Records(kind) => write!(f, "records: {}", kind.as_str()),
            Self::Items(kind) => write!(f, "items: {}", kind.as_str()),
        }
    }
}

/// How far a move has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// The name of the part that is being copied; empty for the first one.
    part: String,
    /// What of it was copied: everything up to here.
    after: Option<String>,
}

impl Position {
    /// Behind `after` of `part`.
    pub(super) fn behind(part: Part, after: String) -> Self {
        Self { part: part.to_string(), after: Some(after) }
    }

    /// At the beginning of the part after `part`, or at the end of all.
    pub(super) fn after_part(part: Part) -> Self {
        let next = Part::all().into_iter().find(|other| *other > part);
        Self { part: next.map_or_else(|| END.to_owned(), |next| next.to_string()), after: None }
    }

    /// The parts that are left, and where the first one goes on. None if another release wrote the
    /// position.
    pub(super) fn rest(&self) -> Option<(Vec<Part>, Option<String>)> {
        let all = Part::all();
        match &self.part[..] {
            "" => Some((all, None)),
            END => Some((Vec::new(), None)),
            name => {
                let first = Part::named(name)?;
                let rest = all.into_iter().filter(|part| *part >= first).collect();
                Some((rest, self.after.clone()))
            }
        }
    }
}

/// The part of a position at the end.
const END: &str = "end";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_goes_through_every_part_once() {
        let all = Part::all();
        assert!(all.is_sorted(), "the order is that of the parts: {all:?}");
        let (mut position, mut seen) = (Position::default(), Vec::new());
        while let Some((rest, None)) = position.rest()
            && let Some(first) = rest.first()
        {
            seen.push(*first);
            let within = Position::behind(*first, "x".into());
            assert_eq!(within.rest(), Some((rest.clone(), Some("x".into()))));
            position = Position::after_part(*first);
        }
        assert_eq!(seen, all);
        assert_eq!(position.rest(), Some((Vec::new(), None)));
        assert_eq!(Position { part: "x".into(), after: None }.rest(), None);
    }
}
