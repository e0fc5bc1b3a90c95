//! A reproducible source of random numbers.

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use tidegate_core::port::Entropy;

/// Returns the same sequence for the same seed, so that a failed run can be repeated. Not for
/// secrets.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<StdRng>);

impl SeededEntropy {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl Entropy for SeededEntropy {
    fn bits(&self) -> u128 {
        self.0.lock().random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_the_sequence() {
        let draw = |seed| {
            let entropy = SeededEntropy::new(seed);
            [entropy.bits(), entropy.bits()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_ne!(draw(1)[0], draw(1)[1]);
    }
}
