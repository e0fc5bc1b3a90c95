//! A pass over late jobs reads those that it sends again, and few others.

use std::{sync::Arc, time::Duration};

use tidegate_backends::{
    dynamodb::{DynamoStore, memory::MemoryTable},
    testkit::meter::table::Metered,
};
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    Lookahead,
    memory::{FakeClock, SeededEntropy},
    request::NewJob,
    testkit::builders::name,
};

use crate::cases::harness::Harness;

const JOBS: usize = 6000;

/// A pass over late jobs, and the units that it read.
async fn pass(harness: &Harness, table: &Metered<MemoryTable>) -> (Lookahead, f64) {
    let before = table.bill();
    let lookahead = harness.look_ahead().await.unwrap();
    (lookahead, (table.bill() - before).reads)
}

#[tokio::test]
async fn a_late_backlog_is_read_as_far_as_it_is_sent_again() {
    let (table, clock) = (Metered::new(MemoryTable::new()), Arc::new(FakeClock::default()));
    let entropy = Arc::new(SeededEntropy::new(3));
    let store = DynamoStore::new(Arc::clone(&table) as _, Arc::clone(&clock) as _, entropy);
    let p = Harness::at(Arc::new(store), clock);
    let target = TargetConfig::Push(Box::new(Push::to("http://worker.example/")));
    p.set_type("work", TypeConfig { target: Some(target), ..TypeConfig::default() }).await;
    // All are due within six seconds, and their messages are lost.
    let start = p.now() + Duration::from_secs(1);
    for from in (0..JOBS).step_by(500) {
        let jobs = (from..from + 500).map(|number| NewJob {
            run_at: Some(start + Duration::from_millis(number as u64)),
            ..NewJob::new(name("work"), Payload::null())
        });
        for enqueued in p.engine.enqueue(jobs.collect()).await {
            enqueued.unwrap();
        }
    }
    p.wait(60);
    p.look_ahead().await.unwrap();
    p.wait(120);
    let (whole, whole_reads) = pass(&p, &table).await;
    assert_eq!(whole.late, JOBS, "all are two minutes late");
    // Nothing is sent again for the next minute, and all of it in the one after that.
    let mut sent = Vec::new();
    for minute in 4..40 {
        p.wait(60);
        let (lookahead, reads) = pass(&p, &table).await;
        assert_eq!(lookahead.oldest_due_at, Some(start), "minute {minute}");
        if lookahead.late == 0 {
            assert!(
                reads * 8.0 < whole_reads,
                "{reads} units for nothing in minute {minute}, and {whole_reads} for all"
            );
        } else {
            sent.push((minute, lookahead.late));
        }
    }
    assert_eq!(sent, [(5, JOBS), (9, JOBS), (17, JOBS), (33, JOBS)]);
}
