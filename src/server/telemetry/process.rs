//! Telemetry of a long-running server: metrics for Prometheus and CloudWatch, and spans.
//!
//! The settings' exclude list filters both kinds of metrics in one place.

use std::{io, sync::Arc, time::Duration};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, set_global_recorder,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::{
    settings::Settings,
    telemetry::{
        catalog,
        emf::{Emf, EmfWriter},
        metrics::BUCKETS,
        otlp::{CannotExport, Collector, Exporter},
        series::BoundedRecorder,
    },
};

/// How often recorded histogram values are folded into their buckets. Without it they accumulate
/// between two scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

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
        let recorder = BoundedRecorder::new(Exporters { prometheus: recorder, emf });
        let filtered = FilteredRecorder { recorder, settings: settings.clone() };
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

/// A recorder that drops excluded metrics and passes the others on.
struct FilteredRecorder<R> {
    recorder: R,
    settings: Settings,
}

impl<R: Recorder> Recorder for FilteredRecorder<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        if self.settings.excludes_metric(key.name()) {
            return Counter::noop();
        }
        self.recorder.register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        if self.settings.excludes_metric(key.name()) {
            return Gauge::noop();
        }
        self.recorder.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        if self.settings.excludes_metric(key.name()) {
            return Histogram::noop();
        }
        self.recorder.register_histogram(key, metadata)
    }
}

/// A recorder that records for every exporter.
struct Exporters {
    prometheus: PrometheusRecorder,
    emf: Option<Arc<Emf>>,
}

impl Recorder for Exporters {
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
        let counter = self.prometheus.register_counter(key, metadata);
        match &self.emf {
            Some(emf) => {
                Counter::from_arc(Arc::new(Both(counter, emf.register_counter(key, metadata))))
            }
            None => counter,
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let gauge = self.prometheus.register_gauge(key, metadata);
        match &self.emf {
            Some(emf) => Gauge::from_arc(Arc::new(Both(gauge, emf.register_gauge(key, metadata)))),
            None => gauge,
        }
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
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
