//! The bounds of imports and memories, and the form of packed candidates.

use wasmtime::ResourceLimiter as _;

use super::*;
use crate::wasm::{
    contract::throttler::tidegate::plugin::{
        candidates as columns,
        running::{Dimension, Host as _},
    },
    record,
};
use tidegate_core::port::policy::Call;

#[test]
fn calls_of_imports_are_counted_and_bounded() {
    let mut guest = Guest::new(None, Subject::Itself(Role::Throttler));
    for _ in 0..bounds::HOST_CALLS {
        guest.count().unwrap();
    }
    let error = guest.count().unwrap_err();
    assert_eq!(error.downcast_ref::<Denied>().unwrap().0.kind, FaultKind::ResourceExhausted);
}

#[test]
fn invented_attribute_names_use_no_memory() {
    let mut guest = Guest::new(None, Subject::Itself(Role::Throttler));
    for n in 0..1000 {
        guest.in_group(Dimension::Attribute(format!("a{n}")), "x".into()).unwrap();
    }
    assert!(guest.by_attribute.is_empty());
}

#[test]
fn all_memories_share_one_bound() {
    let mut limiter = Limiter::default();
    assert!(limiter.memory_growing(0, 40 << 20, None).unwrap());
    assert!(limiter.memory_growing(0, 20 << 20, None).unwrap());
    assert!(limiter.memory_growing(20 << 20, 23 << 20, None).unwrap());
    assert_eq!(limiter.memory, bounds::MEMORY - bounds::GLOBALS);
    limiter.memory_growing(40 << 20, (40 << 20) + 1, None).unwrap_err();
}

#[test]
fn packed_candidates_have_optional_fields_if_they_are_set() {
    let written = r#"{"throttle": {"candidates": [
        {"id": "plain", "job-type": "work"},
        {"id": "full", "job-type": "import", "priority": -3, "weight": 2, "attempts": 9,
         "created-at": "2026-03-01T08:00:00Z", "run-at": "2026-03-01T08:00:01Z",
         "expires-at": "2026-03-01T09:00:00Z", "deadline-at": "2026-03-01T10:00:00Z",
         "target-host": "example.com", "replay-of": "first", "correlation-key": "order 7",
         "attributes": {"region": "Zürich"}}
    ]}}"#;
    let Call::Throttle(call) = record::from_json(written).unwrap() else { panic!("{written}") };
    let mut guest = Guest::new(None, Subject::Throttle(call));
    let packed = columns::Host::packed(&mut guest).unwrap();
    let plain = [0, 1, 1, 10, 0, 0, 0, 5, 4, 0];
    let numbers = [-3_i64 as u64, 2, 1, 9, 1_772_352_000_000, 1_772_352_001_000];
    // All five flags, two instants, five texts, and one attribute.
    let rest = [31, 1_772_355_600_000, 1_772_359_200_000, 4, 6, 11, 5, 7, 1, 6, 7];
    assert_eq!(packed.words, [&plain[..], &numbers, &rest].concat());
    assert_eq!(packed.text, "plainworkfullimportexample.comfirstorder 7regionZürich");
}
