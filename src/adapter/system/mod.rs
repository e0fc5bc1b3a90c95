//! The machine's own clock, randomness and memory: the one place that asks for them.

mod clock;
mod entropy;
#[cfg(all(target_os = "linux", feature = "embedded"))]
mod memory;

pub use clock::SystemClock;
pub use entropy::SystemEntropy;
#[cfg(all(target_os = "linux", feature = "embedded"))]
pub use memory::{Code, trim_heap};
