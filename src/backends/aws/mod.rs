//! AWS services as targets of push delivery, and the SDK settings of all AWS calls.

pub mod calls;
pub mod error;
pub mod parameter;
pub mod target;

use std::time::Duration;

use aws_config::{
    BehaviorVersion,
    environment::{EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider},
    meta::region::ProvideRegion as _,
    retry::RetryConfig,
    timeout::TimeoutConfig,
};
use aws_types::{
    sdk_config::SharedCredentialsProvider,
    service_config::{LoadServiceConfig, ServiceConfigKey},
};

pub use aws_config::SdkConfig;
pub use calls::Calls;
pub use error::CallError;
pub use parameter::{ParameterError, ParameterStore};
pub use target::AwsTarget;

/// Maximum attempts of a call.
const MAX_ATTEMPTS: u32 = 5;
/// The longest wait before the second attempt, which doubles with each further one. The SDK's own
/// second is longer than most invocations.
const FIRST_WAIT: Duration = Duration::from_millis(25);

/// Region, credentials and endpoint from environment variables, which Lambda sets: `AWS_REGION`,
/// `AWS_ACCESS_KEY_ID` and so on, `AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_DYNAMODB` for a single
/// service, `AWS_USE_FIPS_ENDPOINT` and `AWS_USE_DUALSTACK_ENDPOINT`. Requests are sent through
/// `calls`.
///
/// An attempt fails without an answer within `timeout`, because a waiting invocation costs money.
pub async fn config(calls: Calls, timeout: Duration) -> SdkConfig {
    let mut config = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(EnvironmentVariableRegionProvider::new().region().await)
        .credentials_provider(SharedCredentialsProvider::new(
            EnvironmentVariableCredentialsProvider::new(),
        ))
        .service_config(Environment)
        .http_client(calls)
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(MAX_ATTEMPTS)
                .with_initial_backoff(FIRST_WAIT),
        )
        .timeout_config(TimeoutConfig::builder().operation_attempt_timeout(timeout).build());
    config.set_endpoint_url(variable("AWS_ENDPOINT_URL"));
    config.set_use_fips(variable("AWS_USE_FIPS_ENDPOINT").map(|text| text == "true"));
    config.set_use_dual_stack(variable("AWS_USE_DUALSTACK_ENDPOINT").map(|text| text == "true"));
    config.build()
}

/// The environment variables of a single service.
#[derive(Debug)]
struct Environment;

impl LoadServiceConfig for Environment {
    fn load_config(&self, key: ServiceConfigKey<'_>) -> Option<String> {
        variable(&format!("{}_{}", key.env(), key.service_id().to_uppercase().replace(' ', "_")))
    }
}

#[allow(clippy::disallowed_methods, reason = "the SDK's own settings are environment variables")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_are_repeated_early_and_at_most_five_times() {
        let config = config(Calls::new().unwrap(), Duration::from_secs(1)).await;
        let retry = config.retry_config().unwrap();
        assert_eq!((retry.max_attempts(), retry.initial_backoff()), (5, Duration::from_millis(25)));
    }
}
