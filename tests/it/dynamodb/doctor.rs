//! `doctor` on a deployment: a healthy one, and the report of each fault.

use std::sync::Arc;

use tidegate_backends::{
    sqs::Message,
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::port::{
    HealthCheck,
    health_check::{Check, CheckLevel},
};
use tidegate_server::lambda::{CloudSettings, doctor::CloudHealthCheck};

use super::{emulator::EmulatedTable, fake_aws::FakeAws};

struct Patient {
    aws: Arc<FakeAws>,
    settings: CloudSettings,
    _table: EmulatedTable,
}

impl Patient {
    async fn new() -> Self {
        let table = EmulatedTable::new();
        let aws = FakeAws::start(table.url()).await;
        let vars = [
            ("TIDEGATE_TABLE", "tidegate".to_owned()),
            ("TIDEGATE_BUCKET", "memory:".to_owned()),
            ("TIDEGATE_ENCRYPTION_KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=".to_owned()),
            ("TIDEGATE_WORK_QUEUE_URL", aws.queue("work")),
            ("TIDEGATE_HINT_QUEUE_URL", aws.queue("hint.fifo")),
            ("TIDEGATE_TIMER_QUEUE_URL", aws.queue("timer")),
        ];
        let settings =
            CloudSettings::from_vars(vars.map(|(name, value)| (name.to_owned(), value))).unwrap();
        Self { aws, settings, _table: table }
    }

    async fn checks(&self) -> Vec<Check> {
        let health_check = CloudHealthCheck::new(
            self.settings.clone(),
            &self.aws.config(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        health_check.checks().await
    }

    /// The checks about one subject.
    async fn said(&self, about: &str) -> Check {
        let checks = self.checks().await;
        checks
            .iter()
            .find(|check| check.about == about)
            .cloned()
            .unwrap_or_else(|| panic!("nothing about {about}: {checks:#?}"))
    }
}

#[tokio::test]
async fn doctor_finds_no_fault_in_a_healthy_deployment() {
    let patient = Patient::new().await;
    for check in patient.checks().await {
        assert_eq!(check.level, CheckLevel::Ok, "{check:?}");
        assert!(check.advice.is_empty() && !check.found.is_empty(), "{check:?}");
    }
    let client = aws_sdk_dynamodb::Client::new(&patient.aws.config());
    let left = client.scan().table_name("tidegate").send().await.unwrap();
    assert_eq!(left.count(), 0, "{left:?}");
    // Each queue received one message without content.
    let sent = patient.aws.sent.lock().clone();
    assert_eq!(
        sent.iter().map(|(queue, _)| queue.as_str()).collect::<Vec<_>>(),
        ["work", "hint.fifo", "timer"]
    );
    for (queue, body) in sent {
        assert!(
            matches!(Message::parse(&body).unwrap(), Message::Work(none) if none.is_empty() && queue == "work")
                || matches!(Message::parse(&body).unwrap(), Message::Hints(none) if none.is_empty() && queue != "work"),
            "{queue}: {body}"
        );
    }
}

#[tokio::test]
async fn doctor_reports_each_missing_permission() {
    let patient = Patient::new().await;
    let denied = "User: arn:aws:sts::1:assumed-role/enqueue is not authorized to perform this";
    for (action, about) in [
        ("DescribeTable", "table"),
        ("DescribeTimeToLive", "table expiry"),
        ("BatchWriteItem", "table permissions"),
        ("BatchExecuteStatement", "table permissions"),
        ("TransactWriteItems", "table permissions"),
        ("Query", "table permissions"),
        ("BatchGetItem", "table permissions"),
        ("GetQueueAttributes", "work queue"),
        ("SendMessage", "sending to the timer queue"),
    ] {
        patient.aws.fail(action, 400, "AccessDeniedException", denied);
        let check = patient.said(about).await;
        assert_eq!(check.level, CheckLevel::Error, "{action}: {check:?}");
        assert!(
            check.found.contains("AccessDenied")
                && check.advice.contains("role lacks this permission"),
            "{action}: {check:?}"
        );
        patient.aws.fails.lock().clear();
    }
}

#[tokio::test]
async fn doctor_names_a_deleted_queue_or_table() {
    let mut patient = Patient::new().await;
    patient.aws.queues.lock().remove("hint.fifo");
    let check = patient.said("hint queue").await;
    assert_eq!(check.level, CheckLevel::Error);
    assert!(
        check.found.contains("hint.fifo")
            && check.found.contains("does not exist")
            && check.advice.contains("deploy the stack again"),
        "{check:?}"
    );

    patient.settings.table = "gone".into();
    let check = patient.said("table").await;
    assert_eq!(check.level, CheckLevel::Error);
    assert!(
        check.found.contains("gone in us-east-1: ResourceNotFoundException")
            && check.advice.contains("TIDEGATE_TABLE"),
        "{check:?}"
    );
}

#[tokio::test]
async fn doctor_names_the_wrong_region_of_a_queue() {
    let mut patient = Patient::new().await;
    patient.settings.queues.work = "https://sqs.eu-west-1.amazonaws.com/1/work".into();
    let check = patient.said("work queue").await;
    assert!(
        check.level == CheckLevel::Error
            && check.found.contains("is in eu-west-1, and this function runs in us-east-1"),
        "{check:?}"
    );
}

#[tokio::test]
async fn doctor_reports_a_wrong_schema_and_disabled_expiry() {
    let mut patient = Patient::new().await;
    let client = aws_sdk_dynamodb::Client::new(&patient.aws.config());
    let made = |name: &'static str, keys: [(&'static str, &'static str); 2]| {
        let mut call =
            client.create_table().table_name(name).billing_mode("PAY_PER_REQUEST".into());
        for (attribute, role) in keys {
            let definition = aws_sdk_dynamodb::types::AttributeDefinition::builder()
                .attribute_name(attribute)
                .attribute_type("S".into());
            let element = aws_sdk_dynamodb::types::KeySchemaElement::builder()
                .attribute_name(attribute)
                .key_type(role.into());
            call = call
                .attribute_definitions(definition.build().unwrap())
                .key_schema(element.build().unwrap());
        }
        call.send()
    };
    made("strange", [("pk", "HASH"), ("sk", "RANGE")]).await.unwrap();
    made("plain", [("p", "HASH"), ("s", "RANGE")]).await.unwrap();
    patient.settings.table = "strange".into();
    let check = patient.said("table").await;
    assert!(
        check.level == CheckLevel::Error && check.found.contains("pk (HASH), sk (RANGE)"),
        "{check:?}"
    );
    patient.settings.table = "plain".into();
    assert_eq!(patient.said("table").await.level, CheckLevel::Ok);
    let check = patient.said("table expiry").await;
    assert!(
        check.level == CheckLevel::Warning && check.advice.contains("update-time-to-live"),
        "{check:?}"
    );
}

#[tokio::test]
async fn doctor_names_the_function_that_should_receive_a_backlog() {
    let patient = Patient::new().await;
    patient.aws.queues.lock().get_mut("hint.fifo").unwrap()["ApproximateNumberOfMessages"] =
        "70".into();
    let check = patient.said("hint queue backlog").await;
    assert!(
        check.level == CheckLevel::Warning
            && check.found.starts_with("70 wait")
            && check.advice.contains("`tick`"),
        "{check:?}"
    );
}

#[tokio::test]
async fn dead_letters_that_wait_are_counted() {
    let patient = Patient::new().await;
    patient.aws.queues.lock().get_mut("work-dead").unwrap()["ApproximateNumberOfMessages"] =
        "7".into();
    let check = patient.said("work queue dead letters").await;
    assert!(
        check.level == CheckLevel::Warning && check.found.contains("7 wait in work-dead"),
        "{check:?}"
    );
}
