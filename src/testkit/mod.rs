//! What tests stand on: time and chance that are arguments.

pub mod clock;
pub mod entropy;

pub use clock::FakeClock;
pub use entropy::SeededEntropy;
