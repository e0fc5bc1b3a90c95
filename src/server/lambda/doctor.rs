//! What a deployment says of itself: its table, its queues, its rights, its clock.
//!
//! The one thing to know: the rights that are tried are those of the function that answers, each by doing what it is for: on a probe in the table,
//! which is removed again, and by a message that says nothing, which is done as soon as it is received. What a service refused is told in its own
//! words, with what they mean here. Rights of the other functions show in what waits for them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_dynamodb::types::{KeyType, TimeToLiveStatus};
use aws_sdk_sqs::types::QueueAttributeName as Name;
use bytes::Bytes;
use chrono::DateTime;

use super::settings::CloudSettings;
use tidegate_backends::{
    aws::SdkConfig,
    dynamodb::{
        Key,
        sdk::SdkTable,
        table::{Change, EXPIRES, Item, PageQuery, Table, Val},
    },
};
use tidegate_core::{
    port::{
        Clock, Entropy, StoreError,
        health_check::{Check, CheckLevel, HealthCheck},
    },
    time::Timestamp,
};

/// Clocks that differ by more than this: grants and floors reckon with 6 s, and what is more than half of that is worth a word.
const SKEW: Duration = Duration::from_secs(3);
/// Floors would pass entries: see `adapter::dynamodb`.
const BAD_SKEW: Duration = Duration::from_secs(6);
/// How long the endpoint may take to tell the time.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a queue is for, who takes it, whether it is FIFO, and the least visibility timeout that six times its function's timeout makes.
const QUEUES: [(&str, &str, bool, u64); 3] =
    [("work", "deliver", false, 1800), ("hint", "tick", true, 360), ("wake", "tick", false, 360)];
/// Messages of which each says nothing, as their readers read them: work without jobs, a hint without news.
const NO_WORK: &str = r#"{"work": {"queue": "tidegate.doctor", "jobs": []}}"#;
const NO_NEWS: &str = r#"{"hint": {"queue": "tidegate.doctor"}}"#;
/// The queue that they name, which nobody has.
const NOBODY: &str = "tidegate.doctor";
/// With more messages waiting than one call takes, somebody should be at work on some.
const ONE_CALL: u64 = 10;

/// A deployment that looks at itself.
pub struct CloudCheckup {
    settings: CloudSettings,
    region: Option<String>,
    endpoint: Option<String>,
    tables: aws_sdk_dynamodb::Client,
    table: SdkTable,
    queues: aws_sdk_sqs::Client,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl CloudCheckup {
    /// The deployment that `settings` name, reached as `config` says.
    pub fn new(
        settings: CloudSettings,
        config: &SdkConfig,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let tables = aws_sdk_dynamodb::Client::new(config);
        Self {
            region: config.region().map(ToString::to_string),
            endpoint: config.endpoint_url().map(str::to_owned),
            table: SdkTable::new(tables.clone(), settings.table.as_str()),
            tables,
            queues: aws_sdk_sqs::Client::new(config),
            settings,
            clock,
            entropy,
        }
    }

    fn place(&self) -> &str {
        self.region.as_deref().unwrap_or("no region")
    }

    /// Whether the table is there, with its keys and its forgetting.
    async fn check_table(&self) -> Vec<Check> {
        let (name, about) = (&self.settings.table, "table");
        let found = match self.tables.describe_table().table_name(name).send().await {
            Ok(found) => found
                .table
                .unwrap_or_else(|| aws_sdk_dynamodb::types::TableDescription::builder().build()),
            Err(error) => {
                return vec![refused(about, &format!("{name} in {}", self.place()), &error)];
            }
        };
        let keys: Vec<(&str, &KeyType)> =
            found.key_schema().iter().map(|key| (key.attribute_name(), key.key_type())).collect();
        let status =
            found.table_status().map_or("unknown", aws_sdk_dynamodb::types::TableStatus::as_str);
        let mut checks = Vec::new();
        checks.push(if keys != [("p", &KeyType::Hash), ("s", &KeyType::Range)] {
            let said: Vec<String> = keys.iter().map(|(name, role)| format!("{name} ({role})")).collect();
            let found = format!("{name} has the keys {}, and p (HASH), s (RANGE) are expected", said.join(", "));
            Check::new(
                CheckLevel::Error,
                about,
                found,
                "TIDEGATE_TABLE names another table, or one that something else made: name the stack's",
            )
        } else if status == "ACTIVE" || status == "UPDATING" {
            Check::ok(about, format!("{name} in {} is {status}, with its keys", self.place()))
        } else {
            Check::new(CheckLevel::Error, about, format!("{name} is {status}"), "wait until it is ACTIVE; see what changes it")
        });
        let about = "table's forgetting";
        checks.push(match self.tables.describe_time_to_live().table_name(name).send().await {
            Ok(said) => {
                let said = said.time_to_live_description;
                let enabled = said
                    .as_ref()
                    .and_then(|said| said.time_to_live_status())
                    .is_some_and(|status| matches!(status, TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling));
                let attribute = said.as_ref().and_then(|said| said.attribute_name()).unwrap_or("none").to_owned();
                if enabled && attribute == EXPIRES.to_string() {
                    Check::ok(about, format!("the table forgets by the attribute {attribute}"))
                } else {
                    let found = format!("it is {}, by the attribute {attribute}", if enabled { "on" } else { "off" });
                    let advice = format!(
                        "ended jobs stay and are paid for: `aws dynamodb update-time-to-live --table-name {name} \
                         --time-to-live-specification Enabled=true,AttributeName={EXPIRES}`"
                    );
                    Check::new(CheckLevel::Warning, about, found, advice)
                }
            }
            Err(error) => refused(about, name, &error),
        });
        checks
    }

    /// Does with a probe what is done with jobs.
    async fn check_rights(&self) -> Check {
        let about = "table's rights";
        let partition = format!("X#doctor#{:032x}", self.entropy.bits());
        // What is left behind if this ends half way is forgotten within a day.
        let over = self.clock.now().millis().max(0) as u64 / 1000 + 86_400;
        let item = |s: &str| {
            Item::new(
                Key { p: partition.clone(), s: s.into() },
                [('v', Val::N(1)), (EXPIRES, Val::N(over))],
            )
        };
        let delete = |s: &str| Change::Delete { key: item(s).key, when: None };
        let steps = async {
            let table = &self.table;
            let put = Change::Put(item("a"));
            let insert = Change::Insert(item("b"));
            let update = Change::Update {
                key: item("b").key,
                set: vec![('d', Val::B(Bytes::from_static(b"probe")))],
                remove: Vec::new(),
                when: ('v', Val::N(1)),
            };
            let wrong = Change::Update {
                key: item("b").key,
                set: vec![('v', Val::N(3))],
                remove: Vec::new(),
                when: ('v', Val::N(2)),
            };
            let conditional = Change::Delete { key: item("b").key, when: Some(('v', Val::N(1))) };
            let step = |what: &'static str| move |error: StoreError| (what, error);
            table.write(&[put]).await.map_err(step("a write"))?;
            table.write(&[insert]).await.map_err(step("an insert"))?;
            let changed = table.write(&[update]).await.map_err(step("a conditional write"))?;
            let refused = table.write(&[wrong]).await.map_err(step("a conditional write"))?;
            let read = table.get(&[item("b").key]).await.map_err(step("a read"))?;
            let ask = PageQuery {
                p: partition.clone(),
                from: "a".into(),
                to: "z".into(),
                limit: None,
                backward: false,
            };
            let queried = table.query(&ask).await.map_err(step("a query"))?;
            let together = table
                .together(&[Change::Insert(item("c")), delete("a")])
                .await
                .map_err(step("a transaction"))?;
            let gone = table.write(&[conditional, delete("c")]).await.map_err(step("a removal"))?;
            let right = changed == [true] && refused == [false] && together && gone == [true, true];
            Ok::<_, (&str, StoreError)>(
                right && queried.items.len() == 2 && read.iter().all(Option::is_some),
            )
        };
        match steps.await {
            Ok(true) => {
                Check::ok(about, "a probe was written, read, changed on a condition and removed")
            }
            Ok(false) => Check::new(
                CheckLevel::Error,
                about,
                "conditions are not kept",
                "what is at the endpoint is no DynamoDB: limits would not hold on it",
            ),
            Err((what, error)) => {
                let (level, text) = (CheckLevel::Error, error.chain().to_string());
                Check::new(level, about, format!("{what} failed: {text}"), advice_for(&text))
            }
        }
    }

    async fn check_queues(&self) -> Vec<Check> {
        let urls =
            [&self.settings.queues.work, &self.settings.queues.hints, &self.settings.queues.wakes];
        let mut checks = Vec::new();
        for ((name, taker, fifo, least), url) in QUEUES.into_iter().zip(urls) {
            let about = format!("{name} queue");
            if let Some(check) = self.wrong_region(&about, url) {
                checks.push(check);
                continue;
            }
            match self.attributes(url).await {
                Err(error) => checks.push(refused(&about, url, &error)),
                Ok(found) => {
                    checks.push(of_queue(&about, &found, fifo, least));
                    checks.push(of_backlog(&format!("{name} queue's backlog"), &found, taker));
                    checks.push(self.check_dead(name, url, &found).await);
                }
            }
            checks.push(self.check_sending(name, url, fifo).await);
        }
        checks
    }

    /// Sends a message that says nothing.
    async fn check_sending(&self, name: &str, url: &str, fifo: bool) -> Check {
        let about = format!("sending to the {name} queue");
        let body = if name == "work" { NO_WORK } else { NO_NEWS };
        let key = fifo.then(|| format!("{:032x}", self.entropy.bits()));
        let message =
            self.queues.send_message().queue_url(url).message_body(body).message_group_id(NOBODY);
        match message.set_message_deduplication_id(key).send().await {
            Ok(_) => Check::ok(about, "a message that says nothing was sent"),
            Err(error) => refused(&about, url, &error),
        }
    }

    async fn attributes(
        &self,
        url: &str,
    ) -> Result<
        HashMap<Name, String>,
        aws_sdk_sqs::error::SdkError<
            aws_sdk_sqs::operation::get_queue_attributes::GetQueueAttributesError,
        >,
    > {
        let answer = self
            .queues
            .get_queue_attributes()
            .queue_url(url)
            .attribute_names(Name::All)
            .send()
            .await?;
        Ok(answer.attributes.unwrap_or_default())
    }

    /// A queue's URL names its region, and a call to it goes to the function's own.
    fn wrong_region(&self, about: &str, url: &str) -> Option<Check> {
        let host = url::Url::parse(url).ok()?.host_str()?.to_owned();
        let there = host.strip_prefix("sqs.")?.split('.').next()?.to_owned();
        let here = self.region.as_deref()?;
        (there != here && host.ends_with("amazonaws.com")).then(|| {
            let found = format!("{url} is in {there}, and this function runs in {here}");
            Check::new(
                CheckLevel::Error,
                about,
                found,
                format!("deploy the stack as a whole to one region, or name the queue that it has in {here}"),
            )
        })
    }

    /// How many messages were given up on.
    async fn check_dead(&self, name: &str, url: &str, found: &HashMap<Name, String>) -> Check {
        let about = format!("{name} queue's dead letters");
        let Some(dead) =
            redrive(found).and_then(|(arn, _)| Some(arn.rsplit(':').next()?.to_owned()))
        else {
            let advice = "what cannot be handled comes again for ever: give it a redrive policy with 5 receives, as in infra/template.yaml";
            return Check::new(CheckLevel::Error, about, "there is no dead-letter queue", advice);
        };
        let url = url
            .rsplit_once('/')
            .map_or_else(|| dead.clone(), |(account, _)| format!("{account}/{dead}"));
        match self.attributes(&url).await {
            Err(error) => refused(&about, &url, &error),
            Ok(found) => {
                let waiting = number(&found, &Name::ApproximateNumberOfMessages)
                    + number(&found, &Name::ApproximateNumberOfMessagesNotVisible);
                if waiting == 0 {
                    Check::ok(about, format!("none in {dead}"))
                } else {
                    let advice = "`dead-letter` takes them within seconds when it works: see its log, and that of what gave up on them";
                    Check::new(
                        CheckLevel::Warning,
                        about,
                        format!("{waiting} wait in {dead}"),
                        advice,
                    )
                }
            }
        }
    }

    /// This machine's clock against that of the service that keeps the jobs.
    async fn check_clock(&self) -> Check {
        let about = "clock";
        let url = match (&self.endpoint, &self.region) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, Some(region)) => format!("https://dynamodb.{region}.amazonaws.com/"),
            (None, None) => {
                return Check::new(
                    CheckLevel::Error,
                    about,
                    "there is no region",
                    "set AWS_REGION; Lambda does so by itself",
                );
            }
        };
        let asked = async {
            let before = self.clock.now();
            let answer =
                reqwest::Client::builder().timeout(PATIENCE).build()?.get(&url).send().await?;
            Ok::<_, reqwest::Error>((before, answer, self.clock.now()))
        };
        match asked.await {
            Err(error) => Check::new(
                CheckLevel::Warning,
                about,
                format!("{url} did not tell the time: {error}"),
                "see that the function reaches it",
            ),
            Ok((before, answer, after)) => {
                let date =
                    answer.headers().get(reqwest::header::DATE).and_then(|date| date.to_str().ok());
                match date.and_then(|date| DateTime::parse_from_rfc2822(date).ok()) {
                    Some(there) => of_clock(Timestamp::from_utc(there.to_utc()), before, after),
                    None => Check::new(
                        CheckLevel::Note,
                        about,
                        format!("{url} does not tell the time"),
                        "a local stack may not; AWS does",
                    ),
                }
            }
        }
    }

    fn check_token(&self) -> Check {
        let about = "first token";
        match &self.settings.first_token {
            Some(token) => {
                let found = format!(
                    "the token {} of the stack's parameters is good, with every right",
                    token.id
                );
                Check::new(
                    CheckLevel::Note,
                    about,
                    found,
                    "once there are tokens of people's own (`tidegate token create`), deploy with AdminToken empty",
                )
            }
            None => {
                Check::ok(about, "there is none; those who come in have tokens that are stored")
            }
        }
    }
}

#[async_trait]
impl HealthCheck for CloudCheckup {
    async fn checks(&self) -> Vec<Check> {
        let mut checks = self.check_table().await;
        // What is not there cannot be written to.
        if checks.first().is_some_and(|check| check.level != CheckLevel::Error)
            || !checks[0].found.contains("ResourceNotFound")
        {
            checks.push(self.check_rights().await);
        }
        checks.extend(self.check_queues().await);
        checks.push(self.check_clock().await);
        checks.push(self.check_token());
        checks
    }
}

/// A queue's dead-letter queue, and after how many receives a message goes there.
fn redrive(found: &HashMap<Name, String>) -> Option<(String, u64)> {
    let policy: serde_json::Value = serde_json::from_str(found.get(&Name::RedrivePolicy)?).ok()?;
    // Some write the number as a text.
    let most = policy["maxReceiveCount"]
        .as_u64()
        .or_else(|| policy["maxReceiveCount"].as_str()?.parse().ok())?;
    Some((policy["deadLetterTargetArn"].as_str()?.to_owned(), most))
}

fn number(found: &HashMap<Name, String>, name: &Name) -> u64 {
    found.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What waits in a queue, and whether anybody takes it.
fn of_backlog(about: &str, found: &HashMap<Name, String>, taker: &str) -> Check {
    let waiting = number(found, &Name::ApproximateNumberOfMessages);
    let taken = number(found, &Name::ApproximateNumberOfMessagesNotVisible);
    let later = number(found, &Name::ApproximateNumberOfMessagesDelayed);
    let said = format!(
        "{waiting} wait, {taken} are worked on or failed and are to come again, {later} are held back until their time"
    );
    if waiting > ONE_CALL && taken == 0 {
        let advice = format!(
            "nobody takes them: is the event source mapping of `{taker}` enabled, may its role receive and delete, is its concurrency used up?"
        );
        return Check::new(CheckLevel::Warning, about, said, advice);
    }
    Check::ok(about, said)
}

/// What a queue's settings are like.
fn of_queue(about: &str, found: &HashMap<Name, String>, fifo: bool, least: u64) -> Check {
    let is = |name: Name, value: &str| found.get(&name).is_some_and(|found| found == value);
    let error = |found: String, advice: &str| Check::new(CheckLevel::Error, about, found, advice);
    if is(Name::FifoQueue, "true") != fifo {
        let (is, expected) =
            if fifo { ("a standard queue", "FIFO") } else { ("FIFO", "a standard queue") };
        return error(
            format!("it is {is}, and {expected} is expected"),
            "the URLs of the queues are mixed up: compare the function's environment with the stack",
        );
    }
    if fifo && is(Name::ContentBasedDeduplication, "true") {
        return error(
            "content-based deduplication is on".into(),
            "hints of the same words would be dropped: `aws sqs set-queue-attributes --attributes ContentBasedDeduplication=false`",
        );
    }
    if fifo && !is(Name::FifoThroughputLimit, "perMessageGroupId") {
        let found = format!(
            "its throughput is limited {}",
            found.get(&Name::FifoThroughputLimit).map_or("as a whole", String::as_str)
        );
        return Check::new(
            CheckLevel::Warning,
            about,
            found,
            "busy queues wait for each other: DeduplicationScope=messageGroup, FifoThroughputLimit=perMessageGroupId",
        );
    }
    let visible = number(found, &Name::VisibilityTimeout);
    if visible < least {
        let found = format!("its visibility timeout is {visible} s, and {least} s is the least");
        return error(
            found,
            "messages would come again while they are worked on: six times the timeout of their function",
        );
    }
    match redrive(found) {
        None => error(
            "it has no dead-letter queue".into(),
            "what cannot be handled comes again for ever: give it a redrive policy with 5 receives",
        ),
        Some((_, most)) if most < 3 => {
            let found = format!("a message is given up after {most} receives");
            Check::new(
                CheckLevel::Warning,
                about,
                found,
                "a throttled call is enough for that: 5 is what the template has",
            )
        }
        Some((_, most)) => Check::ok(
            about,
            format!("visible again after {visible} s, given up after {most} receives"),
        ),
    }
}

fn of_clock(there: Timestamp, before: Timestamp, after: Timestamp) -> Check {
    let about = "clock";
    // HTTP tells whole seconds.
    let off = before.since(there + Duration::from_secs(1)).max(there.since(after));
    if off <= SKEW {
        return Check::ok(about, "it agrees with the table's");
    }
    let level = if off > BAD_SKEW { CheckLevel::Error } else { CheckLevel::Warning };
    Check::new(
        level,
        about,
        format!("it differs from the table's by {} s", off.as_secs()),
        "more than 6 s and jobs may be found late: set it by NTP",
    )
}

/// What a service that refused means.
fn refused<E, R>(about: &str, what: &str, error: &aws_sdk_sqs::error::SdkError<E, R>) -> Check
where
    E: std::error::Error + aws_sdk_sqs::error::ProvideErrorMetadata + 'static,
    R: std::fmt::Debug + 'static,
{
    let said = match error.as_service_error() {
        Some(service) => {
            let code = service.code().unwrap_or("no code");
            format!("{code}: {}", service.message().unwrap_or("no reason given"))
        }
        None => aws_sdk_sqs::error::DisplayErrorContext(error).to_string(),
    };
    Check::new(CheckLevel::Error, about, format!("{what}: {said}"), advice_for(&said))
}

/// What to do about a refusal.
fn advice_for(said: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if has(&["AccessDenied", "not authorized", "UnauthorizedOperation"]) {
        "the function's role lacks this right: compare it with the template, and see whether a policy of the organisation or a boundary denies it"
    } else if has(&["NonExistentQueue", "QueueDoesNotExist"]) {
        "it was deleted, or is in another region or account: deploy the stack again, which makes it anew; the minute's round finds what was in it"
    } else if has(&["ResourceNotFound"]) {
        "it was deleted, or is in another region or account: see TIDEGATE_TABLE and AWS_REGION; a lost table is restored as docs/deploy-aws.md says"
    } else if has(&["Throttl", "ThroughputExceeded", "RequestLimit"]) {
        "there is more to do than it takes: wait, or raise the table's warm throughput"
    } else if has(&[
        "InvalidClientTokenId",
        "UnrecognizedClient",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidSignature",
    ]) {
        "the credentials are not good: in Lambda those of the role are; elsewhere see AWS_ACCESS_KEY_ID and the clock"
    } else {
        "see that the function reaches the service, and the service's health in this region"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_backends::sqs::Message;
    use tidegate_engine::testkit::builders::at;

    fn queue(change: &[(&str, Option<&str>)], fifo: bool) -> HashMap<Name, String> {
        let redrive =
            r#"{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:1:work-dead", "maxReceiveCount": 5}"#;
        let mut found: HashMap<Name, String> =
            [("VisibilityTimeout", "1800"), ("RedrivePolicy", redrive)]
                .map(|(name, value)| (name.into(), value.to_owned()))
                .into();
        if fifo {
            found.extend(
                [("FifoQueue", "true"), ("FifoThroughputLimit", "perMessageGroupId")]
                    .map(|(name, value)| (name.into(), value.to_owned())),
            );
        }
        for (name, value) in change {
            match value {
                Some(value) => drop(found.insert((*name).into(), (*value).to_owned())),
                None => drop(found.remove(&Name::from(*name))),
            }
        }
        found
    }

    #[test]
    fn a_queue_that_is_not_as_it_should_be_is_told_of() {
        for (change, fifo, level, word) in [
            (&[][..], false, CheckLevel::Ok, "1800 s"),
            (&[], true, CheckLevel::Ok, "5 receives"),
            (&[("FifoQueue", Some("true"))], false, CheckLevel::Error, "it is FIFO"),
            (&[("FifoQueue", None)], true, CheckLevel::Error, "a standard queue"),
            (&[("VisibilityTimeout", Some("30"))], false, CheckLevel::Error, "30 s, and 1800 s"),
            (&[("RedrivePolicy", None)], false, CheckLevel::Error, "no dead-letter queue"),
            (
                &[(
                    "RedrivePolicy",
                    Some(r#"{"deadLetterTargetArn": "a", "maxReceiveCount": "1"}"#),
                )],
                false,
                CheckLevel::Warning,
                "after 1 receives",
            ),
            (
                &[("ContentBasedDeduplication", Some("true"))],
                true,
                CheckLevel::Error,
                "deduplication is on",
            ),
            (&[("FifoThroughputLimit", Some("perQueue"))], true, CheckLevel::Warning, "perQueue"),
        ] {
            let check = of_queue("work queue", &queue(change, fifo), fifo, 1800);
            assert_eq!(check.level, level, "{change:?}: {check:?}");
            assert!(check.found.contains(word), "{change:?}: {check:?}");
            assert_eq!(check.advice.is_empty(), level == CheckLevel::Ok, "{check:?}");
        }
    }

    #[test]
    fn what_nobody_takes_is_told_of() {
        let of = |waiting: &str, taken: &str| {
            let counts = [
                ("ApproximateNumberOfMessages", Some(waiting)),
                ("ApproximateNumberOfMessagesNotVisible", Some(taken)),
            ];
            of_backlog("backlog", &queue(&counts, false), "tick")
        };
        assert_eq!(
            [of("0", "0"), of("10", "0"), of("5000", "20")].map(|check| check.level),
            [CheckLevel::Ok; 3]
        );
        let check = of("11", "0");
        assert!(
            check.level == CheckLevel::Warning
                && check.found.starts_with("11 wait")
                && check.advice.contains("mapping of `tick`"),
            "{check:?}"
        );
    }

    #[test]
    fn what_is_sent_says_nothing_to_whoever_reads_it() {
        assert_eq!(Message::parse(NO_WORK).unwrap(), Message::Work(Vec::new()));
        assert_eq!(Message::parse(NO_NEWS).unwrap(), Message::Hints(Vec::new()));
    }

    #[test]
    fn a_clock_that_is_off_is_told_by_how_far() {
        let told = |there: u64| of_clock(at(there as i64), at(100_000), at(100_050)).level;
        assert_eq!(
            [told(99_000), told(103_000), told(105_000), told(120_000), told(80_000)],
            [
                CheckLevel::Ok,
                CheckLevel::Ok,
                CheckLevel::Warning,
                CheckLevel::Error,
                CheckLevel::Error
            ]
        );
    }

    #[test]
    fn each_refusal_has_its_advice() {
        let advice = [
            "AccessDeniedException: no",
            "AWS.SimpleQueueService.NonExistentQueue: no",
            "ResourceNotFoundException: no",
            "dispatch failure",
        ]
        .map(advice_for);
        let words =
            ["role lacks", "deploy the stack again", "TIDEGATE_TABLE", "reaches the service"];
        for (advice, word) in advice.iter().zip(words) {
            assert!(advice.contains(word), "{advice}");
        }
    }
}
