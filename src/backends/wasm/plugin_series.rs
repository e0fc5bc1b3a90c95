//! The metrics of the plugins' own, among those of the process.

use std::collections::HashMap;

use metrics::{counter, gauge};
use parking_lot::Mutex;

use super::{
    bounds,
    guest::{MetricChange, MetricKind},
};
use tidegate_core::job::{PluginName, QueueName};

/// A series of a plugin: queue, kind, name, label.
type Series = (QueueName, MetricKind, String, String);

/// The series of each plugin, with what a counter has beyond whole numbers: those of the process
/// count in whole numbers.
#[derive(Debug, Default)]
pub(super) struct PluginSeries(Mutex<HashMap<PluginName, HashMap<Series, f64>>>);

impl PluginSeries {
    /// Adds the changes of a call of `plugin` for `queue`. Series beyond the bound are dropped and
    /// counted, with those that the call dropped.
    pub(super) fn add(
        &self,
        plugin: &PluginName,
        queue: &QueueName,
        changes: Vec<MetricChange>,
        mut dropped: u32,
    ) {
        if changes.is_empty() && dropped == 0 {
            return;
        }
        let plugin_label = plugin.as_str().to_owned();
        let mut all = self.0.lock();
        let series = all.entry(plugin.clone()).or_default();
        for MetricChange { kind, name, label, value } in changes {
            let key = (queue.clone(), kind, name, label);
            if series.len() >= bounds::METRIC_SERIES && !series.contains_key(&key) {
                dropped += 1;
                continue;
            }
            let labels = [
                ("plugin", plugin_label.clone()),
                ("queue", queue.as_str().to_owned()),
                ("name", key.2.clone()),
                ("label", key.3.clone()),
            ];
            let rest = series.entry(key).or_default();
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
            counter!("tidegate_plugin_metrics_dropped_total", "plugin" => plugin_label)
                .increment(dropped.into());
        }
    }

    /// Forgets the series of a removed plugin.
    pub(super) fn forget(&self, plugin: &PluginName) {
        self.0.lock().remove(plugin);
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

    /// The metrics after some calls, each with its changes and the number of those it dropped.
    fn after(calls: Vec<(Vec<MetricChange>, u32)>) -> String {
        let (recorder, series) =
            (PrometheusBuilder::new().build_recorder(), PluginSeries::default());
        let names = ("share".parse().unwrap(), "mail".parse().unwrap());
        with_local_recorder(&recorder, || {
            for (changes, dropped) in calls {
                series.add(&names.0, &names.1, changes, dropped);
            }
        });
        recorder.handle().render()
    }

    #[test]
    fn parts_of_a_counter_add_up_and_a_gauge_has_its_last_value() {
        let call = |amount, value| {
            let counter = change(MetricKind::Counter, "lent", "a", amount);
            (vec![counter, change(MetricKind::Gauge, "tokens", "", value)], 0)
        };
        let text = after(vec![call(0.75, 1.5), call(0.75, -2.5), call(2.0, 0.25)]);
        let labels = r#"plugin="share",queue="mail",name="lent",label="a""#;
        assert!(text.contains(&format!("tidegate_plugin_counter_total{{{labels}}} 3\n")), "{text}");
        let labels = r#"plugin="share",queue="mail",name="tokens",label="""#;
        assert!(text.contains(&format!("tidegate_plugin_gauge{{{labels}}} 0.25\n")), "{text}");
    }

    #[test]
    fn series_beyond_the_bound_are_dropped_and_counted() {
        let gauge = |label: usize| change(MetricKind::Gauge, "g", &label.to_string(), 1.0);
        let many = (0..bounds::METRIC_SERIES + 5).map(gauge).collect();
        // A series that is kept goes on.
        let text = after(vec![(many, 2), (vec![gauge(0)], 0)]);
        let kept = text.lines().filter(|line| line.starts_with("tidegate_plugin_gauge{")).count();
        assert_eq!(kept, bounds::METRIC_SERIES);
        let dropped = r#"tidegate_plugin_metrics_dropped_total{plugin="share"} 7"#;
        assert!(text.contains(dropped), "{text}");
    }
}
