//! The machine's own clock and randomness: the one place that asks for either.

mod clock;
mod entropy;

pub use clock::SystemClock;
pub use entropy::SystemEntropy;
