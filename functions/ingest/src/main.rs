//! `ingest`: turns messages of other services into events, from which triggers make jobs and
//! results.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::value::RawValue;
use tidegate_server::lambda::{self, CloudSettings, Ingest};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = &lambda::observe(&settings);
    let ingest = &Ingest::new(lambda::open(&settings).await?.start().await?, settings.first_token);
    let call = |event: LambdaEvent<Box<RawValue>>| async move {
        Ok::<_, Error>(metrics.instrument(ingest.call(event.payload)).await?)
    };
    lambda_runtime::run(service_fn(call)).await
}
