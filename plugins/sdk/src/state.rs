//! State and data with types of the plugin's own.

use serde::{Serialize, de::DeserializeOwned};

use crate::{Data, State, parse, warn};

impl State {
    /// What was saved under `key`; nothing if there is nothing, or if it is not a `T`, which is logged.
    pub fn load<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        parse(&self.get(key)?)
            .inspect_err(|problem| warn!("state {key}{}: {}", problem.path, problem.message))
            .ok()
    }

    /// Keeps `value` under `key` as JSON text, if the call succeeds.
    ///
    /// # Errors
    ///
    /// Why it cannot be kept: the state is full, for one.
    pub fn save<T: Serialize>(&self, key: &str, value: &T) -> Result<(), String> {
        let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
        self.set(key, &text).map_err(|error| format!("state {key}: {}", error.message()))
    }
}

impl Data {
    /// The data of the job `id`, if it has such.
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
