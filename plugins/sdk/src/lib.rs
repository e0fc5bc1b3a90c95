//! Throttlers and retry strategies for tidegate, in Rust.
//!
//! Implement [`Throttler`] or [`RetryStrategy`], and export it. Everything that a decision may
//! depend on belongs to the call, and there is no access to the outside. Each call can therefore be
//! tested, recorded and repeated.
//!
//! ```
//! use tidegate_plugin::{About, Answer, Decision, Dimension, Job, Round, Throttler};
//!
//! #[derive(serde::Deserialize)]
//! struct Config {
//!     limit: u64,
//! }
//!
//! struct PerType;
//!
//! impl Throttler for PerType {
//!     type Config = Config;
//!     const ABOUT: About = About::new("At most `limit` jobs of each type at a time.");
//!
//!     fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
//!         let mut used = round.running.weights(&Dimension::JobType);
//!         let decisions = candidates.iter().map(|job| {
//!             let used = used.entry(job.job_type.clone()).or_default();
//!             if *used + u64::from(job.weight) > config.limit {
//!                 return Decision::hold("as many of this type run as may");
//!             }
//!             *used += u64::from(job.weight);
//!             Decision::run()
//!         });
//!         Ok(Answer { decisions: decisions.collect(), more: true })
//!     }
//! }
//!
//! tidegate_plugin::export_throttler!(PerType);
//! # fn main() {}
//! ```
//!
//! `wit/plugin.wit` is the contract, and the types here are its types. In a component, [`Running`],
//! [`State`], [`Data`], [`clock`] and [`metrics`] call the host. In a test, the test provides the
//! content of the first three, and [`testing`] runs a plugin on cases from data files.

// The bindings and the macros refer to this crate by its name.
extern crate self as tidegate_plugin;

mod about;
mod backoff;
mod chance;
mod config;
mod decision;
mod failure;
mod json;
mod packed;
mod retry;
mod running;
mod state;
mod throttle;

pub mod calendar;
pub mod clock;
pub mod log;
pub mod metrics;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;

#[cfg(target_arch = "wasm32")]
mod bump;
#[cfg(target_arch = "wasm32")]
#[path = "inside.rs"]
mod queue;
#[cfg(not(target_arch = "wasm32"))]
#[path = "outside.rs"]
mod queue;

/// Generated from `wit/plugin.wit` by `cargo run -p xtask -- bindings`.
#[doc(hidden)]
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unused_qualifications,
    reason = "made by a generator"
)]
pub mod bindings {
    #[rustfmt::skip]
    pub mod retry;
    #[rustfmt::skip]
    pub mod throttler;
}
#[doc(hidden)]
pub use wit_bindgen::rt;

pub use about::About;
pub use backoff::{Backoff, Jitter, Seconds};
pub use bindings::{
    retry::exports::tidegate::plugin::retry::{Plan, Verdict},
    throttler::{
        exports::tidegate::plugin::throttle::{Action, Answer, Decision, Ended},
        tidegate::plugin::{
            running::{Dimension, Group, RunningJob},
            state::StateError,
            types::{Attribute, Failure, Job, Problem},
            waiting::Group as WaitingGroup,
        },
    },
};
pub use chance::Chance;
pub use failure::When;
pub use json::{Raw, parse, quote};
pub use queue::{Data, Running, State, Waiting};
pub use retry::{Call, RetryStrategy};
pub use state::state_key;
pub use throttle::{Round, Throttler};

/// For the export macros only, not for authors.
#[doc(hidden)]
pub mod glue {
    pub use crate::{
        bindings::{
            retry::{__export_retry_world, exports::tidegate::plugin::retry::Guest as RetryGuest},
            throttler::{
                __export_throttler_world,
                exports::tidegate::plugin::throttle::{Guest as ThrottleGuest, Round as WitRound},
                tidegate::plugin::types::{Context, Description},
            },
        },
        config::check,
        log::report_panics,
        retry::on_failure,
        throttle::decide,
    };
}
