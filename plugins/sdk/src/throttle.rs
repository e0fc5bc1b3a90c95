//! Throttlers, which decide whether due jobs start now.

use std::mem::ManuallyDrop;

use serde::de::DeserializeOwned;

use crate::{
    About, Answer, Data, Ended, Job, Problem, Running, State, Waiting,
    bindings::throttler::tidegate::plugin::candidates,
    config::of_call,
    glue::{Context, WitRound},
    packed::unpack,
};

/// Decides which of a queue's due jobs start.
pub trait Throttler {
    /// The configuration of a queue, parsed from its JSON.
    type Config: DeserializeOwned;

    /// The declarations of the plugin.
    const ABOUT: About;

    /// Returns the errors of a configuration that was parsed. Empty if it is valid.
    fn check(_config: &Self::Config) -> Vec<Problem> {
        Vec::new()
    }

    /// Decides on candidates: one decision for each, in their order.
    ///
    /// They are in the queue's order, and each of them alone fits the queue's limits.
    /// `round.running` does not contain the jobs that this call runs, so count them.
    ///
    /// The jobs that an answer runs may exceed the limits or the capacity of the workers together.
    /// The queue then leaves out those that did not fit and calls again. Only the last answer
    /// counts, and only its state is committed.
    ///
    /// # Errors
    ///
    /// The queue's `on_failure` decides on the candidates, and users see the message.
    fn decide(config: &Self::Config, round: &Round, candidates: &[Job]) -> Result<Answer, String>;
}

/// The inputs of a decision, in addition to the configuration and the candidates.
#[derive(Debug)]
pub struct Round {
    /// The queue's name.
    pub queue: String,
    /// The time of the decision, in milliseconds since 1970. There is no other clock.
    pub now: u64,
    /// A seed for [`Chance`](crate::Chance), different in every call.
    pub seed: u64,
    /// The queue's own concurrency, if it has one.
    pub concurrency: Option<u32>,
    /// How many jobs workers can take now.
    pub room: u32,
    /// The attempts that ended since the last answer that counted, if [`About::needs_ended`] is
    /// true. At most 1000.
    pub ended: Vec<Ended>,
    /// The running jobs, without the candidates.
    pub running: Running,
    /// What waits in the queue, by the attributes in [`About::waiting_by`].
    pub waiting: Waiting,
    /// The state that the last committed call left.
    pub state: State,
    /// The candidates' data, if [`About::needs_data`] is true.
    pub data: Data,
}

/// Calls `T` with the arguments of the contract. The host passes `candidates` only if the plugin needs
/// earlier attempts.
///
/// The memory of a component is released with its instance after the call. To free the jobs one by one
/// would only take time.
#[doc(hidden)]
pub fn decide<T: Throttler>(
    context: Context,
    round: WitRound,
    candidates: Vec<Job>,
) -> Result<Answer, String> {
    let config = of_call(&context.config)?;
    let candidates = if candidates.is_empty() { unpack(&candidates::packed()) } else { candidates };
    let round = ManuallyDrop::new(Round {
        queue: context.queue,
        now: context.now,
        seed: context.seed,
        concurrency: round.concurrency,
        room: round.room,
        ended: round.ended,
        running: Running::here(),
        waiting: Waiting::here(),
        state: State::here(),
        data: Data::here(),
    });
    T::decide(&config, &round, candidates.leak())
}

/// Exports a [`Throttler`] as a component. A crate may also export a retry strategy, in another
/// module.
#[macro_export]
macro_rules! export_throttler {
    ($plugin:ty) => {
        const _: () = {
            #[cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]
            struct Component;

            impl $crate::glue::ThrottleGuest for Component {
                fn describe() -> $crate::glue::Description {
                    <$plugin as $crate::Throttler>::ABOUT.into()
                }

                fn check_config(config: String) -> Vec<$crate::Problem> {
                    $crate::glue::report_panics();
                    $crate::glue::check(&config, <$plugin as $crate::Throttler>::check)
                }

                fn decide(
                    context: $crate::glue::Context,
                    round: $crate::glue::WitRound,
                    candidates: Vec<$crate::Job>,
                ) -> Result<$crate::Answer, String> {
                    $crate::glue::report_panics();
                    $crate::glue::decide::<$plugin>(context, round, candidates)
                }
            }

            // On other targets, a linker may reject the names of a component's exports.
            #[cfg(target_arch = "wasm32")]
    $crate::glue::__export_throttler_world!(Component with_types_in $crate::bindings::throttler);
        };
    };
}
