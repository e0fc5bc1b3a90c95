//! Random numbers.

/// The one source of randomness. Tests seed it.
pub trait Entropy: Send + Sync {
    /// 128 random bits, fit to be a secret.
    fn bits(&self) -> u128;

    /// A random number from 0 up to 1.
    fn fraction(&self) -> f64 {
        (self.bits() >> 75) as f64 / (1u64 << 53) as f64
    }
}
