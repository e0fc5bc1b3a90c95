//! `tick`: one tick of a queue for each hint and timer, and the maintenance sweep every minute.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tidegate_server::lambda::{self, CloudSettings, Failures, Redelivery, SqsEvent, SweepFailed};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = &lambda::observe(&settings);
    let server = &lambda::open(&settings).await?.start().await?;
    let redelivery = &Redelivery::new(&settings);
    let call = |event: LambdaEvent<SqsEvent>| async move {
        let call = async {
            let failures =
                lambda::tick(server, &event.payload, lambda::deadline(event.context.deadline))
                    .await?;
            redelivery.schedule(&event.payload, &failures).await;
            Ok::<Failures, SweepFailed>(failures)
        };
        Ok::<_, Error>(metrics.instrument(call).await?)
    };
    lambda_runtime::run(service_fn(call)).await
}
