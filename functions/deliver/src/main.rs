//! `deliver`: claims jobs and sends them to their targets.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tidegate_server::lambda::{self, CloudSettings, Redelivery, SqsEvent};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?.with_public_url()?;
    let metrics = &lambda::observe(&settings);
    let server = &lambda::open_to_deliver(&settings).await?.start().await?;
    let redelivery = &Redelivery::new(&settings);
    let call = |event: LambdaEvent<SqsEvent>| async move {
        let call = async {
            let failures =
                lambda::deliver(server, &event.payload, lambda::deadline(event.context.deadline))
                    .await;
            redelivery.schedule(&event.payload, &failures).await;
            failures
        };
        Ok::<_, Error>(metrics.instrument(call).await)
    };
    lambda_runtime::run(service_fn(call)).await
}
