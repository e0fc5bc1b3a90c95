//! Runs a fuzz target: one property over generated input.
//!
//! Each target runs 256 cases, or as many as `PROPTEST_CASES` says, from a fixed seed: a failure is
//! the fault of the commit that it appears in. With `TIDEGATE_FUZZ_SECONDS`, as in the full check,
//! it draws new input until the time is over. A failure prints the smallest input found.

#![allow(clippy::disallowed_methods, reason = "a fuzz target measures its own time")]

use std::time::{Duration, Instant};

use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{RngSeed, TestCaseResult, TestRunner},
};

/// The longest that one case may take. A fault of complexity takes far longer, a busy machine does
/// not.
const MAX_CASE_TIME: Duration = Duration::from_secs(10);

/// Checks `property` on values of `input`.
pub(crate) fn fuzz<S: Strategy>(input: S, property: impl Fn(S::Value) -> TestCaseResult) {
    let seconds = std::env::var("TIDEGATE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let rng_seed = if end.is_some() { RngSeed::Random } else { RngSeed::Fixed(0) };
    loop {
        let config =
            ProptestConfig { failure_persistence: None, rng_seed, ..ProptestConfig::default() };
        let mut runner = TestRunner::new(config);
        let outcome = runner.run(&input, |value| {
            let began = Instant::now();
            property(value)?;
            let took = began.elapsed();
            prop_assert!(took < MAX_CASE_TIME, "one case took {took:?}");
            Ok(())
        });
        if let Err(failure) = outcome {
            panic!("{failure}");
        }
        if end.is_none_or(|end| Instant::now() >= end) {
            return;
        }
    }
}

/// Any bytes, at most `most`.
pub(crate) fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=most)
}

/// Any text of at most `most` characters, control characters and line ends included.
pub(crate) fn text(most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>(), 0..=most).prop_map(String::from_iter)
}

/// A sequence of at most `most` of `parts`: text that a parser follows further than noise.
pub(crate) fn soup(parts: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(parts), 0..=most).prop_map(|parts| parts.concat())
}

/// Bytes of `base` with up to four faults: a byte replaced, removed or inserted, or the end cut
/// off.
pub(crate) fn mutated(base: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let fault = (0..4u8, any::<Index>(), any::<u8>());
    (base, prop::collection::vec(fault, 0..=4)).prop_map(|(mut bytes, faults)| {
        for (kind, at, byte) in faults {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, byte),
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

/// A JSON value of at most three levels, with strings and field names from `words` among others.
pub(crate) fn json(
    words: &'static [&'static str],
) -> impl Strategy<Value = serde_json::Value> + Clone {
    use serde_json::Value;
    let word = prop_oneof![
        4 => prop::sample::select(words).prop_map(str::to_owned),
        1 => prop::collection::vec(any::<char>(), 0..=8).prop_map(String::from_iter),
    ]
    .boxed();
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-9i64..100).prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
    .boxed()
}
