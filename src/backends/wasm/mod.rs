//! Plugins: WebAssembly components of users, which wasmtime runs within bounds, as a
//! [`Policy`](tidegate_core::port::Policy).
//!
//! ```text
//!   component ──compile (the trusted side, in its own process)──▶ code, stored under its hash
//!   code ──module cache (checks the hash)──▶ loaded
//!   loaded ──a new store for each call──▶ answer, or a fault
//! ```
//!
//! A plugin is not trusted. Its time, fuel, memory, stack, calls and output are bounded while it
//! runs ([`bounds`]). Its answer is checked against the contract before it has any effect, and a
//! violation is a [`Fault`](tidegate_core::port::policy::Fault) with a sentence for its author. Its
//! compiled code *is* trusted, so it is loaded only if its hash is the one that the compiling side
//! wrote into the plugin's record.
//!
//! Read in this order: `runtime` (the engine), `guest` (what a plugin can access), `host` (a call),
//! `lower` and `answer` (its arguments and results), `fault`, `module_cache` (code),
//! [`diagnostics`], [`record`] and [`recording`] (for operators), [`compile`] and
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
#[cfg(feature = "compiler")]
pub mod kept_code;
mod lower;
mod module_cache;
mod plugin_series;
pub mod record;
pub mod recording;
mod runtime;

pub use bounds::COMPONENT_BYTES;
pub use host::{PluginHost, Run};
pub use module_cache::code_object;
pub use runtime::{ENGINE, TARGET};
