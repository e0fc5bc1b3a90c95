//! Metrics for CloudWatch in its embedded metric format: lines of JSON in a log.
//!
//! ```text
//!   {"_aws":{"Timestamp":1700000000000,"CloudWatchMetrics":[{"Namespace":"tidegate",
//!    "Dimensions":[["queue"]],
//!    "Metrics":[{"Name":"tidegate_attempts_started_total","Unit":"Count"}]}]},
//!    "queue":"mail","tidegate_attempts_started_total":12}
//! ```
//!
//! A counter is written as its increase since the last line, and omitted without an increase. A
//! gauge is written as its value, a histogram as values with their counts. Memory does not grow
//! with the number of values: a histogram has fixed buckets, each a fifth wider than the one below,
//! so a value is at most 9 % off.

mod output;

pub(crate) use output::EmfWriter;
#[cfg(feature = "serverless")]
pub(crate) use output::write_stdout;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::RwLock;
use serde_json::{Map, Value, json};

use crate::telemetry::catalog;
use tidegate_core::time::Timestamp;

/// Most metrics of one line.
const MAX_LINE_METRICS: usize = 100;
/// Most dimensions of one line; further labels are omitted.
const MAX_DIMENSIONS: usize = 30;
/// Most bytes of a dimension's value.
const MAX_DIMENSION_BYTES: usize = 1024;

/// The lower bound of the second bucket of a histogram: a quarter of a millisecond.
const MIN_VALUE: f64 = 1.0 / 4096.0;
/// Buckets per doubling.
const STEPS: f64 = 4.0;
/// The buckets from [`MIN_VALUE`] to 4096, one below and one above. CloudWatch takes at most 100
/// values at once.
const BUCKETS: usize = 98;

/// A recorder that collects metrics until they are flushed. A
/// [`BoundedRecorder`](super::series::BoundedRecorder) bounds its series.
pub struct Emf {
    namespace: String,
    series: RwLock<HashMap<Key, Series>>,
}

/// The state of a metric with its labels.
#[derive(Clone)]
enum Series {
    Counter(Arc<AtomicU64>),
    /// The bits of an `f64`.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Buckets>),
}

/// The number of values in each bucket.
struct Buckets([AtomicU64; BUCKETS]);

impl Buckets {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn index(value: f64) -> usize {
        if value < MIN_VALUE {
            return 0;
        }
        // For values above the last bucket, such as infinity, the conversion saturates.
        (((value / MIN_VALUE).log2() * STEPS) as usize).saturating_add(1).min(BUCKETS - 1)
    }

    /// The value that represents a bucket: its middle, in four digits.
    fn value(index: usize) -> f64 {
        let edge = |index: f64| MIN_VALUE * (index / STEPS).exp2();
        match index {
            0 => 0.0,
            last if last == BUCKETS - 1 => edge((BUCKETS - 2) as f64),
            index => format!("{:.3e}", edge(index as f64 - 0.5))
                .parse()
                .expect("a number that was just formatted"),
        }
    }

    /// The values since the last call, with their counts.
    fn take(&self) -> (Vec<f64>, Vec<u64>) {
        let counts = self.0.iter().map(|count| count.swap(0, Ordering::AcqRel)).enumerate();
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(index, count)| (Self::value(index), count))
            .unzip()
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        if !value.is_nan() {
            self.0[Self::index(value)].fetch_add(1, Ordering::Release);
        }
    }

    fn record_many(&self, value: f64, count: usize) {
        if !value.is_nan() {
            self.0[Self::index(value)].fetch_add(count as u64, Ordering::Release);
        }
    }
}

/// A value of a line.
struct Point {
    name: String,
    unit: &'static str,
    value: Value,
}

impl Emf {
    /// An empty recorder for `namespace`.
    pub fn new(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), series: RwLock::default() }
    }

    /// The lines for what was recorded since the last call, as of `now`: one line per set of labels
    /// and at most 100 metrics. A function calls it at the end of each invocation, a server at an
    /// interval.
    pub fn flush(&self, now: Timestamp) -> Vec<u8> {
        let mut sets: BTreeMap<Vec<(String, String)>, Vec<Point>> = BTreeMap::new();
        for (key, series) in &*self.series.read() {
            if let Some(point) = point(key.name(), series) {
                sets.entry(dimensions(key)).or_default().push(point);
            }
        }
        let mut lines = Vec::new();
        for (dimensions, mut points) in sets {
            points.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            while !points.is_empty() {
                let (mut line, mut later) = (Vec::<Point>::new(), Vec::new());
                for point in points {
                    // Labels that became equal in their dimension form give two series of one name.
                    let fits = line.len() < MAX_LINE_METRICS
                        && line.last().is_none_or(|last| last.name != point.name);
                    if fits { line.push(point) } else { later.push(point) }
                }
                serde_json::to_writer(&mut lines, &self.line(now, &dimensions, line))
                    .expect("a write to memory succeeds");
                lines.push(b'\n');
                points = later;
            }
        }
        lines
    }

    fn line(&self, now: Timestamp, dimensions: &[(String, String)], points: Vec<Point>) -> Value {
        let names: Vec<&String> = dimensions.iter().map(|(name, _)| name).collect();
        let metrics: Vec<Value> =
            points.iter().map(|point| json!({"Name": point.name, "Unit": point.unit})).collect();
        let directive =
            json!({"Namespace": self.namespace, "Dimensions": [names], "Metrics": metrics});
        let mut line = Map::new();
        line.insert(
            "_aws".to_owned(),
            json!({"Timestamp": now.millis(), "CloudWatchMetrics": [directive]}),
        );
        line.extend(dimensions.iter().map(|(name, value)| (name.clone(), value.as_str().into())));
        line.extend(points.into_iter().map(|point| (point.name, point.value)));
        line.into()
    }

    /// The series of `key`, created with its first value.
    fn series(&self, key: &Key, make: impl FnOnce() -> Series) -> Series {
        if let Some(series) = self.series.read().get(key) {
            return series.clone();
        }
        self.series.write().entry(key.clone()).or_insert_with(make).clone()
    }
}

/// The value of a series; `None` if there is nothing to write.
fn point(name: &str, series: &Series) -> Option<Point> {
    let value = match series {
        Series::Counter(count) => {
            Some(count.swap(0, Ordering::AcqRel)).filter(|grown| *grown > 0)?.into()
        }
        // JSON has no value for NaN and infinity.
        Series::Gauge(bits) => {
            serde_json::Number::from_f64(f64::from_bits(bits.load(Ordering::Acquire)))?.into()
        }
        Series::Histogram(buckets) => {
            let (values, counts) = buckets.take();
            if values.is_empty() {
                return None;
            }
            json!({"Values": values, "Counts": counts})
        }
    };
    let unit = match catalog::unit(name) {
        Unit::Seconds => "Seconds",
        Unit::Bytes => "Bytes",
        _ => "Count",
    };
    Some(Point { name: name.to_owned(), unit, value })
}

/// The labels of a metric as dimensions, sorted.
fn dimensions(key: &Key) -> Vec<(String, String)> {
    let mut labels: Vec<(String, String)> = key
        .labels()
        .take(MAX_DIMENSIONS)
        .map(|label| (label.key().to_owned(), dimension(label.value())))
        .collect();
    labels.sort_unstable();
    labels
}

/// The value of a dimension: 1 to 1024 bytes of visible ASCII, no colon in front.
fn dimension(value: &str) -> String {
    let fits = |letter: char| {
        if letter.is_ascii_graphic() || letter == ' ' { letter } else { '?' }
    };
    let mut value: String = value.chars().take(MAX_DIMENSION_BYTES).map(fits).collect();
    if value.trim().is_empty() {
        return "-".to_owned();
    }
    if value.starts_with(':') {
        value.replace_range(..1, "?");
    }
    value
}

impl Recorder for Emf {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.series(key, || Series::Counter(Arc::default())) {
            Series::Counter(count) => Counter::from_arc(count),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.series(key, || Series::Gauge(Arc::default())) {
            Series::Gauge(bits) => Gauge::from_arc(bits),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.series(key, || Series::Histogram(Arc::new(Buckets::new()))) {
            Series::Histogram(buckets) => Histogram::from_arc(buckets),
            _ => Histogram::noop(),
        }
    }
}

#[cfg(test)]
mod tests;
