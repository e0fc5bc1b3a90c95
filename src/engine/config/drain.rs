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

impl Drain {
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
