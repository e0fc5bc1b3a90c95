//! Object storage that counts what is billed, and answers after a while of virtual time.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Display, Formatter},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};
use parking_lot::Mutex;

use super::super::simulation::executor::Executor;
use crate::cost::Prices;

/// The bounds of half a round trip, in milliseconds: a request takes 60 ms on average.
const TRAVEL: (i64, i64) = (20, 41);

/// How soon requests are answered after a silence, in milliseconds.
const SILENCE_POLL: i64 = 100;

/// Requests, or their share of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Requests {
    pub puts: f64,
    pub gets: f64,
}

impl Requests {
    pub fn minus(self, other: Self) -> Self {
        Self { puts: self.puts - other.puts, gets: self.gets - other.gets }
    }

    pub fn and(self, other: Self) -> Self {
        Self { puts: self.puts + other.puts, gets: self.gets + other.gets }
    }

    pub fn times(self, factor: f64) -> Self {
        Self { puts: self.puts * factor, gets: self.gets * factor }
    }

    /// What they cost.
    pub fn dollars(self, prices: &Prices) -> f64 {
        (self.puts * prices.put + self.gets * prices.get) / 1e6
    }
}

/// A store in memory. Refused PUTs and GETs of absent objects are billed, too; removals are free.
pub struct MeteredStore {
    inner: InMemory,
    executor: Arc<Executor>,
    puts: AtomicU64,
    gets: AtomicU64,
    /// When each object was written, in milliseconds.
    written: Mutex<BTreeMap<Path, i64>>,
    /// How much longer half a round trip takes than usual, in milliseconds.
    pub delay: AtomicI64,
    /// Whether no request has an answer until this ends.
    pub is_silent: AtomicBool,
}

impl MeteredStore {
    pub fn new(executor: Arc<Executor>) -> Self {
        Self {
            inner: InMemory::new(),
            executor,
            puts: 0.into(),
            gets: 0.into(),
            written: Mutex::default(),
            delay: 0.into(),
            is_silent: false.into(),
        }
    }

    /// The requests so far.
    pub fn requests(&self) -> Requests {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        Requests { puts: count(&self.puts), gets: count(&self.gets) }
    }

    async fn travel(&self) {
        let delay = self.delay.load(Ordering::Relaxed);
        self.executor.elapse(self.executor.between(TRAVEL.0, TRAVEL.1) + delay).await;
        while self.is_silent.load(Ordering::Relaxed) {
            self.executor.elapse(SILENCE_POLL).await;
        }
    }
}

impl Debug for MeteredStore {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.requests())
    }
}

impl Display for MeteredStore {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a store that counts requests")
    }
}

#[async_trait]
impl ObjectStore for MeteredStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.travel().await;
        let put = self.inner.put_opts(path, payload, options).await;
        if put.is_ok() {
            self.written.lock().insert(path.clone(), self.executor.now());
        }
        self.travel().await;
        put
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.travel().await;
        let found = self.inner.get_opts(path, options).await;
        self.travel().await;
        found
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    /// Objects are as old as in virtual time.
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (now, written) = (self.executor.now(), self.written.lock().clone());
        let aged = move |mut object: ObjectMeta| {
            let age = written.get(&object.location).map_or(0, |at| now - at);
            object.last_modified -= Duration::from_millis(age as u64);
            object
        };
        self.inner.list(prefix).map_ok(aged).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
