//! The life of a job: scenarios as text files, properties of every life, history and results.

mod history;
mod properties;
mod scenario;
mod times;

use std::time::Duration;

use super::spec;
use crate::{
    job::{
        Encoding, Event, Lifecycle, Token,
        lifecycle::{Failure, HandBack, Reason, ResultBody, RetryDecision},
    },
    time::Timestamp,
};

fn result() -> ResultBody {
    ResultBody { encoding: Encoding::Json, bytes: bytes::Bytes::from_static(b"1"), object: None }
}

fn failed(attempt: u16, next: RetryDecision) -> Event {
    Event::Fail { attempt, failure: Failure::new(Reason::Failed, "no"), next }
}

/// At most two of these follow one another.
fn handed_back(
    attempt: u16,
    until: Option<Timestamp>,
    at_most_once: bool,
    next: RetryDecision,
) -> Event {
    let hand_back = HandBack { until, message: Some("busy".into()), ..HandBack::default() };
    Event::HandBack { attempt, received: true, hand_back, at_most_once, max_in_a_row: 2, next }
}

/// A claim of a job as it is now, without a grant and with a lease that ends at once.
fn claim(life: &Lifecycle) -> Event {
    Event::Claim {
        version: life.version,
        token: Token::new(1),
        worker: None,
        lease: Duration::ZERO,
        granted: false,
        decided_at: Timestamp::EPOCH,
    }
}
