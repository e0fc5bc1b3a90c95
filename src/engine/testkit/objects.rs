//! Object storage with faults, in memory.

use std::{
    fmt::{self, Display, Formatter},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, future, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use tokio::sync::Barrier;

/// A request to the object storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectRequest {
    /// An object is written. If it fails, the object is stored and only the answer is lost.
    Put,
    /// An object is read.
    Get,
    /// Objects are listed.
    List,
    /// Objects are removed.
    Delete,
}

/// Object storage in memory in which some kinds of requests fail.
#[derive(Debug, Default)]
pub struct FaultyObjects {
    /// The objects, without faults.
    pub inner: InMemory,
    failing: Mutex<Vec<ObjectRequest>>,
    failed: AtomicUsize,
    together: Mutex<Option<Arc<Barrier>>>,
}

impl FaultyObjects {
    /// Sets the requests that fail from now on.
    pub fn fail(&self, requests: impl IntoIterator<Item = ObjectRequest>) {
        *self.failing.lock() = requests.into_iter().collect();
    }

    /// The number of requests that failed.
    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }

    /// From now on a put waits until `count` of them wait.
    pub fn put_together(&self, count: usize) {
        *self.together.lock() = Some(Arc::new(Barrier::new(count)));
    }

    fn check(&self, request: ObjectRequest) -> Result<()> {
        if self.failing.lock().contains(&request) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(object_store::Error::Generic { store: "test", source: "injected".into() });
        }
        Ok(())
    }
}

impl Display for FaultyObjects {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("objects with faults")
    }
}

#[async_trait]
impl ObjectStore for FaultyObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let together = self.together.lock().clone();
        if let Some(barrier) = together {
            barrier.wait().await;
        }
        let done = self.inner.put_opts(location, payload, opts).await?;
        self.check(ObjectRequest::Put)?;
        Ok(done)
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
        match self.check(ObjectRequest::Delete) {
            Ok(()) => self.inner.delete_stream(locations),
            Err(error) => future::ready(Err(error)).into_stream().boxed(),
        }
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
