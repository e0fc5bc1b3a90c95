//! Metrics for CloudWatch in its embedded metric format: lines of JSON in a log, from which it takes the values.
//!
//! ```text
//!   {"_aws":{"Timestamp":1700000000000,"CloudWatchMetrics":[{"Namespace":"tidegate","Dimensions":[["queue"]],
//!    "Metrics":[{"Name":"tidegate_attempts_started_total","Unit":"Count"}]}]},"queue":"mail","tidegate_attempts_started_total":12}
//! ```
//!
//! A counter is written as what it grew by since the line before, and not at all where it did not; a gauge as it stands; a
//! histogram as values and how often each came. The one thing to know: what is kept between two writes does not grow with
//! what is measured. A histogram counts in fixed buckets, each a fifth wider than the one below, so a value is at most 9 % off.

mod output;

pub(crate) use output::EmfWriter;
#[cfg(feature = "serverless")]
pub(crate) use output::write_stdout;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
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
const LINE_METRICS: usize = 100;
/// Most dimensions of one line; labels beyond are left out.
const DIMENSIONS: usize = 30;
/// Most bytes of a dimension's value.
const DIMENSION_BYTES: usize = 1024;
/// Most series, a series being a metric with its labels; those that come later are not collected.
const SERIES: usize = 10_000;

/// The value below which a histogram does not tell values apart: a quarter of a millisecond.
const LEAST: f64 = 1.0 / 4096.0;
/// How many buckets a doubling has.
const STEPS: f64 = 4.0;
/// The buckets from [`LEAST`] to 4096, one below and one above. CloudWatch takes at most 100 values at once.
const BUCKETS: usize = 98;

/// Collects metrics, and writes them when asked.
pub struct Emf {
    namespace: String,
    series: RwLock<HashMap<Key, Series>>,
    /// Whether somebody was told that there are too many series.
    told: AtomicBool,
}

/// What is kept of a metric with its labels.
#[derive(Clone)]
enum Series {
    Counter(Arc<AtomicU64>),
    /// The bits of an `f64`.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Buckets>),
}

/// How many values fell into each bucket.
struct Buckets([AtomicU64; BUCKETS]);

impl Buckets {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn index(value: f64) -> usize {
        if value < LEAST {
            return 0;
        }
        // Above the last bucket, infinity among it, the conversion saturates.
        (((value / LEAST).log2() * STEPS) as usize).saturating_add(1).min(BUCKETS - 1)
    }

    /// The value that stands for those of a bucket: its middle, in four digits.
    fn value(index: usize) -> f64 {
        let edge = |index: f64| LEAST * (index / STEPS).exp2();
        match index {
            0 => 0.0,
            last if last == BUCKETS - 1 => edge((BUCKETS - 2) as f64),
            index => format!("{:.3e}", edge(index as f64 - 0.5))
                .parse()
                .expect("a number that was just written"),
        }
    }

    /// The values that came since the last time, each with how often.
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

/// A value on its way into a line.
struct Point {
    name: String,
    unit: &'static str,
    value: Value,
}

impl Emf {
    /// Metrics of `namespace`, none so far.
    pub fn new(namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            series: RwLock::default(),
            told: AtomicBool::new(false),
        }
    }

    /// What was measured since the last time, as of `now`: whole lines, one per set of labels and at most 100 metrics. Empty
    /// if there is nothing to say. A function calls it at the end of each invocation, a server now and then.
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
                let (mut now_said, mut later) = (Vec::<Point>::new(), Vec::new());
                for point in points {
                    // Two series of one name are told apart by labels that became alike when they were made fit.
                    let fits = now_said.len() < LINE_METRICS
                        && now_said.last().is_none_or(|last| last.name != point.name);
                    if fits { now_said.push(point) } else { later.push(point) }
                }
                serde_json::to_writer(&mut lines, &self.line(now, &dimensions, now_said))
                    .expect("memory takes what memory holds");
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

    /// The series of `key`, made if there is room for it.
    fn series(&self, key: &Key, make: impl FnOnce() -> Series) -> Option<Series> {
        if let Some(series) = self.series.read().get(key) {
            return Some(series.clone());
        }
        let mut all = self.series.write();
        if all.len() >= SERIES && !all.contains_key(key) {
            if !self.told.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "there are over {SERIES} metrics with their labels; further ones are not written for CloudWatch"
                );
            }
            return None;
        }
        Some(all.entry(key.clone()).or_insert_with(make).clone())
    }
}

/// What a series has to say, if anything.
fn point(name: &str, series: &Series) -> Option<Point> {
    let value = match series {
        Series::Counter(count) => {
            Some(count.swap(0, Ordering::AcqRel)).filter(|grown| *grown > 0)?.into()
        }
        // What is no number has no JSON.
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

/// The labels of a metric in an order of their own, as CloudWatch takes them.
fn dimensions(key: &Key) -> Vec<(String, String)> {
    let mut labels: Vec<(String, String)> = key
        .labels()
        .take(DIMENSIONS)
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
    let mut value: String = value.chars().take(DIMENSION_BYTES).map(fits).collect();
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
            Some(Series::Counter(count)) => Counter::from_arc(count),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.series(key, || Series::Gauge(Arc::default())) {
            Some(Series::Gauge(bits)) => Gauge::from_arc(bits),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.series(key, || Series::Histogram(Arc::new(Buckets::new()))) {
            Some(Series::Histogram(buckets)) => Histogram::from_arc(buckets),
            _ => Histogram::noop(),
        }
    }
}

#[cfg(test)]
mod tests;
