//! The metrics of the plugins' own, among those of the process.
//!
//! The series of each version have its number as a label, so that a new version does not continue those
//! of another one, whose names may mean something else. The process cannot remove a series. When a
//! version has not been called for [`GAUGE_LIFETIME`], its gauges become "not a number": an alert on a
//! value that no call maintains would last until the restart.

use std::{collections::HashMap, time::Duration};

use metrics::{counter, gauge};
use parking_lot::Mutex;

use super::{
    bounds,
    guest::{MetricChange, MetricKind},
};
use tidegate_core::{
    job::{PluginName, QueueName},
    time::Timestamp,
};

/// How long after its latest call a version's gauges have values while another version is called. A
/// call of the previous version may end after the first one of the next version.
const GAUGE_LIFETIME: Duration = Duration::from_mins(1);

/// A series of a version: queue, kind, name, label.
type Series = (QueueName, MetricKind, String, String);

/// The series of each plugin.
#[derive(Debug, Default)]
pub(super) struct PluginSeries(Mutex<HashMap<PluginName, HashMap<u32, VersionSeries>>>);

/// The series of one version of a plugin.
#[derive(Debug, Default)]
struct VersionSeries {
    called_at: Option<Timestamp>,
    /// What a counter has beyond whole numbers: those of the process count in whole numbers.
    rests: HashMap<Series, f64>,
}

/// A call whose changes are added.
pub(super) struct MetricChanges<'a> {
    pub plugin: &'a PluginName,
    pub version: u32,
    pub queue: &'a QueueName,
    pub at: Timestamp,
    pub changes: Vec<MetricChange>,
    /// How many changes the call dropped.
    pub dropped: u32,
}

impl PluginSeries {
    /// Adds the changes of a call. Series beyond the bounds are dropped and counted, with the changes
    /// that the call dropped.
    pub(super) fn add(&self, call: MetricChanges<'_>) {
        let MetricChanges { plugin, version, queue, at, changes, mut dropped } = call;
        let mut all = self.0.lock();
        if changes.is_empty() && dropped == 0 && !all.contains_key(plugin) {
            return;
        }
        let versions = all.entry(plugin.clone()).or_default();
        end_uncalled(versions, plugin, version, at);
        let mut of_plugin: usize = versions.values().map(|series| series.rests.len()).sum();
        let series = versions.entry(version).or_default();
        series.called_at = Some(at);
        for MetricChange { kind, name, label, value } in changes {
            let key = (queue.clone(), kind, name, label);
            let is_known = series.rests.contains_key(&key);
            let fits = series.rests.len() < bounds::METRIC_SERIES
                && of_plugin < bounds::METRIC_SERIES_OF_VERSIONS;
            if !is_known && !fits {
                dropped += 1;
                continue;
            }
            of_plugin += usize::from(!is_known);
            let labels = labels(plugin, version, &key);
            let rest = series.rests.entry(key).or_default();
            match kind {
                MetricKind::Gauge => gauge!("tidegate_plugin_gauge", &labels).set(value),
                MetricKind::Counter => {
                    let sum = *rest + value;
                    *rest = sum.fract();
                    counter!("tidegate_plugin_counter_total", &labels).increment(sum as u64);
                }
            }
        }
        if dropped > 0 {
            counter!("tidegate_plugin_metrics_dropped_total", "plugin" => plugin.to_string())
                .increment(dropped.into());
        }
    }

    /// Forgets the series of a removed plugin.
    pub(super) fn forget(&self, plugin: &PluginName) {
        for (version, series) in self.0.lock().remove(plugin).unwrap_or_default() {
            end_gauges(plugin, version, &series);
        }
    }
}

/// The labels of a series.
fn labels(
    plugin: &PluginName,
    version: u32,
    (queue, _, name, label): &Series,
) -> [(&'static str, String); 5] {
    [
        ("plugin", plugin.to_string()),
        ("version", version.to_string()),
        ("queue", queue.to_string()),
        ("name", name.clone()),
        ("label", label.clone()),
    ]
}

/// Ends the gauges of versions other than `called` that have not been called for a while.
fn end_uncalled(
    versions: &mut HashMap<u32, VersionSeries>,
    plugin: &PluginName,
    called: u32,
    at: Timestamp,
) {
    let others = versions.iter_mut().filter(|(number, _)| **number != called);
    for (number, series) in others {
        if series.called_at.is_some_and(|called_at| at > called_at + GAUGE_LIFETIME) {
            series.called_at = None;
            end_gauges(plugin, *number, series);
        }
    }
    versions.retain(|_, series| series.called_at.is_some() || !series.rests.is_empty());
}

/// Takes their values from the gauges of a version.
fn end_gauges(plugin: &PluginName, version: u32, series: &VersionSeries) {
    let gauges = series.rests.keys().filter(|(_, kind, ..)| *kind == MetricKind::Gauge);
    for key in gauges {
        gauge!("tidegate_plugin_gauge", &labels(plugin, version, key)).set(f64::NAN);
    }
}

#[cfg(test)]
mod tests {
    use metrics::with_local_recorder;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    fn change(kind: MetricKind, name: &str, label: &str, value: f64) -> MetricChange {
        MetricChange { kind, name: name.into(), label: label.into(), value }
    }

    /// A call of a version, some seconds after the first one, with its changes and the number of
    /// those that it dropped.
    type Called = (u32, i64, Vec<MetricChange>, u32);

    /// The metrics after some calls.
    fn after(calls: Vec<Called>) -> String {
        let (recorder, series) =
            (PrometheusBuilder::new().build_recorder(), PluginSeries::default());
        let (plugin, queue) = ("share".parse().unwrap(), "mail".parse().unwrap());
        with_local_recorder(&recorder, || {
            for (version, seconds, changes, dropped) in calls {
                let (plugin, queue) = (&plugin, &queue);
                let at = Timestamp::from_millis(seconds * 1000);
                series.add(MetricChanges { plugin, version, queue, at, changes, dropped });
            }
        });
        recorder.handle().render()
    }

    /// The line of a series.
    fn line(kind: &str, version: u32, name: &str, label: &str, value: &str) -> String {
        format!(
            "tidegate_plugin_{kind}{{plugin=\"share\",version=\"{version}\",queue=\"mail\",\
             name=\"{name}\",label=\"{label}\"}} {value}\n"
        )
    }

    #[test]
    fn parts_of_a_counter_add_up_and_a_gauge_has_its_last_value() {
        let call = |amount, value| {
            let counter = change(MetricKind::Counter, "lent", "a", amount);
            (1, 0, vec![counter, change(MetricKind::Gauge, "tokens", "", value)], 0)
        };
        let text = after(vec![call(0.75, 1.5), call(0.75, -2.5), call(2.0, 0.25)]);
        assert!(text.contains(&line("counter_total", 1, "lent", "a", "3")), "{text}");
        assert!(text.contains(&line("gauge", 1, "tokens", "", "0.25")), "{text}");
    }

    #[test]
    fn series_beyond_the_bound_are_dropped_and_counted() {
        let gauge = |label: usize| change(MetricKind::Gauge, "g", &label.to_string(), 1.0);
        let many = (0..bounds::METRIC_SERIES + 5).map(gauge).collect();
        // A series that is kept goes on.
        let text = after(vec![(1, 0, many, 2), (1, 0, vec![gauge(0)], 0)]);
        let kept = text.lines().filter(|line| line.starts_with("tidegate_plugin_gauge{")).count();
        assert_eq!(kept, bounds::METRIC_SERIES);
        let dropped = r#"tidegate_plugin_metrics_dropped_total{plugin="share"} 7"#;
        assert!(text.contains(dropped), "{text}");
    }

    #[test]
    fn a_version_does_not_continue_the_series_of_another() {
        let call = |version, seconds, amount| {
            let counter = change(MetricKind::Counter, "lent", "a", amount);
            (version, seconds, vec![counter], 0)
        };
        // The half that version 1 has left over is not one of version 2.
        let text = after(vec![call(1, 0, 2.5), call(2, 1, 1.5), call(1, 2, 0.5)]);
        assert!(text.contains(&line("counter_total", 1, "lent", "a", "3")), "{text}");
        assert!(text.contains(&line("counter_total", 2, "lent", "a", "1")), "{text}");
    }

    #[test]
    fn gauges_end_a_minute_after_the_last_call_of_a_version() {
        let call = |version, seconds, value| {
            (version, seconds, vec![change(MetricKind::Gauge, "open", "", value)], 0)
        };
        // A late call of version 1 ends no gauge of version 2.
        let calls = vec![call(1, 0, 1.0), call(2, 1, 7.0), call(1, 2, 3.0)];
        let text = after(calls.clone());
        assert!(text.contains(&line("gauge", 1, "open", "", "3")), "{text}");
        assert!(text.contains(&line("gauge", 2, "open", "", "7")), "{text}");
        // A call without metrics is one, too.
        let text = after([calls.clone(), vec![(2, 63, Vec::new(), 0)]].concat());
        assert!(text.contains(&line("gauge", 1, "open", "", "NaN")), "{text}");
        assert!(text.contains(&line("gauge", 2, "open", "", "7")), "{text}");
        // After a rollback the gauge has a value again.
        let text = after([calls, vec![call(2, 63, 7.0), call(1, 64, 4.0)]].concat());
        assert!(text.contains(&line("gauge", 1, "open", "", "4")), "{text}");
    }

    #[test]
    fn the_series_of_all_versions_of_a_plugin_are_bounded() {
        let gauge = |label: usize| change(MetricKind::Gauge, "g", &label.to_string(), 1.0);
        let versions = (bounds::METRIC_SERIES_OF_VERSIONS / bounds::METRIC_SERIES) as u32;
        let many = || (0..bounds::METRIC_SERIES).map(gauge).collect();
        let mut calls: Vec<Called> =
            (1..=versions).map(|version| (version, 0, many(), 0)).collect();
        calls.push((versions + 1, 0, vec![gauge(0), gauge(1)], 0));
        // A version of before goes on.
        calls.push((1, 0, vec![gauge(0)], 0));
        let text = after(calls);
        let kept = text.lines().filter(|line| line.starts_with("tidegate_plugin_gauge{")).count();
        assert_eq!(kept, bounds::METRIC_SERIES_OF_VERSIONS);
        let dropped = r#"tidegate_plugin_metrics_dropped_total{plugin="share"} 2"#;
        assert!(text.contains(dropped), "{text}");
    }
}
