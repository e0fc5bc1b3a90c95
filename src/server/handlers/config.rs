//! Configurations in requests: whole ones, and JSON merge patches (RFC 7396) of stored ones.
//!
//! In both, null is the default of a setting: a client that has no value for it may write null or
//! leave it out, and a patch with null removes what was set. Only below a plugin's `config`, which
//! may have any form, null in a whole configuration is a value.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use tidegate_core::{error_code::ErrorCode, strict::MAX_ITEMS};

use super::{body, error::Problem};

/// The field whose values may have any form.
const ANY_FORM: &str = "config";

/// The settings of a request, by name. A name that is given twice is refused at every depth, and so
/// is a list or an object with more than [`MAX_ITEMS`] items, while it is read. Of `data`, which is
/// read elsewhere, only the presence is kept.
#[derive(Clone, Debug, Default)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// The whole configuration. What is null or absent has its default.
    ///
    /// # Errors
    ///
    /// 400 with the path of the wrong setting.
    pub fn config<T: DeserializeOwned>(mut self) -> Result<T, Problem> {
        self.refuse_unknown::<T>()?;
        without_nulls(&mut self.0);
        body::read(Value::Object(self.0).to_string().as_bytes())
    }

    /// The value of a setting.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// These settings without one of them.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    /// Refuses an unknown name of a setting that is null: no reader would see it.
    fn refuse_unknown<T: DeserializeOwned>(&self) -> Result<(), Problem> {
        for (name, _) in self.0.iter().filter(|(_, value)| value.is_null()) {
            let alone = Map::from_iter([(name.clone(), Value::Null)]);
            match body::read::<T>(Value::Object(alone).to_string().as_bytes()) {
                Err(problem) if problem.error_code() == ErrorCode::UnknownField => {
                    return Err(problem);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Removes the fields that are null, on every level but in lists and below [`ANY_FORM`].
fn without_nulls(fields: &mut Map<String, Value>) {
    fields.retain(|_, value| !value.is_null());
    for (name, value) in fields {
        if let Value::Object(inner) = value
            && name != ANY_FORM
        {
            without_nulls(inner);
        }
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl<'de> Visitor<'de> for Whole {
            type Value = Map<String, Value>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                read_object(map, true)
            }
        }
        deserializer.deserialize_map(Whole).map(Self)
    }
}

/// The fields of an object.
fn read_object<'de, A: MapAccess<'de>>(
    mut map: A,
    outermost: bool,
) -> Result<Map<String, Value>, A::Error> {
    let mut fields = Map::new();
    while let Some(name) = map.next_key::<String>()? {
        if fields.contains_key(&name) {
            return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
        }
        if fields.len() == MAX_ITEMS {
            return Err(A::Error::custom(format_args!("must have at most {MAX_ITEMS} fields")));
        }
        let value = if outermost && name == "data" {
            map.next_value::<IgnoredAny>()?;
            Value::Bool(true)
        } else {
            map.next_value::<Checked>()?.0
        };
        fields.insert(name, value);
    }
    Ok(fields)
}

/// A value within the bounds of [`Fields`].
struct Checked(Value);

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue).map(Self)
    }
}

struct AnyValue;

macro_rules! values {
    ($($method:ident: $kind:ty),*) => {
        $(fn $method<E>(self, value: $kind) -> Result<Value, E> {
            Ok(value.into())
        })*
    };
}

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    values!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str,
        visit_string: String);

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Checked(item)) = list.next_element()? {
            if items.len() == MAX_ITEMS {
                return Err(A::Error::custom(format_args!("must have at most {MAX_ITEMS} items")));
            }
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        read_object(map, false).map(Value::Object)
    }
}

/// `config` with `patch` merged into it (RFC 7396): null resets a setting to its default.
///
/// # Errors
///
/// 400 with the path of the wrong setting.
pub fn patched<T: Serialize + DeserializeOwned>(config: &T, patch: Fields) -> Result<T, Problem> {
    patch.refuse_unknown::<T>()?;
    let mut merged = shown(config)?;
    merge(&mut merged, Value::Object(patch.0));
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
        let patch = |value: Value| Fields(value.as_object().cloned().unwrap());
        let patched_config: QueueConfig =
            patched(&config, patch(json!({"concurrency": 6}))).unwrap();
        assert_eq!(patched_config, QueueConfig { concurrency: Some(6), ..config.clone() });
        let patched_config: QueueConfig =
            patched(&config, patch(json!({"order_step_seconds": null, "concurrency": null})))
                .unwrap();
        assert_eq!(patched_config, QueueConfig::default());
        for wrong in [json!({"concurency": 6}), json!({"concurency": null})] {
            let problem = patched(&config, patch(wrong)).unwrap_err();
            assert_eq!((problem.code(), problem.field()), ("unknown_field", Some("concurency")));
        }
    }

    fn fields(text: &str) -> Result<Fields, Problem> {
        body::read(text.as_bytes())
    }

    #[test]
    fn null_in_a_whole_configuration_is_the_default() {
        let text = r#"{"concurrency": null, "order": null, "order_step_seconds": null,
            "constraints": null, "throttler": {"plugin": "p", "config": {"a": null}}}"#;
        let config: QueueConfig = fields(text).unwrap().config().unwrap();
        let throttler = config.throttler.clone().unwrap();
        assert_eq!(serde_json::to_value(throttler.config).unwrap(), json!({"a": null}));
        assert_eq!(QueueConfig { throttler: None, ..config }, QueueConfig::default());
        let problem =
            fields(r#"{"concurency": null}"#).unwrap().config::<QueueConfig>().unwrap_err();
        assert_eq!((problem.code(), problem.field()), ("unknown_field", Some("concurency")));
    }

    #[test]
    fn settings_are_read_within_bounds_and_once() {
        for (text, field) in [
            (r#"{"order": "time", "order": "priority"}"#, "order"),
            (r#"{"throttler": {"config": {"a": 1, "a": 2}}}"#, "throttler.config.a"),
        ] {
            let problem = fields(text).unwrap_err();
            assert_eq!((problem.code(), problem.field()), ("invalid_field", Some(field)), "{text}");
            assert!(problem.detail().ends_with("is given twice"), "{}", problem.detail());
        }
        let list = |count| format!("{{\"constraints\": [{}]}}", vec!["0"; count].join(","));
        assert!(fields(&list(MAX_ITEMS)).is_ok());
        assert!(fields(&list(MAX_ITEMS + 1)).unwrap_err().detail().contains("at most 1000 items"));
        let object = |count: usize| {
            let fields: Vec<String> = (0..count).map(|n| format!("\"a{n}\": 0")).collect();
            format!("{{\"headers\": {{{}}}}}", fields.join(","))
        };
        assert!(fields(&object(MAX_ITEMS)).is_ok());
        let problem = fields(&object(MAX_ITEMS + 1)).unwrap_err();
        assert!(problem.detail().contains("at most 1000 fields"), "{}", problem.detail());
    }
}
