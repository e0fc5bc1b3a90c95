//! Servers with plugins: retry decisions without delay, shadow versions, simulations, and the pace of
//! calls.

mod pace;
mod retries;
mod serverless;
mod shadows;
mod simulated;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::memory::InMemory;
use tidegate_backends::{
    http::{Guard, HttpTarget},
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::{
    port::{Clock as _, Policy},
    queue::plugin::Description,
};
use tidegate_engine::{
    Ports,
    memory::{MemoryStore, MemoryWorkQueue},
    plugins::registry::NewVersion,
    testkit::builders::name,
};
use tidegate_server::{Server, runtime::Handled};

/// The parts of a server that keeps everything in memory.
fn ports() -> Ports {
    Ports {
        store: Arc::new(MemoryStore::new()),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(tidegate_core::port::policy::NoPolicy),
    }
}

/// A server whose handler of type `work` fails every first attempt.
async fn server(policy: impl Policy + 'static) -> Server {
    Server::builder(ports(), Arc::new(HttpTarget::new(Guard::default()).unwrap()))
        .policy(Arc::new(policy))
        .handler(name("work"), 4, |call| {
            let first = call.job.life.attempt == 1;
            Box::pin(
                async move { if first { Handled::failed("no") } else { Handled::Succeeded(None) } },
            )
        })
        .start()
        .await
        .unwrap()
}

fn version(wasm: &str, state_version: u32) -> NewVersion {
    let says = Some(Description { state_version, ..Description::default() });
    NewVersion {
        wasm: Bytes::from(wasm.to_owned()),
        throttler: says.clone(),
        retry: says,
        code: vec![],
    }
}

/// Waits until `done` returns true.
async fn until<T>(mut done: impl AsyncFnMut() -> Option<T>) -> T {
    let patience = SystemClock.now() + Duration::from_secs(20);
    while SystemClock.now() < patience {
        if let Some(value) = done().await {
            return value;
        }
        tokio::task::yield_now().await;
    }
    panic!("it did not come to pass");
}
