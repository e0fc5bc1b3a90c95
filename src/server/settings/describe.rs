//! The settings of a running server for its operators: each with its value and its source.

use std::collections::BTreeMap;

use serde_json::Value;
use tidegate_api::SettingView;

use super::{Settings, reference};

/// The sources of settings that have one, by name: `file`, `environment` or `argument`.
pub type Sources = BTreeMap<String, &'static str>;

impl Settings {
    /// Every setting with its value, without secrets, and its source.
    pub fn described(&self, sources: &Sources) -> Vec<SettingView> {
        let values = self.without_secrets();
        let one = |reference: reference::Reference| {
            let path = reference.name.split('.');
            let value = path.fold(&values, |value, name| &value[name]);
            // An empty table is not set.
            let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty);
            SettingView {
                value: if is_empty { Value::Null } else { value.clone() },
                from: sources.get(&reference.name).copied().unwrap_or("default").into(),
                about: reference.meaning.to_owned(),
                name: reference.name,
            }
        };
        reference().into_iter().map(one).collect()
    }
}
