//! The attempts of a job, and the bounds of their history.

use super::{Failure, Lifecycle, Outcome, ReplyId, Running, Token};
use crate::{record, stored::UnknownFields, time::Timestamp};

/// How many attempts the history of a job keeps: the first, and the latest of the rest.
pub const MAX_HISTORY: usize = 100;
/// Most bytes of messages and details in the history without its latest entry.
///
/// The oldest entries lose their details first, and then their messages. A job is one record: some
/// stores bound its size, and some charge for each kilobyte of every write.
pub const MAX_HISTORY_BYTES: usize = 64 << 10;

/// One finished attempt, or a decision that ended one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The number of the attempt, from 1.
    pub attempt: u16,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When its result came or the engine gave it up.
    pub ended_at: Timestamp,
    /// `succeeded`, `failed` or `cancelled`.
    pub outcome: Outcome,
    /// Why it failed, if it did.
    pub error: Option<Failure>,
    /// When the next attempt was planned for, if one was.
    pub retry_at: Option<Timestamp>,
    /// The attempt's secret, by which a repeated report is recognised.
    pub token: Token,
    /// The reply that brought the result, if one did.
    pub reply: Option<ReplyId>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(AttemptRecord { attempt, started_at, ended_at, outcome, error, retry_at, token, reply });

impl Lifecycle {
    /// Adds the end of the running attempt to the history.
    pub(super) fn record(
        &mut self,
        run: &Running,
        ended_at: Timestamp,
        outcome: Outcome,
        error: Option<Failure>,
        retry_at: Option<Timestamp>,
    ) {
        let (attempt, token) = (self.attempt, run.token);
        self.enter(AttemptRecord {
            attempt,
            started_at: run.started_at,
            ended_at,
            outcome,
            error,
            retry_at,
            token,
            reply: None,
            unknown: UnknownFields::default(),
        });
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
        let mut bytes: usize = older
            .iter()
            .filter_map(|entry| entry.error.as_ref())
            .map(|error| length(&error.details) + length(&error.message))
            .sum();
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
