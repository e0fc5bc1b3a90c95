//! `enqueue`: the complete HTTP API behind a function URL.

#[path = "../../gateway.rs"]
mod gateway;

use lambda_http::tower::ServiceExt as _;
use tidegate_server::lambda::{self, CloudSettings};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = lambda::observe(&settings);
    let server = lambda::open(&settings).await?.start().await?;
    let routes = lambda::router(server, lambda::api(&settings).await?, metrics).await;
    lambda_http::run(routes.map_request(gateway::from_gateway).and_then(gateway::to_gateway)).await
}
