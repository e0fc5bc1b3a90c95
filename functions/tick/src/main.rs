//! `tick`: a queue's rounds, when a hint or a wake-up says so, and everybody's every minute.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tidegate_server::lambda::{self, Again, CloudSettings, Event, Failures, MinuteFailed};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = &lambda::observe(&settings);
    let server = &lambda::open(&settings).await?.start().await?;
    let again = &Again::new(&settings);
    let call = |event: LambdaEvent<Event>| async move {
        let call = async {
            let failures = lambda::tick(server, &event.payload, lambda::until(event.context.deadline)).await?;
            again.soon(&event.payload, &failures).await;
            Ok::<Failures, MinuteFailed>(failures)
        };
        Ok::<_, Error>(metrics.around(call).await?)
    };
    lambda_runtime::run(service_fn(call)).await
}
