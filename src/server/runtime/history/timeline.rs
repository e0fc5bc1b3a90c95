//! The hour and the day of one kind of series: their steps, and the records that have them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Swept, step_of,
    steps::{Sample, Steps, span_of},
};
use tidegate_api::HistoryRange;
use tidegate_core::{
    port::{
        Write,
        job_store::{Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
};
use tidegate_engine::{Engine, Error};

/// How long a step of the day is.
pub(super) const DAY_STEP: Duration = Duration::from_mins(5);
/// Most records that are read or dropped at once: more than an hour or a day has.
const MAX_READ_RECORDS: u32 = 1000;
/// Most records that are kept: more than two hours and two days have.
const MAX_RECORDS: u64 = 2000;
const KIND: RecordKind = RecordKind::History;

/// A step: when it began, and its points.
pub(super) type NewStep<P> = (Timestamp, Vec<(<P as Sample>::Series, P)>);

/// The steps of an hour or a day, as far as they are known.
pub(super) struct Known<P: Sample> {
    pub steps: Steps<P>,
    /// The record that was read last, and when.
    pub read: Option<(String, Timestamp)>,
}

impl<P: Sample> Known<P> {
    fn new(range: HistoryRange) -> Self {
        Self { steps: Steps::new(range), read: None }
    }
}

/// The hour and the day.
pub(super) struct Timeline<P: Sample> {
    pub hour: Known<P>,
    pub day: Known<P>,
    /// Until when the steps of the day have ended: those before are stored, or had nothing.
    pub day_ended_until: Option<Timestamp>,
}

impl<P: Sample> Default for Timeline<P> {
    fn default() -> Self {
        Self {
            hour: Known::new(HistoryRange::Hour),
            day: Known::new(HistoryRange::Day),
            day_ended_until: None,
        }
    }
}

impl<P: Sample> Timeline<P> {
    /// The steps of a range.
    pub fn steps(&self, range: HistoryRange) -> &Steps<P> {
        match range {
            HistoryRange::Hour => &self.hour.steps,
            HistoryRange::Day => &self.day.steps,
        }
    }

    /// What is known of a range.
    pub fn known(&mut self, range: HistoryRange) -> &mut Known<P> {
        match range {
            HistoryRange::Hour => &mut self.hour,
            HistoryRange::Day => &mut self.day,
        }
    }

    /// Adds a step unless it is older than the latest one.
    pub fn add(&mut self, range: HistoryRange, (at, points): NewStep<P>) {
        let steps = &mut self.known(range).steps;
        if steps.latest_at().is_none_or(|latest| latest < at) {
            steps.push(at, points);
        }
    }

    /// Adds the steps of the day that are over at `now`, and returns them.
    pub fn end_day_steps(&mut self, now: Timestamp) -> Vec<NewStep<P>> {
        let hours = &self.hour.steps;
        let Some(oldest) = hours.from(now) else { return Vec::new() };
        let oldest = step_of(oldest, DAY_STEP);
        let mut at = self.day_ended_until.map_or(oldest, |until| until.max(oldest));
        let mut ended = Vec::new();
        while at + DAY_STEP <= now {
            let points = hours.sum((at, at + DAY_STEP));
            if !points.is_empty() && self.day.steps.latest_at().is_none_or(|latest| latest < at) {
                self.day.steps.push(at, points.clone());
                ended.push((at, points));
            }
            at = at + DAY_STEP;
            self.day_ended_until = Some(at);
        }
        ended
    }
}

/// A point in a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "P: Sample")]
pub(super) struct StoredPoint<P: Sample> {
    #[serde(flatten)]
    pub series: P::Series,
    #[serde(flatten)]
    pub point: P,
    /// From a sweep: what happened follows from the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swept: Option<Swept>,
}

/// The name of a record, in the order of the instants.
pub(super) fn record_name<P: Sample>(range: HistoryRange, at: Timestamp) -> String {
    let at = format!("{:016x}", at.millis().max(0));
    // The instants of the hour of queues are a prefix themselves.
    match P::prefix(range) {
        "0" => at,
        prefix => format!("{prefix}{at}"),
    }
}

/// The start and the points of a step in a record; none if it cannot be read.
pub(super) fn read<P: Sample>(record: &Record) -> Option<(Timestamp, Vec<StoredPoint<P>>)> {
    let at = record.name.rsplit('-').next().unwrap_or_default();
    let at = i64::from_str_radix(at, 16).ok()?;
    let points = serde_json::from_slice(&record.bytes)
        .inspect_err(|error| tracing::warn!(%error, "a step of the history cannot be read"));
    Some((Timestamp::from_millis(at), points.ok()?))
}

/// As [`read`], without what sweeps counted.
pub(super) fn read_step<P: Sample>(record: &Record) -> Option<NewStep<P>> {
    let (at, points) = read::<P>(record)?;
    Some((at, plain_points(points)))
}

/// A step as a record, which is kept for as long as its range.
fn record_of<P: Sample>(
    range: HistoryRange,
    at: Timestamp,
    points: &[StoredPoint<P>],
) -> Result<Record, Error> {
    let bytes = serde_json::to_vec(points).map_err(|error| Error::Internal(error.to_string()))?;
    let (name, until) = (record_name::<P>(range, at), at + span_of(range));
    Ok(Record { kind: KIND, name, until, bytes })
}

/// A write of a step; none without points.
pub(super) fn write_of<P: Sample>(
    range: HistoryRange,
    (at, points): NewStep<P>,
) -> Result<Option<Write>, Error> {
    let points = stored_points(points);
    if points.is_empty() {
        return Ok(None);
    }
    Ok(Some(Write::PutRecord(record_of(range, at, &points)?)))
}

/// Points as records have them.
pub(super) fn stored_points<P: Sample>(points: Vec<(P::Series, P)>) -> Vec<StoredPoint<P>> {
    let points = points.into_iter();
    points.map(|(series, point)| StoredPoint { series, point, swept: None }).collect()
}

/// Points without what sweeps counted.
pub(super) fn plain_points<P: Sample>(points: Vec<StoredPoint<P>>) -> Vec<(P::Series, P)> {
    points.into_iter().map(|of| (of.series, of.point)).collect()
}

/// Stores a step that a sweep counted.
pub(super) async fn store_swept<P: Sample>(
    engine: &Engine,
    at: Timestamp,
    points: &[StoredPoint<P>],
) -> Result<(), Error> {
    let record = record_of(HistoryRange::Hour, at, points)?;
    engine.ports().store.commit(vec![vec![Write::PutRecord(record)]]).await?;
    Ok(())
}

/// The records of a range after the named one.
pub(super) async fn read_records<P: Sample>(
    engine: &Engine,
    range: HistoryRange,
    after: Option<String>,
) -> Result<Vec<Record>, Error> {
    let first = record_name::<P>(range, engine.now() - span_of(range));
    let after = Some(after.map_or(first.clone(), |after| after.max(first)));
    let prefix = P::prefix(range).to_owned();
    let query = RecordQuery { kind: KIND, prefix, after, limit: MAX_READ_RECORDS };
    Ok(engine.ports().store.records(&[query]).await?.pop().unwrap_or_default())
}

/// Drops the steps that are over.
pub(in crate::runtime) async fn drop_old_steps(engine: &Engine) -> Result<(), Error> {
    engine.ports().store.purge(KIND, engine.now(), MAX_RECORDS, MAX_READ_RECORDS).await?;
    Ok(())
}
