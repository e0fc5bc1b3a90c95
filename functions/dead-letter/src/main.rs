//! `dead-letter`: turns messages that SQS gave up on into failed attempts and ticks.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tidegate_server::lambda::{self, CloudSettings, SqsEvent};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = &lambda::observe(&settings);
    let server = &lambda::open(&settings).await?.start().await?;
    let call = |event: LambdaEvent<SqsEvent>| async move {
        let call = lambda::handle_dead_letter(
            server,
            &event.payload,
            lambda::deadline(event.context.deadline),
        );
        Ok::<_, Error>(metrics.instrument(call).await)
    };
    lambda_runtime::run(service_fn(call)).await
}
