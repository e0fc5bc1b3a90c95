//! Plugins: components of WebAssembly that users write, run within bounds by wasmtime, as a [`Policy`](tidegate_core::port::Policy).
//!
//! ```text
//!   component ──compile (the trusted side, in a process of its own)──▶ code, under the hash of its bytes
//!   code ──shelf (fetched once, hash compared)──▶ loaded ──a new store for each call──▶ answer, or a fault
//! ```
//!
//! The one thing to know: a plugin is never believed. Its time, fuel, memory, stack, calls and output are bounded while
//! it runs ([`bounds`]), its answer is held against the contract before anybody acts on it, and what is wrong is a
//! [`Fault`](tidegate_core::port::policy::Fault) with a sentence for its author. Its compiled code *is* believed, so it is
//! loaded only if its hash is the one that the compiling side wrote into the plugin's record.
//!
//! Read in this order: `runtime` (the engine), `guest` (what a plugin reaches), `host` (a call), `lower` and `answer`
//! (its two ends), `fault`, `module_cache` (code), [`diagnostics`] and [`record`] (what people see), [`compile`] and
//! [`compile_process`] (from a component to code).

mod answer;
pub mod bounds;
pub mod compile;
pub mod compile_process;
mod contract;
pub mod diagnostics;
mod fault;
#[cfg(test)]
mod fuzz;
mod guest;
mod host;
#[cfg(feature = "compiler")]
mod inspect;
mod lower;
mod module_cache;
pub mod record;
mod runtime;

pub use bounds::COMPONENT_BYTES;
pub use host::{PluginHost, Run};
pub use module_cache::{code_object, component_object};
pub use runtime::{ENGINE, TARGET};
