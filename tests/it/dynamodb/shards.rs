//! Processes with different numbers of shards, as during a change of the deployment: each finds
//! every job.

use std::{sync::Arc, time::Duration};

use tidegate_backends::dynamodb::{DynamoStore, LowWatermarks, memory::MemoryTable, table::Table};
use tidegate_core::{
    job::{Job, Lifecycle, Revision, State, lifecycle::Waiting},
    port::{
        Committed, JobStore, Write,
        job_store::{DueQuery, Txn},
    },
    queue::order::Order,
};
use tidegate_engine::{
    memory::{FakeClock, SeededEntropy},
    testkit::builders::{at, job, name},
};

async fn commit(store: &DynamoStore, txns: Vec<Txn>) {
    for answer in store.commit(txns).await.unwrap() {
        assert!(matches!(answer, Committed::All), "{answer:?}");
    }
}

/// How many are due by the `until`th second.
async fn due(store: &DynamoStore, until: i64) -> usize {
    let (queue, types, order, until) =
        (name("mail"), vec![name("x")], Order::Time { step_millis: 0 }, at(until * 1000));
    let query = DueQuery {
        queue,
        critical: false,
        types,
        partition: None,
        order,
        until,
        after: None,
        limit: 100,
        granted: None,
    };
    store.due(&[query]).await.unwrap()[0].jobs.len()
}

#[tokio::test]
async fn processes_with_other_shard_counts_find_every_job() {
    let (table, clock) =
        (Arc::new(MemoryTable::new()) as Arc<dyn Table>, Arc::new(FakeClock::new(at(0))));
    let store = |shards| {
        let store = DynamoStore::new(
            Arc::clone(&table),
            Arc::clone(&clock) as _,
            Arc::new(SeededEntropy::new(u64::from(shards))),
        );
        // Settled buckets are skipped at once, and old jobs are filed again.
        store
            .with_low_watermarks(LowWatermarks { worth: 1, stuck: 2, old: Duration::from_secs(30) })
            .with_shards(shards)
    };
    let (narrow, wide) = (store(1), store(5));
    let jobs: Vec<Job> = (0..20)
        .map(|number| job(&format!("job-{number}")).queue("mail").of_type("x").due(1000).build())
        .collect();
    for (store, jobs) in [(&narrow, &jobs[..10]), (&wide, &jobs[10..])] {
        commit(store, jobs.iter().map(|job| vec![Write::AddJob(job.clone())]).collect()).await;
    }
    // The other process changes the time of each job; one job ends.
    let moved = |job: &Job| {
        let state = State::Scheduled { run_at: at(2000), waiting: Waiting::Due };
        Job { life: Lifecycle { revision: Revision(2), state, ..job.life.clone() }, ..job.clone() }
    };
    for (store, jobs) in [(&wide, &jobs[..10]), (&narrow, &jobs[10..])] {
        let set =
            |job: &Job| vec![Write::SetJob { job: moved(job), was: job.life.revision, all: false }];
        commit(store, jobs.iter().map(set).collect()).await;
    }
    // Soon; when low watermarks may move; after the hour; and when the rest of it is old. A process
    // that reads also moves watermarks and files jobs again.
    for second in [2, 60, 3700, 7500, 20_000] {
        clock.set(at(second * 1000));
        for store in [&narrow, &wide, &narrow, &wide] {
            assert_eq!(due(store, second).await, 20, "at {second}");
        }
    }
}
