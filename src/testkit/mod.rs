//! What tests are built from: time and chance that are arguments, jobs, faults, and the suites that every adapter passes.
//!
//! It is part of the library, behind the feature `testkit`, so that an adapter in another crate can run the same suites.

pub mod builders;
pub mod clock;
pub mod conformance;
pub mod entropy;
pub mod faults;
#[cfg(feature = "aws")]
pub mod lambda;
#[cfg(feature = "aws")]
pub mod meter;
pub mod policies;

pub use clock::FakeClock;
pub use entropy::SeededEntropy;
pub use policies::FnPolicy;
