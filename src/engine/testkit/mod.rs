//! What tests are built from: builders, faults, and the suites that every backend passes.
//!
//! Only tests build it, with the feature `testkit`, so that a backend in another crate can run the same suites.

pub mod builders;
pub mod conformance;
pub mod faults;
pub mod policies;

pub use policies::FnPolicy;
