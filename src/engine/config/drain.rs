//! Pull workers that get no more jobs, as they are stored.

use serde::{Deserialize, Serialize};
use tidegate_core::time::Timestamp;

/// Why a worker gets no more jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Drain {
    /// It is drained, since then.
    Drained(Timestamp),
    /// It is to end after its running jobs.
    Stopping {
        /// Since when.
        stopping_since: Timestamp,
        /// Since when it is drained in addition: that stays once the worker has ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        drained_since: Option<Timestamp>,
    },
}

/// A change of why a worker gets no more jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainChange {
    /// It gets no more jobs.
    Drain,
    /// It gets jobs again, and is not to end.
    Undrain,
    /// It is to end after its running jobs.
    Stop,
    /// It leaves, so a request that it ends is over.
    Leave {
        /// Whether a drain stays, as for a worker that restarts.
        keep_drain: bool,
    },
}

impl Drain {
    /// Why a worker gets no more jobs after `change` at `now`. A drain and a stop do not replace each
    /// other, whatever comes first, and a repeat changes nothing.
    pub fn after(current: Option<Self>, change: DrainChange, now: Timestamp) -> Option<Self> {
        let drained_since = current.and_then(Self::drained_since);
        match (change, current) {
            (DrainChange::Drain, None) => Some(Self::Drained(now)),
            (DrainChange::Drain, Some(Self::Stopping { stopping_since, .. })) => {
                let drained_since = drained_since.or(Some(now));
                Some(Self::Stopping { stopping_since, drained_since })
            }
            (DrainChange::Stop, None | Some(Self::Drained(_))) => {
                Some(Self::Stopping { stopping_since: now, drained_since })
            }
            (DrainChange::Drain | DrainChange::Stop, unchanged) => unchanged,
            (DrainChange::Leave { keep_drain: true }, _) => drained_since.map(Self::Drained),
            (DrainChange::Undrain | DrainChange::Leave { keep_drain: false }, _) => None,
        }
    }

    /// Since when the worker gets no more jobs.
    pub fn since(self) -> Timestamp {
        match self {
            Self::Drained(since) => since,
            Self::Stopping { stopping_since, drained_since } => {
                drained_since.map_or(stopping_since, |since| since.min(stopping_since))
            }
        }
    }

    /// Since when the worker is drained, whether it is to end or not.
    pub fn drained_since(self) -> Option<Timestamp> {
        match self {
            Self::Drained(since) => Some(since),
            Self::Stopping { drained_since, .. } => drained_since,
        }
    }

    /// Whether the worker is to end.
    pub fn is_stop(self) -> bool {
        matches!(self, Self::Stopping { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_and_a_stop_do_not_replace_each_other() {
        use DrainChange as C;
        let at = Timestamp::from_millis;
        let stop =
            |since, drained_since| Drain::Stopping { stopping_since: at(since), drained_since };
        let (kept, ended) = (C::Leave { keep_drain: true }, C::Leave { keep_drain: false });
        let both = |since, drained| Some(stop(since, Some(at(drained))));
        for (changes, expected) in [
            (&[C::Drain][..], Some(Drain::Drained(at(0)))),
            (&[C::Drain, C::Drain], Some(Drain::Drained(at(0)))),
            (&[C::Stop, C::Stop], Some(stop(0, None))),
            (&[C::Drain, C::Stop], both(1, 0)),
            (&[C::Stop, C::Drain], both(0, 1)),
            (&[C::Stop, C::Drain, C::Drain, C::Stop], both(0, 1)),
            (&[C::Stop, C::Drain, C::Undrain], None),
            (&[C::Stop, kept], None),
            (&[C::Drain, C::Stop, kept], Some(Drain::Drained(at(0)))),
            (&[C::Stop, C::Drain, kept], Some(Drain::Drained(at(1)))),
            (&[C::Drain, ended], None),
            (&[C::Undrain, kept], None),
        ] {
            let apply = |current, (now, change): (usize, &C)| {
                Drain::after(current, *change, at(now as i64))
            };
            let drain = changes.iter().enumerate().fold(None, apply);
            assert_eq!(drain, expected, "{changes:?}");
        }
    }

    #[test]
    fn a_drain_without_a_stop_is_stored_as_an_instant() {
        let at = Timestamp::from_millis;
        let stop = |drained_since| Drain::Stopping { stopping_since: at(2000), drained_since };
        for (drain, text) in [
            (Drain::Drained(at(1000)), r#""1970-01-01T00:00:01.000Z""#),
            (stop(None), r#"{"stopping_since":"1970-01-01T00:00:02.000Z"}"#),
            (
                stop(Some(at(1000))),
                concat!(
                    r#"{"stopping_since":"1970-01-01T00:00:02.000Z","#,
                    r#""drained_since":"1970-01-01T00:00:01.000Z"}"#
                ),
            ),
        ] {
            assert_eq!(serde_json::to_string(&drain).unwrap(), text);
            assert_eq!(serde_json::from_str::<Drain>(text).unwrap(), drain);
        }
        assert_eq!((stop(None).since(), stop(Some(at(1000))).since()), (at(2000), at(1000)));
    }
}
