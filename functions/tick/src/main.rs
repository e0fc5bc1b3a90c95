//! `tick`: a queue's rounds, when a hint or a wake-up says so, and everybody's every minute.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tidegate::cloud::{self, Again, CloudSettings, Event, Failures, MinuteFailed};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = &cloud::observe(&settings);
    let server = &cloud::open(&settings).await?.start().await?;
    let again = &Again::new(&settings);
    let call = |event: LambdaEvent<Event>| async move {
        let call = async {
            let failures = cloud::tick(server, &event.payload, cloud::until(event.context.deadline)).await?;
            again.soon(&event.payload, &failures).await;
            Ok::<Failures, MinuteFailed>(failures)
        };
        Ok::<_, Error>(metrics.around(call).await?)
    };
    lambda_runtime::run(service_fn(call)).await
}
