//! The machine's own clock, randomness and memory: the one place that asks for them.

mod clock;
mod entropy;

pub use clock::SystemClock;
pub use entropy::SystemEntropy;
