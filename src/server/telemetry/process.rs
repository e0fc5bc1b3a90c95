//! Telemetry of a long-running server: metrics for Prometheus and CloudWatch, and spans.
//!
//! The settings' exclude list filters both kinds of metrics in one place.

use std::{
    collections::HashSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Label, Metadata,
    Recorder, SharedString, Unit, set_global_recorder,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use parking_lot::RwLock;

use crate::{
    settings::Settings,
    telemetry::{
        catalog,
        emf::{Emf, EmfWriter},
        metrics::BUCKETS,
        otlp::{CannotExport, Collector, Exporter},
    },
};

/// How often recorded histogram values are folded into their buckets. Without it they accumulate
/// between two scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Most series: a metric with the values of its labels. Names of queues and types are such values.
const MAX_SERIES: usize = 10_000;

/// Why metrics cannot be collected.
#[derive(Debug, thiserror::Error)]
pub enum CannotCollect {
    /// The file for CloudWatch cannot be written.
    #[error("emf.output: {output} cannot be written")]
    Output {
        /// The setting's value.
        output: String,
        /// The cause.
        source: io::Error,
    },
    /// The process collects metrics already.
    #[error("metrics cannot be collected: {0}")]
    Recorder(String),
}

/// The collection of metrics in this process.
pub struct MetricsCollection {
    prometheus: PrometheusHandle,
    emf: Option<EmfWriter>,
}

impl MetricsCollection {
    /// Starts to collect metrics, without those that the settings exclude.
    ///
    /// # Errors
    ///
    /// [`CannotCollect`].
    pub fn start(settings: &Settings) -> Result<Self, CannotCollect> {
        let failed = |error: &dyn std::fmt::Display| CannotCollect::Recorder(error.to_string());
        let builder =
            PrometheusBuilder::new().set_buckets(&BUCKETS).map_err(|error| failed(&error))?;
        let recorder = builder.build_recorder();
        catalog::describe(&recorder);
        let prometheus = recorder.handle();
        let (mut emf, mut writer) = (None, None);
        if let Some(output) = &settings.emf.output {
            let collected = Arc::new(Emf::new(settings.emf.namespace.clone()));
            let interval = settings.emf.interval_seconds.duration();
            let started = EmfWriter::start(Arc::clone(&collected), output, interval);
            writer = Some(started.map_err(|source| {
                let output = output.clone();
                CannotCollect::Output { output, source }
            })?);
            emf = Some(collected);
        }
        let (settings, series) = (settings.clone(), SeriesLimit::default());
        let filtered = FilteredRecorder { prometheus: recorder, emf, settings, series };
        set_global_recorder(filtered).map_err(|error| failed(&error))?;
        tokio::spawn(keep_up(prometheus.clone()));
        Ok(Self { prometheus, emf: writer })
    }

    /// The handle that renders `/metrics`.
    pub fn prometheus(&self) -> PrometheusHandle {
        self.prometheus.clone()
    }

    /// Writes what was recorded since the last write.
    pub async fn stop(self) {
        if let Some(emf) = self.emf {
            emf.stop().await;
        }
    }
}

async fn keep_up(handle: PrometheusHandle) {
    let mut tick = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        tick.tick().await;
        handle.run_upkeep();
    }
}

/// The exporter of spans, if the settings name a collector.
///
/// # Errors
///
/// The exporter cannot be set up.
pub fn span_exporter(settings: &Settings) -> Result<Option<Arc<Exporter>>, CannotExport> {
    let tracing = &settings.tracing;
    let Some(endpoint) = tracing.otlp_endpoint.clone() else {
        return Ok(None);
    };
    let headers = tracing.otlp_headers.clone().into_iter().collect();
    let collector = Collector { endpoint, headers, service_name: tracing.service_name.clone() };
    Ok(Some(Arc::new(Exporter::start(&collector)?)))
}

/// A recorder that drops excluded metrics and passes the others to every exporter.
struct FilteredRecorder {
    prometheus: PrometheusRecorder,
    emf: Option<Arc<Emf>>,
    settings: Settings,
    series: SeriesLimit,
}

/// The series that there are, at most [`MAX_SERIES`]. Later counters and histograms are added up
/// per metric. Later gauges are left out: one value for several queues is true of none.
#[derive(Default)]
struct SeriesLimit {
    known: RwLock<HashSet<Key>>,
    is_reached: AtomicBool,
}

impl SeriesLimit {
    /// Whether `key` is within the limit.
    fn has(&self, key: &Key, most: usize) -> bool {
        if key.labels().len() == 0 || self.known.read().contains(key) {
            return true;
        }
        let mut known = self.known.write();
        if known.len() < most {
            known.insert(key.clone());
            return true;
        }
        if !self.is_reached.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "there are over {most} series (a metric with the values of its labels); further \
                 counters and histograms are added up with the label value other, and further \
                 gauges are left out"
            );
        }
        false
    }

    /// `key`, or past the limit a key whose labels have the value `other`.
    fn within(&self, key: &Key, most: usize) -> Key {
        if self.has(key, most) {
            return key.clone();
        }
        let others = key.labels().map(|label| Label::new(label.key().to_owned(), "other"));
        Key::from_parts(key.name().to_owned(), others.collect::<Vec<_>>())
    }
}

impl Recorder for FilteredRecorder {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.prometheus.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.prometheus.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.prometheus.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        if self.settings.excludes_metric(key.name()) {
            return Counter::noop();
        }
        let key = &self.series.within(key, MAX_SERIES);
        let counter = self.prometheus.register_counter(key, metadata);
        match &self.emf {
            Some(emf) => {
                Counter::from_arc(Arc::new(Both(counter, emf.register_counter(key, metadata))))
            }
            None => counter,
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        if self.settings.excludes_metric(key.name()) || !self.series.has(key, MAX_SERIES) {
            return Gauge::noop();
        }
        let gauge = self.prometheus.register_gauge(key, metadata);
        match &self.emf {
            Some(emf) => Gauge::from_arc(Arc::new(Both(gauge, emf.register_gauge(key, metadata)))),
            None => gauge,
        }
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        if self.settings.excludes_metric(key.name()) {
            return Histogram::noop();
        }
        let key = &self.series.within(key, MAX_SERIES);
        let histogram = self.prometheus.register_histogram(key, metadata);
        match &self.emf {
            Some(emf) => Histogram::from_arc(Arc::new(Both(
                histogram,
                emf.register_histogram(key, metadata),
            ))),
            None => histogram,
        }
    }
}

/// Two handles that record the same.
struct Both<T>(T, T);

impl CounterFn for Both<Counter> {
    fn increment(&self, value: u64) {
        self.0.increment(value);
        self.1.increment(value);
    }

    fn absolute(&self, value: u64) {
        self.0.absolute(value);
        self.1.absolute(value);
    }
}

impl GaugeFn for Both<Gauge> {
    fn increment(&self, value: f64) {
        self.0.increment(value);
        self.1.increment(value);
    }

    fn decrement(&self, value: f64) {
        self.0.decrement(value);
        self.1.decrement(value);
    }

    fn set(&self, value: f64) {
        self.0.set(value);
        self.1.set(value);
    }
}

impl HistogramFn for Both<Histogram> {
    fn record(&self, value: f64) {
        self.0.record(value);
        self.1.record(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_past_the_limit_are_added_up_per_metric() {
        let limit = SeriesLimit::default();
        let of = |metric: &'static str, queue: usize| {
            let key = Key::from_parts(metric, vec![Label::new("queue", format!("q{queue}"))]);
            let key = limit.within(&key, 3);
            let label = key.labels().next().unwrap().value().to_owned();
            format!("{} {label}", key.name())
        };
        assert_eq!([of("a", 1), of("a", 2), of("b", 1)], ["a q1", "a q2", "b q1"]);
        assert_eq!([of("a", 3), of("a", 4), of("b", 2)], ["a other", "a other", "b other"]);
        assert_eq!([of("a", 1), of("b", 1)], ["a q1", "b q1"], "known ones stay");
        let bare = Key::from_static_name("c");
        assert_eq!(limit.within(&bare, 3), bare);
    }

    #[test]
    fn gauges_past_the_limit_are_left_out() {
        let series = SeriesLimit::default();
        let key = |n: usize| Key::from_parts("g", vec![Label::new("queue", format!("q{n}"))]);
        assert!((0..MAX_SERIES).all(|n| series.has(&key(n), MAX_SERIES)));
        let recorder = FilteredRecorder {
            prometheus: PrometheusBuilder::new().build_recorder(),
            emf: None,
            settings: Settings::default(),
            series,
        };
        metrics::with_local_recorder(&recorder, || {
            for n in [MAX_SERIES - 1, MAX_SERIES, MAX_SERIES + 1] {
                metrics::gauge!("g", "queue" => format!("q{n}")).set(7.0);
                metrics::counter!("c", "queue" => format!("q{n}")).increment(1);
            }
        });
        let text = recorder.prometheus.handle().render();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let last = format!("g{{queue=\"q{}\"}} 7", MAX_SERIES - 1);
        assert_eq!(lines.iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().len(), 2);
        assert!(lines.contains(&&*last) && lines.contains(&"c{queue=\"other\"} 3"), "{text}");
    }
}
