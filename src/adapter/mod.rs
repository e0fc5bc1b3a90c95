//! The ports on real things: each adapter keeps, compares or carries, and decides nothing.

#[cfg(feature = "http")]
pub mod http;
pub mod system;
