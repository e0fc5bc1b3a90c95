//! Plugins that failed: each is left alone for a while, longer every time, so that a broken one costs next to nothing.
//!
//! It is remembered of a version under a configuration: another of either is asked at once.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use tidegate_core::{port::policy::Plugin, time::Timestamp};

/// The first time that a plugin which failed is left alone; it doubles up to the other.
pub const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Most plugins in trouble that are remembered; the one to be asked again first goes.
const MOST: usize = 64;

/// A plugin that failed, and until when it is left alone.
#[derive(Clone, Debug)]
pub struct OpenCircuit {
    plugin: Plugin,
    /// JSON text.
    config: Arc<str>,
    wait: Duration,
    /// When it may be asked again.
    pub(crate) until: Timestamp,
}

impl OpenCircuit {
    /// The trouble that a plugin is in which failed at `now`, and was in `earlier` before.
    pub fn after(
        earlier: Option<Self>,
        plugin: &Plugin,
        config: &Arc<str>,
        now: Timestamp,
    ) -> Self {
        let earlier = earlier.filter(|trouble| trouble.is_of(plugin, config));
        let wait = earlier.map_or(FIRST_WAIT, |trouble| (trouble.wait * 2).min(LONGEST_WAIT));
        Self { plugin: plugin.clone(), config: Arc::clone(config), wait, until: now + wait }
    }

    /// Whether it is this version's under this configuration.
    pub fn is_of(&self, plugin: &Plugin, config: &Arc<str>) -> bool {
        *plugin == self.plugin && self.config == *config
    }
}

/// The troubles of plugins that are asked by many at once.
#[derive(Debug, Default)]
pub struct CircuitBreaker(Mutex<Vec<OpenCircuit>>);

impl CircuitBreaker {
    /// Whether `plugin` is to be left alone at `now`.
    pub fn is_open(&self, plugin: &Plugin, config: &Arc<str>, now: Timestamp) -> bool {
        self.0.lock().iter().any(|trouble| now < trouble.until && trouble.is_of(plugin, config))
    }

    /// A call that was made at `asked_at` failed, as is known at `now`.
    pub fn failed(&self, plugin: &Plugin, config: &Arc<str>, asked_at: Timestamp, now: Timestamp) {
        let mut troubles = self.0.lock();
        let index = troubles.iter().position(|trouble| trouble.is_of(plugin, config));
        // Of those that were asked together the first to fail counts.
        if index.is_some_and(|index| asked_at < troubles[index].until) {
            return;
        }
        let earlier = index.map(|index| troubles.swap_remove(index));
        if troubles.len() == MOST
            && let Some((first, _)) =
                troubles.iter().enumerate().min_by_key(|(_, trouble)| trouble.until)
        {
            troubles.swap_remove(first);
        }
        troubles.push(OpenCircuit::after(earlier, plugin, config, now));
    }

    /// A call was answered.
    pub fn answered(&self, plugin: &Plugin, config: &Arc<str>) {
        let mut troubles = self.0.lock();
        if let Some(index) = troubles.iter().position(|trouble| trouble.is_of(plugin, config)) {
            troubles.swap_remove(index);
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
    fn those_that_were_asked_together_fail_once() {
        let (troubles, start) = (CircuitBreaker::default(), Timestamp::EPOCH);
        for late in [0, 100, 250] {
            troubles.failed(&plugin(1), &config(1), start, start + Duration::from_millis(late));
        }
        assert!(troubles.is_open(&plugin(1), &config(1), start + Duration::from_millis(999)));
        let again = start + FIRST_WAIT;
        assert!(!troubles.is_open(&plugin(1), &config(1), again));
        troubles.failed(&plugin(1), &config(1), again, again);
        assert!(troubles.is_open(&plugin(1), &config(1), again + Duration::from_millis(1999)));
        assert!(!troubles.is_open(&plugin(2), &config(1), again), "another version");
        assert!(!troubles.is_open(&plugin(1), &config(2), again), "another configuration");
        troubles.answered(&plugin(1), &config(1));
        assert!(!troubles.is_open(&plugin(1), &config(1), again));
    }

    #[test]
    fn no_more_than_so_many_are_remembered() {
        let troubles = CircuitBreaker::default();
        for n in 0..=MOST {
            troubles.failed(
                &plugin(1),
                &config(n),
                Timestamp::EPOCH,
                Timestamp::EPOCH + Duration::from_millis(n as u64),
            );
        }
        assert!(!troubles.is_open(&plugin(1), &config(0), Timestamp::EPOCH));
        assert!(troubles.is_open(&plugin(1), &config(MOST), Timestamp::EPOCH));
    }
}
