//! What services refuse: each a clear error, counted, and nothing lost.

use std::{sync::Arc, time::Duration};

use metrics_exporter_prometheus::PrometheusBuilder;
use tidegate::{
    adapter::{
        dynamodb::{
            DynamoStore, Key,
            memory::MemoryTable,
            sdk::SdkTable,
            table::{Change, Item, Table, Val},
        },
        sqs::{SqsQueues, SqsWorkQueue},
        system::{SystemClock, SystemEntropy},
    },
    job::Version,
    port::{Clock, JobStore, StoreError, Work, WorkQueue, Write},
    testkit::{FakeClock, SeededEntropy, builders},
};

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
        let table = Arc::new(SdkTable::new(aws_sdk_dynamodb::Client::new(&aws.config()), "tidegate"));
        let store = DynamoStore::new(Arc::clone(&table) as _, Arc::new(FakeClock::default()), Arc::new(SeededEntropy::new(1)));
        Self { aws, store, table, _emulator: emulator }
    }
}

#[tokio::test]
async fn each_refusal_of_the_table_is_a_clear_error_and_the_repeat_finds_everything_as_it_was() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = recorder.handle();
    let _counting = metrics::set_default_local_recorder(&recorder);
    let shop = Shop::new().await;
    let job = builders::job("a").build();
    let add = || vec![vec![Write::AddJob(job.clone())]];
    for (action, kind, message, word) in [
        ("BatchExecuteStatement", "AccessDeniedException", "not authorized to perform: dynamodb:PartiQLInsert", "PartiQLInsert"),
        ("BatchExecuteStatement", "ResourceNotFoundException", "Requested resource not found", "ResourceNotFound"),
        ("BatchGetItem", "UnrecognizedClientException", "The security token included in the request is invalid", "security token"),
    ] {
        shop.aws.fail(action, 400, kind, message);
        let error = match action {
            "BatchGetItem" => shop.store.get(std::slice::from_ref(&job.id)).await.map(drop).unwrap_err(),
            _ => shop.store.commit(add()).await.map(drop).unwrap_err(),
        };
        assert!(matches!(&error, StoreError::Unavailable(said) if said.contains(word)), "{error:?}");
        shop.aws.fails.lock().clear();
    }
    shop.aws.fail("BatchExecuteStatement", 400, "ThrottlingException", "Throughput exceeds the current capacity");
    let error = shop.store.commit(add()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Throttled { message, .. } if message.contains("Throughput")), "nothing was written: {error:?}");
    shop.aws.fails.lock().clear();

    assert!(shop.store.get(std::slice::from_ref(&job.id)).await.unwrap()[0].is_none());
    shop.store.commit(add()).await.unwrap();
    assert_eq!(shop.store.get(std::slice::from_ref(&job.id)).await.unwrap(), [Some(job)]);
    let counted = counted.render();
    assert!(counted.contains(r#"tidegate_refused_total{service="dynamodb",why="other"} 3"#), "{counted}");
    assert!(counted.contains(r#"tidegate_refused_total{service="dynamodb",why="throttled"} 1"#), "{counted}");
}

#[tokio::test]
async fn an_item_that_is_too_large_is_refused_by_both_tables_and_changes_nothing() {
    let shop = Shop::new().await;
    let key = Key { p: "X".into(), s: "a".into() };
    let item = |bytes: usize| Item::new(key.clone(), [('v', Val::N(1)), ('d', Val::B(vec![7; bytes].into()))]);
    let memory = MemoryTable::new();
    let tables: [&dyn Table; 2] = [&*shop.table, &memory];
    for table in tables {
        for change in [Change::Insert(item(401 << 10)), Change::Put(item(401 << 10))] {
            let error = table.write(&[change]).await.unwrap_err();
            assert!(matches!(&error, StoreError::Corrupt(said) if said.to_lowercase().contains("size")), "{error:?}");
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
    let queues = SqsQueues { work: aws.queue("work"), hints: aws.queue("hint.fifo"), wakes: aws.queue("wake") };
    let clock = Arc::new(SystemClock);
    let queue = SqsWorkQueue::new(aws_sdk_sqs::Client::new(&aws.config()), queues, clock.clone(), Arc::new(SystemEntropy));
    let work = Work { queue: builders::name("mail"), job: builders::name("a"), version: Version(1), run_at: clock.now(), granted_at: None };
    let send = async || queue.send(std::slice::from_ref(&work)).await;

    aws.fail("SendMessageBatch", 400, "AccessDeniedException", "not authorized to perform: sqs:SendMessage");
    let error = send().await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(said) if said.contains("sqs:SendMessage") && said.contains("/work")), "{error:?}");
    aws.fails.lock().clear();
    let gone = aws.queues.lock().remove("work").unwrap();
    let error = send().await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(said) if said.contains("NonExistentQueue") && said.contains("/work")), "{error:?}");
    aws.queues.lock().insert("work".into(), gone);
    aws.fail("SendMessageBatch", 400, "RequestThrottled", "Rate exceeded");
    let error = send().await.unwrap_err();
    assert!(matches!(&error, StoreError::Throttled { retry_after, .. } if *retry_after > Duration::ZERO), "{error:?}");
    aws.fails.lock().clear();
    send().await.unwrap();
    let counted = counted.render();
    assert!(counted.contains(r#"tidegate_refused_total{service="sqs",why="other"} 2"#), "{counted}");
    assert!(counted.contains(r#"tidegate_refused_total{service="sqs",why="throttled"}"#), "{counted}");
}
