//! What an API Gateway does to a request, undone: for the functions that answer HTTP.

use lambda_http::{Request, RequestExt as _, request::RequestContext};
use tidegate_server::lambda;

/// The request as it was asked for: without the stage, where there is one.
pub fn from_gateway(mut request: Request) -> Request {
    if let Some(RequestContext::ApiGatewayV2(context)) = request.request_context_ref()
        && let Some(stage) = context.stage.clone()
    {
        lambda::strip_stage_prefix(&mut request, &stage);
    }
    request
}
