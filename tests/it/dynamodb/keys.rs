//! Keys and ids may outlive their jobs on the table. They then block no new job, whether or not the
//! row of the removed job still exists, and a request for an id gets that id.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::json;
use tidegate_backends::dynamodb::{
    DynamoStore,
    memory::MemoryTable,
    table::{Change, EXPIRES, Table, Val},
};
use tidegate_core::{
    event::{Event, read},
    job::{
        JobId, Payload,
        spec::{Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    port::{
        Clock, Write,
        job_store::{Expect, Key},
    },
    time::Seconds,
};
use tidegate_engine::{
    Error,
    events::ingest::TriggerAction,
    memory::{FakeClock, SeededEntropy},
    request::{Enqueued, NewJob},
    testkit::builders::name,
};

use super::emulator::EmulatedTable;
use crate::cases::harness::{Harness, work};

/// A harness on a table; both use the same clock.
struct Shop {
    harness: Harness,
    clock: Arc<FakeClock>,
    /// The table, if it removes expired rows at once and not after two days.
    forgets: Option<Arc<MemoryTable>>,
}

impl Shop {
    async fn new(table: Arc<dyn Table>, forgets: Option<Arc<MemoryTable>>) -> Self {
        let clock = Arc::new(FakeClock::default());
        let store =
            DynamoStore::new(table, Arc::clone(&clock) as _, Arc::new(SeededEntropy::new(5)));
        let harness = Harness::on(Arc::new(store));
        harness
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(60), ..TypeConfig::default() },
            )
            .await;
        Self { harness, clock, forgets }
    }

    /// One of each kind: the row is there for two days, also at an emulator's, or goes at once.
    async fn each() -> [Self; 3] {
        let memory = Arc::new(MemoryTable::new());
        [
            Self::new(Arc::new(MemoryTable::new()), None).await,
            Self::new(Arc::clone(&memory) as _, Some(memory)).await,
            Self::new(Arc::new(EmulatedTable::new()), None).await,
        ]
    }

    async fn wait(&self, seconds: u64) {
        self.harness.wait(seconds);
        self.clock.advance(Duration::from_secs(seconds));
        if let Some(table) = &self.forgets {
            let now = self.clock.now().millis() as u64 / 1000;
            let over = table
                .items()
                .into_iter()
                .filter(|item| matches!(item.attrs.get(&EXPIRES), Some(Val::N(at)) if *at <= now));
            let gone: Vec<Change> =
                over.map(|item| Change::Delete { key: item.key, when: None }).collect();
            table.write(&gone).await.unwrap();
        }
    }

    async fn enqueue(&self, job: NewJob) -> Result<Enqueued, Error> {
        self.harness.engine.enqueue(vec![job]).await.remove(0)
    }

    async fn end(&self, id: &JobId) {
        self.harness.engine.cancel(id, None, false).await.unwrap();
    }

    async fn ingest(&self, event: &Event) -> Result<TriggerAction, Error> {
        Ok(self
            .harness
            .engine
            .ingest(std::slice::from_ref(event))
            .await
            .answers
            .remove(0)?
            .outcomes
            .remove(0)
            .action)
    }

    /// A key that leads to a job which is not there.
    async fn point(&self, key: &str, job: &JobId) {
        let key = Key::Correlation(name("work"), key.into());
        self.harness
            .store
            .commit(vec![vec![Write::SetKey { key, job: job.clone(), was: Expect::Absent }]])
            .await
            .unwrap();
    }
}

fn keyed(key: &str) -> NewJob {
    NewJob { correlation_key: Some(key.into()), ..work() }
}

fn order(id: &str, key: &str) -> Event {
    let event = json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "order", "data": {"key": key}});
    read::structured(&Bytes::from(event.to_string())).unwrap()
}

async fn with_trigger(harness: &Harness) {
    let rule = json!({"enqueue": {"type": "work", "correlation_key": {"$expr": "data.key"}}});
    harness
        .engine
        .put_trigger(&name("orders"), serde_json::from_value(rule).unwrap(), None)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_forgotten_jobs_keys_and_id_are_free() {
    for mut shop in Shop::each().await {
        let unique = Unique::new("u", UniqueWhile::Live);
        let all = |id: &str, data: &str| NewJob {
            id: Some(name(id)),
            idempotency_key: Some("i".into()),
            data: Payload::json(data.to_owned()),
            ..keyed("c").with_options(|options| options.unique = Some(unique.clone()))
        };
        let large = format!("\"{}\"", "x".repeat(5000));
        let first = shop.enqueue(all("first", &large)).await.unwrap();
        shop.end(&first.job.id).await;
        shop.wait(400).await;
        let second = shop.enqueue(all("second", "2")).await.unwrap();
        assert_eq!((second.job.id.as_str(), second.new), ("second", true));
        assert!(!shop.enqueue(all("second", "2")).await.unwrap().new, "a repeat is known for one");
        shop.end(&second.job.id).await;
        shop.wait(400).await;
        // Under the id of the first job, and not as a repeat of it.
        let third = shop.enqueue(all("first", "3")).await.unwrap();
        assert_eq!((third.job.id.as_str(), third.new), ("first", true));
        let there = shop.harness.job(&third.job.id).await;
        assert_eq!(
            (&there, shop.harness.engine.data(&there).await.unwrap()),
            (&third.job, Payload::json("3"))
        );
        let run = shop.harness.lease(10).await;
        assert_eq!(run.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["first"]);
        shop.harness.succeed(&run).await;
        // One without an id takes none over either.
        shop.wait(400).await;
        let fourth = shop.enqueue(keyed("c")).await.unwrap();
        assert!(fourth.new && fourth.job.id != third.job.id);
    }
}

#[tokio::test]
async fn an_event_makes_one_job_though_its_key_led_to_a_forgotten_one() {
    for shop in Shop::each().await {
        with_trigger(&shop.harness).await;
        let TriggerAction::Enqueued { job: first, .. } =
            shop.ingest(&order("1", "c")).await.unwrap()
        else {
            panic!("it makes a job")
        };
        shop.end(&first).await;
        shop.wait(400).await;
        let event = order("2", "c");
        let TriggerAction::Enqueued { job, .. } = shop.ingest(&event).await.unwrap() else {
            panic!("it makes a job")
        };
        assert_ne!(job, first);
        assert_eq!(
            shop.ingest(&event).await.unwrap(),
            TriggerAction::AlreadyEnqueued { job: job.clone() }
        );
        shop.end(&job).await;
        assert_eq!(
            shop.ingest(&event).await.unwrap(),
            TriggerAction::AlreadyEnqueued { job },
            "and when that has ended"
        );
        assert_eq!(shop.harness.engine.dead_letters(None, None, 100).await.unwrap().0.len(), 0);
    }
}

#[tokio::test]
async fn a_key_whose_job_may_still_come_is_waited_for_and_no_longer() {
    for shop in Shop::each().await {
        if shop.forgets.is_some() {
            continue;
        }
        with_trigger(&shop.harness).await;
        // Two who began, and have not added their jobs: one was given an id, the other has one of
        // its own.
        shop.point("given", &name("slow")).await;
        let drawn = shop
            .enqueue(NewJob { delay_seconds: Some(Seconds::new(900)), ..work() })
            .await
            .unwrap()
            .job
            .id;
        let free: JobId = drawn
            .as_str()
            .replacen(&drawn.as_str()[..20], "01arz3ndektsv4rrffq6", 1)
            .parse()
            .unwrap();
        shop.point("drawn", &free).await;
        for key in ["given", "drawn"] {
            let refused =
                shop.enqueue(NewJob { id: Some(name(&format!("mine-{key}"))), ..keyed(key) }).await;
            assert!(matches!(refused, Err(Error::Unavailable { .. })), "{key}: {refused:?}");
            let again = shop.ingest(&order(key, key)).await;
            assert!(
                matches!(again, Err(Error::Unavailable { .. })),
                "an event is to be sent again: {again:?}"
            );
        }
        let refused = shop.enqueue(keyed("given")).await;
        assert!(
            matches!(refused, Err(Error::Unavailable { .. })),
            "the slow one is to find its id free: {refused:?}"
        );
        assert!(
            shop.enqueue(NewJob { id: Some(name("slow")), ..keyed("given") }).await.unwrap().new,
            "it may repeat itself"
        );
        assert_eq!(
            shop.enqueue(keyed("drawn")).await.unwrap().job.id,
            free,
            "who has no id shares that of the slow one"
        );
        // A key whose job was never added blocks as long as a write may be in flight.
        shop.point("died", &name("died")).await;
        shop.wait(19).await;
        assert!(matches!(shop.enqueue(keyed("died")).await, Err(Error::Unavailable { .. })));
        shop.wait(1).await;
        let TriggerAction::Enqueued { job, .. } =
            shop.ingest(&order("died", "died")).await.unwrap()
        else {
            panic!("it makes a job")
        };
        assert_eq!(shop.harness.job(&job).await.spec.correlation_key.as_deref(), Some("died"));
        assert!(job.as_str().starts_with("ev-"));
    }
}
