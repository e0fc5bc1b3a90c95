//! `enqueue`: the whole HTTP API behind a function URL.

use lambda_http::{Request, RequestExt as _, request::RequestContext, tower::ServiceExt as _};
use tidegate::cloud::{self, CloudSettings};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = cloud::observe(&settings);
    let server = cloud::open(&settings).await?.start().await?;
    let routes = cloud::router(server, settings.max_data_bytes, settings.first_token, metrics).await;
    let from_gateway = |mut request: Request| {
        if let Some(RequestContext::ApiGatewayV2(context)) = request.request_context_ref()
            && let Some(stage) = context.stage.clone()
        {
            cloud::leave_out_stage(&mut request, &stage);
        }
        request
    };
    lambda_http::run(routes.map_request(from_gateway)).await
}
