//! Faults of AWS services: each is a clear error and counted, and nothing is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use metrics_exporter_prometheus::PrometheusBuilder;
use object_store::memory::InMemory;
use serde_json::{Value, json};
use tidegate_backends::{
    dynamodb::{
        DynamoStore, Key,
        memory::MemoryTable,
        sdk::SdkTable,
        table::{Change, Item, PageQuery, Table, Val},
    },
    sqs::{SqsQueues, SqsWorkQueue},
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::{
    job::{Outcome, Payload, Version, type_config::TypeConfig},
    port::{
        Clock, JobStore, StoreError, Target, Work, WorkQueue, Write,
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    Ports,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    request::NewJob,
    testkit::builders,
};
use tidegate_server::Server;

use super::{emulator::EmulatedTable, fake_aws::FakeAws};

struct Shop {
    aws: Arc<FakeAws>,
    store: DynamoStore,
    table: Arc<SdkTable>,
    _emulator: EmulatedTable,
}

impl Shop {
    async fn new() -> Self {
        let emulator = EmulatedTable::new();
        let aws = FakeAws::start(emulator.url()).await;
        let table =
            Arc::new(SdkTable::new(aws_sdk_dynamodb::Client::new(&aws.config()), "tidegate"));
        let store = DynamoStore::new(
            Arc::clone(&table) as _,
            Arc::new(FakeClock::default()),
            Arc::new(SeededEntropy::new(1)),
        );
        Self { aws, store, table, _emulator: emulator }
    }
}

#[tokio::test]
async fn a_table_error_is_reported_and_a_repeat_finds_no_change() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = recorder.handle();
    let _counting = metrics::set_default_local_recorder(&recorder);
    let shop = Shop::new().await;
    let job = builders::job("a").build();
    let add = || vec![vec![Write::AddJob(job.clone())]];
    for (action, kind, message, word) in [
        (
            "BatchExecuteStatement",
            "AccessDeniedException",
            "not authorized to perform: dynamodb:PartiQLInsert",
            "PartiQLInsert",
        ),
        (
            "BatchExecuteStatement",
            "ResourceNotFoundException",
            "Requested resource not found",
            "ResourceNotFound",
        ),
        (
            "BatchGetItem",
            "UnrecognizedClientException",
            "The security token included in the request is invalid",
            "security token",
        ),
    ] {
        shop.aws.fail(action, 400, kind, message);
        let error = match action {
            "BatchGetItem" => {
                shop.store.get(std::slice::from_ref(&job.id)).await.map(drop).unwrap_err()
            }
            _ => shop.store.commit(add()).await.map(drop).unwrap_err(),
        };
        assert!(
            matches!(&error, StoreError::Unavailable(_))
                && error.chain().to_string().contains(word),
            "{error:?}"
        );
        shop.aws.fails.lock().clear();
    }
    shop.aws.fail(
        "BatchExecuteStatement",
        400,
        "ThrottlingException",
        "Throughput exceeds the current capacity",
    );
    let error = shop.store.commit(add()).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Throttled { message, .. } if message.contains("Throughput")),
        "nothing was written: {error:?}"
    );
    shop.aws.fails.lock().clear();

    assert_eq!(shop.store.get(std::slice::from_ref(&job.id)).await.unwrap(), [Ok(None)]);
    shop.store.commit(add()).await.unwrap();
    assert_eq!(shop.store.get(std::slice::from_ref(&job.id)).await.unwrap(), [Ok(Some(job))]);
    let counted = counted.render();
    assert!(
        counted.contains(r#"tidegate_aws_errors_total{service="dynamodb",reason="other"} 3"#),
        "{counted}"
    );
    assert!(
        counted.contains(r#"tidegate_aws_errors_total{service="dynamodb",reason="throttled"} 1"#),
        "{counted}"
    );
}

/// An answer in which each statement is refused.
fn statements_refused(asked: &Value, code: &str) -> Option<(u16, Value)> {
    let refused = json!({"Error": {"Code": code, "Message": format!("{code} it is")}, "TableName": "tidegate"});
    Some((200, json!({"Responses": vec![refused; asked["Statements"].as_array()?.len()]})))
}

#[tokio::test]
async fn a_failed_statement_in_a_response_is_reported_and_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = recorder.handle();
    let _counting = metrics::set_default_local_recorder(&recorder);
    let shop = Shop::new().await;
    let job = builders::job("a").build();
    let add = async || shop.store.commit(vec![vec![Write::AddJob(job.clone())]]).await;
    for (code, passes) in [
        ("AccessDenied", true),
        ("ResourceNotFound", true),
        ("InternalServerError", true),
        ("NewInALaterYear", true),
        ("ValidationError", false),
    ] {
        shop.aws.say("BatchExecuteStatement", move |asked| statements_refused(asked, code));
        match add().await.unwrap_err() {
            StoreError::Unavailable(source) if passes => {
                assert!(source.to_string().contains(code), "{source}");
            }
            StoreError::Corrupt(source) if !passes => {
                assert!(source.to_string().contains(code), "{source}");
            }
            other => panic!("{code} is {other:?}"),
        }
    }
    shop.aws.say("BatchExecuteStatement", |asked| statements_refused(asked, "ThrottlingError"));
    assert!(matches!(add().await.unwrap_err(), StoreError::Throttled { .. }));
    shop.aws.says.lock().clear();
    add().await.unwrap();
    assert_eq!(shop.store.get(std::slice::from_ref(&job.id)).await.unwrap(), [Ok(Some(job))]);
    let counted = counted.render();
    for (why, count) in [("other", 4), ("invalid", 1), ("throttled", 5)] {
        assert!(
            counted.contains(&format!(
                r#"tidegate_aws_errors_total{{service="dynamodb",reason="{why}"}} {count}"#
            )),
            "{counted}"
        );
    }
}

#[tokio::test]
async fn a_cancelled_transaction_is_repeated_only_if_that_may_help() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = recorder.handle();
    let _counting = metrics::set_default_local_recorder(&recorder);
    let shop = Shop::new().await;
    let change =
        || Change::Insert(Item::new(Key { p: "X".into(), s: "a".into() }, [('v', Val::N(1))]));
    let cancel = |code: &'static str| {
        shop.aws.say("TransactWriteItems", move |_| {
            let reasons = json!([{"Code": code, "Message": "why"}]);
            Some((400, json!({"__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException", "CancellationReasons": reasons})))
        });
    };
    cancel("ConditionalCheckFailed");
    assert!(!shop.table.together(&[change()]).await.unwrap());
    cancel("TransactionConflict");
    let error = shop.table.together(&[change()]).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Throttled { message, .. } if message.contains("TransactionConflict")),
        "{error:?}"
    );
    cancel("ValidationError");
    let error = shop.table.together(&[change()]).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt(_)) && error.chain().to_string().contains("why"),
        "{error:?}"
    );
    let counted = counted.render();
    for why in ["invalid", "throttled"] {
        assert!(
            counted.contains(&format!(
                r#"tidegate_aws_errors_total{{service="dynamodb",reason="{why}"}} 1"#
            )),
            "{counted}"
        );
    }
}

/// Answers, and from then on the table refuses two writes.
struct Denying {
    aws: Arc<FakeAws>,
    denied: Arc<AtomicUsize>,
}

#[async_trait::async_trait]
impl Target for Denying {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        let denied = Arc::clone(&self.denied);
        self.aws.say("BatchExecuteStatement", move |asked| {
            let denies = denied.fetch_add(1, Ordering::Relaxed) < 2;
            denies.then(|| statements_refused(asked, "AccessDenied")).flatten()
        });
        Ok(Response { status: 200, headers: Vec::new(), body: bytes::Bytes::new() })
    }
}

#[tokio::test]
async fn a_result_is_written_again_after_access_was_denied() {
    let shop = Shop::new().await;
    let (clock, work) = (Arc::new(SystemClock), Arc::new(MemoryWorkQueue::default()));
    let ports = Ports {
        store: Arc::new(DynamoStore::new(
            Arc::clone(&shop.table) as _,
            clock.clone(),
            Arc::new(SystemEntropy),
        )),
        objects: Arc::new(InMemory::new()),
        work: Arc::clone(&work) as _,
        clock: clock.clone(),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    };
    let denied = Arc::new(AtomicUsize::new(0));
    let target = Arc::new(Denying { aws: Arc::clone(&shop.aws), denied: Arc::clone(&denied) });
    let server = Server::builder(ports, target).serverless().start().await.unwrap();
    let pushed = Some(TargetConfig::Push(Box::new(Push::to("https://worker.example/"))));
    server
        .put_type(
            &builders::name("t"),
            TypeConfig { target: pushed, ..TypeConfig::default() },
            None,
        )
        .await
        .unwrap();
    let job = server.enqueue(NewJob::new(builders::name("t"), Payload::null())).await.unwrap().job;
    server.flush().await.unwrap();
    let sent = work.take(usize::MAX, clock.now());
    assert_eq!(server.deliver(sent, clock.now() + Duration::from_mins(1)).await, [true]);
    assert!(denied.load(Ordering::Relaxed) > 2, "the result is written again");
    assert_eq!(server.job(&job.id, None).await.unwrap().life.ended(), Some(Outcome::Succeeded));
}

#[tokio::test]
async fn an_empty_page_of_dynamodb_is_not_the_end() {
    let shop = Shop::new().await;
    let item = |s: &str| Item::new(Key { p: "X".into(), s: s.into() }, [('v', Val::N(1))]);
    shop.table.write(&[Change::Put(item("b")), Change::Put(item("c"))]).await.unwrap();
    let first = |query: &Value| query.get("ExclusiveStartKey").is_none();
    let empty = || json!({"Items": [], "LastEvaluatedKey": {"p": {"S": "X"}, "s": {"S": "ab"}}});
    shop.aws.say("Query", move |query| first(query).then(|| (200, empty())));
    let (p, from, to) = ("X".to_owned(), "a".to_owned(), "z".to_owned());
    let mut query = PageQuery { p, from, to, limit: Some(2), backward: false, after: None };
    let page = shop.table.query(&query).await.unwrap();
    assert!(page.items.is_empty());
    query.after = page.next;
    assert_eq!(query.after, Some(Key { p: "X".into(), s: "ab".into() }));
    let page = shop.table.query(&query).await.unwrap();
    assert_eq!(page.items, [item("b"), item("c")]);
}

/// A table whose client repeats requests as a deployment's does, and the requests so far.
async fn repeating() -> (SdkTable, Arc<FakeAws>) {
    let aws = FakeAws::start(String::new()).await;
    (SdkTable::open(&aws.config(), "tidegate"), aws)
}

#[tokio::test]
async fn a_throttled_request_is_tried_five_times() {
    let (table, aws) = repeating().await;
    let throttled = || json!({"__type": "com.amazonaws#ThrottlingException", "message": "slow"});
    let (tries, counted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let served = Arc::clone(&tries);
    aws.say("Query", move |_| {
        let refused = served.fetch_add(1, Ordering::Relaxed) < 4;
        Some(if refused { (400, throttled()) } else { (200, json!({"Items": []})) })
    });
    let (p, from, to) = ("X".to_owned(), "a".to_owned(), "z".to_owned());
    let query = PageQuery { p, from, to, limit: None, backward: false, after: None };
    table.query(&query).await.unwrap();
    assert_eq!(tries.load(Ordering::Relaxed), 5);

    let served = Arc::clone(&counted);
    aws.say("BatchWriteItem", move |request| {
        let refused = served.fetch_add(1, Ordering::Relaxed) < 4;
        let unprocessed = if refused { request["RequestItems"].clone() } else { json!({}) };
        Some((200, json!({"UnprocessedItems": unprocessed})))
    });
    let item = Item::new(Key { p: "X".into(), s: "a".into() }, [('v', Val::N(1))]);
    assert_eq!(table.write(&[Change::Put(item)]).await.unwrap(), [true]);
    assert_eq!(counted.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn both_tables_refuse_an_oversized_item_without_a_change() {
    let shop = Shop::new().await;
    let key = Key { p: "X".into(), s: "a".into() };
    let item = |bytes: usize| {
        Item::new(key.clone(), [('v', Val::N(1)), ('d', Val::B(vec![7; bytes].into()))])
    };
    let memory = MemoryTable::new();
    let tables: [&dyn Table; 2] = [&*shop.table, &memory];
    for table in tables {
        for change in [Change::Insert(item(401 << 10)), Change::Put(item(401 << 10))] {
            let error = table.write(&[change]).await.unwrap_err();
            assert!(
                matches!(&error, StoreError::Corrupt(_))
                    && error.chain().to_string().to_lowercase().contains("size"),
                "{error:?}"
            );
        }
        assert_eq!(table.get(std::slice::from_ref(&key)).await.unwrap(), [None]);
        assert_eq!(table.write(&[Change::Insert(item(380 << 10))]).await.unwrap(), [true]);
    }
}

#[tokio::test]
async fn each_refusal_of_a_queue_is_a_clear_error_that_names_it() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = recorder.handle();
    let _counting = metrics::set_default_local_recorder(&recorder);
    let aws = FakeAws::start(String::new()).await;
    let queues = SqsQueues {
        work: aws.queue("work"),
        hints: aws.queue("hint.fifo"),
        timers: aws.queue("timer"),
    };
    let clock = Arc::new(SystemClock);
    let queue = SqsWorkQueue::new(
        aws_sdk_sqs::Client::new(&aws.config()),
        queues,
        clock.clone(),
        Arc::new(SystemEntropy),
    );
    let work = Work {
        queue: builders::name("mail"),
        job: builders::name("a"),
        version: Version(1),
        run_at: clock.now(),
        granted_at: None,
        data_bytes: 0,
    };
    let send = async || queue.send(std::slice::from_ref(&work)).await;

    aws.fail(
        "SendMessageBatch",
        400,
        "AccessDeniedException",
        "not authorized to perform: sqs:SendMessage",
    );
    let error = send().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable(_))
            && error.chain().to_string().contains("sqs:SendMessage")
            && error.chain().to_string().contains("/work"),
        "{error:?}"
    );
    aws.fails.lock().clear();
    let gone = aws.queues.lock().remove("work").unwrap();
    let error = send().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable(_))
            && error.chain().to_string().contains("NonExistentQueue")
            && error.chain().to_string().contains("/work"),
        "{error:?}"
    );
    aws.queues.lock().insert("work".into(), gone);
    aws.fail("SendMessageBatch", 400, "RequestThrottled", "Rate exceeded");
    let error = send().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Throttled { retry_after, .. } if *retry_after > Duration::ZERO),
        "{error:?}"
    );
    aws.fails.lock().clear();
    // One message of a call, and not the call.
    aws.say("SendMessageBatch", |_| {
        let failed = json!({"Id": "0", "Code": "InvalidMessageContents", "SenderFault": true, "Message": "a character"});
        Some((200, json!({"Successful": [], "Failed": [failed]})))
    });
    let error = send().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable(_))
            && error.chain().to_string().contains("InvalidMessageContents"),
        "{error:?}"
    );
    aws.says.lock().clear();
    send().await.unwrap();
    let counted = counted.render();
    assert!(
        counted.contains(r#"tidegate_aws_errors_total{service="sqs",reason="other"} 3"#),
        "{counted}"
    );
    assert!(
        counted.contains(r#"tidegate_aws_errors_total{service="sqs",reason="throttled"}"#),
        "{counted}"
    );
}
