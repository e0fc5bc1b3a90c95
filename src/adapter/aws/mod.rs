//! Services of AWS as targets of push delivery, and the settings that all of them are called with.

pub mod target;

use std::time::Duration;

pub use aws_config::SdkConfig;
pub use target::AwsTarget;

/// Region, credentials and endpoint, as the machine's environment and files say (`AWS_REGION`, `AWS_ENDPOINT_URL` and so on).
///
/// A call is given up when it has not been answered for `patience`, and connections are made within a second or two: who
/// waits is an invocation that is paid for.
pub async fn config(patience: Duration) -> SdkConfig {
    let timeouts =
        aws_config::timeout::TimeoutConfig::builder().connect_timeout(Duration::from_secs(2)).operation_attempt_timeout(patience).build();
    aws_config::defaults(aws_config::BehaviorVersion::latest()).timeout_config(timeouts).load().await
}
