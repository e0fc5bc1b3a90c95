//! State and data as the plugin's own types.

use serde::{Serialize, de::DeserializeOwned};

use crate::{Data, State, parse, warn};

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
        let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
        self.set(key, &text).map_err(|error| format!("state {key}: {}", error.message()))
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
