//! What the throttler of any server sees of the jobs that wait.

use serde_json::json;

use super::*;
use tidegate_core::{
    job::Value,
    queue::{
        plugin::{Description, OnFailure, Throttler},
        waiting::Waiting,
    },
};
use tidegate_engine::{
    plugins::registry::{NewVersion, Stage},
    testkit::{
        FnPolicy,
        policies::{each, run},
    },
};

/// More partitions than one tick visits.
const TENANTS: usize = 70;
/// Longer than a server uses the count of another one.
const COUNT_AGE: Duration = Duration::from_secs(12);

/// What waited in each call of a server's throttlers.
type Calls = Arc<Mutex<Vec<Arc<Waiting>>>>;

/// A server whose throttlers run everything, and their calls.
async fn throttling(deployment: &Deployment) -> (Server, Calls) {
    let calls = Calls::default();
    let seen = Arc::clone(&calls);
    let policy = FnPolicy::default().throttling(move |_, call| {
        seen.lock().push(Arc::clone(&call.waiting));
        Ok(each(call, |_| run()))
    });
    let builder = deployment.builder(Arc::clone(&deployment.store), None, None);
    (builder.policy(Arc::new(policy)).start().await.unwrap(), calls)
}

#[tokio::test]
async fn a_throttler_of_another_server_reads_the_count() {
    let deployment = Deployment::new();
    let (one, two) = (throttling(&deployment).await, throttling(&deployment).await);
    let both = async || members(&one.0) == 2 && members(&two.0) == 2;
    deployment.until(BY_NOTICE, both).await;
    let counts = one.0.inner.owns(SWEEP);
    assert_ne!(counts, two.0.inner.owns(SWEEP));
    let ((owner, _), (other, calls)) = if counts { (one, two) } else { (two, one) };

    let says = Description { waiting_by: vec!["tenant".into()], ..Description::default() };
    let version =
        NewVersion { wasm: "v1".into(), throttler: Some(says), retry: None, code: vec![] };
    owner.push_plugin(&name("guard"), version, Stage::Live).await.unwrap();
    let throttler = Throttler {
        plugin: name("guard"),
        config: Arc::new(json!({})),
        on_failure: OnFailure::Hold,
    };
    let config = QueueConfig {
        concurrency: Some(5),
        partition_by: Some("tenant".into()),
        throttler: Some(throttler),
        ..QueueConfig::default()
    };
    owner.put_queue(&name("default"), config, None).await.unwrap();
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let enqueue = async |tenant: usize| {
        let mut of_tenant = job();
        let value = Value::Text(format!("t{tenant:03}"));
        of_tenant.options.attributes.insert("tenant".into(), value);
        owner.enqueue(of_tenant).await.unwrap();
    };
    let sees = async |tenants: usize| {
        deployment.pass(COUNT_AGE).await;
        let before = deployment.clock.now();
        let leased = deployment.within(BY_NOTICE, other.lease(request())).await.unwrap();
        assert_eq!(leased.jobs.len(), 1);
        let seen = calls.lock().last().cloned().expect("it was called");
        assert!(seen.counted_at.is_some_and(|at| at <= before), "{:?}", seen.counted_at);
        assert_eq!(seen.groups["tenant"].len(), tenants);
    };
    // If one of them starts, the tenant still waits.
    for tenant in (0..TENANTS).chain(0..TENANTS) {
        enqueue(tenant).await;
    }
    sees(TENANTS).await;
    enqueue(TENANTS).await;
    sees(TENANTS + 1).await;
}
