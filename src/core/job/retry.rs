//! What follows a failed attempt: how long to wait before the next one.
//!
//! Pure: the caller draws the random part.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
    ser::SerializeStruct,
};
use serde_json::Value;

use super::{PluginName, name::BadName};
use crate::{parsed::parsed, strict::strict, time::Seconds};

/// The name of the strategy that is built in; every other one is a plugin's.
pub const BUILT_IN: &str = "exponential";

/// How a job's next attempt is planned: `{"strategy": "exponential", "config": {...}}` or
/// `{"plugin": name, "config": {...}}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retry {
    /// A wait that doubles from attempt to attempt.
    Exponential(Backoff),
    /// The plugin of this name decides, with this configuration.
    ///
    /// Under the name of the built-in strategy this is a configuration that it cannot read; every
    /// check refuses it.
    Plugin(PluginName, Arc<Value>),
}

/// [`Retry`] in the API: a built-in strategy or a plugin, with its configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Retry")]
struct Written {
    strategy: Option<BuiltIn>,
    plugin: Option<PluginName>,
    #[serde(default = "no_config", deserialize_with = "config")]
    config: Arc<Value>,
}

/// The built-in strategies.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum BuiltIn {
    Exponential,
}

/// Reads a configuration; null is an empty one.
fn config<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Value>, D::Error> {
    Option::deserialize(deserializer).map(|config| config.unwrap_or_else(no_config))
}

fn no_config() -> Arc<Value> {
    Arc::new(Value::Object(serde_json::Map::new()))
}

impl TryFrom<Written> for Retry {
    type Error = &'static str;

    fn try_from(Written { strategy, plugin, mut config }: Written) -> Result<Self, Self::Error> {
        match (strategy, plugin) {
            (Some(BuiltIn::Exponential), None) => {
                // Null is the default.
                if let Value::Object(fields) = Arc::make_mut(&mut config) {
                    let known = ["base_seconds", "max_seconds", "jitter"];
                    fields
                        .retain(|name, value| !value.is_null() || !known.contains(&name.as_str()));
                }
                Ok(Backoff::deserialize(strict(&*config)).map_or_else(
                    |_| Self::Plugin(BUILT_IN.parse().expect("the built-in name is valid"), config),
                    Self::Exponential,
                ))
            }
            (None, Some(plugin)) => Ok(Self::Plugin(plugin, config)),
            _ => Err("either `strategy` (a built-in one: `exponential`) or `plugin` is required"),
        }
    }
}

impl Serialize for Retry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The stored form always starts with `strategy`.
        let plugin = if serializer.is_human_readable() { "plugin" } else { "strategy" };
        let mut fields = serializer.serialize_struct("Retry", 2)?;
        match self {
            Self::Exponential(backoff) => {
                fields.serialize_field("strategy", BUILT_IN)?;
                fields.serialize_field("config", backoff)?;
            }
            Self::Plugin(name, config) => {
                fields.serialize_field(plugin, name)?;
                fields.serialize_field("config", config)?;
            }
        }
        fields.end()
    }
}

impl<'de> Deserialize<'de> for Retry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Written::deserialize(deserializer)
                .and_then(|written| Self::try_from(written).map_err(D::Error::custom));
        }
        deserializer.deserialize_struct("Retry", &["strategy", "config"], RetryVisitor)
    }
}

/// Reads a stored [`Retry`]: the strategy comes first, and spans have their stored form.
struct RetryVisitor;

impl<'de> Visitor<'de> for RetryVisitor {
    type Value = Retry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a strategy and its config")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Retry, A::Error> {
        let missing = |field| move || A::Error::missing_field(field);
        match fields.next_element()?.ok_or_else(missing("strategy"))? {
            StoredStrategy::BuiltIn => {
                fields.next_element()?.map(Retry::Exponential).ok_or_else(missing("config"))
            }
            StoredStrategy::Plugin(name) => {
                let config = fields.next_element()?.ok_or_else(missing("config"))?;
                Ok(Retry::Plugin(name, config))
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Retry, A::Error> {
        let missing = |field| move || A::Error::missing_field(field);
        let (_, strategy): (IgnoredAny, StoredStrategy) =
            fields.next_entry()?.ok_or_else(missing("strategy"))?;
        match strategy {
            StoredStrategy::BuiltIn => {
                let (_, config): (IgnoredAny, Backoff) =
                    fields.next_entry()?.ok_or_else(missing("config"))?;
                Ok(Retry::Exponential(config))
            }
            StoredStrategy::Plugin(name) => {
                let (_, config): (IgnoredAny, Arc<Value>) =
                    fields.next_entry()?.ok_or_else(missing("config"))?;
                Ok(Retry::Plugin(name, config))
            }
        }
    }
}

/// The strategy of a stored [`Retry`].
enum StoredStrategy {
    BuiltIn,
    Plugin(PluginName),
}

impl FromStr for StoredStrategy {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        if text == BUILT_IN { Ok(Self::BuiltIn) } else { text.parse().map(Self::Plugin) }
    }
}

impl<'de> Deserialize<'de> for StoredStrategy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer)
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::Exponential(Backoff::default())
    }
}

/// A wait that doubles: min(`max_seconds`, `base_seconds` x 2^(n-1)) after attempt n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// The wait after the first attempt (default 2; 0 to 86400).
    pub base_seconds: Seconds,
    /// No wait is longer (default 3600; 0 to 2592000).
    pub max_seconds: Seconds,
    /// Whether a random part of the wait is taken (default `full`).
    pub jitter: Jitter,
}

/// The random part of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Jitter {
    /// Any part of the wait, at least half a second of it.
    #[default]
    Full,
    /// The whole wait.
    None,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base_seconds: Seconds::new(2),
            max_seconds: Seconds::new(3600),
            jitter: Jitter::Full,
        }
    }
}

impl Backoff {
    /// The least wait with full jitter, so that retries never flood a failing target.
    pub const LEAST: Duration = Duration::from_millis(500);

    /// The wait after attempt `attempt` (from 1), where `drawn` is uniform in 0 up to 1.
    pub fn after(self, attempt: u16, drawn: f64) -> Duration {
        let doublings = u32::from(attempt.saturating_sub(1)).min(40);
        let whole = self
            .base_seconds
            .millis()
            .saturating_mul(1 << doublings)
            .min(self.max_seconds.millis());
        let whole = Duration::from_millis(whole);
        match self.jitter {
            Jitter::None => whole,
            Jitter::Full => whole.mul_f64(drawn.clamp(0.0, 1.0)).max(Self::LEAST.min(whole)),
        }
    }

    /// The first fault of these settings: the field and what it must be.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.base_seconds > Seconds::new(86_400) {
            Some(("base_seconds", "must be 0 to 86400"))
        } else if self.max_seconds > Seconds::new(2_592_000) {
            Some(("max_seconds", "must be 0 to 2592000"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_wait_doubles_and_stops_at_its_maximum() {
        let backoff = Backoff { jitter: Jitter::None, ..Backoff::default() };
        let waits: Vec<u64> =
            [1, 2, 3, 11, 12, 13, 65535].map(|n| backoff.after(n, 0.3).as_secs()).to_vec();
        assert_eq!(waits, [2, 4, 8, 2048, 3600, 3600, 3600]);
    }

    proptest! {
        #[test]
        fn full_jitter_stays_between_half_a_second_and_the_whole(
            n in 1u16..,
            drawn in 0.0f64..1.0,
        ) {
            let backoff = Backoff::default();
            let whole = Backoff { jitter: Jitter::None, ..backoff }.after(n, 0.0);
            let wait = backoff.after(n, drawn);
            prop_assert!(wait <= whole && wait >= Backoff::LEAST);
        }
    }
}
