//! Throttlers: may these jobs start now?

use serde::de::DeserializeOwned;

use crate::{
    About, Answer, Data, Ended, Job, Problem, Running, State,
    config::of_call,
    glue::{Context, WitRound},
};

/// Decides which of a queue's due jobs start.
pub trait Throttler {
    /// The configuration that a queue gives, read from its JSON.
    type Config: DeserializeOwned;

    /// What the queue has to know of it.
    const ABOUT: About;

    /// What is wrong with a configuration that could be read; nothing, if nothing is.
    fn check(_config: &Self::Config) -> Vec<Problem> {
        Vec::new()
    }

    /// Decides on candidates: one decision for each, in their order.
    ///
    /// They are in the queue's order and have passed its own limits one by one. What this call runs is not yet in
    /// `round.running`: count it. If more are run than the queue's limits and workers take together, the queue leaves
    /// out those that did not fit and asks again; only the last answer, and its state, counts.
    ///
    /// # Errors
    ///
    /// All candidates wait, and the words are shown.
    fn decide(config: &Self::Config, round: &Round, candidates: &[Job]) -> Result<Answer, String>;
}

/// What a decision may depend on, beside the configuration and the candidates.
#[derive(Debug)]
pub struct Round {
    /// The queue's name.
    pub queue: String,
    /// The time of the decision, in milliseconds since 1970. There is no other clock.
    pub now: u64,
    /// For whoever needs [`Chance`](crate::Chance): another in every call.
    pub seed: u64,
    /// The queue's own concurrency, if it has one.
    pub concurrency: Option<u32>,
    /// Workers can take this many jobs now.
    pub room: u32,
    /// Attempts that ended since the last call that succeeded, if [`About::needs_ended`] says so: each is told once; at most 1000.
    pub ended: Vec<Ended>,
    /// What runs, without the candidates.
    pub running: Running,
    /// What the last call kept.
    pub state: State,
    /// The candidates' data, if [`About::needs_data`] says so.
    pub data: Data,
}

/// Asks `T` with a call as it comes from the queue.
#[doc(hidden)]
pub fn decide<T: Throttler>(
    context: Context,
    round: WitRound,
    candidates: &[Job],
) -> Result<Answer, String> {
    let config = of_call(&context.config)?;
    let round = Round {
        queue: context.queue,
        now: context.now,
        seed: context.seed,
        concurrency: round.concurrency,
        room: round.room,
        ended: round.ended,
        running: Running::here(),
        state: State::here(),
        data: Data::here(),
    };
    T::decide(&config, &round, candidates)
}

/// Makes a component of a [`Throttler`]. A crate may also export a retry strategy, in another module.
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
                    $crate::glue::decide::<$plugin>(context, round, &candidates)
                }
            }

            // Elsewhere a linker may not take the names that a component's exports have.
            #[cfg(target_arch = "wasm32")]
    $crate::glue::__export_throttler_world!(Component with_types_in $crate::bindings::throttler);
        };
    };
}
