//! Plugins: their versions, the decisions of retry strategies, and the circuit breaker of those that fail.

pub mod circuit_breaker;
pub mod registry;
pub mod retry_decisions;
