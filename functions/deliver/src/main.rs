//! `deliver`: work is claimed and sent to its targets.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tidegate::cloud::{self, CloudSettings, Event};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    cloud::log(&settings);
    let server = &cloud::open(&settings).await?.start().await?;
    let call = |event: LambdaEvent<Event>| async move {
        Ok::<_, Error>(cloud::deliver(server, &event.payload, cloud::until(event.context.deadline)).await)
    };
    lambda_runtime::run(service_fn(call)).await
}
