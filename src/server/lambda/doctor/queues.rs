//! The queues: their settings, their backlogs, their dead letters, and the permission to send.

use std::collections::HashMap;

use aws_sdk_sqs::{
    error::SdkError, operation::get_queue_attributes::GetQueueAttributesError,
    types::QueueAttributeName as Name,
};

use super::{CloudHealthCheck, refusal::service_refused};
use tidegate_core::port::health_check::{Check, CheckLevel};

/// A queue of a deployment, with the settings that it must have.
struct QueueRole {
    name: &'static str,
    /// The function that receives its messages.
    consumer: &'static str,
    fifo: bool,
    /// Six times the timeout of the consumer, in seconds.
    min_visibility_timeout: u64,
}

/// The queues of a deployment.
const QUEUES: [QueueRole; 3] = [
    QueueRole { name: "work", consumer: "deliver", fifo: false, min_visibility_timeout: 1800 },
    QueueRole { name: "hint", consumer: "tick", fifo: true, min_visibility_timeout: 360 },
    QueueRole { name: "timer", consumer: "tick", fifo: false, min_visibility_timeout: 360 },
];
/// The queue name in messages without content. No queue has it.
const PROBE_QUEUE: &str = "tidegate.doctor";
/// A message without jobs.
pub(super) const EMPTY_WORK: &str = r#"{"work": {"queue": "tidegate.doctor", "jobs": []}}"#;
/// A message without hints.
pub(super) const EMPTY_HINT: &str = r#"{"hint": {"queue": "tidegate.doctor"}}"#;
/// Most messages that one call of a consumer receives. With more waiting, some should be in flight.
const MAX_MESSAGES_OF_CALL: u64 = 10;
/// The least receives before a message becomes a dead letter. With fewer, throttled calls alone can
/// cause dead letters.
const MIN_RECEIVES: u64 = 3;

/// The attributes of a queue.
pub(super) type QueueAttributes = HashMap<Name, String>;

impl CloudHealthCheck {
    pub(super) async fn check_queues(&self) -> Vec<Check> {
        let queues = &self.settings.queues;
        let urls = [&queues.work, &queues.hints, &queues.timers];
        let mut checks = Vec::new();
        // The order of the URLs is that of the roles.
        for (role, url) in QUEUES.iter().zip(urls) {
            let name = role.name;
            let about = format!("{name} queue");
            if let Some(check) = self.wrong_region(&about, url) {
                checks.push(check);
                continue;
            }
            match self.attributes(url).await {
                Err(error) => checks.push(service_refused(&about, url, &error)),
                Ok(found) => {
                    checks.push(check_settings(
                        &about,
                        &found,
                        role.fifo,
                        role.min_visibility_timeout,
                    ));
                    let about = format!("{name} queue backlog");
                    checks.push(check_backlog(&about, &found, role.consumer));
                    checks.push(self.check_dead_letters(name, url, &found).await);
                }
            }
            checks.push(self.check_sending(name, url, role.fifo).await);
        }
        checks
    }

    /// Sends a message without content.
    async fn check_sending(&self, name: &str, url: &str, fifo: bool) -> Check {
        let about = format!("sending to the {name} queue");
        let body = if name == "work" { EMPTY_WORK } else { EMPTY_HINT };
        let deduplication_id = fifo.then(|| format!("{:032x}", self.entropy.bits()));
        let message = self
            .sqs
            .send_message()
            .queue_url(url)
            .message_body(body)
            .message_group_id(PROBE_QUEUE)
            .set_message_deduplication_id(deduplication_id);
        match message.send().await {
            Ok(_) => Check::ok(about, "a message without content was sent"),
            Err(error) => service_refused(&about, url, &error),
        }
    }

    async fn attributes(
        &self,
        url: &str,
    ) -> Result<QueueAttributes, SdkError<GetQueueAttributesError>> {
        let call = self.sqs.get_queue_attributes().queue_url(url).attribute_names(Name::All);
        Ok(call.send().await?.attributes.unwrap_or_default())
    }

    /// Compares the region in a queue's URL with the region of this function, to which calls go.
    fn wrong_region(&self, about: &str, url: &str) -> Option<Check> {
        let host = url::Url::parse(url).ok()?.host_str()?.to_owned();
        let queue_region = host.strip_prefix("sqs.")?.split('.').next()?;
        let own_region = self.region.as_deref()?;
        (queue_region != own_region && host.ends_with("amazonaws.com")).then(|| {
            Check::new(
                CheckLevel::Error,
                about,
                format!("{url} is in {queue_region}, and this function runs in {own_region}"),
                format!("deploy the whole stack to one region, or name its queue in {own_region}"),
            )
        })
    }

    /// Counts the messages in the dead-letter queue of a queue.
    async fn check_dead_letters(&self, name: &str, url: &str, found: &QueueAttributes) -> Check {
        let about = format!("{name} queue dead letters");
        let Some(dead_letter_queue) =
            redrive_policy(found).and_then(|(arn, _)| Some(arn.rsplit(':').next()?.to_owned()))
        else {
            return Check::new(
                CheckLevel::Error,
                about,
                "there is no dead-letter queue",
                "a message that cannot be handled is redelivered for ever: give the queue a \
                 redrive policy with 5 receives, as in infra/template.yaml",
            );
        };
        let url = url.rsplit_once('/').map_or_else(
            || dead_letter_queue.clone(),
            |(account, _)| format!("{account}/{dead_letter_queue}"),
        );
        let found = match self.attributes(&url).await {
            Ok(found) => found,
            Err(error) => return service_refused(&about, &url, &error),
        };
        let waiting = number(&found, &Name::ApproximateNumberOfMessages)
            + number(&found, &Name::ApproximateNumberOfMessagesNotVisible);
        if waiting == 0 {
            return Check::ok(about, format!("none in {dead_letter_queue}"));
        }
        Check::new(
            CheckLevel::Warning,
            about,
            format!("{waiting} wait in {dead_letter_queue}"),
            "the function `sweep` handles them every five minutes: see its log, and the log of the \
             function that failed on them",
        )
    }
}

/// The ARN of a queue's dead-letter queue, and after how many receives a message moves there.
fn redrive_policy(found: &QueueAttributes) -> Option<(String, u64)> {
    let policy: serde_json::Value = serde_json::from_str(found.get(&Name::RedrivePolicy)?).ok()?;
    // Some tools write the number as a string.
    let receives = policy["maxReceiveCount"]
        .as_u64()
        .or_else(|| policy["maxReceiveCount"].as_str()?.parse().ok())?;
    Some((policy["deadLetterTargetArn"].as_str()?.to_owned(), receives))
}

fn number(found: &QueueAttributes, name: &Name) -> u64 {
    found.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Checks whether the function `consumer` receives the messages that wait in a queue.
pub(super) fn check_backlog(about: &str, found: &QueueAttributes, consumer: &str) -> Check {
    let waiting = number(found, &Name::ApproximateNumberOfMessages);
    let in_flight = number(found, &Name::ApproximateNumberOfMessagesNotVisible);
    let delayed = number(found, &Name::ApproximateNumberOfMessagesDelayed);
    let counts = format!(
        "{waiting} wait, {in_flight} are in flight or wait for a redelivery, {delayed} are delayed"
    );
    if waiting > MAX_MESSAGES_OF_CALL && in_flight == 0 {
        let advice = format!(
            "no function receives them: is the event source mapping of `{consumer}` enabled, may \
             its role receive and delete, is its concurrency used up?"
        );
        return Check::new(CheckLevel::Warning, about, counts, advice);
    }
    Check::ok(about, counts)
}

/// Checks the settings of a queue. `min_visibility_timeout` is in seconds.
pub(super) fn check_settings(
    about: &str,
    found: &QueueAttributes,
    fifo: bool,
    min_visibility_timeout: u64,
) -> Check {
    if let Some(check) = wrong_kind(about, found, fifo) {
        return check;
    }
    let error =
        |finding: String, advice: &str| Check::new(CheckLevel::Error, about, finding, advice);
    let timeout = number(found, &Name::VisibilityTimeout);
    if timeout < min_visibility_timeout {
        return error(
            format!(
                "its visibility timeout is {timeout} s, and the minimum is \
                 {min_visibility_timeout} s"
            ),
            "messages are redelivered while they are processed: set it to six times the timeout \
             of the function that receives them",
        );
    }
    match redrive_policy(found) {
        None => error(
            "it has no dead-letter queue".into(),
            "a message that cannot be handled is redelivered for ever: give the queue a redrive \
             policy with 5 receives",
        ),
        Some((_, receives)) if receives < MIN_RECEIVES => Check::new(
            CheckLevel::Warning,
            about,
            format!("a message becomes a dead letter after {receives} receives"),
            "throttled calls alone can cause that: the template has 5",
        ),
        Some((_, receives)) => Check::ok(
            about,
            format!("visibility timeout {timeout} s, dead letters after {receives} receives"),
        ),
    }
}

/// Checks whether a queue is FIFO as expected, and the settings that only FIFO queues have.
fn wrong_kind(about: &str, found: &QueueAttributes, fifo: bool) -> Option<Check> {
    let has = |name: Name, value: &str| found.get(&name).is_some_and(|found| found == value);
    if has(Name::FifoQueue, "true") != fifo {
        let (actual, expected) =
            if fifo { ("a standard queue", "FIFO") } else { ("FIFO", "a standard queue") };
        return Some(Check::new(
            CheckLevel::Error,
            about,
            format!("it is {actual}, and {expected} is expected"),
            "the URLs of the queues are mixed up: compare the function's environment with the \
             stack",
        ));
    }
    if fifo && has(Name::ContentBasedDeduplication, "true") {
        return Some(Check::new(
            CheckLevel::Error,
            about,
            "content-based deduplication is on",
            "SQS drops hints with the same content: `aws sqs set-queue-attributes --attributes \
             ContentBasedDeduplication=false`",
        ));
    }
    if fifo && !has(Name::FifoThroughputLimit, "perMessageGroupId") {
        let limit = found.get(&Name::FifoThroughputLimit).map_or("perQueue", String::as_str);
        return Some(Check::new(
            CheckLevel::Warning,
            about,
            format!("its throughput limit is {limit}"),
            "busy queues wait for each other: set DeduplicationScope=messageGroup and \
             FifoThroughputLimit=perMessageGroupId",
        ));
    }
    None
}
