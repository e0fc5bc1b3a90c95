//! Circuits of plugins that failed: the engine does not call such a plugin for a while, longer
//! after every failure, so that a broken plugin costs next to nothing.
//!
//! A circuit belongs to one version under one configuration. Another version or configuration is
//! called at once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use tidegate_core::{job::QueueName, port::policy::Plugin, time::Timestamp};

/// How long a circuit stays open after the first failure. Each further failure doubles it, up to
/// the maximum.
pub(crate) const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Most open circuits that are recorded. Beyond it the one that closes first is dropped.
const MAX_OPEN_CIRCUITS: usize = 64;

/// A plugin that failed, and until when it is not called.
#[derive(Clone, Debug)]
pub(crate) struct OpenCircuit {
    plugin: Plugin,
    /// JSON text.
    config: Arc<str>,
    wait: Duration,
    /// When it may be called again.
    pub(crate) until: Timestamp,
}

impl OpenCircuit {
    /// The circuit of a plugin that failed at `now`; `earlier` is its circuit before.
    pub fn after(
        earlier: Option<Self>,
        plugin: &Plugin,
        config: &Arc<str>,
        now: Timestamp,
    ) -> Self {
        let earlier = earlier.filter(|circuit| circuit.is_of(plugin, config));
        let wait = earlier.map_or(FIRST_WAIT, |circuit| (circuit.wait * 2).min(MAX_WAIT));
        Self { plugin: plugin.clone(), config: Arc::clone(config), wait, until: now + wait }
    }

    /// Whether it is the circuit of this version under this configuration.
    pub fn is_of(&self, plugin: &Plugin, config: &Arc<str>) -> bool {
        *plugin == self.plugin && self.config == *config
    }
}

/// A throttler that failed, for those who explain.
#[derive(Clone, Debug)]
pub(crate) struct FailedThrottler {
    pub(crate) circuit: OpenCircuit,
    /// The message of its latest fault.
    pub(crate) message: String,
}

/// The failed throttler of each queue as its latest tick left it.
#[derive(Debug, Default)]
pub(crate) struct FailedThrottlers(Mutex<BTreeMap<QueueName, FailedThrottler>>);

impl FailedThrottlers {
    /// Takes over the circuit that a tick of `queue` left, and the message of its fault, if the
    /// throttler failed in this tick.
    pub fn set(&self, queue: &QueueName, circuit: Option<&OpenCircuit>, message: Option<String>) {
        let mut failed = self.0.lock();
        let Some(circuit) = circuit.cloned() else {
            failed.remove(queue);
            return;
        };
        let before = failed.remove(queue).map(|failed| failed.message);
        let message = message.or(before).unwrap_or_default();
        failed.insert(queue.clone(), FailedThrottler { circuit, message });
    }

    /// The throttler of `queue`, if it failed.
    pub fn of(&self, queue: &QueueName) -> Option<FailedThrottler> {
        self.0.lock().get(queue).cloned()
    }
}

/// The open circuits of plugins, shared by concurrent calls.
#[derive(Debug, Default)]
pub struct CircuitBreaker(Mutex<Vec<OpenCircuit>>);

impl CircuitBreaker {
    /// Whether `plugin` must not be called at `now`.
    pub fn is_open(&self, plugin: &Plugin, config: &Arc<str>, now: Timestamp) -> bool {
        self.0.lock().iter().any(|circuit| now < circuit.until && circuit.is_of(plugin, config))
    }

    /// Opens or prolongs a circuit: a call made at `called_at` has failed by `now`.
    pub fn failed(&self, plugin: &Plugin, config: &Arc<str>, called_at: Timestamp, now: Timestamp) {
        let mut circuits = self.0.lock();
        let index = circuits.iter().position(|circuit| circuit.is_of(plugin, config));
        // Of calls that ran at the same time, the first failure counts.
        if index.is_some_and(|index| called_at < circuits[index].until) {
            return;
        }
        let earlier = index.map(|index| circuits.swap_remove(index));
        if circuits.len() == MAX_OPEN_CIRCUITS
            && let Some((first, _)) =
                circuits.iter().enumerate().min_by_key(|(_, circuit)| circuit.until)
        {
            circuits.swap_remove(first);
        }
        circuits.push(OpenCircuit::after(earlier, plugin, config, now));
    }

    /// Closes a circuit: a call was answered.
    pub fn answered(&self, plugin: &Plugin, config: &Arc<str>) {
        let mut circuits = self.0.lock();
        if let Some(index) = circuits.iter().position(|circuit| circuit.is_of(plugin, config)) {
            circuits.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::queue::plugin::PluginVersion;

    fn plugin(number: u32) -> Plugin {
        let version = PluginVersion {
            number,
            sha256: String::new(),
            bytes: 0,
            pushed_at: Timestamp::EPOCH,
            throttler: None,
            retry: None,
            compiled: Vec::new(),
        };
        Plugin { name: "planner".parse().unwrap(), version: Arc::new(version) }
    }

    fn config(n: usize) -> Arc<str> {
        format!("{{\"n\":{n}}}").into()
    }

    #[test]
    fn concurrent_failures_open_a_circuit_once() {
        let (circuits, start) = (CircuitBreaker::default(), Timestamp::EPOCH);
        for late in [0, 100, 250] {
            circuits.failed(&plugin(1), &config(1), start, start + Duration::from_millis(late));
        }
        assert!(circuits.is_open(&plugin(1), &config(1), start + Duration::from_millis(999)));
        let again = start + FIRST_WAIT;
        assert!(!circuits.is_open(&plugin(1), &config(1), again));
        circuits.failed(&plugin(1), &config(1), again, again);
        assert!(circuits.is_open(&plugin(1), &config(1), again + Duration::from_millis(1999)));
        assert!(!circuits.is_open(&plugin(2), &config(1), again), "another version");
        assert!(!circuits.is_open(&plugin(1), &config(2), again), "another configuration");
        circuits.answered(&plugin(1), &config(1));
        assert!(!circuits.is_open(&plugin(1), &config(1), again));
    }

    #[test]
    fn the_number_of_open_circuits_is_bounded() {
        let circuits = CircuitBreaker::default();
        for n in 0..=MAX_OPEN_CIRCUITS {
            circuits.failed(
                &plugin(1),
                &config(n),
                Timestamp::EPOCH,
                Timestamp::EPOCH + Duration::from_millis(n as u64),
            );
        }
        assert!(!circuits.is_open(&plugin(1), &config(0), Timestamp::EPOCH));
        assert!(circuits.is_open(&plugin(1), &config(MAX_OPEN_CIRCUITS), Timestamp::EPOCH));
    }
}
