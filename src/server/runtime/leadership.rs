//! Whether a server on a replicated log still leads, before it calls a target.
//!
//! The claim of a job is in the log before the job is pushed. A server that was frozen in between may go on
//! after another one has taken over and ended the attempt. The token of the attempt refuses its result, and
//! nothing refuses its effect at the target. So each push of a claimed job needs a proof. The record of the
//! claim is one for a second, so a push that follows its claim costs no request.

use async_trait::async_trait;

use super::Inner;
use tidegate_core::job::Job;

/// The leadership of a server, which another server may have taken over meanwhile.
#[async_trait]
pub trait Leadership: Send + Sync {
    /// Whether this server leads, by a proof that began less than a second ago. It takes seconds at most,
    /// and returns `false` if there is no proof by then.
    async fn is_proved(&self) -> bool;
}

impl Inner {
    /// Whether the target of `job` may be called now. Without a log, no other server can have the job.
    pub(super) async fn may_push(&self, job: &Job) -> bool {
        let Some(leadership) = &self.leadership else { return true };
        // An unclaimed dispatch is in no record. The age of a claim shows nothing: its time is of a clock that
        // may have been set back while the server was frozen.
        job.life.running().is_none() || leadership.is_proved().await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use futures_util::poll;
    use tidegate_core::port::Clock as _;
    use tokio::sync::watch;

    use super::*;
    use crate::runtime::{Builder, Handled, Server, testing};
    use tidegate_core::{
        job::{Payload, type_config::TypeConfig},
        port::{
            Target,
            target::{Request, Response, TargetError},
        },
        target::{Push, TargetConfig},
    };
    use tidegate_engine::{
        Ports,
        memory::{FakeClock, MemoryWorkQueue},
        request::NewJob,
        testkit::builders::name,
    };

    /// A target that refuses every push, and counts them.
    #[derive(Default)]
    struct Busy(AtomicUsize);

    #[async_trait]
    impl Target for Busy {
        async fn call(&self, _: Request) -> Result<Response, TargetError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Response { status: 503, headers: Vec::new(), body: bytes::Bytes::new() })
        }
    }

    /// A server that leads, or does not; and how often that was proved or not.
    struct Leads(bool, AtomicUsize);

    #[async_trait]
    impl Leadership for Leads {
        async fn is_proved(&self) -> bool {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0
        }
    }

    /// The calls of an attempt whose calls are all refused, the proofs, and the attempts that count, of a
    /// server that leads or not.
    async fn calls_proofs_and_attempts(leads: bool) -> (usize, usize, u16) {
        let clock = Arc::new(FakeClock::default());
        let (busy, leads) = (Arc::<Busy>::default(), Arc::new(Leads(leads, AtomicUsize::new(0))));
        let queue = Arc::new(MemoryWorkQueue::default());
        let ports = Ports { work: Arc::clone(&queue) as _, ..testing::ports(&clock) };
        let builder = Server::builder(ports, Arc::clone(&busy) as _);
        let builder = builder.leadership(Arc::clone(&leads) as _);
        let server = builder.serverless().start().await.unwrap();
        let push = TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:9/")));
        let config = TypeConfig { target: Some(push), ..TypeConfig::default() };
        server.put_type(&name("work"), config, None).await.unwrap();
        let enqueued = server.enqueue(NewJob::new(name("work"), Payload::json("1"))).await.unwrap();
        server.flush().await.unwrap();
        let work = queue.take(1, clock.now());
        assert_eq!(work.len(), 1);
        let mut deliver = pin!(server.deliver(work, clock.now() + Duration::from_mins(5)));
        while poll!(&mut deliver).is_pending() {
            clock.advance(Duration::from_millis(10));
            tokio::task::yield_now().await;
        }
        let job = server.job(&enqueued.job.id, None).await.unwrap();
        let [calls, proofs] = [&busy.0, &leads.1].map(|count| count.load(Ordering::Relaxed));
        (calls, proofs, job.life.counted_attempts())
    }

    #[tokio::test]
    async fn each_push_of_a_claimed_job_needs_a_proof() {
        assert_eq!(calls_proofs_and_attempts(true).await, (4, 4, 1));
        assert_eq!(calls_proofs_and_attempts(false).await, (0, 1, 0), "it is handed back");
    }

    /// Whether a server is ready while a stop waits for an attempt.
    async fn is_ready_while_an_attempt_finishes(of: impl FnOnce(Builder) -> Builder) -> bool {
        let (free, gate) = watch::channel(false);
        let builder = testing::builder(&Arc::new(FakeClock::default()));
        let builder = builder.handler(name("work"), 1, move |_| {
            let mut gate = gate.clone();
            Box::pin(async move {
                gate.wait_for(|free| *free).await.unwrap();
                Handled::Succeeded(None)
            })
        });
        let server = of(builder).start().await.unwrap();
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        let new = NewJob::new(name("work"), Payload::null());
        let job = server.enqueue(new).await.unwrap().job;
        testing::until("it runs", async || {
            server.job(&job.id, None).await.unwrap().life.running().is_some()
        })
        .await;
        let mut stop = pin!(server.stop());
        assert!(poll!(&mut stop).is_pending(), "it waits for the attempt");
        let is_ready = server.ready().await.is_ok();
        free.send_replace(true);
        stop.await;
        assert!(server.ready().await.is_err(), "it has stopped");
        is_ready
    }

    #[tokio::test]
    async fn a_leader_is_ready_while_a_stop_waits_for_attempts() {
        let leads = Arc::new(Leads(true, AtomicUsize::new(0)));
        assert!(is_ready_while_an_attempt_finishes(|builder| builder.leadership(leads)).await);
        assert!(!is_ready_while_an_attempt_finishes(|builder| builder).await, "other servers are");
    }
}
