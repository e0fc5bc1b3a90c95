//! The bound on series, which all exporters share.
//!
//! A series is a metric with the values of its labels. Names of queues and types are such values,
//! so users decide how many there are.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::RwLock;

/// Most series with labels.
const MAX_SERIES: usize = 10_000;
/// The value of every label of the series in which further ones are added up.
const OTHER: &str = "other";

/// A recorder with at most [`MAX_SERIES`] series that have labels. Later counters and histograms
/// are added up per metric. Later gauges are left out: one value for several queues is true of
/// none.
pub(crate) struct BoundedRecorder<R> {
    recorder: R,
    most: usize,
    known: RwLock<HashSet<Key>>,
    is_reached: AtomicBool,
}

impl<R> BoundedRecorder<R> {
    /// Passes series on to `recorder`.
    pub fn new(recorder: R) -> Self {
        Self {
            recorder,
            most: MAX_SERIES,
            known: RwLock::default(),
            is_reached: AtomicBool::new(false),
        }
    }

    /// Whether `key` is within the bound.
    fn has(&self, key: &Key) -> bool {
        if key.labels().len() == 0 || self.known.read().contains(key) {
            return true;
        }
        let mut known = self.known.write();
        if known.len() < self.most {
            known.insert(key.clone());
            return true;
        }
        if !self.is_reached.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "there are over {} series (a metric with the values of its labels); further \
                 counters and histograms are added up with the label value other, and further \
                 gauges are left out",
                self.most
            );
        }
        false
    }

    /// `key`, or past the bound a key whose labels have the value `other`.
    fn within(&self, key: &Key) -> Key {
        if self.has(key) {
            return key.clone();
        }
        let others = key.labels().map(|label| Label::new(label.key().to_owned(), OTHER));
        Key::from_parts(key.name().to_owned(), others.collect::<Vec<_>>())
    }
}

impl<R: Recorder> Recorder for BoundedRecorder<R> {
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
        self.recorder.register_counter(&self.within(key), metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        if self.has(key) { self.recorder.register_gauge(key, metadata) } else { Gauge::noop() }
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.recorder.register_histogram(&self.within(key), metadata)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metrics::{counter, gauge, histogram, with_local_recorder};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::telemetry::emf::Emf;
    use tidegate_core::time::Timestamp;

    /// Records three series and two further ones of each kind, and metrics without labels.
    fn record() {
        for n in 0..5 {
            counter!("c", "queue" => format!("q{n}")).increment(1);
        }
        for n in [0, 1] {
            gauge!("g", "queue" => format!("q{n}")).set(7.0);
            histogram!("h", "queue" => format!("q{n}")).record(1.0);
            counter!("c", "queue" => format!("q{n}")).increment(1);
            counter!("bare").increment(1);
            gauge!("bare_gauge").set(2.0);
        }
    }

    fn bounded<R>(recorder: R) -> BoundedRecorder<R> {
        BoundedRecorder { most: 3, ..BoundedRecorder::new(recorder) }
    }

    #[test]
    fn series_past_the_bound_are_added_up_and_gauges_left_out() {
        let recorder = bounded(PrometheusBuilder::new().build_recorder());
        with_local_recorder(&recorder, record);
        let text = recorder.recorder.handle().render();
        let shown = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let mut lines: Vec<&str> = text.lines().filter(shown).collect();
        lines.retain(|line| !line.starts_with("h{") && !line.starts_with("h_sum"));
        lines.sort_unstable();
        let wanted = [
            "bare 2",
            "bare_gauge 2",
            "c{queue=\"other\"} 2",
            "c{queue=\"q0\"} 2",
            "c{queue=\"q1\"} 2",
            "c{queue=\"q2\"} 1",
            "h_count{queue=\"other\"} 2",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn cloudwatch_gets_the_same_series_from_servers_and_functions() {
        let emf = Arc::new(Emf::new("tidegate"));
        with_local_recorder(&bounded(Arc::clone(&emf)), record);
        let lines = emf.flush(Timestamp::from_millis(1_700_000_000_000));
        let text = String::from_utf8(lines).unwrap();
        let lines = text.lines().map(serde_json::from_str::<serde_json::Value>);
        let mut shown: Vec<String> = lines
            .map(Result::unwrap)
            .map(|line| format!("{} {} {} {}", line["queue"], line["c"], line["g"], line["bare"]))
            .collect();
        shown.sort();
        let wanted = [
            "\"other\" 2 null null",
            "\"q0\" 2 null null",
            "\"q1\" 2 null null",
            "\"q2\" 1 null null",
            "null null null 2",
        ];
        assert_eq!(shown, wanted);
    }
}
