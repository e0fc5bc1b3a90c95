//! What one engine keeps of a queue between ticks.

use std::sync::Arc;

use super::{
    ThrottlerCall, TickInput,
    plan::TickPlan,
    search::{Lap, ReadAhead},
    spread::Spread,
};
use crate::{LedgerView, plugins::circuit_breaker::OpenCircuit};
use tidegate_core::{
    port::policy::Ended,
    queue::{Limits, admission::Reservations, order::Position},
    time::Timestamp,
};

/// What one engine keeps of a queue between ticks. Losing it costs reads, and the reservations of a
/// scan in progress.
#[derive(Debug, Default)]
pub struct TickCache {
    pub(super) view: Option<LedgerView>,
    /// The version of the catalog under which the queue had no ledger: without a new version none
    /// appears.
    pub(super) unlimited_under: Option<u64>,
    pub(super) last_partition: Option<String>,
    pub(super) lap_start: Option<String>,
    lap: Lap,
    pub(super) scan_cursor: Option<Position>,
    /// What candidates before the scan's cursor have reserved.
    reservations: (ScanProgress, Reservations),
    /// Whether a job arrived or a slot became free since the scan in progress began.
    pub(super) queue_changed: bool,
    /// When the next job becomes due, as far as that scan read.
    pub(super) next_at: Option<Timestamp>,
    /// Candidates that were read for the next tick.
    pub(super) read_ahead: ReadAhead,
    /// How far claims of a queue without a ledger are spread.
    pub(super) spread: Spread,
    /// The throttler that failed last.
    pub(super) open_circuit: Option<OpenCircuit>,
    /// Ended attempts that the throttler has not received: it failed, or its circuit was open.
    pub(super) unreported: Arc<Vec<Ended>>,
    /// Failed calls that no outcome has reported yet.
    pub(super) faults: Vec<ThrottlerCall>,
}

/// Identifies a scan and its progress. Another process may end it and begin the next, which writes
/// the ledger. Reservations are valid only under the configuration that they were made with.
#[derive(Debug, Default, PartialEq, Eq)]
struct ScanProgress {
    config_version: u64,
    ledger_version: u64,
    cursor: Option<Position>,
}

impl ScanProgress {
    fn of(view: &LedgerView, limits: &Limits) -> Self {
        Self {
            config_version: limits.version,
            ledger_version: view.ledger.version,
            cursor: view.ledger.scan_cursor.clone(),
        }
    }
}

impl TickCache {
    /// The view of the queue's ledger, if there is one and it was read.
    pub fn view(&self) -> Option<&LedgerView> {
        self.view.as_ref()
    }

    /// What earlier ticks of this engine have reserved in the scan that `view` is in.
    pub(super) fn reserved(&self, view: &LedgerView, limits: &Limits) -> Reservations {
        let (scan, reserved) = &self.reservations;
        if view.ledger.scan_cursor.is_some() && *scan == ScanProgress::of(view, limits) {
            reserved.clone()
        } else {
            Reservations::default()
        }
    }

    /// The lap that `view` is in. It is [joined](Lap::joined) if its latest tick was not one of this
    /// engine's.
    pub(super) fn lap(&self, view: &LedgerView, limits: &Limits) -> Lap {
        let goes_on = view.ledger.lap_start.is_some();
        if goes_on && self.reservations.0 != ScanProgress::of(view, limits) {
            self.lap.joined()
        } else {
            self.lap
        }
    }

    /// Records a change of the queue that a scan in progress may have passed.
    pub(super) fn note_change(&mut self, input: &TickInput, now: Timestamp) {
        let (cursor, lap_start) =
            self.view.as_ref().map_or((&self.scan_cursor, &self.lap_start), |view| {
                (&view.ledger.scan_cursor, &view.ledger.lap_start)
            });
        let goes_on = cursor.is_some() || lap_start.is_some();
        self.queue_changed |=
            goes_on && (input.queue_changed || self.next_at.is_some_and(|at| at <= now));
    }

    /// Keeps what `plan` leaves to the next tick's scan. A completed scan starts again if the
    /// queue changed.
    pub(super) fn keep_scan(&mut self, plan: &mut TickPlan, limits: &Limits) {
        let scan =
            self.view.as_ref().map(|view| ScanProgress::of(view, limits)).unwrap_or_default();
        self.reservations = (scan, std::mem::take(&mut plan.reserved));
        self.lap = plan.lap;
        if plan.goes_on() {
            self.next_at = self.next_at.into_iter().chain(plan.next_at).min();
        } else if plan.searched {
            plan.wake(self.next_at.take());
            plan.again |= std::mem::take(&mut self.queue_changed);
        }
    }
}
