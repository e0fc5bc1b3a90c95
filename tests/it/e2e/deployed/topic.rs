//! Messages of an SNS topic that calls the function `ingest`.

use axum::http::StatusCode;
use reqwest::Method;
use serde_json::{Value, json};

use super::{config, deployed, stack};
use crate::e2e::{target::Target, wait::until};

/// A topic that calls the function `ingest`, as any stack may have one.
struct Topic {
    sns: aws_sdk_sns::Client,
    arn: String,
}

impl Topic {
    async fn new(name: &str) -> Self {
        let config = config().await;
        let (sns, lambda) =
            (aws_sdk_sns::Client::new(&config), aws_sdk_lambda::Client::new(&config));
        let function = format!("{}-ingest", stack());
        let found = lambda
            .get_function()
            .function_name(&function)
            .send()
            .await
            .expect("localstack/deploy AlwaysIngest=true makes it");
        let endpoint = found.configuration.unwrap().function_arn.unwrap();
        let arn = sns.create_topic().name(name).send().await.unwrap().topic_arn.unwrap();
        let allow = lambda
            .add_permission()
            .function_name(&function)
            .statement_id(name)
            .action("lambda:InvokeFunction");
        allow.principal("sns.amazonaws.com").source_arn(&arn).send().await.unwrap();
        sns.subscribe().topic_arn(&arn).protocol("lambda").endpoint(endpoint).send().await.unwrap();
        Self { sns, arn }
    }

    async fn publish(&self, kind: &str, message: &Value) {
        let kind = aws_sdk_sns::types::MessageAttributeValue::builder()
            .data_type("String")
            .string_value(kind)
            .build()
            .unwrap();
        let call = self
            .sns
            .publish()
            .topic_arn(&self.arn)
            .message(message.to_string())
            .message_attributes("kind", kind);
        call.send().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a local stack"]
async fn on_a_local_stack_topic_messages_are_requests_and_replies() {
    let ((api, _), run) = (deployed(), format!("i{:x}", std::process::id()));
    let worker = Target::start(|_| async { StatusCode::OK }).await;
    let topic = Topic::new(&run).await;
    api.job_type(&run, json!({"target": {"url": worker.url, "complete": "on_result"}, "keep_result": {"seconds": 3600}})).await;
    let of = |kind: &str| json!({"type": "com.amazonaws.sns.Notification", "source": topic.arn, "attribute": {"kind": kind}});
    let key = json!({"$expr": "data.order"});
    let enqueue = json!({"filter": of("order"), "enqueue": {"type": run, "correlation_key": key}});
    let complete = json!({"filter": of("reply"), "complete": {"type": run, "correlation_key": key, "result": {"$expr": "data.price"}}});
    api.put(&format!("/v1/triggers/{run}-orders"), enqueue).await.good();
    api.put(&format!("/v1/triggers/{run}-replies"), complete).await.good();

    topic.publish("order", &json!({"order": "o-1"})).await;
    let request = worker.call(1).await.json();
    assert_eq!(
        (&request["correlation_key"], &request["data"]["order"]),
        (&json!("o-1"), &json!("o-1"))
    );
    for _ in 0..2 {
        topic.publish("reply", &json!({"order": "o-1", "price": 12.5})).await;
    }
    let path = format!("/v1/jobs/{run}/{}", request["id"].as_str().unwrap());
    let job = until(|| {
        let (api, path) = (api.clone(), path.clone());
        async move {
            let job = api.get(&path).await.good();
            (job["state"] == "succeeded", job)
        }
    })
    .await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!(12.5), &json!(1)), "{job:#}");
    assert_eq!(
        job["history"].as_array().unwrap().len(),
        1,
        "the second answer changed nothing: {job:#}"
    );
    for trigger in ["orders", "replies"] {
        api.send(Method::DELETE, &format!("/v1/triggers/{run}-{trigger}"), &[], "").await.good();
    }
}
