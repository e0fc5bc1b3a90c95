//! State and data as the plugin's own types.

use serde::{Serialize, de::DeserializeOwned};

use crate::{Data, State, StateError, parse, warn};

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

impl Data {
    /// The data of the job `id`, if it has any.
    ///
    /// # Errors
    ///
    /// The data is not a `T`: where, and why.
    pub fn read<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>, String> {
        let text = self.text(id);
        text.map(|text| {
            parse(&text)
                .map_err(|problem| format!("data of {id} {}: {}", problem.path, problem.message))
        })
        .transpose()
    }
}
