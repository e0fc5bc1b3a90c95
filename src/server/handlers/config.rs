//! JSON merge patch (RFC 7396) on a stored configuration.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{body, error::Problem};

/// A merge patch of a configuration.
pub type Patch = Map<String, Value>;

/// `config` with `patch` merged into it (RFC 7396): null resets a setting to its default.
///
/// # Errors
///
/// 400 with the path of the wrong setting.
pub fn patched<T: Serialize + DeserializeOwned>(config: &T, patch: Patch) -> Result<T, Problem> {
    let mut merged = shown(config)?;
    merge(&mut merged, Value::Object(patch));
    body::read(merged.to_string().as_bytes())
}

/// A configuration as a JSON value.
///
/// # Errors
///
/// 500 if it has no JSON form.
pub fn shown<T: Serialize>(config: &T) -> Result<Value, Problem> {
    serde_json::to_value(config).map_err(|error| Problem::internal(error.to_string()))
}

/// Merges `patch` into `target`. The bound on the depth of a body also bounds the recursion.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else {
        return;
    };
    for (name, change) in patch {
        if change.is_null() {
            fields.remove(&name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use tidegate_core::{queue::QueueConfig, time::Seconds};

    /// The cases of RFC 7396, appendix A.
    #[test]
    fn merge_patch_follows_rfc_7396() {
        for (target, patch, wanted) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut merged = target.clone();
            merge(&mut merged, patch.clone());
            assert_eq!(merged, wanted, "{target} with {patch}");
        }
    }

    #[test]
    fn a_patch_changes_named_settings_and_null_resets_them() {
        let config = QueueConfig {
            concurrency: Some(5),
            order_step_seconds: Seconds::new(7),
            ..QueueConfig::default()
        };
        let patch = |value: Value| value.as_object().cloned().unwrap();
        let patched_config: QueueConfig =
            patched(&config, patch(json!({"concurrency": 6}))).unwrap();
        assert_eq!(patched_config, QueueConfig { concurrency: Some(6), ..config.clone() });
        let patched_config: QueueConfig =
            patched(&config, patch(json!({"order_step_seconds": null, "concurrency": null})))
                .unwrap();
        assert_eq!(patched_config, QueueConfig::default());
        let problem = patched(&config, patch(json!({"concurency": 6}))).unwrap_err();
        assert_eq!((problem.code(), problem.field()), ("unknown_field", Some("concurency")));
    }
}
