//! When the task of an idle queue calls a throttler that holds its jobs: at the time of a hold, and after
//! five seconds at the latest. In between, a waiting worker causes no call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tidegate_backends::http::{Guard, HttpTarget};
use tidegate_core::{
    job::{Payload, PluginName},
    port::{
        Clock as _,
        policy::{Action, Decision},
    },
};
use tidegate_engine::{
    Ports,
    memory::FakeClock,
    plugins::registry::Stage,
    request::NewJob,
    testkit::{FnPolicy, builders::name, policies::each},
};
use tidegate_server::{Server, runtime::Handled};

use super::{ports, shadows::throttle, until, version};

/// Lets all tasks run that have something to do. Only the test moves the clock.
async fn quiet() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_held_job_is_offered_at_its_time_and_every_5_s() {
    let (clock, calls) = (Arc::new(FakeClock::default()), Arc::new(AtomicU32::new(0)));
    let opens_at = clock.now() + Duration::from_secs(2);
    let count = Arc::clone(&calls);
    let policy = FnPolicy::default().throttling(move |_, call| {
        count.fetch_add(1, Ordering::Relaxed);
        let until = Some(opens_at).filter(|at| *at > call.now);
        Ok(each(call, |_| Decision { action: Action::Hold(until), reason: None }))
    });
    let ports = Ports { clock: Arc::clone(&clock) as _, ..ports() };
    let target = Arc::new(HttpTarget::new(Guard::default()).unwrap());
    let server = Server::builder(ports, target)
        .policy(Arc::new(policy))
        .handler(name("work"), 1, |_| Box::pin(async { Handled::Succeeded(None) }))
        .start()
        .await
        .unwrap();
    let gate: PluginName = name("gate");
    server.push_plugin(&gate, version("v1", 0), Stage::Live).await.unwrap();
    throttle(&server, &gate).await;
    server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
    let seen = || calls.load(Ordering::Relaxed);
    until(async || (seen() > 0).then_some(())).await;
    quiet().await;
    let mut before = seen();
    // The hold ends after 2 s. From then on only the interval of 5 s counts.
    for (seconds, is_called) in
        [(1, false), (1, true), (4, false), (1, true), (4, false), (1, true)]
    {
        clock.advance(Duration::from_secs(seconds));
        if is_called {
            until(async || (seen() > before).then_some(())).await;
        }
        quiet().await;
        let now = clock.now();
        assert_eq!(seen(), before + u32::from(is_called), "at {now}");
        before = seen();
    }
}
