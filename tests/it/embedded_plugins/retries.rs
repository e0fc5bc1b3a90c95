//! Retry plugins on the embedded server: their decisions come without delay.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tidegate_core::{
    job::{Outcome, Payload, retry::Retry, type_config::TypeConfig},
    port::{
        Policy, Target,
        policy::{
            Call, Fault, Plugin, Problem, Purpose, RetryAnswer, RetryCall, RetryOutput, RetryPlan,
            ThrottleAnswer, ThrottleCall,
        },
        target::{Request, Response, TargetError},
    },
    queue::{QueueConfig, plugin::Role},
    time::Seconds,
};
use tidegate_engine::{
    plugins::registry::Stage,
    request::{LeaseRequest, NewJob},
    testkit::{FnPolicy, builders::name, policies::fault},
};
use tidegate_server::Server;

use super::{ports, server, until, version};

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_decision_does_not_wait_for_the_next_sweep() {
    let server = server(
        FnPolicy::default().retrying(|_, call| Ok(RetryAnswer::Retry(RetryPlan::new(call.now)))),
    )
    .await;
    server.push_plugin(&name("planner"), version("v1", 0), Stage::Live).await.unwrap();
    let retry = Retry::Plugin(name("planner"), Arc::new(serde_json::json!({})));
    server
        .put_type(&name("work"), TypeConfig { retry, ..TypeConfig::default() }, None)
        .await
        .unwrap();
    let mut took = Duration::MAX;
    for _ in 0..5 {
        let start = server.now();
        let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
        server
            .result(&job.id, None, Duration::from_secs(20))
            .await
            .unwrap()
            .ended()
            .expect("it ends");
        took = took.min(server.now().since(start));
        let job = server.job(&job.id, None).await.unwrap();
        assert_eq!((job.life.ended(), job.life.attempt), (Some(Outcome::Succeeded), 2));
    }
    assert!(
        took < Duration::from_millis(250),
        "five times it took {took:?} at least: a retry decision waited for a sweep"
    );
    server.stop().await;
}

/// A target whose home is down. It notes the URLs that were called.
#[derive(Default)]
struct DownAtHome(Mutex<Vec<String>>);

#[async_trait]
impl Target for DownAtHome {
    async fn call(&self, request: Request) -> Result<Response, TargetError> {
        let status = if request.url.contains("home") { 500 } else { 200 };
        self.0.lock().push(request.url);
        Ok(Response { status, headers: Vec::new(), body: Bytes::new() })
    }
}

#[tokio::test]
async fn an_attempt_goes_to_the_target_that_a_strategy_chose() {
    let target = Arc::new(DownAtHome::default());
    let policy = FnPolicy::default().retrying(|_, call| {
        let target = Some("eu".to_owned());
        Ok(RetryAnswer::Retry(RetryPlan { target, ..RetryPlan::new(call.now) }))
    });
    let server = Server::builder(ports(), Arc::clone(&target) as _)
        .policy(Arc::new(policy))
        .start()
        .await
        .unwrap();
    server.push_plugin(&name("planner"), version("v1", 0), Stage::Live).await.unwrap();
    let config = serde_json::json!({
        "target": {"url": "https://home.example/{id}"},
        "retry_targets": {"eu": "https://eu.example/{type}/{id}"},
        "retry": {"plugin": "planner", "config": {}},
    });
    let config = serde_json::from_value(config).unwrap();
    server.put_type(&name("work"), config, None).await.unwrap();
    let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
    let patience = Duration::from_secs(20);
    server.result(&job.id, None, patience).await.unwrap().ended().expect("it ends");
    let id = &job.id;
    let called = [format!("https://home.example/{id}"), format!("https://eu.example/work/{id}")];
    assert_eq!(*target.0.lock(), called);
    server.stop().await;
}

/// `loopy` loops forever on it; `sane` gives up at once.
struct Loopy;

#[async_trait]
impl Policy for Loopy {
    async fn throttle(
        &self,
        _: &Plugin,
        _: Arc<ThrottleCall>,
        _: Purpose,
    ) -> Result<ThrottleAnswer, Fault> {
        Err(fault("it is no throttler"))
    }

    async fn retry(
        &self,
        plugin: &Plugin,
        _: Arc<RetryCall>,
        _: Purpose,
    ) -> Result<RetryOutput, Fault> {
        if plugin.name.as_str() == "loopy" {
            std::future::pending::<()>().await;
        }
        Ok(RetryAnswer::GiveUp(None).into())
    }

    async fn check(&self, _: &Plugin, _: Role, _: &str) -> Result<Vec<Problem>, Fault> {
        Ok(Vec::new())
    }

    fn report_fault(&self, _: &Plugin, _: &Call, _: &Fault) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_waits_for_a_strategy_that_loops() {
    let server = server(Loopy).await;
    for plugin in ["loopy", "sane"] {
        server.push_plugin(&name(plugin), version(plugin, 0), Stage::Live).await.unwrap();
    }
    let by = |plugin: &str| Retry::Plugin(name(plugin), Arc::new(serde_json::json!({})));
    server.put_queue(&name("b"), QueueConfig::default(), None).await.unwrap();
    server
        .put_type(&name("work"), TypeConfig { retry: by("loopy"), ..TypeConfig::default() }, None)
        .await
        .unwrap();
    let pulled = TypeConfig {
        queue: name("b"),
        max_attempts: Some(1),
        lease_seconds: Seconds::new(1),
        ..TypeConfig::default()
    };
    server.put_type(&name("pulled"), pulled, None).await.unwrap();
    let jobs = server
        .enqueue_many((0..600).map(|_| NewJob::new(name("work"), Payload::null())).collect())
        .await;
    // Every one has failed and waits.
    for job in jobs {
        let id = job.unwrap().job.id;
        until(async || {
            server.job(&id, None).await.unwrap().life.awaits_retry_decision().then_some(())
        })
        .await;
    }
    let sane = NewJob::new(name("work"), Payload::null())
        .with_options(|options| options.retry = Some(by("sane")));
    let pulled = || NewJob::new(name("pulled"), Payload::null());
    let lost = server.enqueue(pulled()).await.unwrap().job.id;
    let ask = LeaseRequest {
        min: 0,
        queue: Some(name("b")),
        types: Vec::new(),
        max: 1,
        wait: Duration::from_secs(20),
        max_pause: Duration::ZERO,
        call: None,
        worker: None,
        lease_seconds: None,
        reports: Vec::new(),
    };
    assert_eq!(server.lease(ask).await.unwrap().jobs[0].id, lost);
    let sane = server.enqueue(sane).await.unwrap().job.id;
    let expires =
        NewJob { expires_at: Some(server.now() + Duration::from_millis(500)), ..pulled() };
    let expires = server.enqueue(expires).await.unwrap().job.id;
    for (id, outcome) in
        [(sane, Outcome::Failed), (expires, Outcome::Expired), (lost, Outcome::Failed)]
    {
        server.result(&id, None, Duration::from_secs(20)).await.unwrap().ended().expect("it ends");
        assert_eq!(server.job(&id, None).await.unwrap().life.ended(), Some(outcome));
    }
    server.stop().await;
}
