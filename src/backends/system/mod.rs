//! The machine's clock and entropy, which no other code reads.

mod clock;
mod dev_clock;
mod entropy;

pub use clock::SystemClock;
pub use dev_clock::{Backwards, DevClock};
pub use entropy::SystemEntropy;
