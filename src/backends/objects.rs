//! S3, or a compatible service at another endpoint, which stores large bodies and plugins.
//!
//! All attempts of a call together have a time limit, because a waiting invocation costs money and
//! ends at its own timeout. Each attempt that S3 refuses is counted.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use object_store::{
    BackoffConfig, ClientOptions, Result, RetryConfig, StaticCredentialProvider,
    aws::{AmazonS3Builder, AwsCredential, AwsCredentialProvider},
    client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService},
};

use super::aws::Calls;

/// Maximum retries of a call.
const MAX_RETRIES: usize = 4;
/// Maximum wait before a retry.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A bucket with the region, credentials and endpoint of environment variables. The endpoint may
/// use plain HTTP. Requests are sent through `calls`. A call fails without an answer within
/// `timeout`.
pub fn from_env(calls: Calls, timeout: Duration) -> AmazonS3Builder {
    with_timeout(AmazonS3Builder::from_env(), calls, timeout)
}

/// A bucket of `region` with this credential, at `endpoint` if there is one. The rest is as for
/// [`from_env`].
pub fn with_credential(
    credential: AwsCredential,
    region: &str,
    endpoint: Option<&str>,
    calls: Calls,
    timeout: Duration,
) -> AmazonS3Builder {
    let credentials = Arc::new(StaticCredentialProvider::new(credential));
    with_provider(credentials, region, endpoint, calls, timeout)
}

/// The same with the credentials of a provider, which is called for each request.
pub fn with_provider(
    credentials: AwsCredentialProvider,
    region: &str,
    endpoint: Option<&str>,
    calls: Calls,
    timeout: Duration,
) -> AmazonS3Builder {
    let builder = AmazonS3Builder::new().with_region(region).with_credentials(credentials);
    let builder = match endpoint {
        Some(endpoint) => builder.with_endpoint(endpoint),
        None => builder,
    };
    with_timeout(builder, calls, timeout)
}

fn with_timeout(builder: AmazonS3Builder, calls: Calls, timeout: Duration) -> AmazonS3Builder {
    // The last attempt starts within the first half of the time, and takes at most the other half.
    let half = timeout / 2;
    let options = ClientOptions::new().with_allow_http(true);
    let backoff = BackoffConfig { max_backoff: MAX_RETRY_DELAY, ..BackoffConfig::default() };
    let retry = RetryConfig { backoff, max_retries: MAX_RETRIES, retry_timeout: half };
    builder
        .with_client_options(options)
        .with_retry(retry)
        .with_http_connector(CountingClient { calls, half })
}

/// Sends requests, and counts the refused ones.
#[derive(Clone, Debug)]
struct CountingClient {
    calls: Calls,
    /// Timeout of one attempt.
    half: Duration,
}

impl HttpConnector for CountingClient {
    fn connect(&self, _: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for CountingClient {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let answer = self.calls.send_signed(request, self.half).await;
        let reason = match answer.as_ref().map(|answer| answer.status().as_u16()) {
            Ok(429 | 503) => Some("throttled"),
            // A missing or changed object is no error of the service.
            Ok(404 | 412) => None,
            Ok(status) if status < 400 => None,
            Ok(_) | Err(_) => Some("other"),
        };
        if let Some(reason) = reason {
            metrics::counter!("tidegate_aws_errors_total", "service" => "s3", "reason" => reason)
                .increment(1);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use object_store::{ObjectStoreExt as _, aws::AmazonS3, path::Path};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// A bucket at an endpoint that answers each request with `answer`, or not at all if that is
    /// empty.
    async fn bucket(answer: &'static str, timeout: Duration) -> AmazonS3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut bytes = [0; 4096];
                    while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        let builder = AmazonS3Builder::new()
            .with_bucket_name("b")
            .with_region("us-east-1")
            .with_endpoint(endpoint);
        with_timeout(
            builder.with_access_key_id("a").with_secret_access_key("s"),
            Calls::new().unwrap(),
            timeout,
        )
        .build()
        .unwrap()
    }

    #[tokio::test]
    async fn a_call_without_an_answer_fails_at_its_timeout() {
        let bucket = bucket("", Duration::from_secs(1)).await;
        let key = Path::from("bodies/a");
        let call = bucket.get(&key);
        // Ten times the timeout. Without one, the call would take three minutes.
        tokio::time::timeout(Duration::from_secs(10), call)
            .await
            .expect("the call ends at its timeout")
            .unwrap_err();
    }

    #[tokio::test]
    async fn a_request_on_a_broken_connection_is_repeated() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            for answer in [
                "",
                concat!(
                    "HTTP/1.1 200 OK\r\ncontent-length: 67\r\n\r\n",
                    "<DeleteResult><Deleted><Key>bodies/a</Key></Deleted></DeleteResult>"
                ),
            ]
            .iter()
            .cycle()
            {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = [0; 4096];
                assert!(stream.read(&mut bytes).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let builder = AmazonS3Builder::new()
            .with_bucket_name("b")
            .with_region("us-east-1")
            .with_endpoint(endpoint);
        let builder = builder.with_access_key_id("a").with_secret_access_key("s");
        let bucket =
            with_timeout(builder, Calls::new().unwrap(), Duration::from_secs(20)).build().unwrap();
        bucket.delete(&Path::from("bodies/a")).await.unwrap();
    }

    #[tokio::test]
    async fn refused_requests_are_counted_and_missing_objects_are_not() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let counted = recorder.handle();
        let _counting = metrics::set_default_local_recorder(&recorder);
        let key = Path::from("bodies/a");
        let missing =
            bucket("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", Duration::from_secs(20))
                .await;
        missing.get(&key).await.map(drop).unwrap_err();
        assert!(!counted.render().contains("tidegate_aws_errors_total"), "{}", counted.render());
        let denied =
            bucket("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", Duration::from_secs(20))
                .await;
        denied.get(&key).await.map(drop).unwrap_err();
        let slow =
            bucket("HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n", Duration::from_secs(20))
                .await;
        slow.get(&key).await.map(drop).unwrap_err();
        let counted = counted.render();
        assert!(
            counted.contains(r#"tidegate_aws_errors_total{service="s3",reason="other"} 1"#),
            "{counted}"
        );
        assert!(
            counted.contains(&format!(
                r#"tidegate_aws_errors_total{{service="s3",reason="throttled"}} {}"#,
                MAX_RETRIES + 1
            )),
            "{counted}"
        );
    }
}
