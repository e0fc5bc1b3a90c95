//! A secret text in the Parameter Store of AWS Systems Manager: `tidegate aws deploy` creates it, and
//! a function reads it once when it starts.
//!
//! The code that signs requests to the bucket also signs these calls: a client of the SDK would make
//! every function larger (`docs/decisions/0015-lambda-binaries-under-12-mb.md`).

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

/// A parameter cannot be read or created. The text never shows its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameter {name} cannot be {action}: {reason}")]
pub struct ParameterError {
    name: String,
    action: &'static str,
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
    /// The error code of the service; empty if it sent none.
    code: String,
    retryable: bool,
}

impl Attempt {
    /// A failure without an answer of the service.
    fn unanswered(fault: &dyn std::fmt::Display, retryable: bool) -> Self {
        Self { reason: fault.to_string(), code: String::new(), retryable }
    }
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

    /// The store of `region` with this credential, at `endpoint` if there is one.
    pub fn new(
        calls: Calls,
        region: &str,
        endpoint: Option<&str>,
        credential: AwsCredential,
    ) -> Self {
        let endpoint = endpoint.map_or_else(|| self::endpoint(region, false), str::to_owned);
        Self { calls, endpoint, region: region.to_owned(), credential }
    }

    /// The decrypted value of the parameter `name`.
    ///
    /// # Errors
    ///
    /// The service refused the call, or did not answer in five attempts.
    pub async fn read(&self, name: &str) -> Result<String, ParameterError> {
        let failed = |failed: Attempt| ParameterError {
            name: name.to_owned(),
            action: "read",
            reason: failed.reason,
        };
        let request = json!({"Name": name, "WithDecryption": true});
        let answer = self.call("GetParameter", &request).await.map_err(failed)?;
        let value = answer["Parameter"]["Value"].as_str().map(str::to_owned);
        value.ok_or_else(|| failed(Attempt::unanswered(&"the answer has no value", false)))
    }

    /// Creates the parameter `name` with an encrypted `value`, unless it exists: then its value
    /// stays. Returns whether it is new. A repeat is safe.
    ///
    /// # Errors
    ///
    /// The service refused the call, or did not answer in five attempts.
    pub async fn create(&self, name: &str, value: &str) -> Result<bool, ParameterError> {
        let request = json!({
            "Name": name, "Value": value, "Type": "SecureString", "Overwrite": false,
        });
        match self.call("PutParameter", &request).await {
            Ok(_) => Ok(true),
            Err(failed) if failed.code == "ParameterAlreadyExists" => Ok(false),
            Err(Attempt { reason, .. }) => {
                Err(ParameterError { name: name.to_owned(), action: "created", reason })
            }
        }
    }

    /// The answer to `request`, in at most five attempts.
    async fn call(&self, action: &str, request: &Value) -> Result<Value, Attempt> {
        let mut attempt = 1;
        loop {
            match self.attempt(action, request).await {
                Err(failed) if failed.retryable && attempt < MAX_ATTEMPTS => {}
                answer => return answer,
            }
            let longest = FIRST_WAIT.as_micros() as u64 * 2_u64.pow(attempt - 1);
            let wait = SystemEntropy.bits() as u64 % longest;
            SystemClock.sleep_until(SystemClock.now() + Duration::from_micros(wait)).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, action: &str, request: &Value) -> Result<Value, Attempt> {
        let mut request = http::Request::post(&self.endpoint)
            .header("content-type", "application/x-amz-json-1.1")
            .header("x-amz-target", format!("AmazonSSM.{action}"))
            .body(request.to_string().into())
            .map_err(|fault| Attempt::unanswered(&fault, false))?;
        AwsAuthorizer::new(&self.credential, "ssm", &self.region)
            .try_authorize(&mut request, None)
            .map_err(|fault| Attempt::unanswered(&fault, false))?;
        let response = self.send(request).await?;
        let status = response.status();
        let body = response
            .into_body()
            .bytes()
            .await
            .map_err(|fault| Attempt::unanswered(&fault, true))?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status.is_success() {
            return Ok(answer);
        }
        let code = answer["__type"].as_str().unwrap_or_default();
        let code = code.rsplit('#').next().unwrap_or_default();
        let message = answer["message"].as_str().or(answer["Message"].as_str()).unwrap_or_default();
        Err(Attempt {
            reason: format!("{status} {code} {message}").trim_end().to_owned(),
            code: code.to_owned(),
            retryable: status.is_server_error() || code == "ThrottlingException",
        })
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, Attempt> {
        let answer = self.calls.send_signed(request, ATTEMPT_TIMEOUT).await;
        answer.map_err(|fault| Attempt::unanswered(&fault, true))
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

    const TAKEN: &str = r#"{"__type":"ParameterAlreadyExists","message":""}"#;
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
                while !request.ends_with('}') {
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

    #[tokio::test]
    async fn a_parameter_is_created_once_and_never_replaced() {
        let (store, mut received) = store(vec![(503, ""), (200, "{}"), (400, TAKEN)]).await;
        assert_eq!(store.create("/key", "s3cret").await, Ok(true));
        assert_eq!(store.create("/key", "other").await, Ok(false));
        let request = received.recv().await.unwrap();
        for part in ["AmazonSSM.PutParameter", r#""Overwrite":false"#, r#""SecureString""#] {
            assert!(request.contains(part), "{part} is not in {request}");
        }
    }

    #[tokio::test]
    async fn a_refused_creation_does_not_show_the_value() {
        let (store, _received) = store(vec![(400, REFUSED)]).await;
        let error = store.create("/key", "s3cret").await.unwrap_err().to_string();
        assert!(error.starts_with("the parameter /key cannot be created: 400"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn the_endpoint_is_that_of_the_region() {
        assert_eq!(endpoint("eu-west-1", false), "https://ssm.eu-west-1.amazonaws.com/");
        assert_eq!(endpoint("us-east-1", true), "https://ssm-fips.us-east-1.amazonaws.com/");
        assert_eq!(endpoint("cn-north-1", false), "https://ssm.cn-north-1.amazonaws.com.cn/");
    }
}
