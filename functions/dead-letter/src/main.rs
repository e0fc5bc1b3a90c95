//! `dead-letter`: what its queue gave up on becomes a failed attempt.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tidegate::cloud::{self, CloudSettings, Event};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = &cloud::observe(&settings);
    let server = &cloud::open(&settings).await?.start().await?;
    let call = |event: LambdaEvent<Event>| async move {
        let call = cloud::give_up(server, &event.payload, cloud::until(event.context.deadline));
        Ok::<_, Error>(metrics.around(call).await)
    };
    lambda_runtime::run(service_fn(call)).await
}
