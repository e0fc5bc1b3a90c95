//! S3, or what speaks its protocol at another endpoint, as the place of large bodies and plugins.
//!
//! The one thing to know: all tries of a call together have a bound, since who waits is an invocation that is ended at its time and
//! paid for until then; and each try that S3 refuses is counted.

use std::time::Duration;

use async_trait::async_trait;
use object_store::{
    BackoffConfig, ClientOptions, Result, RetryConfig,
    aws::AmazonS3Builder,
    client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService},
};

use super::aws::Calls;

/// Retries of a call after the first try, and the longest wait before one.
const MAX_RETRIES: usize = 4;
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A bucket as the environment says: region, credentials, and the endpoint, which may speak plain HTTP. It is asked through `calls`; without an
/// answer for `patience` a call is given up.
pub fn from_env(calls: Calls, patience: Duration) -> AmazonS3Builder {
    patient(AmazonS3Builder::from_env(), calls, patience)
}

fn patient(builder: AmazonS3Builder, calls: Calls, patience: Duration) -> AmazonS3Builder {
    // The last try may begin when half of the time is over, and takes no longer than the other half.
    let half = patience / 2;
    let options = ClientOptions::new().with_allow_http(true);
    let backoff = BackoffConfig { max_backoff: LONGEST_WAIT, ..BackoffConfig::default() };
    let retry = RetryConfig { backoff, max_retries: MAX_RETRIES, retry_timeout: half };
    builder
        .with_client_options(options)
        .with_retry(retry)
        .with_http_connector(Counting { calls, half })
}

/// Asks, and counts what is refused.
#[derive(Clone, Debug)]
struct Counting {
    calls: Calls,
    /// How long one try may take.
    half: Duration,
}

impl HttpConnector for Counting {
    fn connect(&self, _: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Counting {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let answer = self.calls.ask_for(request, self.half).await;
        let reason = match answer.as_ref().map(|answer| answer.status().as_u16()) {
            Ok(429 | 503) => Some("throttled"),
            // What is not there, or not as it was: an answer like another.
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

    /// A bucket at an endpoint that answers each request with `answer`, or (an empty one) not at all.
    async fn bucket(answer: &'static str, patience: Duration) -> AmazonS3 {
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
        patient(
            builder.with_access_key_id("a").with_secret_access_key("s"),
            Calls::new().unwrap(),
            patience,
        )
        .build()
        .unwrap()
    }

    #[tokio::test]
    async fn a_call_without_an_answer_is_given_up_in_time() {
        let bucket = bucket("", Duration::from_secs(1)).await;
        let key = Path::from("bodies/a");
        let call = bucket.get(&key);
        // Ten times as long as it may take: what it is without a bound is three minutes.
        tokio::time::timeout(Duration::from_secs(10), call)
            .await
            .expect("it is given up")
            .unwrap_err();
    }

    #[tokio::test]
    async fn what_is_asked_over_a_connection_that_broke_is_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            for answer in
                ["", "HTTP/1.1 200 OK\r\ncontent-length: 67\r\n\r\n<DeleteResult><Deleted><Key>bodies/a</Key></Deleted></DeleteResult>"]
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
            patient(builder, Calls::new().unwrap(), Duration::from_secs(20)).build().unwrap();
        bucket.delete(&Path::from("bodies/a")).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_refused_is_counted_and_what_is_not_there_is_not() {
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
