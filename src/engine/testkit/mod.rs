//! Building blocks of tests: builders, faults, and the suites that every backend must pass.
//!
//! Only tests compile it, with the feature `testkit`, so that a backend in another crate can run
//! the same suites.

pub mod builders;
pub mod conformance;
pub mod faults;
pub mod objects;
pub mod policies;
pub mod releases;

pub use policies::FnPolicy;
