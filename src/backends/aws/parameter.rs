//! A secret text in the Parameter Store of AWS Systems Manager, which a function reads once when it
//! starts.
//!
//! The code that signs requests to the bucket also signs this one call: a client of the SDK would
//! make every function larger (`docs/decisions/0015-lambda-binaries-under-12-mb.md`).

use std::time::Duration;

use object_store::{
    aws::{AwsAuthorizer, AwsCredential},
    client::{HttpRequest, HttpResponse},
};
use serde_json::{Value, json};

use super::{Calls, variable};
use crate::system::{SystemClock, SystemEntropy};
use tidegate_core::port::{Clock as _, Entropy as _};

/// Maximum attempts of the call. Many functions that start at once exceed the rate of the service.
const MAX_ATTEMPTS: u32 = 5;
/// The longest wait before the second attempt. It doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Timeout of one attempt. The start of a function has ten seconds.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(1500);

/// A parameter cannot be read. The text never shows its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameter {name} cannot be read: {reason}")]
pub struct ParameterError {
    name: String,
    reason: String,
}

/// The Parameter Store of a region.
#[derive(Debug)]
pub struct ParameterStore {
    calls: Calls,
    endpoint: String,
    region: String,
    credential: AwsCredential,
}

/// Why an attempt failed, and whether another one may succeed.
struct Attempt {
    reason: String,
    retryable: bool,
}

impl ParameterStore {
    /// The store with the region, credentials and endpoint of environment variables, which Lambda
    /// sets. `AWS_ENDPOINT_URL_SSM` or `AWS_ENDPOINT_URL` names another endpoint.
    pub fn from_env(calls: Calls) -> Self {
        let region = variable("AWS_REGION").unwrap_or_default();
        let fips = variable("AWS_USE_FIPS_ENDPOINT").is_some_and(|text| text == "true");
        let endpoint = variable("AWS_ENDPOINT_URL_SSM")
            .or_else(|| variable("AWS_ENDPOINT_URL"))
            .unwrap_or_else(|| endpoint(&region, fips));
        let credential = AwsCredential {
            key_id: variable("AWS_ACCESS_KEY_ID").unwrap_or_default(),
            secret_key: variable("AWS_SECRET_ACCESS_KEY").unwrap_or_default(),
            token: variable("AWS_SESSION_TOKEN"),
        };
        Self { calls, endpoint, region, credential }
    }

    /// The decrypted value of the parameter `name`.
    ///
    /// # Errors
    ///
    /// The service refused the call, or did not answer in five attempts.
    pub async fn read(&self, name: &str) -> Result<String, ParameterError> {
        let mut attempt = 1;
        loop {
            let failed = match self.attempt(name).await {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            if !failed.retryable || attempt == MAX_ATTEMPTS {
                return Err(ParameterError { name: name.to_owned(), reason: failed.reason });
            }
            let longest = FIRST_WAIT.as_micros() as u64 * 2_u64.pow(attempt - 1);
            let wait = SystemEntropy.bits() as u64 % longest;
            SystemClock.sleep_until(SystemClock.now() + Duration::from_micros(wait)).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, name: &str) -> Result<String, Attempt> {
        let permanent =
            |fault: &dyn std::fmt::Display| Attempt { reason: fault.to_string(), retryable: false };
        let body = json!({"Name": name, "WithDecryption": true}).to_string();
        let mut request = http::Request::post(&self.endpoint)
            .header("content-type", "application/x-amz-json-1.1")
            .header("x-amz-target", "AmazonSSM.GetParameter")
            .body(body.into())
            .map_err(|fault| permanent(&fault))?;
        AwsAuthorizer::new(&self.credential, "ssm", &self.region)
            .try_authorize(&mut request, None)
            .map_err(|fault| permanent(&fault))?;
        let response = self.send(request).await?;
        let status = response.status();
        let body = response
            .into_body()
            .bytes()
            .await
            .map_err(|fault| Attempt { reason: fault.to_string(), retryable: true })?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status.is_success() {
            let value = answer["Parameter"]["Value"].as_str();
            return value.map(str::to_owned).ok_or_else(|| permanent(&"the answer has no value"));
        }
        let code = answer["__type"].as_str().unwrap_or_default();
        let code = code.rsplit('#').next().unwrap_or_default();
        let message = answer["message"].as_str().or(answer["Message"].as_str()).unwrap_or_default();
        Err(Attempt {
            reason: format!("{status} {code} {message}").trim_end().to_owned(),
            retryable: status.is_server_error() || code == "ThrottlingException",
        })
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, Attempt> {
        let answer = self.calls.send_signed(request, ATTEMPT_TIMEOUT).await;
        answer.map_err(|fault| Attempt { reason: fault.to_string(), retryable: true })
    }
}

/// The endpoint of the service in `region`.
fn endpoint(region: &str, fips: bool) -> String {
    let service = if fips { "ssm-fips" } else { "ssm" };
    let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://{service}.{region}.{suffix}/")
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    const REFUSED: &str = r#"{"__type":"ParameterNotFound","message":""}"#;
    const THROTTLED: &str = r#"{"__type":"ThrottlingException","message":"Rate exceeded"}"#;
    const FOUND: &str = r#"{"Parameter":{"Name":"/key","Type":"SecureString","Value":"s3cret"}}"#;

    /// A store that gives these answers in turn, and the requests that it received.
    async fn store(
        answers: Vec<(u16, &'static str)>,
    ) -> (ParameterStore, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/", listener.local_addr().unwrap());
        let (requests, received) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = String::new();
                while !request.contains("WithDecryption") {
                    let mut bytes = [0; 4096];
                    let read = stream.read(&mut bytes).await.unwrap();
                    request.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
                }
                requests.send(request).unwrap();
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let credential = AwsCredential {
            key_id: "AKID".into(),
            secret_key: "secret".into(),
            token: Some("session".into()),
        };
        let calls = Calls::new().unwrap();
        (ParameterStore { calls, endpoint, region: "eu-west-1".into(), credential }, received)
    }

    #[tokio::test]
    async fn a_parameter_is_read_decrypted_by_a_signed_call() {
        let (store, mut received) = store(vec![(200, FOUND)]).await;
        assert_eq!(store.read("/key").await, Ok("s3cret".to_owned()));
        let request = received.recv().await.unwrap();
        for part in [
            "x-amz-target: AmazonSSM.GetParameter",
            "/eu-west-1/ssm/aws4_request",
            "x-amz-security-token: session",
            r#"{"Name":"/key","WithDecryption":true}"#,
        ] {
            assert!(request.contains(part), "{part} is not in {request}");
        }
    }

    #[tokio::test]
    async fn a_throttled_call_is_repeated() {
        let (store, _received) = store(vec![(400, THROTTLED), (503, ""), (200, FOUND)]).await;
        assert_eq!(store.read("/key").await, Ok("s3cret".to_owned()));
    }

    #[tokio::test]
    async fn a_refused_call_is_not_repeated_and_names_the_reason() {
        let (store, mut received) = store(vec![(400, REFUSED), (200, FOUND)]).await;
        let error = store.read("/key").await.unwrap_err().to_string();
        assert!(error.contains("/key") && error.contains("ParameterNotFound"), "{error}");
        assert!(received.recv().await.is_some() && received.is_empty());
    }

    #[test]
    fn the_endpoint_is_that_of_the_region() {
        assert_eq!(endpoint("eu-west-1", false), "https://ssm.eu-west-1.amazonaws.com/");
        assert_eq!(endpoint("us-east-1", true), "https://ssm-fips.us-east-1.amazonaws.com/");
        assert_eq!(endpoint("cn-north-1", false), "https://ssm.cn-north-1.amazonaws.com.cn/");
    }
}
