//! The Lambda runtime API, and enough of SQS and Systems Manager to test a function
//! by its binary.
//!
//! The one thing to know: the function under test is a separate process, as in Lambda. It receives
//! one event after the other, so the tests also cover its caches.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{self, State},
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::{get, post},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate_backends::system::SystemClock;
use tidegate_core::port::Clock as _;
use tokio::sync::{mpsc, oneshot};

/// The timeout of a call. It allows for a cold start on a busy machine.
const CALL_TIMEOUT: Duration = Duration::from_mins(1);

/// The deadline of every call, in milliseconds since the epoch: in the year 2100, because nothing
/// here ends a call.
const DEADLINE: &str = "4102444800000";

/// Most bytes of an answer that Lambda accepts.
const MAX_ANSWER_BYTES: usize = 6_291_556;

/// The actions of SQS whose entries a test sees.
const BATCH_ACTIONS: [&str; 3] = [
    "AmazonSQS.SendMessageBatch",
    "AmazonSQS.ChangeMessageVisibilityBatch",
    "AmazonSQS.DeleteMessageBatch",
];

/// The answer of a function: a value, or the error that it reported.
pub type FunctionAnswer = Result<Value, Value>;

/// A process that runs a function, with the API through which it is called.
pub struct Function {
    process: Child,
    shared: Arc<Shared>,
}

struct Shared {
    events: mpsc::UnboundedSender<Value>,
    waiting: tokio::sync::Mutex<mpsc::UnboundedReceiver<Value>>,
    answers: Mutex<HashMap<String, oneshot::Sender<FunctionAnswer>>>,
    next: Mutex<u64>,
    sent: Mutex<Vec<(String, Value)>>,
    /// The messages that wait in each queue.
    queues: Mutex<HashMap<String, Vec<String>>>,
}

impl Function {
    /// Starts the binary at `path` with these variables and those of Lambda.
    ///
    /// # Panics
    ///
    /// If the binary cannot be started.
    pub async fn start(path: &Path, vars: &[(&str, &str)]) -> Self {
        let (events, waiting) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            events,
            waiting: tokio::sync::Mutex::new(waiting),
            answers: Mutex::default(),
            next: Mutex::default(),
            sent: Mutex::default(),
            queues: Mutex::default(),
        });
        let address = serve(Arc::clone(&shared)).await;
        let queue = |name: &str| format!("http://{address}/000000000000/{name}");
        let mut command = Command::new(path);
        command.env_clear().envs([
            ("AWS_LAMBDA_RUNTIME_API", address.to_string()),
            ("AWS_LAMBDA_FUNCTION_NAME", "function".into()),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512".into()),
            ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".into()),
            ("AWS_LAMBDA_LOG_GROUP_NAME", "group".into()),
            ("AWS_LAMBDA_LOG_STREAM_NAME", "stream".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", "test".into()),
            ("AWS_SECRET_ACCESS_KEY", "test".into()),
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("TIDEGATE_TABLE", "memory:".into()),
            ("TIDEGATE_BUCKET", "memory:".into()),
            ("TIDEGATE_ENCRYPTION_KEY", KEY.into()),
            ("TIDEGATE_WORK_QUEUE_URL", queue("work")),
            ("TIDEGATE_HINT_QUEUE_URL", queue("hints.fifo")),
            ("TIDEGATE_TIMER_QUEUE_URL", queue("timers")),
            ("TIDEGATE_PUBLIC_URL", "https://api.example".into()),
        ]);
        let process =
            command.envs(vars.iter().copied()).spawn().expect("the function can be started");
        Self { process, shared }
    }

    /// Calls the function with `event`.
    ///
    /// # Errors
    ///
    /// The error that the function reported.
    ///
    /// # Panics
    ///
    /// If there is no answer within a minute.
    pub async fn call(&self, event: Value) -> FunctionAnswer {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut next = self.shared.next.lock();
            *next += 1;
            format!("request-{next}")
        };
        self.shared.answers.lock().insert(id.clone(), answer);
        self.shared.events.send(json!({"id": id, "event": event})).expect("the server runs");
        tokio::time::timeout(CALL_TIMEOUT, answered)
            .await
            .expect("the function answers in time")
            .expect("the server runs")
    }

    /// How the process ended, which must be within ten seconds.
    ///
    /// # Panics
    ///
    /// If it still runs then, or its state cannot be read.
    pub async fn ended(&mut self) -> ExitStatus {
        for _ in 0..100 {
            if let Some(status) = self.process.try_wait().expect("its state can be read") {
                return status;
            }
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(100)).await;
        }
        panic!("the function still runs");
    }

    /// Puts messages with these `bodies` into the queue of this name, from which the function
    /// receives them.
    pub fn put<'a>(&self, queue: &str, bodies: impl IntoIterator<Item = &'a str>) {
        let mut queues = self.shared.queues.lock();
        let waiting = queues.entry(queue.to_owned()).or_default();
        waiting.extend(bodies.into_iter().map(str::to_owned));
    }

    /// The entries that the function sent to queues since the last call: messages, the redelivery
    /// times of messages, and deletions. Each has the last segment of the queue's URL.
    pub fn sent(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.shared.sent.lock())
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn serve(shared: Arc<Shared>) -> SocketAddr {
    let runtime = "/2018-06-01/runtime/invocation";
    let app = Router::new()
        .route(&format!("{runtime}/next"), get(next))
        .route(&format!("{runtime}/{{id}}/response"), post(response))
        .route(&format!("{runtime}/{{id}}/error"), post(error))
        .route("/", post(aws))
        .with_state(shared);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn next(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let event = shared.waiting.lock().await.recv().await.unwrap_or_default();
    let headers = [
        ("lambda-runtime-aws-request-id", event["id"].as_str().unwrap_or_default().to_owned()),
        ("lambda-runtime-deadline-ms", DEADLINE.to_owned()),
        (
            "lambda-runtime-invoked-function-arn",
            "arn:aws:lambda:us-east-1:000000000000:function:function".to_owned(),
        ),
    ];
    (headers, event["event"].to_string())
}

fn answer(shared: &Shared, id: &str, answer: FunctionAnswer) -> StatusCode {
    if let Some(waiting) = shared.answers.lock().remove(id) {
        let _ = waiting.send(answer);
    }
    StatusCode::ACCEPTED
}

async fn response(
    State(shared): State<Arc<Shared>>,
    extract::Path(id): extract::Path<String>,
    request: extract::Request,
) -> StatusCode {
    let Ok(body) = axum::body::to_bytes(request.into_body(), MAX_ANSWER_BYTES).await else {
        answer(&shared, &id, Err(json!({"errorType": "Function.ResponseSizeTooLarge"})));
        return StatusCode::PAYLOAD_TOO_LARGE;
    };
    answer(&shared, &id, Ok(serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

async fn error(
    State(shared): State<Arc<Shared>>,
    extract::Path(id): extract::Path<String>,
    body: bytes::Bytes,
) -> StatusCode {
    answer(&shared, &id, Err(serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

/// The key in the one parameter that exists, [`KEY_PARAMETER`].
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// The name of the parameter with the key.
pub const KEY_PARAMETER: &str = "/tidegate/key";

/// The URLs of the queues that [`Function::put`] fills.
pub const DEAD_LETTER_QUEUE_URLS: &str =
    "http://sqs.test/0/work-dead,http://sqs.test/0/hint-dead.fifo,http://sqs.test/0/timer-dead";

/// Up to ten of the messages that a test put into a queue. They are received once.
fn receive(shared: &Shared, queue: &str) -> Value {
    let mut queues = shared.queues.lock();
    let waiting = queues.entry(queue.to_owned()).or_default();
    let received: Vec<Value> = waiting
        .drain(..waiting.len().min(10))
        .enumerate()
        .map(|(index, body)| {
            let (id, receipt) = (format!("{queue}-{index}"), format!("receipt-{index}"));
            json!({"MessageId": id, "ReceiptHandle": receipt, "Body": body})
        })
        .collect();
    json!({ "Messages": received })
}

/// `GetParameter` of Systems Manager.
fn parameter(request: &Value) -> Result<Value, StatusCode> {
    if request["Name"] == KEY_PARAMETER && request["WithDecryption"] == true {
        Ok(json!({"Parameter": {"Name": KEY_PARAMETER, "Type": "SecureString", "Value": KEY}}))
    } else {
        Err(StatusCode::BAD_REQUEST)
    }
}

/// The batch actions of SQS, which accept every entry, `ReceiveMessage`, and `GetParameter`.
/// The queue `gone` refuses all.
async fn aws(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: bytes::Bytes,
) -> Result<impl IntoResponse, StatusCode> {
    let request: Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let action =
        headers.get("x-amz-target").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content_type = [("content-type", "application/x-amz-json-1.0")];
    if action == "AmazonSSM.GetParameter" {
        return parameter(&request).map(|answer| (content_type, answer.to_string()));
    }
    let queue = request["QueueUrl"]
        .as_str()
        .and_then(|url| url.rsplit('/').next())
        .unwrap_or_default()
        .to_owned();
    if queue == "gone" {
        return Err(StatusCode::BAD_REQUEST);
    }
    if action == "AmazonSQS.ReceiveMessage" {
        return Ok((content_type, receive(&shared, &queue).to_string()));
    }
    if !BATCH_ACTIONS.contains(&action) {
        return Err(StatusCode::NOT_IMPLEMENTED);
    }
    let entries = request["Entries"].as_array().cloned().unwrap_or_default();
    let accepted: Vec<Value> = entries
        .iter()
        .map(|entry| json!({"Id": entry["Id"], "MessageId": entry["Id"], "MD5OfMessageBody": ""}))
        .collect();
    shared.sent.lock().extend(entries.into_iter().map(|entry| (queue.clone(), entry)));
    Ok((content_type, json!({"Successful": accepted, "Failed": []}).to_string()))
}

/// The event in which Lambda's poller delivers messages to a function.
pub fn messages<'a>(bodies: impl IntoIterator<Item = &'a str>) -> Value {
    messages_of("queue", 1, bodies)
}

/// The event for messages of a queue that were received `receives` times.
pub fn messages_of<'a>(
    queue: &str,
    receives: usize,
    bodies: impl IntoIterator<Item = &'a str>,
) -> Value {
    let record = |(index, body): (usize, &str)| {
        json!({
            "messageId": format!("message-{index}"),
            "receiptHandle": format!("receipt-{index}"),
            "body": body,
            "attributes": {
                "ApproximateReceiveCount": receives.to_string(),
                "SentTimestamp": "1545082649183",
                "SenderId": "AIDAIENQZJOLO23YVJ4VO",
                "ApproximateFirstReceiveTimestamp": "1545082649185",
            },
            "messageAttributes": {},
            "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
            "eventSource": "aws:sqs",
            "eventSourceARN": format!("arn:aws:sqs:us-east-2:123456789012:{queue}"),
            "awsRegion": "us-east-2",
        })
    };
    json!({"Records": bodies.into_iter().enumerate().map(record).collect::<Vec<_>>()})
}

/// The event for a request to a function URL (payload version 2.0).
pub fn request(method: &str, path: &str, token: Option<&str>, body: Option<&Value>) -> Value {
    let mut headers = json!({
        "host": "abc.lambda-url.us-east-1.on.aws",
        "accept": "application/json",
        "content-type": "application/json",
        "x-forwarded-proto": "https",
        "x-forwarded-port": "443",
        "x-forwarded-for": "127.0.0.1",
    });
    if let Some(token) = token {
        headers["authorization"] = json!(format!("Bearer {token}"));
    }
    json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "",
        "headers": headers,
        "requestContext": {
            "accountId": "anonymous",
            "apiId": "abc",
            "domainName": "abc.lambda-url.us-east-1.on.aws",
            "domainPrefix": "abc",
            "http": {
                "method": method,
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1",
                "userAgent": "test",
            },
            "requestId": "id",
            "routeKey": "$default",
            "stage": "$default",
            "time": "12/Mar/2020:19:03:58 +0000",
            "timeEpoch": 1_583_348_638_390_u64,
        },
        "body": body.map(Value::to_string),
        "isBase64Encoded": false,
    })
}
