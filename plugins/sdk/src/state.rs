//! State and data as the plugin's own types.

use serde::{Serialize, de::DeserializeOwned};

use crate::{Data, State, StateError, config::at, parse, warn};

impl State {
    /// The saved value of `key`. None if there is no value, or if it is not a `T`, which is logged.
    pub fn load<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        parse(&self.get(key)?)
            .inspect_err(|problem| warn!("state {key}{}: {}", problem.path, problem.message))
            .ok()
    }

    /// Saves `value` under `key` as JSON text. The change is committed only if the call succeeds.
    ///
    /// # Errors
    ///
    /// Why it cannot be saved, for example because the state is full.
    pub fn save<T: Serialize>(&self, key: &str, value: &T) -> Result<(), String> {
        self.save_until(key, value, None)
    }

    /// Saves `value` under `key` as JSON text, until `expires_at`, a time in milliseconds since
    /// 1970.
    ///
    /// # Errors
    ///
    /// As [`Self::save`].
    pub fn save_until<T: Serialize>(
        &self,
        key: &str,
        value: &T,
        expires_at: Option<u64>,
    ) -> Result<(), String> {
        let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
        let why = |error| match error {
            StateError::InvalidKey => "a key must have 1 to 128 bytes",
            StateError::ValueTooLong => "its value has more than 16 KiB",
            StateError::Full => "the state is full: it has 256 KiB",
        };
        self.set_until(key, &text, expires_at)
            .map_err(|error| format!("state {key}: {}", why(error)))
    }
}

/// The longest value that is itself a part of a key.
const LONGEST_VALUE: usize = 100;

/// The key under which `kind` is kept for one value of an attribute: `kind:value`. A value of more
/// than 100 bytes is replaced by its hash of 64 bits, because a key has at most 128 bytes. `kind`
/// has at most 20 bytes.
pub fn state_key(kind: &str, value: &str) -> String {
    if value.len() <= LONGEST_VALUE {
        return format!("{kind}:{value}");
    }
    // FNV-1a.
    let hash = value.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{kind}#{hash:016x}")
}

impl Data {
    /// The data of the job `id`, if it has any.
    ///
    /// # Errors
    ///
    /// The data is not a `T`: where, and why.
    pub fn read<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>, String> {
        let text = self.text(id);
        text.map(|text| parse(&text).map_err(|problem| at(&format!("data of {id}"), &problem)))
            .transpose()
    }
}
