//! The machine's randomness.

use rand::RngExt;

use tidegate_core::port::Entropy;

/// The generator of each thread: a cipher (`ChaCha12`) that the operating system seeds, and reseeds
/// from time to time. Suitable for secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn bits(&self) -> u128 {
        rand::rng().random()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn draws_differ_and_fractions_stay_below_one() {
        let drawn: HashSet<u128> = (0..1000).map(|_| SystemEntropy.bits()).collect();
        assert_eq!(drawn.len(), 1000);
        assert!((0..1000).map(|_| SystemEntropy.fraction()).all(|part| (0.0..1.0).contains(&part)));
    }
}
