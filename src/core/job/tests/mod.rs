//! Tables and properties of a job and what it carries.

mod extract;
mod life;
mod payload;
mod stored;

use proptest::prelude::*;

use super::{JobOptions, Payload, Spec, type_config::TypeConfig};
use crate::time::Timestamp;

/// A job with the defaults of SPEC.
pub(crate) fn spec() -> Spec {
    let name = "work".parse().unwrap();
    JobOptions::default().resolve(&name, &TypeConfig::default(), Timestamp::EPOCH)
}

/// A payload of MessagePack.
fn packed(value: &rmpv::Value) -> Payload {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    Payload { encoding: super::Encoding::MessagePack, bytes: bytes.into() }
}

/// Any JSON value of a few levels; keys are few, so that pointers meet them.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "\\PC{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        let key = prop_oneof![
            "[ab0-2~/]{0,2}",
            Just("$binary".to_owned()),
            Just("$map".to_owned()),
            Just("$ext".to_owned())
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::vec((key, inner), 0..5)
                .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
        ]
    })
}
