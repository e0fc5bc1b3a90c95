//! The attempts of a job, and the bounds of their history.

use serde::{Deserialize, Serialize};

use super::{Failure, Lifecycle, Outcome, ReplyId, Running, Token};
use crate::{record, stored::UnknownFields, time::Timestamp};

/// How many attempts the history of a job keeps: the first, and the latest of the rest.
pub const MAX_HISTORY: usize = 100;
/// Most bytes of messages and details in the history without its latest entry.
///
/// The oldest entries lose their details first, and then their messages. A job is one record: some
/// stores bound its size, and some charge for each kilobyte of every write.
pub const MAX_HISTORY_BYTES: usize = 64 << 10;

/// How many of the attempts that were handed back one after the other the history keeps: the
/// latest ones. A job that polls something may be snoozed thousands of times.
pub const MAX_HAND_BACKS_IN_HISTORY: usize = 10;

/// What a worker said when it handed an attempt back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandBack {
    /// The time that it asked for; none if the job may start again at once.
    pub until: Option<Timestamp>,
    /// Why, for people, at most 4 KiB.
    pub message: Option<String>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(HandBack { until, message });

/// The attempts of a job that were handed back. They do not count against `max_attempts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandBacks {
    /// All of them.
    pub total: u16,
    /// Those by workers, since an attempt last made progress or failed.
    pub in_a_row: u16,
    /// Those that had not begun: their type was `at_most_once`, for which a hand-back means that.
    pub not_begun: u16,
    /// Those in a row whose worker did not receive the lease.
    pub not_received: u16,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(HandBacks { total, in_a_row, not_begun; not_received });

/// How an attempt ended, as the API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EndedAs {
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// A forced cancel ended it.
    Cancelled,
    /// Its worker handed it back. It does not count against `max_attempts`.
    Released,
    /// Its worker handed it back until a time. It does not count against `max_attempts`.
    Snoozed,
}

impl EndedAs {
    /// The end as the API shows it, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
            Self::Snoozed => "snoozed",
        }
    }
}

/// One finished attempt, or a decision that ended one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The number of the attempt, from 1.
    pub attempt: u16,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When its result came or the engine gave it up.
    pub ended_at: Timestamp,
    /// `succeeded`, `failed` or `cancelled`. One that was handed back is `cancelled`, which the
    /// releases before `hand_back` can read; see [`AttemptRecord::ended_as`].
    pub outcome: Outcome,
    /// Why it failed, if it did.
    pub error: Option<Failure>,
    /// When the next attempt was planned for, if one was.
    pub retry_at: Option<Timestamp>,
    /// The attempt's secret, by which a repeated report is recognised.
    pub token: Token,
    /// The reply that brought the result, if one did.
    pub reply: Option<ReplyId>,
    /// What its worker said when it handed the attempt back, if it did.
    pub hand_back: Option<HandBack>,
    /// The name that its worker gave itself.
    pub worker: Option<String>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(AttemptRecord {
    attempt,
    started_at,
    ended_at,
    outcome,
    error,
    retry_at,
    token,
    reply;
    hand_back,
    worker
});

impl AttemptRecord {
    /// How the attempt ended.
    pub fn ended_as(&self) -> EndedAs {
        match (&self.hand_back, self.outcome) {
            (Some(HandBack { until: Some(_), .. }), _) => EndedAs::Snoozed,
            (Some(_), _) => EndedAs::Released,
            (None, Outcome::Succeeded) => EndedAs::Succeeded,
            (None, Outcome::Cancelled) => EndedAs::Cancelled,
            (None, _) => EndedAs::Failed,
        }
    }
}

impl Lifecycle {
    /// Adds the hand-back of the running attempt to the history.
    pub(super) fn record_hand_back(
        &mut self,
        run: &Running,
        ended_at: Timestamp,
        hand_back: HandBack,
        retry_at: Option<Timestamp>,
    ) {
        let in_a_row = self.history.iter().rev().take_while(|entry| entry.hand_back.is_some());
        let in_a_row = in_a_row.count();
        if in_a_row >= MAX_HAND_BACKS_IN_HISTORY {
            self.history.remove(self.history.len() - in_a_row);
        }
        self.enter(AttemptRecord {
            hand_back: Some(hand_back),
            ..self.entry_of(run, ended_at, Outcome::Cancelled, None, retry_at)
        });
    }

    /// Adds the end of the running attempt to the history.
    pub(super) fn record(
        &mut self,
        run: &Running,
        ended_at: Timestamp,
        outcome: Outcome,
        error: Option<Failure>,
        retry_at: Option<Timestamp>,
    ) {
        self.enter(self.entry_of(run, ended_at, outcome, error, retry_at));
    }

    /// The entry of the running attempt, which ended.
    fn entry_of(
        &self,
        run: &Running,
        ended_at: Timestamp,
        outcome: Outcome,
        error: Option<Failure>,
        retry_at: Option<Timestamp>,
    ) -> AttemptRecord {
        AttemptRecord {
            attempt: self.attempt,
            started_at: run.started_at,
            ended_at,
            outcome,
            error,
            retry_at,
            token: run.token,
            reply: None,
            hand_back: None,
            worker: run.worker.clone(),
            unknown: UnknownFields::default(),
        }
    }

    /// Adds a result of the latest attempt that came after the attempt had ended.
    pub(super) fn record_late(
        &mut self,
        at: Timestamp,
        outcome: Outcome,
        error: Option<Failure>,
        retry_at: Option<Timestamp>,
    ) {
        let token = self.history.last().map_or(Token::UNKNOWN, |entry| entry.token);
        let (attempt, started_at) = (self.attempt, self.started_at.unwrap_or(at));
        self.enter(AttemptRecord {
            attempt,
            started_at,
            ended_at: at,
            outcome,
            error,
            retry_at,
            token,
            reply: None,
            hand_back: None,
            worker: None,
            unknown: UnknownFields::default(),
        });
    }

    /// Adds an entry, and cuts the history down to its bounds.
    fn enter(&mut self, entry: AttemptRecord) {
        if self.history.len() >= MAX_HISTORY {
            self.history.remove(1);
        }
        self.history.push(entry);
        let Some((_, older)) = self.history.split_last_mut() else {
            return;
        };
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let of_hand_back = |entry: &AttemptRecord| {
            entry.hand_back.as_ref().map_or(0, |back| length(&back.message))
        };
        let mut bytes: usize = older
            .iter()
            .map(|entry| {
                let error = entry.error.as_ref();
                error.map_or(0, |error| length(&error.details) + length(&error.message))
                    + of_hand_back(entry)
            })
            .sum();
        for back in older.iter_mut().filter_map(|entry| entry.hand_back.as_mut()) {
            if bytes <= MAX_HISTORY_BYTES {
                return;
            }
            bytes -= length(&back.message.take());
        }
        for part in
            [|error: &mut Failure| error.details.take(), |error: &mut Failure| error.message.take()]
        {
            for error in older.iter_mut().filter_map(|entry| entry.error.as_mut()) {
                if bytes <= MAX_HISTORY_BYTES {
                    return;
                }
                bytes -= length(&part(error));
            }
        }
    }
}
