//! Servers in memory for the tests of this folder. Only the tests move time.

use std::{
    fmt::{self, Display, Formatter},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, future, poll, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use tokio::sync::Barrier;

use super::{Builder, Server};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::port::{
    Target,
    job_store::SharedStore,
    policy::NoPolicy,
    target::{Request, Response, TargetError},
};
use tidegate_engine::{
    Ports,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue},
};

/// Answers every push.
pub(super) struct AcceptAll;

#[async_trait]
impl Target for AcceptAll {
    async fn call(&self, _: Request) -> std::result::Result<Response, TargetError> {
        Ok(Response { status: 200, headers: Vec::new(), body: bytes::Bytes::new() })
    }
}

/// A builder of a server with an empty store.
pub(super) fn builder(clock: &Arc<FakeClock>) -> Builder {
    builder_on(clock, Arc::new(MemoryStore::new()), Arc::new(InMemory::new()))
}

/// A builder of a server on `store` and `objects`.
pub(super) fn builder_on(
    clock: &Arc<FakeClock>,
    store: SharedStore,
    objects: Arc<dyn ObjectStore>,
) -> Builder {
    let ports = Ports {
        store,
        objects,
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::clone(clock) as _,
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    };
    Server::builder(ports, Arc::new(AcceptAll))
}

/// Yields until `good` returns `true`.
pub(super) async fn until(what: &str, mut good: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000_000 {
        if good().await {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to that: {what}")
}

/// The result of `future`, which needs no time to pass.
pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut result = None;
    until(what, async || {
        if let Poll::Ready(ready) = poll!(&mut future) {
            result = Some(ready);
        }
        result.is_some()
    })
    .await;
    result.expect("it is ready")
}

/// A request to the object storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectRequest {
    Put,
    Get,
    List,
}

/// Object storage in memory that refuses one kind of request.
#[derive(Debug, Default)]
pub(super) struct RefusingObjects {
    pub(super) inner: InMemory,
    refused: Mutex<Option<ObjectRequest>>,
    together: Mutex<Option<Arc<Barrier>>>,
}

impl RefusingObjects {
    /// Sets the kind of request that is refused from now on.
    pub(super) fn refuse(&self, request: impl Into<Option<ObjectRequest>>) {
        *self.refused.lock() = request.into();
    }

    /// From now on a put waits until `count` of them wait.
    pub(super) fn put_together(&self, count: usize) {
        *self.together.lock() = Some(Arc::new(Barrier::new(count)));
    }

    fn check(&self, request: ObjectRequest) -> Result<()> {
        if *self.refused.lock() == Some(request) {
            return Err(object_store::Error::Generic { store: "test", source: "refused".into() });
        }
        Ok(())
    }
}

impl Display for RefusingObjects {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("objects that refuse a kind of request")
    }
}

#[async_trait]
impl ObjectStore for RefusingObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.check(ObjectRequest::Put)?;
        let together = self.together.lock().clone();
        if let Some(barrier) = together {
            barrier.wait().await;
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(ObjectRequest::Get)?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.check(ObjectRequest::List) {
            Ok(()) => self.inner.list(prefix),
            Err(error) => future::ready(Err(error)).into_stream().boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
