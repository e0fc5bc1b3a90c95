//! The contract of the work queue, for the one in memory and the one on SQS.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    port::{Clock, Hint, Timer, Work, WorkQueue},
    time::Timestamp,
};
use tidegate_engine::{
    memory::{FakeClock, MemoryWorkQueue},
    testkit::conformance::Arrivals,
};

struct Memory {
    queue: MemoryWorkQueue,
    clock: FakeClock,
}

impl Memory {
    fn new() -> Self {
        Self { queue: MemoryWorkQueue::default(), clock: FakeClock::default() }
    }
}

#[async_trait::async_trait]
impl Arrivals for Memory {
    fn queue(&self) -> &dyn WorkQueue {
        &self.queue
    }
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
    async fn pass(&self, at: Timestamp) {
        self.clock.set(at);
    }
    async fn work(&self) -> Vec<Work> {
        self.queue.take(usize::MAX, self.clock.now())
    }
    async fn hints(&self) -> Vec<Hint> {
        self.queue.take_hints()
    }
    async fn timers(&self) -> Vec<Timer> {
        self.queue.take_timers(self.clock.now())
    }
}

tidegate_engine::work_queue_conformance!(memory, Memory::new());

#[test]
fn what_is_next_is_known() {
    let (queue, clock) = (MemoryWorkQueue::default(), Arc::new(FakeClock::default()));
    assert_eq!(queue.next_at(), None);
    let at = clock.now() + Duration::from_secs(2);
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    let timers = [Timer { at, queue: "mail".parse().unwrap() }];
    assert!(std::pin::pin!(queue.set_timers(&timers)).as_mut().poll(&mut context).is_ready());
    assert_eq!(queue.next_at(), Some(at));
}

#[cfg(feature = "aws")]
mod sqs {
    use aws_sdk_sqs::{Client, types::QueueAttributeName as Name};
    use tidegate_backends::{
        aws::{self, Calls},
        sqs::{Message, SqsQueues, SqsWorkQueue},
        system::{SystemClock, SystemEntropy},
    };

    use super::*;

    /// Queues of one test on the local stack at `AWS_ENDPOINT_URL`.
    struct Local {
        client: Client,
        queues: SqsQueues,
        queue: SqsWorkQueue,
        clock: Arc<SystemClock>,
    }

    impl Local {
        async fn new() -> Self {
            let config = aws::config(Calls::new().unwrap(), Duration::from_secs(10)).await;
            let client = Client::new(&config);
            let unique = tidegate_core::port::Entropy::bits(&SystemEntropy);
            let make = async |name: &str| {
                let fifo = std::path::Path::new(name).extension().is_some_and(|end| end == "fifo");
                let mut call = client.create_queue().queue_name(format!("{unique:x}-{name}"));
                if fifo {
                    call = call.attributes(Name::FifoQueue, "true");
                }
                call.send()
                    .await
                    .expect("the local stack makes queues")
                    .queue_url
                    .expect("it has a URL")
            };
            let queues = SqsQueues {
                work: make("work").await,
                hints: make("hints.fifo").await,
                timers: make("timers").await,
            };
            let clock = Arc::new(SystemClock);
            let queue = SqsWorkQueue::new(
                client.clone(),
                queues.clone(),
                clock.clone(),
                Arc::new(SystemEntropy),
            );
            Self { client, queues, queue, clock }
        }

        /// What has arrived, taken out.
        async fn receive(&self, url: &str) -> Vec<Message> {
            let call = self
                .client
                .receive_message()
                .queue_url(url)
                .max_number_of_messages(10)
                .wait_time_seconds(1);
            let came =
                call.send().await.expect("the local stack answers").messages.unwrap_or_default();
            let mut messages = Vec::new();
            for message in came {
                let handle = message.receipt_handle.expect("it has a handle");
                self.client
                    .delete_message()
                    .queue_url(url)
                    .receipt_handle(handle)
                    .send()
                    .await
                    .expect("it is deleted");
                messages.push(
                    Message::parse(message.body.as_deref().unwrap_or_default())
                        .expect("it is one of ours"),
                );
            }
            messages
        }
    }

    #[async_trait::async_trait]
    impl Arrivals for Local {
        fn queue(&self) -> &dyn WorkQueue {
            &self.queue
        }
        fn now(&self) -> Timestamp {
            self.clock.now()
        }
        async fn pass(&self, at: Timestamp) {
            self.clock.sleep_until(at).await;
        }
        async fn work(&self) -> Vec<Work> {
            let came = self.receive(&self.queues.work).await;
            came.into_iter()
                .flat_map(|message| {
                    if let Message::Work(work) = message { work } else { panic!("{message:?}") }
                })
                .collect()
        }
        async fn hints(&self) -> Vec<Hint> {
            let came = self.receive(&self.queues.hints).await;
            came.into_iter()
                .flat_map(|message| {
                    if let Message::Hints(hints) = message { hints } else { panic!("{message:?}") }
                })
                .collect()
        }
        async fn timers(&self) -> Vec<Timer> {
            let came = self.receive(&self.queues.timers).await;
            came.into_iter()
                .map(|message| {
                    if let Message::Timer(timer) = message { timer } else { panic!("{message:?}") }
                })
                .collect()
        }
    }

    tidegate_engine::work_queue_conformance!(
        #[ignore = "needs a local stack"]
        on_a_local_stack,
        Local::new().await
    );

    #[tokio::test]
    #[ignore = "needs a local stack"]
    async fn on_a_local_stack_a_queue_that_is_gone_is_named_in_the_error() {
        let mut local = Local::new().await;
        local.queues.work.push_str("-gone");
        let queue = SqsWorkQueue::new(
            local.client.clone(),
            local.queues.clone(),
            local.clock.clone(),
            Arc::new(SystemEntropy),
        );
        let work = Work {
            queue: "mail".parse().unwrap(),
            job: "a".parse().unwrap(),
            version: tidegate_core::job::Version(1),
            run_at: local.now(),
            granted_at: None,
            data_bytes: 0,
        };
        let error = queue.send(&[work]).await.unwrap_err().chain().to_string();
        assert!(error.contains("-gone") && error.contains("NonExistentQueue"), "{error}");
    }
}
