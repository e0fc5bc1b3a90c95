//! The bounds of imports and memories.

use wasmtime::ResourceLimiter as _;

use super::*;
use crate::wasm::contract::throttler::tidegate::plugin::running::{Dimension, Host as _};

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
