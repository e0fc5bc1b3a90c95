//! Requests through an API Gateway, for the functions that answer HTTP.

use lambda_http::{Request, RequestExt as _, request::RequestContext};
use tidegate_server::lambda;

/// Removes the gateway's stage from the path of `request`, if it has one.
pub fn from_gateway(mut request: Request) -> Request {
    if let Some(RequestContext::ApiGatewayV2(context)) = request.request_context_ref()
        && let Some(stage) = context.stage.clone()
    {
        lambda::strip_stage_prefix(&mut request, &stage);
    }
    request
}
