//! Samples of several processes on one store.

use super::*;

/// A sample of a call about `queue`, which was made now.
fn sample(clock: &FakeClock, queue: &str, number: u64) -> Vec<Unstored> {
    let Unstored { plugin, reason, call } = unstored(clock, Reason::Sample, number, &a_call());
    let call = Arc::new(RecordedCall { queue: name(queue), ..(*call).clone() });
    vec![Unstored { plugin, reason, call }]
}

/// How many samples the store has, as `server` lists them.
async fn count(server: &Server) -> usize {
    let calls = server.plugin_calls(&name(PLUGIN), Wanted::All).await.unwrap();
    calls.iter().filter(|call| call.reason == "sample").count()
}

#[tokio::test]
async fn processes_store_one_sample_a_minute_of_each_queue() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    // Functions have no tasks of their own that write.
    let first = start(&clock, &store, true).await;
    first.put_queue(&name("other"), QueueConfig::default(), None).await.unwrap();
    let second = start(&clock, &store, true).await;
    let both = async |queue: &str| {
        // Calls of two processes may have one number.
        let stored = tokio::join!(
            first.inner.store_calls(sample(&clock, queue, 1)),
            second.inner.store_calls(sample(&clock, queue, 1)),
        );
        stored.0.unwrap();
        stored.1.unwrap();
        assert_eq!(count(&first).await, count(&second).await);
        count(&first).await
    };
    assert_eq!(both("mail").await, 1);
    clock.advance(Duration::from_secs(59));
    assert_eq!(both("mail").await, 1, "it is the same minute");
    assert_eq!(both("other").await, 2, "each queue has a sample");
    clock.advance(Duration::from_secs(1));
    assert_eq!(both("mail").await, 3, "each minute has a sample");
    // A process that starts again finds the claim of the one before.
    let again = start(&clock, &store, true).await;
    again.inner.store_calls(sample(&clock, "mail", 1)).await.unwrap();
    assert_eq!(count(&again).await, 3);
}

#[tokio::test]
async fn calls_other_than_samples_claim_no_minute() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    let server = start(&clock, &store, true).await;
    for reason in [Reason::Fault, Reason::Filter] {
        for number in 1..=3 {
            let call = unstored(&clock, reason, number, &a_call());
            server.inner.store_calls(vec![call]).await.unwrap();
        }
    }
    assert_eq!(ids(&server).await.len(), 6);
    let config = serde_json::from_value(json!({"plugin_calls": {"store": false}})).unwrap();
    server.put_queue(&name("mail"), config, None).await.unwrap();
    server.inner.store_calls(sample(&clock, "mail", 4)).await.unwrap();
    assert_eq!(count(&server).await, 0);
    server.put_queue(&name("mail"), QueueConfig::default(), None).await.unwrap();
    server.inner.store_calls(sample(&clock, "mail", 5)).await.unwrap();
    assert_eq!(count(&server).await, 1, "a sample that is not stored has claimed nothing");
}

#[tokio::test]
async fn a_sample_whose_claim_would_be_over_is_not_stored() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    let server = start(&clock, &store, true).await;
    let (late, later) = (sample(&clock, "mail", 1), sample(&clock, "mail", 2));
    clock.advance(Duration::from_millis(11 * 60_000 - 1));
    server.inner.store_calls(late).await.unwrap();
    assert_eq!(count(&server).await, 1);
    clock.advance(Duration::from_millis(1));
    server.inner.drop_old_plugin_calls().await.unwrap();
    server.inner.store_calls(later).await.unwrap();
    assert_eq!(count(&server).await, 1, "the claim of its minute is gone");
}
