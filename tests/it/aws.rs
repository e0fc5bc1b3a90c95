//! AWS services as targets: the request to each, and the meaning of its answers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_sdk_sqs::{
    Client,
    config::{BehaviorVersion, Credentials, Region, SharedCredentialsProvider},
    types::QueueAttributeName as Name,
};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::IntoResponse,
};
use serde_json::{Value, json};
use tidegate_backends::{
    aws::{self, AwsTarget, Calls, SdkConfig},
    aws_targets::{AwsService, EventBridgeTarget, Invocation, LambdaTarget, SnsTarget, SqsTarget},
    http::{Guard, HttpTarget},
    system::SystemEntropy,
};
use tidegate_core::{
    port::{
        Entropy, Target,
        target::{ServiceMessage, TargetError},
    },
    target::{Complete, ExternalTarget},
};

use crate::e2e::target::ClosedPort;

fn target(config: &SdkConfig) -> AwsTarget {
    AwsTarget::new(config, Arc::new(HttpTarget::new(Guard::default()).unwrap()))
}

fn at(url: &str) -> SdkConfig {
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
            "test", "test", None, None, "test",
        )))
        .endpoint_url(url)
        .http_client(Calls::new().unwrap())
        .build()
}

fn message(to: &AwsService) -> ServiceMessage {
    let body = json!({"id": "j1", "data": {"n": 7}, "callback": {"url": "https://api.example/v1/jobs/t/j1", "token": "00ff"}});
    ServiceMessage {
        to: to.target(Complete::OnDelivery),
        group: "j1".into(),
        key: "j1.1".into(),
        kind: "t".into(),
        attributes: vec![
            ("id", "j1".into()),
            ("attempt", "1".into()),
            ("correlation_key", "order 7".into()),
        ],
        body: body.to_string().into(),
        timeout: Duration::from_secs(10),
    }
}

fn function(invocation: Invocation) -> AwsService {
    AwsService::Lambda(LambdaTarget { function: "work".into(), invocation })
}

fn queue(url: &str) -> AwsService {
    AwsService::Sqs(SqsTarget { queue_url: format!("{url}/000000000000/work") })
}

/// A service that gives every request the same answer and records it.
#[derive(Clone)]
struct Service {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: &'static str,
    asked: Arc<Mutex<Vec<(String, String, String)>>>,
}

impl Service {
    fn new(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Self {
        Self { status, headers: headers.to_vec(), body, asked: Arc::default() }
    }

    /// Its URL.
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        url
    }
}

async fn answer(
    State(service): State<Service>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> impl IntoResponse {
    let kind = headers
        .get("x-amz-invocation-type")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    service.asked.lock().unwrap().push((
        uri.path().to_owned(),
        kind,
        String::from_utf8(body.to_vec()).unwrap(),
    ));
    let mut answered = HeaderMap::new();
    for (name, value) in service.headers {
        answered.insert(name, value.parse().unwrap());
    }
    (StatusCode::from_u16(service.status).unwrap(), answered, service.body)
}

#[tokio::test]
async fn a_lambda_return_is_the_result_and_an_exception_a_failure() {
    let returns = Service::new(200, &[], r#"{"done": true}"#);
    let url = returns.start().await;
    let answer = target(&at(&url)).send(message(&function(Invocation::Wait))).await.unwrap();
    assert_eq!(
        (answer.status, &answer.body[..], answer.header("content-type")),
        (200, &br#"{"done": true}"#[..], Some("application/json"))
    );
    let asked = returns.asked.lock().unwrap().pop().unwrap();
    assert_eq!(
        (asked.0.as_str(), asked.1.as_str()),
        ("/2015-03-31/functions/work/invocations", "RequestResponse")
    );
    assert_eq!(serde_json::from_str::<Value>(&asked.2).unwrap()["data"], json!({"n": 7}));

    let nothing = Service::new(200, &[], "null").start().await;
    assert!(
        target(&at(&nothing))
            .send(message(&function(Invocation::Wait)))
            .await
            .unwrap()
            .body
            .is_empty()
    );

    let throws =
        Service::new(200, &[("x-amz-function-error", "Unhandled")], r#"{"errorMessage": "no"}"#)
            .start()
            .await;
    let answer = target(&at(&throws)).send(message(&function(Invocation::Wait))).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (500, &br#"{"errorMessage": "no"}"#[..]));

    // What a function returns is the result, even of a type whose results come later.
    let mut later = message(&function(Invocation::Wait));
    later.to.complete = Complete::OnResult;
    assert_eq!(target(&at(&url)).send(later).await.unwrap().status, 200);
}

#[tokio::test]
async fn an_accepted_job_is_done_or_its_result_comes_later() {
    let service = Service::new(202, &[], "");
    let url = service.start().await;
    for (complete, status) in [(Complete::OnDelivery, 200), (Complete::OnResult, 202)] {
        let mut event = message(&function(Invocation::Event));
        event.to.complete = complete;
        assert_eq!(target(&at(&url)).send(event).await.unwrap().status, status);
        assert_eq!(service.asked.lock().unwrap().pop().unwrap().1, "Event");
    }
    let foreign = ExternalTarget { kind: "fax".into(), ..message(&queue(&url)).to };
    let unknown = ServiceMessage { to: foreign, ..message(&queue(&url)) };
    let refused = target(&at(&url)).send(unknown).await.unwrap_err();
    assert!(matches!(refused, TargetError::Forbidden(_)), "{refused:?}");
    assert!(service.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_refusal_keeps_its_status_and_too_much_to_do_is_429() {
    let said =
        r#"{"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "there is no such queue"}"#;
    let gone =
        Service::new(400, &[("content-type", "application/x-amz-json-1.0")], said).start().await;
    let answer = target(&at(&gone)).send(message(&queue(&gone))).await.unwrap();
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(answer.status == 400 && text.contains("there is no such queue"), "{answer:?}");

    let said = r#"{"__type": "ThrottlingException", "message": "Rate exceeded"}"#;
    let busy = Service::new(400, &[("content-type", "application/x-amz-json-1.0")], said);
    let url = busy.start().await;
    assert_eq!(target(&at(&url)).send(message(&queue(&url))).await.unwrap().status, 429);
    assert_eq!(
        busy.asked.lock().unwrap().len(),
        1,
        "asked once; the engine knows when to ask again"
    );

    let said = r#"{"Type": "User", "Message": "Rate exceeded"}"#;
    let busy =
        Service::new(429, &[("x-amzn-errortype", "TooManyRequestsException")], said).start().await;
    assert_eq!(
        target(&at(&busy)).send(message(&function(Invocation::Wait))).await.unwrap().status,
        429
    );

    let down = Service::new(503, &[], "").start().await;
    assert_eq!(target(&at(&down)).send(message(&queue(&down))).await.unwrap().status, 503);

    // A bus answers 200, with an error for each event that it did not accept.
    let said = r#"{"FailedEntryCount": 1, "Entries": [{"ErrorCode": "InternalFailure", "ErrorMessage": "later"}]}"#;
    let url =
        Service::new(200, &[("content-type", "application/x-amz-json-1.1")], said).start().await;
    let bus = AwsService::EventBridge(EventBridgeTarget {
        bus: "b".into(),
        source: "s".into(),
        detail_type: None,
    });
    assert_eq!(target(&at(&url)).send(message(&bus)).await.unwrap().status, 429);
}

#[tokio::test]
async fn not_connected_differs_from_an_unknown_outcome() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    let brief = ServiceMessage { timeout: Duration::from_millis(200), ..message(&queue(&silent)) };
    assert_eq!(target(&at(&silent)).send(brief).await.unwrap_err(), TargetError::TimedOut);
    let closed = ClosedPort::new();
    assert!(matches!(
        target(&at(&closed.url)).send(message(&queue(&closed.url))).await.unwrap_err(),
        TargetError::NotConnected(_)
    ));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rude = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 4096]).await.unwrap();
        }
    });
    assert!(matches!(
        target(&at(&rude)).send(message(&queue(&rude))).await.unwrap_err(),
        TargetError::NoAnswer(_)
    ));
    let config = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .http_client(Calls::new().unwrap())
        .build();
    let stranger = target(&config)
        .send(message(&queue("https://sqs.us-east-1.amazonaws.com")))
        .await
        .unwrap_err();
    assert!(
        matches!(stranger, TargetError::NotConnected(_)),
        "without credentials nothing is sent: {stranger:?}"
    );
}

/// A queue of a test's own on the local stack.
async fn local_queue(client: &Client, end: &str) -> String {
    let mut call = client.create_queue().queue_name(format!("{:x}{end}", SystemEntropy.bits()));
    if end == ".fifo" {
        call = call.attributes(Name::FifoQueue, "true");
    }
    call.send().await.unwrap().queue_url.unwrap()
}

/// The bodies and correlation keys of all messages, until no more arrive.
async fn arrived(client: &Client, url: &str) -> Vec<(Value, Option<String>)> {
    let mut found = Vec::new();
    loop {
        let call = client
            .receive_message()
            .queue_url(url)
            .message_attribute_names("All")
            .max_number_of_messages(10)
            .wait_time_seconds(2);
        let came = call.send().await.unwrap().messages.unwrap_or_default();
        if came.is_empty() {
            return found;
        }
        for message in came {
            let key = message
                .message_attributes
                .as_ref()
                .and_then(|all| all.get("correlation_key")?.string_value.clone());
            found.push((serde_json::from_str(message.body.as_deref().unwrap()).unwrap(), key));
            client
                .delete_message()
                .queue_url(url)
                .receipt_handle(message.receipt_handle.unwrap())
                .send()
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
#[ignore = "needs a local stack"]
async fn on_a_local_stack_queue_topic_and_bus_receive_the_job() {
    let config = aws::config(Calls::new().unwrap(), Duration::from_secs(10)).await;
    let (target, client) = (target(&config), Client::new(&config));
    let sent: Value = serde_json::from_slice(&message(&function(Invocation::Wait)).body).unwrap();

    let url = local_queue(&client, "").await;
    assert_eq!(
        target
            .send(message(&AwsService::Sqs(SqsTarget { queue_url: url.clone() })))
            .await
            .unwrap()
            .status,
        200
    );
    assert_eq!(arrived(&client, &url).await, [(sent.clone(), Some("order 7".into()))]);

    let url = local_queue(&client, ".fifo").await;
    for _ in 0..2 {
        assert_eq!(
            target
                .send(message(&AwsService::Sqs(SqsTarget { queue_url: url.clone() })))
                .await
                .unwrap()
                .status,
            200
        );
    }
    assert_eq!(arrived(&client, &url).await.len(), 1, "one attempt is one message");

    let url = local_queue(&client, "").await;
    let arn = client
        .get_queue_attributes()
        .queue_url(&url)
        .attribute_names(Name::QueueArn)
        .send()
        .await
        .unwrap();
    let arn = arn.attributes.unwrap()[&Name::QueueArn].clone();
    let sns = aws_sdk_sns::Client::new(&config);
    let topic = sns
        .create_topic()
        .name(format!("{:x}", SystemEntropy.bits()))
        .send()
        .await
        .unwrap()
        .topic_arn
        .unwrap();
    sns.subscribe()
        .topic_arn(&topic)
        .protocol("sqs")
        .endpoint(&arn)
        .attributes("RawMessageDelivery", "true")
        .send()
        .await
        .unwrap();
    assert_eq!(
        target
            .send(message(&AwsService::Sns(SnsTarget { topic_arn: topic })))
            .await
            .unwrap()
            .status,
        200
    );
    assert_eq!(
        arrived(&client, &url).await.into_iter().map(|(body, _)| body).collect::<Vec<_>>(),
        std::slice::from_ref(&sent)
    );

    let events = aws_sdk_eventbridge::Client::new(&config);
    let name = format!("{:x}", SystemEntropy.bits());
    events.create_event_bus().name(&name).send().await.unwrap();
    events
        .put_rule()
        .event_bus_name(&name)
        .name("all")
        .event_pattern(r#"{"detail-type": ["t"]}"#)
        .send()
        .await
        .unwrap();
    let to = aws_sdk_eventbridge::types::Target::builder().id("1").arn(&arn).build().unwrap();
    events.put_targets().event_bus_name(&name).rule("all").targets(to).send().await.unwrap();
    let bus = AwsService::EventBridge(EventBridgeTarget {
        bus: name,
        source: "tidegate".into(),
        detail_type: None,
    });
    assert_eq!(target.send(message(&bus)).await.unwrap().status, 200);
    let came = arrived(&client, &url).await;
    assert_eq!(
        (came.len(), &came[0].0["detail"], &came[0].0["source"]),
        (1, &sent, &json!("tidegate"))
    );
}
