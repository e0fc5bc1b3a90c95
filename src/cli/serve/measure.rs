//! What a server tells of itself: metrics for Prometheus and CloudWatch, and spans.
//!
//! The exclude list stands in front of both kinds of metrics, so that neither can forget it.

use std::{
    fs::File,
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, set_global_recorder,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tokio::{sync::watch, task::JoinHandle, time::MissedTickBehavior};

use tidegate_backends::system::SystemClock;
use tidegate_core::port::Clock as _;
use tidegate_server::{
    settings::Settings,
    telemetry::{
        emf::Emf,
        metrics::BUCKETS,
        otlp::{Collector, Exporter},
    },
};

/// How often what histograms were told is folded into their buckets, so that it does not pile up between two scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Metrics, collected and given out until they are stopped.
pub(super) struct Measuring {
    /// What `/metrics` shows.
    pub prometheus: PrometheusHandle,
    /// What writes for CloudWatch, and the means to end it.
    writing: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

impl Measuring {
    /// Collects metrics, without those that the settings exclude.
    ///
    /// # Errors
    ///
    /// They are collected already; the file for CloudWatch's cannot be written.
    pub(super) fn start(settings: &Settings) -> anyhow::Result<Self> {
        let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS)?.build_recorder();
        let prometheus = recorder.handle();
        let mut writing = None;
        let mut emf = None;
        if let Some(output) = &settings.emf.output {
            let collected = Arc::new(Emf::new(settings.emf.namespace.clone()));
            let output = Output::open(output)
                .with_context(|| format!("emf.output: {output} cannot be written"))?;
            let (stop, stopped) = watch::channel(false);
            let interval = settings.emf.interval_seconds.duration();
            writing = Some((
                stop,
                tokio::spawn(write(Arc::clone(&collected), output, interval, stopped)),
            ));
            emf = Some(collected);
        }
        let chosen = Chosen { prometheus: recorder, emf, settings: settings.clone() };
        set_global_recorder(chosen)
            .map_err(|error| anyhow::anyhow!("metrics cannot be collected: {error}"))?;
        tokio::spawn(keep_up(prometheus.clone()));
        Ok(Self { prometheus, writing })
    }

    /// Writes what was measured since the last time.
    pub(super) async fn stop(self) {
        if let Some((stop, writing)) = self.writing {
            stop.send_replace(true);
            let _ = writing.await;
        }
    }
}

async fn keep_up(handle: PrometheusHandle) {
    let mut tick = tokio::time::interval(UPKEEP);
    loop {
        tick.tick().await;
        handle.run_upkeep();
    }
}

/// Where lines for CloudWatch go.
#[derive(Clone)]
enum Output {
    Stdout,
    File(std::path::PathBuf),
}

impl Output {
    /// The output of this name, once it is known that it can be written.
    fn open(name: &str) -> io::Result<Self> {
        if name == "stdout" {
            return Ok(Self::Stdout);
        }
        let output = Self::File(name.into());
        output.write(b"").map(|()| output)
    }

    fn write(&self, lines: &[u8]) -> io::Result<()> {
        match self {
            // Whole lines under one lock: nothing comes between.
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines).and_then(|()| stdout.flush())
            }
            // Opened anew each time, so that it may be moved away and begun again.
            Self::File(path) => {
                File::options().append(true).create(true).open(path)?.write_all(lines)
            }
        }
    }
}

/// Writes lines now and then, and what is left when it is told to stop.
async fn write(emf: Arc<Emf>, output: Output, interval: Duration, mut stop: watch::Receiver<bool>) {
    let mut tick = tokio::time::interval(interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once, when there is nothing to say.
    tick.tick().await;
    let mut failing = false;
    loop {
        let last = tokio::select! {
            _ = tick.tick() => false,
            _ = stop.wait_for(|stop| *stop) => true,
        };
        let lines = emf.flush(SystemClock.now());
        let to = output.clone();
        // Whoever reads standard output may be slow.
        let written = tokio::task::spawn_blocking(move || to.write(&lines)).await;
        let error = written.map_or_else(
            |fault| Some(fault.to_string()),
            |written| written.err().map(|error| error.to_string()),
        );
        // Said when it begins, not each time.
        if let Some(error) = error.as_ref().filter(|_| !failing) {
            tracing::warn!(%error, "metrics for CloudWatch cannot be written; jobs are not affected");
        }
        failing = error.is_some();
        if last {
            return;
        }
    }
}

/// A recorder that leaves out what the settings exclude, and tells the others to everybody who listens.
struct Chosen {
    prometheus: PrometheusRecorder,
    emf: Option<Arc<Emf>>,
    settings: Settings,
}

impl Recorder for Chosen {
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
        let counter = self.prometheus.register_counter(key, metadata);
        match &self.emf {
            Some(emf) => {
                Counter::from_arc(Arc::new(Both(counter, emf.register_counter(key, metadata))))
            }
            None => counter,
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        if self.settings.excludes_metric(key.name()) {
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

/// Two that are told the same.
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

/// What sends spans, if the settings say where.
///
/// # Errors
///
/// It cannot be set up.
pub(super) fn exporter(settings: &Settings) -> anyhow::Result<Option<Arc<Exporter>>> {
    let tracing = &settings.tracing;
    let Some(endpoint) = tracing.otlp_endpoint.clone() else {
        return Ok(None);
    };
    let headers = tracing.otlp_headers.clone().into_iter().collect();
    let collector = Collector { endpoint, headers, service_name: tracing.service_name.clone() };
    Ok(Some(Arc::new(Exporter::start(&collector)?)))
}
