//! Services of AWS as targets of push delivery, and the settings that all of them are called with.

pub mod calls;
pub(crate) mod error;
pub mod target;

use std::time::Duration;

use aws_config::{
    BehaviorVersion,
    environment::{EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider},
    meta::region::ProvideRegion as _,
    timeout::TimeoutConfig,
};
use aws_types::{
    sdk_config::SharedCredentialsProvider,
    service_config::{LoadServiceConfig, ServiceConfigKey},
};

pub use aws_config::SdkConfig;
pub use calls::Calls;
pub use target::AwsTarget;

/// Region, credentials and endpoint, as the environment says, which is where Lambda puts them: `AWS_REGION`, `AWS_ACCESS_KEY_ID` and so on,
/// `AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_DYNAMODB` for one service alone, `AWS_USE_FIPS_ENDPOINT` and `AWS_USE_DUALSTACK_ENDPOINT`. Requests are
/// sent through `calls`.
///
/// A call is given up when it has not been answered for `patience`: who waits is an invocation that is paid for.
pub async fn config(calls: Calls, patience: Duration) -> SdkConfig {
    let mut config = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(EnvironmentVariableRegionProvider::new().region().await)
        .credentials_provider(SharedCredentialsProvider::new(
            EnvironmentVariableCredentialsProvider::new(),
        ))
        .service_config(Environment)
        .http_client(calls)
        .timeout_config(TimeoutConfig::builder().operation_attempt_timeout(patience).build());
    config.set_endpoint_url(said("AWS_ENDPOINT_URL"));
    config.set_use_fips(said("AWS_USE_FIPS_ENDPOINT").map(|text| text == "true"));
    config.set_use_dual_stack(said("AWS_USE_DUALSTACK_ENDPOINT").map(|text| text == "true"));
    config.build()
}

/// What the environment says of one service.
#[derive(Debug)]
struct Environment;

impl LoadServiceConfig for Environment {
    fn load_config(&self, key: ServiceConfigKey<'_>) -> Option<String> {
        said(&format!("{}_{}", key.env(), key.service_id().to_uppercase().replace(' ', "_")))
    }
}

#[allow(clippy::disallowed_methods, reason = "where the services are is said by the environment")]
fn said(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}
