//! Retry strategies, which decide what follows a failed attempt.

use serde::de::DeserializeOwned;

use crate::{
    About, Data, Failure, Job, Plan, Problem, State, Verdict, config::of_call, glue::Context,
};

/// Decides when and how a job is retried.
pub trait RetryStrategy {
    /// The configuration of a job type or a job, parsed from its JSON.
    type Config: DeserializeOwned;

    /// The declarations of the plugin.
    const ABOUT: About;

    /// Returns the errors of a configuration that was parsed. Empty if it is valid.
    fn check(_config: &Self::Config) -> Vec<Problem> {
        Vec::new()
    }

    /// Decides what follows the failure `last` of `job`, whose earlier failures are in
    /// `job.earlier`. It is not called when no attempts are left.
    ///
    /// # Errors
    ///
    /// The built-in backoff decides, and users see the message.
    fn on_failure(
        config: &Self::Config,
        call: &Call,
        job: &Job,
        last: &Failure,
    ) -> Result<Verdict, String>;
}

/// The inputs of a decision, in addition to the configuration and the failed job.
#[derive(Debug)]
pub struct Call {
    /// The job's queue.
    pub queue: String,
    /// The time of the decision, in milliseconds since 1970. There is no other clock.
    pub now: u64,
    /// A seed for [`Chance`](crate::Chance), different in every call.
    pub seed: u64,
    /// The job's data, if [`About::needs_data`] is true.
    pub data: Data,
    /// The state of the strategy in the job's queue, if [`About::state_version`] is at least 1. Its
    /// changes are committed with the decision. If another decision changed it meanwhile, this one is
    /// made again.
    pub state: State,
}

impl Verdict {
    /// Another attempt `millis` after the call, of the job as it is, but not before the time that
    /// the worker or the target requested.
    pub fn after(call: &Call, last: &Failure, millis: u64) -> Self {
        let at = call.now.saturating_add(millis).max(last.not_before.unwrap_or(0));
        Self::Retry(Plan::at(at))
    }
}

impl Plan {
    /// Another attempt at `at`, of the job as it is.
    pub const fn at(at: u64) -> Self {
        Self {
            at,
            data: None,
            priority: None,
            weight: None,
            attempts_left: None,
            timeout: None,
            target: None,
        }
    }
}

/// Calls `T` with the arguments of the contract.
#[doc(hidden)]
pub fn on_failure<T: RetryStrategy>(
    context: Context,
    job: &Job,
    last: &Failure,
) -> Result<Verdict, String> {
    let config = of_call(&context.config)?;
    let call = Call {
        queue: context.queue,
        now: context.now,
        seed: context.seed,
        data: Data::here(),
        state: State::here(),
    };
    T::on_failure(&config, &call, job, last)
}

/// Exports a [`RetryStrategy`] as a component. A crate may also export a throttler, in another
/// module.
#[macro_export]
macro_rules! export_retry {
    ($plugin:ty) => {
        const _: () = {
            #[cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]
            struct Component;

            impl $crate::glue::RetryGuest for Component {
                fn describe() -> $crate::glue::Description {
                    <$plugin as $crate::RetryStrategy>::ABOUT.into()
                }

                fn check_config(config: String) -> Vec<$crate::Problem> {
                    $crate::glue::report_panics();
                    $crate::glue::check(&config, <$plugin as $crate::RetryStrategy>::check)
                }

                fn on_failure(
                    context: $crate::glue::Context,
                    job: $crate::Job,
                    last: $crate::Failure,
                ) -> Result<$crate::Verdict, String> {
                    $crate::glue::report_panics();
                    $crate::glue::on_failure::<$plugin>(context, &job, &last)
                }
            }

            // On other targets, a linker may reject the names of a component's exports.
            #[cfg(target_arch = "wasm32")]
    $crate::glue::__export_retry_world!(Component with_types_in $crate::bindings::retry);
        };
    };
}
