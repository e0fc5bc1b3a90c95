//! The contract of `plugins/wit` as Rust types, one module for each world.
//!
//! Arguments are borrowed, so that a call copies the text of jobs only once, into the guest's
//! memory.

#![allow(
    missing_docs,
    clippy::pedantic,
    reason = "generated from plugins/wit/plugin.wit, which has the documentation"
)]

/// The world `throttler-by-column`, which has all imports.
pub(super) mod throttler {
    wasmtime::component::bindgen!({
        path: "../../plugins/wit",
        world: "throttler-by-column",
        imports: { default: trappable },
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

/// The world `retry-strategy`.
pub(super) mod retry {
    wasmtime::component::bindgen!({
        path: "../../plugins/wit",
        world: "retry-strategy",
        imports: { default: trappable },
        ownership: Borrowing { duplicate_if_necessary: true },
        with: {
            "tidegate:plugin/types": super::throttler::tidegate::plugin::types,
            "tidegate:plugin/clock": super::throttler::tidegate::plugin::clock,
            "tidegate:plugin/metrics": super::throttler::tidegate::plugin::metrics,
            "tidegate:plugin/random": super::throttler::tidegate::plugin::random,
            "tidegate:plugin/state": super::throttler::tidegate::plugin::state,
            "tidegate:plugin/log": super::throttler::tidegate::plugin::log,
            "tidegate:plugin/jobs": super::throttler::tidegate::plugin::jobs,
        },
    });
}
