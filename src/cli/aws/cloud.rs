//! The account: its region, the clients of its services, and the signed-in user.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use aws_config::{
    BehaviorVersion, Region, SdkConfig, stalled_stream_protection::StalledStreamProtectionConfig,
    timeout::TimeoutConfig,
};
use aws_credential_types::provider::ProvideCredentials as _;
use object_store::{ObjectStore, aws::AwsCredential};
use tidegate_backends::{
    aws::{Calls, ParameterStore},
    dynamodb::sdk::SdkTable,
    objects,
    system::SystemClock,
};
use url::Url;

use super::{DeploymentArgs, credentials::LastingCredentials, failure::Failure};
use crate::cli::{UsageError, context::pause};

/// The timeout of one attempt of a call.
const CALL_TIMEOUT: Duration = Duration::from_mins(1);
/// The timeout of an upload, which a slow line may need.
const UPLOAD_TIMEOUT: Duration = Duration::from_mins(10);
/// Time between two looks at a stack.
const POLL: Duration = Duration::from_secs(2);
/// The same for a stack of this machine.
const LOCAL_POLL: Duration = Duration::from_millis(200);

/// The longest wait for an operation. A canary of all functions takes an hour.
const MAX_WAIT: Duration = Duration::from_mins(90);

/// A wait that ends.
pub struct Wait {
    poll: Duration,
    left: u32,
}

impl Wait {
    /// A wait of `longest`, with a look every `poll`.
    pub fn new(poll: Duration, longest: Duration) -> Self {
        Self { poll, left: (longest.as_millis() / poll.as_millis().max(1)) as u32 }
    }

    /// Waits until the next look.
    ///
    /// # Errors
    ///
    /// The time is over: `what` has not happened.
    pub async fn next(&mut self, what: &str) -> Result<(), Failure> {
        self.left = self.left.checked_sub(1).ok_or_else(|| Failure::TimedOut(what.to_owned()))?;
        pause(self.poll).await;
        Ok(())
    }
}

/// The account, in one region.
pub struct Cloud {
    pub(super) formation: aws_sdk_cloudformation::Client,
    pub(super) lambda: aws_sdk_lambda::Client,
    config: SdkConfig,
    calls: Calls,
    /// The region.
    pub region: String,
    /// Time between two looks at a stack.
    pub(super) poll: Duration,
}

impl Cloud {
    /// Signs in as other tools of AWS do: by environment variables, the files of `~/.aws`, a single
    /// sign-on, or the role of the machine.
    ///
    /// # Errors
    ///
    /// The machine's TLS settings are broken, or there are no credentials.
    pub async fn connect(
        deployment: &DeploymentArgs,
        region: Option<String>,
    ) -> anyhow::Result<Self> {
        Self::connect_at(deployment.endpoint_url.as_ref(), region).await
    }

    /// The same, with the endpoint of all services if it is not that of the environment.
    ///
    /// # Errors
    ///
    /// As for [`Self::connect`].
    pub async fn connect_at(
        endpoint: Option<&Url>,
        region: Option<String>,
    ) -> anyhow::Result<Self> {
        let calls = Calls::through_proxies()?;
        let config = aws_config::defaults(BehaviorVersion::latest())
            .http_client(calls.clone())
            // A local stack that loads a service sends nothing for longer than this permits.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .timeout_config(
                TimeoutConfig::builder().operation_attempt_timeout(CALL_TIMEOUT).build(),
            );
        let config = match region {
            Some(region) => config.region(Region::new(region)),
            None => config,
        };
        let config = match endpoint {
            Some(url) => config.endpoint_url(url.as_str().trim_end_matches('/')),
            None => config,
        };
        Self::new(config.load().await, calls)
    }

    /// The account that `config` names.
    ///
    /// # Errors
    ///
    /// It names no region.
    pub fn new(config: SdkConfig, calls: Calls) -> anyhow::Result<Self> {
        let region = config.region().map(ToString::to_string).ok_or_else(|| {
            UsageError("--region is missing, and AWS_REGION and the AWS profile name none".into())
        })?;
        Ok(Self {
            formation: aws_sdk_cloudformation::Client::new(&config),
            lambda: aws_sdk_lambda::Client::new(&config),
            poll: if config.endpoint_url().is_some() { LOCAL_POLL } else { POLL },
            region,
            config,
            calls,
        })
    }

    /// A wait for an operation.
    pub(super) fn wait(&self) -> Wait {
        Wait::new(self.poll, MAX_WAIT)
    }

    /// The endpoint of all services, if it is not AWS's own.
    pub fn endpoint(&self) -> Option<&str> {
        self.config.endpoint_url()
    }

    /// The bucket `name`.
    ///
    /// # Errors
    ///
    /// There are no credentials.
    pub async fn bucket(&self, name: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
        let bucket = objects::with_credential(
            self.credential().await?,
            &self.region,
            self.endpoint(),
            self.calls.clone(),
            UPLOAD_TIMEOUT,
        );
        Ok(Arc::new(bucket.with_bucket_name(name).build()?))
    }

    /// The bucket `name`, also after its first credentials have expired. A call fails without an
    /// answer within a minute.
    ///
    /// # Errors
    ///
    /// There are no credentials.
    pub fn lasting_bucket(&self, name: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
        let provider = self.config.credentials_provider().context("no credentials of AWS")?;
        let bucket = objects::with_provider(
            Arc::new(LastingCredentials::new(provider, Arc::new(SystemClock))),
            &self.region,
            self.endpoint(),
            self.calls.clone(),
            CALL_TIMEOUT,
        );
        Ok(Arc::new(bucket.with_bucket_name(name).build()?))
    }

    /// The table `name`.
    pub fn table(&self, name: &str) -> SdkTable {
        SdkTable::open(&self.config, name)
    }

    /// The Parameter Store of Systems Manager.
    ///
    /// # Errors
    ///
    /// There are no credentials.
    pub async fn parameters(&self) -> anyhow::Result<ParameterStore> {
        let credential = self.credential().await?;
        Ok(ParameterStore::new(self.calls.clone(), &self.region, self.endpoint(), credential))
    }

    /// The URL of an object, for `CloudFormation`.
    pub fn object_url(&self, bucket: &str, key: &str) -> String {
        match self.endpoint() {
            Some(endpoint) => format!("{endpoint}/{bucket}/{key}"),
            None => format!("https://{bucket}.s3.{}.amazonaws.com/{key}", self.region),
        }
    }

    /// The credentials of the signed-in user.
    ///
    /// # Errors
    ///
    /// There are none.
    pub async fn credential(&self) -> anyhow::Result<AwsCredential> {
        let provider = self.config.credentials_provider().context("no credentials of AWS")?;
        let found = provider.provide_credentials().await.map_err(|error| {
            UsageError(format!(
                "there are no credentials of AWS; sign in with `aws login`, `aws sso login` or \
                 `aws configure`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID: {error}"
            ))
        })?;
        Ok(AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        })
    }
}

/// The address at which this program reaches the function URL `url`, and its `Host` header: machines
/// often cannot resolve the names of a local stack.
///
/// # Errors
///
/// `url` or the endpoint is no URL.
pub fn reach(url: &str, endpoint: Option<&str>) -> anyhow::Result<(Url, Option<String>)> {
    let wrong = || format!("{url} is no URL");
    let url = Url::parse(url).with_context(wrong)?;
    let Some(endpoint) = endpoint else { return Ok((url, None)) };
    let mut at = Url::parse(endpoint).with_context(wrong)?;
    at.set_path(url.path());
    let host = url.host_str().with_context(wrong)?;
    let port = at.port_or_known_default().with_context(wrong)?;
    Ok((at, Some(format!("{host}:{port}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_a_local_stack_is_reached_at_the_endpoint() {
        let (url, host) = reach("https://x.lambda-url.eu-west-1.on.aws/", None).unwrap();
        assert_eq!((url.as_str(), host), ("https://x.lambda-url.eu-west-1.on.aws/", None));
        let local = "http://x.lambda-url.us-east-1.localhost:4566/";
        let (url, host) = reach(local, Some("http://127.0.0.1:4566")).unwrap();
        assert_eq!(url.as_str(), "http://127.0.0.1:4566/");
        assert_eq!(host.as_deref(), Some("x.lambda-url.us-east-1.localhost:4566"));
    }
}
