//! A lap: a pass over the partitions of a queue. With many partitions it takes several ticks.
//!
//! A tick that nothing stops leaves to the next ones what it has not read: first the rest of each
//! partition that it has visited, then the other partitions. A throttler may hold all that a partition
//! has, and run what another one has. So a queue with a throttler has two laps: one over the first
//! pages of all partitions, and then one that reads each to its end. A slot that becomes free starts
//! the first one again.

use super::{
    Search,
    partitions::{PartitionPages, ScanStart},
};
use crate::tick::plan::TickPlan;
use tidegate_core::queue::order::Position;

/// What an engine knows of the lap of a queue with a throttler. If it is lost, the lap in progress counts
/// as a first one.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tick) struct Lap {
    depth: Depth,
    /// Whether a slot became free since the lap began.
    slot_freed: bool,
}

/// How far a lap reads each partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Depth {
    /// Its first page. No partition had more.
    #[default]
    FirstPages,
    /// Its first page. Some partitions had more.
    FirstOfMore,
    /// To its end.
    ToTheEnd,
}

impl Lap {
    /// The lap, if another engine has made a part of it: a partition there may have had more.
    pub(in crate::tick) fn joined(self) -> Self {
        match self.depth {
            Depth::FirstPages => Self { depth: Depth::FirstOfMore, ..self },
            Depth::FirstOfMore | Depth::ToTheEnd => self,
        }
    }
}

impl Search<'_> {
    /// Sets where the next tick continues the scan; `end` is the last partition that this one looked
    /// at, if there are more.
    pub(super) fn advance_scan(
        &mut self,
        start: ScanStart,
        end: Option<String>,
        pages: PartitionPages,
    ) {
        let ScanStart { last_partition, cursor } = start;
        // If a constraint limits each value of the attribute that makes partitions, a full value
        // holds its whole partition.
        let queue = &self.limits.queue;
        let is_open = |end: &Position| {
            let mut values = queue.partition_values(&end.partition);
            !values.any(|(by, value)| self.admission.closed_to_value(by, value))
        };
        let deeper = pages.deeper.filter(is_open);
        let ends: Vec<Position> = pages.ends.into_values().filter(is_open).collect();
        let has_more = deeper.is_some() || !ends.is_empty();
        let mut ends = ends.into_iter();
        let next = deeper.or_else(|| match &cursor {
            Some(cursor) => ends.find(|end| end.partition > cursor.partition),
            None => ends.next(),
        });
        if self.visits_first() {
            if has_more {
                self.plan.lap.depth = Depth::FirstOfMore;
            }
            self.advance_lap(last_partition.as_deref(), end.clone());
            let is_over = self.plan.lap_start.is_none();
            if is_over && std::mem::take(&mut self.plan.lap.slot_freed) {
                // The next lap begins with the partitions of this tick.
                self.advance_lap(last_partition.as_deref(), end.clone());
            }
            if self.plan.lap_start.is_some() {
                // However often slots become free, each lap reads one page more.
                self.plan.scan_cursor = if is_over { next } else { cursor };
                return;
            }
            if self.plan.lap.depth == Depth::FirstPages {
                return;
            }
            self.plan.lap.depth = Depth::ToTheEnd;
        }
        self.plan.scan_cursor = next;
        if self.plan.scan_cursor.is_some() {
            // These partitions are scanned to their end first.
            self.plan.last_partition = last_partition;
            self.plan.again |= self.plan.goes_on();
            return;
        }
        self.advance_lap(last_partition.as_deref(), end);
        if self.plan.lap_start.is_none() {
            self.plan.lap = Lap::default();
        }
    }

    /// Whether this lap visits all partitions before it reads one of them to its end.
    pub(super) fn visits_first(&self) -> bool {
        self.plan.throttling.is_some() && self.plan.lap.depth != Depth::ToTheEnd
    }

    /// Whether the lap over the partitions is over with a tick that goes from `last_partition` to `end`.
    pub(super) fn is_lap_over(&self, last_partition: Option<&str>, end: Option<&str>) -> bool {
        let from = last_partition.unwrap_or_default();
        let lap_start = self.plan.lap_start.as_deref().unwrap_or(from);
        end.is_none_or(|end| passes(lap_start, from, end))
    }

    /// Continues the lap over the partitions, which was at `last_partition` before this tick and is
    /// at `end` now, if there are more.
    pub(in crate::tick) fn advance_lap(
        &mut self,
        last_partition: Option<&str>,
        end: Option<String>,
    ) {
        let is_over = self.is_lap_over(last_partition, end.as_deref());
        let lap_start = self.plan.lap_start.take();
        if let Some(last) = end.filter(|_| !is_over) {
            let lap_start =
                lap_start.unwrap_or_else(|| last_partition.unwrap_or_default().to_owned());
            self.plan.last_partition = Some(last);
            self.plan.lap_start = Some(lap_start);
        }
        self.plan.again |= self.plan.goes_on();
    }
}

impl TickPlan {
    /// Records that a slot is free, which any partition may need.
    pub(in crate::tick) fn note_free_slot(&mut self) {
        if self.lap.depth == Depth::ToTheEnd {
            (self.lap, self.lap_start) = (Lap::default(), None);
        } else {
            self.lap.slot_freed |= self.lap_start.is_some();
        }
    }
}

/// Whether the cyclic range that starts after `from` and ends with `to` contains `start`.
fn passes(start: &str, from: &str, to: &str) -> bool {
    if from < to { from < start && start <= to } else { start > from || start <= to }
}
