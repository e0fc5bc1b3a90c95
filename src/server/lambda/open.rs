//! A server on a deployment: the table, the bucket, the queues, the machine's clock and chance.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use object_store::{ObjectStore, memory::InMemory, prefix::PrefixStore};

use super::{doctor::CloudCheckup, http::ANSWER_BYTES, settings::CloudSettings};
use crate::runtime::{Builder, Options, Server};
use tidegate_backends::{
    aws::{self, AwsTarget, Calls, SdkConfig},
    dynamodb::{DynamoStore, sdk::SdkTable},
    http::{Guard, HttpTarget},
    objects,
    sqs::SqsWorkQueue,
    system::{SystemClock, SystemEntropy},
    wasm::{PluginHost, Run},
};
use tidegate_core::{
    error_chain::ErrorChain,
    port::{
        job_store::SharedStore,
        policy::{Fault, NoPolicy},
        target::{Request, Response, Target, TargetError},
    },
    time::Timestamp,
};
use tidegate_engine::{Ports, memory::MemoryStore};

/// The word for a table or a bucket of this process alone.
const MEMORY: &str = "memory:";
/// How long a call of a service may go unanswered: less than any function may run.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a call keeps of its time for writing down and telling what became of everything.
const MARGIN: Duration = Duration::from_secs(3);

/// Why a deployment cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CannotOpen {
    /// The bucket cannot be used.
    #[error("the bucket cannot be used: {0}")]
    Bucket(#[from] object_store::Error),
    /// Plugins cannot be run.
    #[error(transparent)]
    Plugins(#[from] Fault),
    /// AWS cannot be asked.
    #[error("the client for AWS cannot be set up: {}", ErrorChain(.0))]
    Calls(#[from] reqwest::Error),
    /// Outgoing connections cannot be made secure.
    #[error("push delivery cannot be set up: {0}")]
    Target(String),
}

/// An away server as `settings` say, which delivers nothing: it carries no client for what jobs are delivered to.
///
/// # Errors
///
/// [`CannotOpen`].
pub async fn open(settings: &CloudSettings) -> Result<Builder, CannotOpen> {
    open_with(settings, |_| Ok(Arc::new(NoTarget))).await
}

/// An away server as `settings` say, which delivers.
///
/// # Errors
///
/// [`CannotOpen`].
pub async fn open_to_deliver(settings: &CloudSettings) -> Result<Builder, CannotOpen> {
    let target = |config: &SdkConfig| -> Result<Arc<dyn Target>, CannotOpen> {
        let http =
            HttpTarget::new(Guard::On).map_err(|error| CannotOpen::Target(error.to_string()))?;
        Ok(Arc::new(AwsTarget::new(config, Arc::new(http))))
    };
    open_with(settings, target).await
}

/// What a server has in the place of targets that delivers nothing.
struct NoTarget;

#[async_trait]
impl Target for NoTarget {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        Err(TargetError::Forbidden("this function delivers nothing".into()))
    }
}

async fn open_with(
    settings: &CloudSettings,
    target: impl FnOnce(&SdkConfig) -> Result<Arc<dyn Target>, CannotOpen>,
) -> Result<Builder, CannotOpen> {
    let calls = Calls::new()?;
    let config = aws::config(calls.clone(), PATIENCE).await;
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let objects = objects(settings, calls)?;
    let queue = SqsWorkQueue::new(
        aws_sdk_sqs::Client::new(&config),
        settings.queues.clone(),
        clock.clone(),
        entropy.clone(),
    );
    let host = PluginHost::new(Arc::clone(&objects), clock.clone(), Run::Aside)?;
    let ports = Ports {
        store: store(settings, &config, clock.clone(), entropy.clone()),
        objects,
        work: Arc::new(queue),
        clock,
        entropy,
        policy: Arc::new(NoPolicy),
    };
    let public_url = settings.public_url.clone().unwrap_or_default();
    let options = Options { public_url, answer_bytes: Some(ANSWER_BYTES), ..Options::default() };
    let builder = Server::builder(ports, target(&config)?)
        .rules(settings.rules())
        .options(options)
        .run_plugins(Arc::new(host))
        .serverless();
    // What this process has to itself needs no rights.
    let builder = if settings.table == MEMORY {
        builder
    } else {
        builder.health_check(Arc::new(CloudCheckup::new(
            settings.clone(),
            &config,
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        )))
    };
    Ok(builder)
}

/// What is left of a call that Lambda ends at `deadline`, in milliseconds since the epoch: until then nothing new is begun, and
/// what runs is given up.
pub fn deadline(deadline: u64) -> Timestamp {
    Timestamp::from_millis(
        i64::try_from(deadline).unwrap_or(i64::MAX).saturating_sub(MARGIN.as_millis() as i64),
    )
}

fn store(
    settings: &CloudSettings,
    config: &SdkConfig,
    clock: Arc<SystemClock>,
    entropy: Arc<SystemEntropy>,
) -> SharedStore {
    if settings.table == MEMORY {
        return Arc::new(MemoryStore::new());
    }
    let table = Arc::new(SdkTable::open(config, settings.table.as_str()));
    Arc::new(DynamoStore::new(table, clock, entropy).with_shards(settings.shards))
}

fn objects(settings: &CloudSettings, calls: Calls) -> Result<Arc<dyn ObjectStore>, CannotOpen> {
    if settings.bucket == MEMORY {
        return Ok(Arc::new(InMemory::new()));
    }
    let bucket = objects::from_env(calls, PATIENCE).with_bucket_name(&settings.bucket).build()?;
    Ok(Arc::new(PrefixStore::new(bucket, settings.prefix.as_str())))
}
