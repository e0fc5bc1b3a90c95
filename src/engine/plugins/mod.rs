//! Plugins: their versions, the decisions of retry strategies, and the circuit breaker for those
//! that fail.

pub mod circuit_breaker;
pub mod registry;
pub mod retry_decisions;
mod retry_state;
