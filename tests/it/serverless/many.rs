//! One invocation with the maximum number of messages: all targets are called at once.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::memory::InMemory;
use tidegate_backends::{
    sqs::pack::{self, MAX_BATCH_MESSAGES, MAX_MESSAGE_JOBS},
    system::SystemClock,
};
use tidegate_core::{
    job::{JobId, Payload, type_config::TypeConfig},
    port::{
        Clock, Target,
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    Ports,
    memory::{MemoryStore, MemoryWorkQueue, SeededEntropy},
    request::NewJob,
    testkit::builders::name,
};
use tidegate_server::{
    Server,
    lambda::{self, SqsEvent, testkit},
};
use tokio::sync::Barrier;

/// Answers when every target has been called.
struct Together(Barrier);

#[async_trait::async_trait]
impl Target for Together {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        self.0.wait().await;
        Ok(Response { status: 200, headers: Vec::new(), body: Bytes::new() })
    }
}

#[tokio::test]
async fn hundreds_of_targets_are_called_at_once_by_one_invocation() {
    let (jobs, clock, work) = (
        MAX_BATCH_MESSAGES * MAX_MESSAGE_JOBS,
        Arc::new(SystemClock),
        Arc::new(MemoryWorkQueue::default()),
    );
    assert!(jobs >= 200);
    let ports = Ports {
        store: Arc::new(MemoryStore::new()),
        objects: Arc::new(InMemory::new()),
        work: Arc::clone(&work) as _,
        clock: clock.clone(),
        entropy: Arc::new(SeededEntropy::new(1)),
        policy: Arc::new(NoPolicy),
    };
    let server = Server::builder(ports, Arc::new(Together(Barrier::new(jobs))))
        .serverless()
        .start()
        .await
        .unwrap();
    let target = Some(TargetConfig::Push(Box::new(Push::to("http://worker.example/"))));
    server
        .put_type(&name("t"), TypeConfig { target, ..TypeConfig::default() }, None)
        .await
        .unwrap();
    // With ids of maximum length, a call is still one request.
    let new = |number| NewJob {
        id: Some(name::<JobId>(&format!("{number:064}"))),
        ..NewJob::new(name("t"), Payload::null())
    };
    for answer in server.enqueue_many((0..jobs).map(new).collect()).await {
        answer.unwrap();
    }
    server.flush().await.unwrap();
    let messages = pack::work(&work.take(usize::MAX, clock.now()), clock.now());
    assert_eq!(messages.len(), MAX_BATCH_MESSAGES);
    assert!(messages.iter().map(|message| message.body.len()).sum::<usize>() <= 64 << 10);
    let event: SqsEvent = serde_json::from_value(testkit::messages(
        messages.iter().map(|message| message.body.as_str()),
    ))
    .unwrap();
    let call = lambda::deliver(&server, &event, clock.now() + Duration::from_mins(1));
    assert!(call.await.is_empty(), "every target is called before the first one answers");
    for number in [0, jobs - 1] {
        let job = server.job(&name(&format!("{number:064}")), None).await.unwrap();
        assert_eq!(job.life.attempt, 1);
        assert_eq!(job.life.ended(), Some(tidegate_core::job::Outcome::Succeeded));
    }
}
