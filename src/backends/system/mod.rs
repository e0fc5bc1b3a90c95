//! The machine's clock and entropy, which no other code reads.

mod clock;
mod entropy;

pub use clock::SystemClock;
pub use entropy::SystemEntropy;
