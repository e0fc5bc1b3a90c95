//! Opens a server on a deployment: the table, the bucket, the queues, the system's clock and
//! entropy.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use object_store::{ObjectStore, memory::InMemory, prefix::PrefixStore};

use super::{
    doctor::CloudHealthCheck,
    http::{ApiFunction, MAX_ANSWER_BYTES},
    settings::{CloudSettings, KeyLocation},
};
use crate::{
    auth::{JwtAuthenticator, oidc::SignIn},
    runtime::{Builder, Options, Server},
};
use tidegate_backends::{
    aws::{self, AwsTarget, Calls, ParameterError, ParameterStore, SdkConfig},
    dynamodb::{DynamoStore, TickRequests, sdk::SdkTable},
    http::HttpTarget,
    objects,
    sealed::{BadKeys, KeySource, Keys, SealedStore},
    sqs::SqsWorkQueue,
    system::{SystemClock, SystemEntropy},
    wasm::{PluginHost, Run},
};
use tidegate_core::{
    port::{
        Clock, WorkQueue,
        job_store::SharedStore,
        policy::{Fault, NoPolicy},
        target::{Request, Response, Target, TargetError},
    },
    time::Timestamp,
};
use tidegate_engine::{Ports, memory::MemoryStore};

/// The name of a table or a bucket in the memory of this process.
const IN_MEMORY: &str = "memory:";
/// The timeout of a call to a service: less than the timeout of any function.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time at the end of an invocation that is reserved for storing and publishing its results.
const FINISH_TIME: Duration = Duration::from_secs(3);

/// Why a deployment cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeploymentOpenError {
    /// The bucket cannot be used.
    #[error("the bucket cannot be used")]
    Bucket(#[from] object_store::Error),
    /// The plugin host cannot start.
    #[error(transparent)]
    Plugins(#[from] Fault),
    /// The HTTP client for AWS cannot start.
    #[error("the HTTP client for AWS cannot start")]
    AwsClient(#[from] reqwest::Error),
    /// The parameter with the keys cannot be read.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The parameter has no keys.
    #[error("the value of the parameter {0} {BadKeys}")]
    Keys(String),
    /// The HTTP client for push delivery cannot start.
    #[error("the HTTP client for push delivery cannot start")]
    Target(#[source] TargetError),
    /// The HTTP client for the identity provider cannot start.
    #[error("the HTTP client for the identity provider cannot start")]
    Provider(#[source] TargetError),
    /// The parameter has no secret of a client.
    #[error("the value of the parameter {0} must have 1 to 1024 bytes")]
    ClientSecret(String),
}

/// A serverless server with these `settings` that delivers nothing. It has no clients for targets.
///
/// # Errors
///
/// [`DeploymentOpenError`].
pub async fn open(settings: &CloudSettings) -> Result<Builder, DeploymentOpenError> {
    open_with(settings, |_| Ok(Arc::new(NoTarget))).await
}

/// A serverless server with these `settings` that delivers jobs to their targets.
///
/// # Errors
///
/// [`DeploymentOpenError`].
pub async fn open_to_deliver(settings: &CloudSettings) -> Result<Builder, DeploymentOpenError> {
    let target = |config: &SdkConfig| -> Result<Arc<dyn Target>, DeploymentOpenError> {
        let http = HttpTarget::new(settings.guard()).map_err(DeploymentOpenError::Target)?;
        Ok(Arc::new(AwsTarget::new(config, Arc::new(http))))
    };
    open_with(settings, target).await
}

/// The options of a function with the API, with the identity provider that `settings` name. The
/// provider is not called yet.
///
/// # Errors
///
/// [`DeploymentOpenError`] if the secret of the console as a client cannot be read.
pub async fn api(settings: &CloudSettings) -> Result<ApiFunction, DeploymentOpenError> {
    let function = ApiFunction::from(settings);
    if settings.jwt.jwks_url.is_none() {
        return Ok(function);
    }
    let mut oidc = settings.oidc.clone();
    if let Some(name) = &settings.client_secret_parameter {
        let secret = ParameterStore::from_env(Calls::new()?).read(name).await?;
        oidc.client_secret = Some(secret);
        oidc.validate(&settings.jwt)
            .map_err(|_| DeploymentOpenError::ClientSecret(name.clone()))?;
    }
    let http = || HttpTarget::new(settings.guard()).map_err(DeploymentOpenError::Provider);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let jwt = JwtAuthenticator::new(&settings.jwt, http()?, Arc::clone(&clock)).map(Arc::new);
    let public_url = settings.public_url.clone().unwrap_or_default();
    let entropy = Arc::new(SystemEntropy);
    let sign_in = SignIn::new(&oidc, &public_url, jwt.clone(), http()?, clock, entropy);
    Ok(ApiFunction { jwt, sign_in: sign_in.map(Arc::new), ..function })
}

/// The target of a server that delivers nothing.
struct NoTarget;

#[async_trait]
impl Target for NoTarget {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        Err(TargetError::Forbidden("this function delivers nothing".into()))
    }
}

async fn open_with(
    settings: &CloudSettings,
    target: impl FnOnce(&SdkConfig) -> Result<Arc<dyn Target>, DeploymentOpenError>,
) -> Result<Builder, DeploymentOpenError> {
    let calls = Calls::new()?;
    let config = aws::config(calls.clone(), SERVICE_TIMEOUT).await;
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let keys = keys(settings, calls.clone()).await?;
    let objects = objects(settings, calls)?;
    let host = PluginHost::new(Arc::clone(&objects), clock.clone(), Run::Aside)?;
    let (store, work) = store(settings, keys, &config, clock.clone(), entropy.clone());
    let ports = Ports { store, objects, work, clock, entropy, policy: Arc::new(NoPolicy) };
    let public_url = settings.public_url.clone().unwrap_or_default();
    let options = Options {
        public_url,
        answer_bytes: Some(MAX_ANSWER_BYTES),
        delivery_bytes: settings.delivery_bytes,
        ..Options::default()
    };
    let builder = Server::builder(ports, target(&config)?)
        .rules(settings.rules())
        .options(options)
        .run_plugins(Arc::new(host))
        .serverless();
    // A table in memory needs no permissions.
    let builder = if settings.table == IN_MEMORY {
        builder
    } else {
        builder.health_check(Arc::new(CloudHealthCheck::new(
            settings.clone(),
            &config,
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        )))
    };
    Ok(builder)
}

/// When an invocation that Lambda ends at `deadline` (milliseconds since the epoch) must stop work:
/// it starts nothing later, and calls still without a response then fail.
pub fn deadline(deadline: u64) -> Timestamp {
    Timestamp::from_millis(
        i64::try_from(deadline).unwrap_or(i64::MAX).saturating_sub(FINISH_TIME.as_millis() as i64),
    )
}

/// The keys of the deployment. A new value of the parameter reaches the functions that start later.
async fn keys(settings: &CloudSettings, calls: Calls) -> Result<Keys, DeploymentOpenError> {
    match &settings.keys {
        KeyLocation::Given(keys) => Ok(keys.clone()),
        KeyLocation::Parameter(name) => {
            let text = ParameterStore::from_env(calls).read(name).await?;
            Keys::parse(&text).map_err(|BadKeys| DeploymentOpenError::Keys(name.clone()))
        }
    }
}

/// The store and the work queue.
fn store(
    settings: &CloudSettings,
    keys: Keys,
    config: &SdkConfig,
    clock: Arc<SystemClock>,
    entropy: Arc<SystemEntropy>,
) -> (SharedStore, Arc<dyn WorkQueue>) {
    let queue = SqsWorkQueue::new(
        aws_sdk_sqs::Client::new(config),
        settings.queues.clone(),
        clock.clone(),
        entropy.clone(),
    );
    if settings.table == IN_MEMORY {
        return (Arc::new(MemoryStore::new()), Arc::new(queue));
    }
    let table = Arc::new(SdkTable::open(config, settings.table.as_str()));
    let work = TickRequests::new(Arc::new(queue), table.clone(), clock.clone(), entropy.clone());
    let store = DynamoStore::new(table, clock, entropy).with_shards(settings.shards);
    let store = Arc::new(SealedStore::new(Arc::new(store), KeySource::Given(keys)));
    #[cfg(feature = "testkit")]
    let store = super::next_release::store(store);
    (store, Arc::new(work))
}

fn objects(
    settings: &CloudSettings,
    calls: Calls,
) -> Result<Arc<dyn ObjectStore>, DeploymentOpenError> {
    if settings.bucket == IN_MEMORY {
        return Ok(Arc::new(InMemory::new()));
    }
    let bucket =
        objects::from_env(calls, SERVICE_TIMEOUT).with_bucket_name(&settings.bucket).build()?;
    Ok(Arc::new(PrefixStore::new(bucket, settings.prefix.as_str())))
}
