//! The machine's own clock, randomness and memory: the one place that asks for them.

mod clock;
#[cfg(all(target_os = "linux", feature = "embedded"))]
mod code;
mod entropy;

pub use clock::SystemClock;
#[cfg(all(target_os = "linux", feature = "embedded"))]
pub use code::unload_code;
pub use entropy::SystemEntropy;
