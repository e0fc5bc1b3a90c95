//! Reports that no lease request carries: they go together in requests of their own.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate_api::LeaseBody;
use tokio::time::sleep;

use crate::{
    error::Error,
    lease::{Leased, Leases, MAX_REPORT_BYTES, MAX_REPORTS},
    transport::{MIN_BACKOFF, Request, backoff},
    worker::Shared,
};

/// The reports that wait, and whether a task sends them.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pending: VecDeque<Outgoing>,
    is_sending: bool,
}

#[derive(Debug)]
struct Outgoing {
    leased: Arc<Leased>,
    /// Whether it goes in a request of its own, because another one was refused.
    alone: bool,
}

impl Outbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the report of an attempt soon.
    pub fn add(&self, shared: &Arc<Shared>, leased: &Arc<Leased>, alone: bool) {
        let mut state = self.state();
        state.pending.push_back(Outgoing { leased: Arc::clone(leased), alone });
        if !std::mem::replace(&mut state.is_sending, true) {
            tokio::spawn(run(Arc::clone(shared)));
        }
    }

    /// Takes the reports of the next request; none if none are left.
    fn take(&self) -> Vec<Arc<Leased>> {
        let mut state = self.state();
        let (mut batch, mut size) = (Vec::new(), 0);
        while let Some(Outgoing { leased, alone }) = state.pending.front() {
            size += leased.report_bytes();
            let is_full = batch.len() == MAX_REPORTS || size > MAX_REPORT_BYTES || *alone;
            if !batch.is_empty() && is_full {
                break;
            }
            let alone = *alone;
            batch.extend(state.pending.pop_front().map(|next| next.leased));
            if alone {
                break;
            }
        }
        state.is_sending = !batch.is_empty();
        batch
    }
}

async fn run(shared: Arc<Shared>) {
    let mut failures = 0;
    loop {
        // What ends in the same turn goes in the same request.
        tokio::task::yield_now().await;
        let batch = shared.outbox.take();
        if batch.is_empty() {
            return;
        }
        if send(&shared, &batch).await {
            failures = 0;
        } else {
            failures += 1;
            sleep(backoff(failures, MIN_BACKOFF)).await;
        }
    }
}

/// Sends reports. Returns false if the server is to be left alone for a while.
async fn send(shared: &Arc<Shared>, batch: &[Arc<Leased>]) -> bool {
    let sent = match batch {
        [one] => send_one(shared, one).await,
        several => send_several(shared, several).await,
    };
    let err = match sent {
        Ok(are_taken) => return are_taken,
        Err(err) => err,
    };
    let status = err.status().unwrap_or(503);
    if batch.len() > 1 && matches!(status, 400 | 413) {
        for leased in batch {
            shared.outbox.add(shared, leased, true);
        }
        return true;
    }
    let mut are_taken = true;
    for leased in batch {
        are_taken &= shared.answered(leased, status, Some(&err));
    }
    are_taken
}

async fn send_one(shared: &Arc<Shared>, leased: &Arc<Leased>) -> Result<bool, Error> {
    let Some((report, _)) = leased.report() else { return Ok(true) };
    let request = Request::post(&leased.target).json(&report.body(None)).bearer(&leased.token);
    shared.client.transport.send(&request).await?;
    Ok(shared.answered(leased, 200, None))
}

async fn send_several(shared: &Arc<Shared>, batch: &[Arc<Leased>]) -> Result<bool, Error> {
    let reports: Vec<_> =
        batch.iter().filter_map(|leased| Some((leased, leased.report()?.0))).collect();
    let body = LeaseBody {
        max: Some(0),
        worker: Some(shared.name.clone()),
        reports: reports
            .iter()
            .map(|(leased, report)| report.body(Some((&leased.job, &leased.token))))
            .collect(),
        ..LeaseBody::default()
    };
    let request = Request::post("/v1/leases").json(&body);
    let answer: Leases = shared.client.transport.send(&request).await?.read()?;
    if answer.reports.len() != reports.len() {
        return Err(Error::UnexpectedAnswer("it lacks answers to reports".to_owned()));
    }
    let mut are_taken = true;
    for ((leased, _), reported) in reports.into_iter().zip(answer.reports) {
        are_taken &= shared.reported(leased, reported.status, reported.error);
    }
    Ok(are_taken)
}
