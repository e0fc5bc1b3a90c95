//! Metrics of the plugin's own, for operators: `GET /metrics` has them. In a test they go nowhere.
//!
//! A name has 1 to 64 bytes of `a-z`, `0-9` and `_`, a label at most 64 bytes. What exceeds a bound
//! of the contract is left out.

/// Adds to a counter. A negative amount is left out.
pub fn add(name: &str, label: &str, amount: f64) {
    #[cfg(target_arch = "wasm32")]
    crate::bindings::throttler::tidegate::plugin::metrics::add(name, label, amount);
    #[cfg(not(target_arch = "wasm32"))]
    let _ = (name, label, amount);
}

/// Sets a gauge.
pub fn set(name: &str, label: &str, value: f64) {
    #[cfg(target_arch = "wasm32")]
    crate::bindings::throttler::tidegate::plugin::metrics::set(name, label, value);
    #[cfg(not(target_arch = "wasm32"))]
    let _ = (name, label, value);
}
