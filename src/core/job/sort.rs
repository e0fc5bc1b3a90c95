//! The order of a list of jobs by a value of each, and where a page of it ended.

use std::{cmp::Reverse, fmt, str::FromStr};

use super::{Job, JobId};
use crate::time::Timestamp;

/// A value by which jobs are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortField {
    /// When the job was accepted.
    Created,
    /// When it may start; of a job that has started, when its latest attempt was due.
    Due,
    /// When its latest attempt started.
    Started,
    /// When it ended.
    Ended,
    /// How long its latest attempt took, or has run.
    Duration,
    /// How long its latest attempt waited for its start, since it was due.
    Wait,
    /// How many attempts have started.
    Attempt,
    /// Its priority.
    Priority,
}

impl SortField {
    /// Every field.
    pub const ALL: [Self; 8] = [
        Self::Created,
        Self::Due,
        Self::Started,
        Self::Ended,
        Self::Duration,
        Self::Wait,
        Self::Attempt,
        Self::Priority,
    ];

    /// The word of the field: where a job's view has the value, the name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created_at",
            Self::Due => "run_at",
            Self::Started => "started_at",
            Self::Ended => "ended_at",
            Self::Duration => "duration",
            Self::Wait => "wait",
            Self::Attempt => "attempt",
            Self::Priority => "priority",
        }
    }

    /// The value of a job at `now`; none if it has none yet.
    fn value(self, job: &Job, now: Timestamp) -> Option<i64> {
        let life = &job.life;
        match self {
            Self::Created => Some(job.spec.created_at.millis()),
            Self::Due => Some(job.run_at().millis()),
            Self::Started => life.started_at.map(Timestamp::millis),
            Self::Ended => job.ended_at().map(Timestamp::millis),
            Self::Duration => {
                let span = |from: Timestamp, to: Timestamp| to.millis() - from.millis();
                let last = life.history.last().map(|entry| span(entry.started_at, entry.ended_at));
                life.running().map(|run| span(run.started_at, now)).or(last)
            }
            Self::Wait => {
                let waited = job.running_wait().or_else(|| job.waits().last().flatten());
                waited.map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX))
            }
            Self::Attempt => Some(life.attempt.into()),
            Self::Priority => Some(job.spec.priority.into()),
        }
    }
}

/// The order of a sorted list. As a text it is the word of the field, after `-` if the largest value
/// comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobSort {
    /// By what.
    pub field: SortField,
    /// Whether the largest value comes first.
    pub is_descending: bool,
}

/// The text is no order of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be created_at, run_at, started_at, ended_at, duration, wait, attempt or priority, \
     or one of these after - for the largest first"
)]
pub struct BadSort;

impl fmt::Display for JobSort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_descending { "-" } else { "" }, self.field.as_str())
    }
}

impl FromStr for JobSort {
    type Err = BadSort;

    fn from_str(text: &str) -> Result<Self, BadSort> {
        let word = text.strip_prefix('-');
        let is_descending = word.is_some();
        let word = word.unwrap_or(text);
        let field = SortField::ALL.into_iter().find(|field| field.as_str() == word);
        field.map(|field| Self { field, is_descending }).ok_or(BadSort)
    }
}

impl JobSort {
    /// Whether it is the order of a store that lists the newest jobs first.
    pub fn is_newest_first(self) -> bool {
        self.field == SortField::Created && self.is_descending
    }

    /// The place of a job in a list sorted at `now`. Jobs without the value are last in both
    /// directions. Of equal values the newest job is first.
    pub fn place(self, job: &Job, now: Timestamp) -> SortPlace {
        let value = self.field.value(job, now);
        // Unlike a negation it has no overflow.
        let rank = value.map_or(0, |value| if self.is_descending { !value } else { value });
        let created_at = Reverse(job.spec.created_at);
        SortPlace { is_missing: value.is_none(), rank, created_at, id: job.id.clone() }
    }
}

/// A place in a sorted list: a later one is greater.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SortPlace {
    is_missing: bool,
    rank: i64,
    created_at: Reverse<Timestamp>,
    id: JobId,
}

impl SortPlace {
    /// As a text, with the order of its list.
    pub fn text(&self, sort: JobSort) -> String {
        let Self { is_missing, rank, created_at: Reverse(created_at), id } = self;
        format!("{sort}:{}:{rank}:{}:{id}", u8::from(*is_missing), created_at.millis())
    }

    /// The place in a text; none if it is no place in a list of this order.
    pub fn of(text: &str, sort: JobSort) -> Option<Self> {
        let parts: Vec<&str> = text.splitn(5, ':').collect();
        let [order, is_missing, rank, created_at, id] = parts[..] else { return None };
        let is_missing = ["0", "1"].into_iter().position(|flag| flag == is_missing)? == 1;
        let created_at = Reverse(Timestamp::from_millis(created_at.parse().ok()?));
        let place = Self { is_missing, rank: rank.parse().ok()?, created_at, id: id.parse().ok()? };
        (order.parse() == Ok(sort)).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_word_and_a_direction() {
        for field in SortField::ALL {
            for is_descending in [false, true] {
                let sort = JobSort { field, is_descending };
                assert_eq!(sort.to_string().parse(), Ok(sort));
                assert!(BadSort.to_string().contains(field.as_str()), "{sort}");
            }
        }
        for text in ["", "-", "--created_at", "created", "+run_at", "Priority"] {
            assert_eq!(text.parse::<JobSort>(), Err(BadSort), "{text}");
        }
    }
}
