//! AWS services as one endpoint: DynamoDB is the emulator, the test defines the queues, and any
//! action can fail.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region, SharedCredentialsProvider};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate_backends::aws::{Calls, SdkConfig};

pub type Say = Box<dyn Fn(&Value) -> Option<(u16, Value)> + Send>;

/// The endpoint. What fails, and what queues there are, may change at any time.
#[derive(Default)]
pub struct FakeAws {
    /// Where DynamoDB is.
    table: String,
    http: reqwest::Client,
    /// Actions that fail, with how: `("DescribeTable", (400, "AccessDeniedException", "..."))`.
    pub fails: Mutex<HashMap<&'static str, (u16, &'static str, &'static str)>>,
    /// Actions that the test answers, with status and body by request, unless it leaves them to the
    /// service.
    pub says: Mutex<HashMap<&'static str, Say>>,
    /// The queues by name, with their attributes.
    pub queues: Mutex<BTreeMap<String, Value>>,
    /// What was sent by itself: to which queue, and what.
    pub sent: Mutex<Vec<(String, String)>>,
    /// The requests so far.
    pub asked: Mutex<Vec<String>>,
    url: Mutex<String>,
}

impl FakeAws {
    /// An endpoint in front of the DynamoDB at `table`, with the queues that the template makes.
    pub async fn start(table: String) -> Arc<Self> {
        let fake = Arc::new(Self { table, ..Self::default() });
        let queue = |fifo: bool, visible: u32, dead: &str| {
            let redrive = json!({"deadLetterTargetArn": format!("arn:aws:sqs:us-east-1:1:{dead}"), "maxReceiveCount": 5}).to_string();
            let mut attributes =
                json!({"VisibilityTimeout": visible.to_string(), "RedrivePolicy": redrive});
            if fifo {
                attributes["FifoQueue"] = json!("true");
                attributes["FifoThroughputLimit"] = json!("perMessageGroupId");
            }
            attributes
        };
        let dead = || json!({"ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesNotVisible": "0"});
        fake.queues.lock().extend([
            ("work".to_owned(), queue(false, 1800, "work-dead")),
            ("hint.fifo".to_owned(), queue(true, 360, "hint-dead.fifo")),
            ("timer".to_owned(), queue(false, 360, "timer-dead")),
            ("work-dead".to_owned(), dead()),
            ("hint-dead.fifo".to_owned(), dead()),
            ("timer-dead".to_owned(), dead()),
        ]);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        *fake.url.lock() = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(Arc::clone(&fake));
        tokio::spawn(async move { axum::serve(listener, app).await });
        fake
    }

    pub fn url(&self) -> String {
        self.url.lock().clone()
    }

    /// The URL of a queue.
    pub fn queue(&self, name: &str) -> String {
        format!("{}/000000000000/{name}", self.url())
    }

    /// What clients are made of that come here.
    pub fn config(&self) -> SdkConfig {
        SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
                "test", "test", None, None, "test",
            )))
            .endpoint_url(self.url())
            .http_client(Calls::new().unwrap())
            .build()
    }

    pub fn say(
        &self,
        action: &'static str,
        say: impl Fn(&Value) -> Option<(u16, Value)> + Send + 'static,
    ) {
        self.says.lock().insert(action, Box::new(say));
    }

    pub fn fail(
        &self,
        action: &'static str,
        status: u16,
        kind: &'static str,
        message: &'static str,
    ) {
        self.fails.lock().insert(action, (status, kind, message));
    }
}

fn refusal(status: u16, kind: &str, message: &str) -> Response {
    let body = json!({"__type": format!("com.amazonaws#{kind}"), "message": message}).to_string();
    (StatusCode::from_u16(status).unwrap(), [("content-type", "application/x-amz-json-1.0")], body)
        .into_response()
}

async fn answer(
    State(fake): State<Arc<FakeAws>>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if method == Method::GET {
        return "healthy".into_response();
    }
    let target =
        headers.get("x-amz-target").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (service, action) = target.split_once('.').unwrap_or_default();
    fake.asked.lock().push(action.to_owned());
    let fails = fake.fails.lock().get(action).copied();
    if let Some((status, kind, message)) = fails {
        return refusal(status, kind, message);
    }
    let said =
        fake.says.lock().get(action).and_then(|say| say(&serde_json::from_slice(&body).unwrap()));
    if let Some((status, said)) = said {
        return (
            StatusCode::from_u16(status).unwrap(),
            [("content-type", "application/x-amz-json-1.0")],
            said.to_string(),
        )
            .into_response();
    }
    if service != "AmazonSQS" {
        let mut request = fake.http.post(&fake.table).body(body);
        for name in ["x-amz-target", "content-type", "authorization", "x-amz-date"] {
            if let Some(value) = headers.get(name) {
                request = request.header(name, value);
            }
        }
        let answered = request.send().await.unwrap();
        let status = StatusCode::from_u16(answered.status().as_u16()).unwrap();
        return (
            status,
            [("content-type", "application/x-amz-json-1.0")],
            answered.bytes().await.unwrap(),
        )
            .into_response();
    }
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let name = asked["QueueUrl"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let Some(attributes) = fake.queues.lock().get(&name).cloned() else {
        return refusal(
            400,
            "AWS.SimpleQueueService.NonExistentQueue",
            "The specified queue does not exist.",
        );
    };
    let said = match action {
        "GetQueueAttributes" => json!({"Attributes": attributes}),
        "SendMessage" => {
            fake.sent.lock().push((name, asked["MessageBody"].as_str().unwrap().to_owned()));
            json!({"MessageId": "1", "MD5OfMessageBody": ""})
        }
        "SendMessageBatch" => {
            let taken = |entry: &Value| json!({"Id": entry["Id"], "MessageId": entry["Id"], "MD5OfMessageBody": ""});
            json!({"Successful": asked["Entries"].as_array().unwrap().iter().map(taken).collect::<Vec<_>>(), "Failed": []})
        }
        other => panic!("{other} is not known here"),
    };
    ([("content-type", "application/x-amz-json-1.0")], said.to_string()).into_response()
}
