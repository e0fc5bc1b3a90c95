//! Rates: never exceeded, and one token for each attempt.

use tidegate_core::{
    job::{Job, type_config::TypeConfig},
    queue::{
        QueueConfig,
        config::{Constraint, Rate},
        matcher::Matcher,
    },
    time::Seconds,
};
use tidegate_engine::{Dispatch, TickInput};

use super::by_tenant;
use crate::cases::harness::{demand, every_store, with, work};

#[tokio::test]
async fn a_rate_is_never_exceeded_and_its_tokens_come_back() {
    for mut harness in every_store() {
        let rate = Rate { count: 5, per_seconds: Seconds::new(1), burst: Some(10) };
        let constraint = Constraint {
            name: "calls".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: None,
            rate: Some(rate),
        };
        harness
            .set_queue(QueueConfig { constraints: vec![constraint], ..QueueConfig::default() })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue_many((0..60).map(|_| with("tenant", "a"))).await;
        harness.enqueue_many((0..3).map(|_| with("tenant", "b"))).await;
        let began = harness.now();
        let mut starts: Vec<u64> = Vec::new();
        let mut others = 0;
        while starts.len() < 60 {
            let outcome = harness
                .tick(TickInput {
                    demands: vec![demand(&["work"], 100, Dispatch::Claim)],
                    ..TickInput::default()
                })
                .await;
            let jobs: Vec<Job> = outcome.claimed.into_iter().map(|claimed| claimed.job).collect();
            let own = by_tenant(&jobs).remove("a").unwrap_or(0);
            others += jobs.len() - own;
            starts.extend(std::iter::repeat_n(harness.now().since(began).as_millis() as u64, own));
            harness.succeed(&jobs).await;
            harness.clock.set(outcome.next_at.expect("the next token is planned for"));
        }
        assert_eq!(others, 3, "another tenant's bucket is its own");
        for (index, from) in starts.iter().enumerate() {
            for (count, to) in starts[index..].iter().enumerate() {
                assert!(
                    (count + 1) as f64 <= 10.0 + (to - from) as f64 * 5.0 / 1000.0 + 1e-6,
                    "{starts:?}"
                );
            }
        }
        assert_eq!(
            *starts.last().unwrap(),
            10_000,
            "fifty after the burst, at five a second, and none of them late"
        );
    }
}

#[tokio::test]
async fn an_attempt_takes_a_token_whatever_becomes_of_it() {
    for mut harness in every_store() {
        let rate = Rate { count: 1, per_seconds: Seconds::new(60), burst: None };
        let constraint = Constraint {
            name: "calls".into(),
            matcher: Matcher::default(),
            per: None,
            concurrency: None,
            rate: Some(rate),
        };
        harness
            .set_queue(QueueConfig { constraints: vec![constraint], ..QueueConfig::default() })
            .await;
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue_many([work(), work()]).await;
        let first = harness.lease(5).await;
        assert_eq!(first.len(), 1);
        harness.succeed(&first).await;
        harness.restart();
        harness.wait(59);
        assert!(harness.lease(5).await.is_empty());
        harness.wait(1);
        assert_eq!(harness.lease(5).await.len(), 1);
    }
}
