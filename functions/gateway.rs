//! Requests and answers of an API Gateway, for the functions that answer HTTP.

use std::{
    convert::Infallible,
    future::{Future, ready},
    pin::Pin,
};

use lambda_http::{Body, IntoResponse, Request, RequestExt as _, http, request::RequestContext};
use tidegate_server::lambda::{self, Content};

/// Removes the gateway's stage from the path of `request`, if it has one.
pub fn from_gateway(mut request: Request) -> Request {
    if let Some(RequestContext::ApiGatewayV2(context)) = request.request_context_ref()
        && let Some(stage) = context.stage.clone()
    {
        lambda::strip_stage_prefix(&mut request, &stage);
    }
    request
}

/// An answer whose body was read. The adapter's own conversion would decode texts by the encoding
/// that their `content-type` names, which changes their bytes, and contains the tables of all
/// encodings.
pub struct Answer(http::Response<Content>);

impl IntoResponse for Answer {
    fn into_response(self) -> Pin<Box<dyn Future<Output = http::Response<Body>> + Send>> {
        let answer = self.0.map(|content| match content {
            Content::Text(text) => Body::Text(text),
            Content::Bytes(bytes) => Body::Binary(bytes),
        });
        Box::pin(ready(answer))
    }
}

/// Reads the body of `answer`.
pub async fn to_gateway(answer: lambda::Response) -> Result<Answer, Infallible> {
    Ok(Answer(lambda::with_content(answer).await))
}
