//! `tick`: one tick of a queue for each hint and timer.
//!
//! The same program is the function `sweep`, whose events have no messages: the maintenance sweep
//! every minute, and the dead letters of the queues. A function of its own has concurrency of its
//! own, so ticks cannot delay it.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tidegate_server::lambda::{
    self, CloudSettings, Failures, Maintenance, Redelivery, SqsEvent, SweepFailed,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = &lambda::observe(&settings);
    let server = &lambda::open(&settings).await?.start().await?;
    let (redelivery, maintenance) = (&Redelivery::new(&settings), &Maintenance::new(&settings));
    let call = |event: LambdaEvent<SqsEvent>| async move {
        let until = lambda::deadline(event.context.deadline);
        let event = event.payload;
        let call = async {
            if event.records.is_empty() {
                maintenance.run(server, &event, until).await?;
                return Ok(Failures::default());
            }
            let failures = lambda::tick(server, &event, until).await;
            redelivery.schedule(&event, &failures).await;
            Ok::<Failures, SweepFailed>(failures)
        };
        Ok::<_, Error>(metrics.instrument(call).await?)
    };
    lambda_runtime::run(service_fn(call)).await
}
