//! What a server writes into the bucket of its log: in a simulated day in which nothing happens, and for
//! [jobs](metered).

mod metered;
mod timeline;

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::{
    auth::{Anonymous, Authenticate as _, BuiltIn, Credentials, Scope, TokenItem},
    runtime::testing::{builder_on, until},
};
use tidegate_backends::{
    bucket_log::{Edge, Node, NodeSettings, Pace, StoreBucket},
    sqlite::SqliteReplica,
    system::SystemEntropy,
};
use tidegate_core::{
    job::type_config::TypeConfig,
    port::{
        Clock as _, JobStore, StoreError, StoreLayer, job_store::SharedStore,
        store_layer::Operation,
    },
};
use tidegate_engine::memory::FakeClock;

/// How often beats are written without a standby, and uses of tokens are recorded.
const MINUTE: Duration = Duration::from_mins(1);
/// Minutes of a day.
const DAY: u64 = 24 * 60;
/// Minutes in which a token is used, after that day.
const MINUTES_OF_USE: u64 = 60;
/// What is due after a start has happened then.
const MINUTES_OF_THE_START: u64 = 5;
/// Most records and other objects of an idle day: two passes make a step every six hours, and the epoch of
/// the day ends with a snapshot.
const MAX_OBJECTS: u64 = 24;
/// How often other tasks run before it counts that nothing happens.
const QUIET_YIELDS: u32 = 50;

/// A bucket in memory that counts the PUTs of each object.
#[derive(Debug, Default)]
struct Bucket {
    inner: InMemory,
    puts: Mutex<BTreeMap<String, u64>>,
}

impl Bucket {
    /// PUTs of hints, and of all other objects.
    fn puts(&self) -> [u64; 2] {
        let mut puts = [0; 2];
        for (name, count) in &*self.puts.lock() {
            puts[usize::from(!name.contains("/hint/"))] += count;
        }
        puts
    }
}

impl Display for Bucket {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a bucket that counts PUTs")
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        *self.puts.lock().entry(path.to_string()).or_default() += 1;
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A store that counts its calls.
struct Counted {
    inner: SharedStore,
    calls: AtomicU64,
}

impl Counted {
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl StoreLayer for Counted {
    fn inner(&self) -> &dyn JobStore {
        &*self.inner
    }

    async fn around<T: Send>(
        &self,
        _: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        call.await
    }
}

/// Lets a minute pass, and happen what is due then.
async fn pass_minute(clock: &FakeClock, store: &Counted, bucket: &Bucket) {
    let (before, [hints_before, _]) = (store.calls(), bucket.puts());
    clock.advance(MINUTE);
    until("the sweeper has read the store", async || store.calls() > before).await;
    // The database works in real time, and beats wait while it applies a record.
    until("the leader has beaten", async || bucket.puts()[0] > hints_before).await;
    let mut last = 0;
    until("nothing more happens", async || {
        for _ in 0..QUIET_YIELDS {
            tokio::task::yield_now().await;
        }
        let calls = store.calls();
        std::mem::replace(&mut last, calls) == calls
    })
    .await;
}

#[tokio::test]
async fn an_idle_day_writes_beats_and_few_records() {
    let (bucket, clock) = (Arc::<Bucket>::default(), Arc::<FakeClock>::default());
    let log = Arc::new(StoreBucket::new(Arc::clone(&bucket) as _, "log".into()));
    let edge = Edge {
        bucket: Arc::clone(&log) as _,
        clock: Arc::clone(&clock) as _,
        entropy: Arc::new(SystemEntropy),
    };
    let dir = TempDir::new().unwrap();
    let replica = Arc::new(SqliteReplica::open(dir.path()).unwrap());
    let settings = NodeSettings {
        // A record need not wait for time to pass.
        pace: Pace::Latency { interval: Duration::ZERO },
        leads_at_start: true,
        ..NodeSettings::default().with_takeover(Duration::from_secs(7))
    };
    let (node, handle) = Node::open(edge, Arc::clone(&replica), settings).await.unwrap();
    let node = node.with_hints(log);
    replica.connect(handle.clone());
    let running = tokio::spawn(async move { node.run_once().await });
    let mut leadership = handle.leadership();
    leadership.wait_for(Option::is_some).await.unwrap();

    let store = Arc::new(Counted { inner: replica.store(), calls: AtomicU64::new(0) });
    let builder = builder_on(&clock, Arc::clone(&store) as _, Arc::clone(&bucket) as _);
    let server = builder.start().await.unwrap();
    server.put_type(&"pull".parse().unwrap(), TypeConfig::default(), None).await.unwrap();
    let auth = BuiltIn::new(None, Anonymous::Refused, Arc::clone(&clock) as _);
    let (token, text) = TokenItem::mint("worker", Scope::Work.into(), clock.now(), &SystemEntropy);
    server.put_token(&token).await.unwrap();
    auth.set_tokens(server.tokens().await.unwrap());
    // A load balancer calls `ready`, and `tidegate serve` records uses of tokens.
    let pass = async || {
        pass_minute(&clock, &store, &bucket).await;
        server.ready().await.unwrap();
        server.record_token_uses(&auth, MINUTE).await;
    };
    for _ in 0..MINUTES_OF_THE_START {
        pass().await;
    }
    let [hints_before, objects_before] = bucket.puts();
    assert!(objects_before > 0, "the start has written records");
    for _ in 0..DAY {
        pass().await;
    }
    let [hints, objects] = bucket.puts();
    let (beats, written) = (hints - hints_before, objects - objects_before);
    assert!(!running.is_finished() && handle.epoch().is_some(), "the server leads");
    // The thread of the database may be slower than the clock of the test: then a record delays a beat, or a
    // beat is repeated.
    let a_minute = DAY - MAX_OBJECTS..=DAY + MAX_OBJECTS;
    assert!(a_minute.contains(&beats), "a beat a minute: {beats}");
    assert!(written <= MAX_OBJECTS, "{written} objects: {:#?}", bucket.puts.lock());

    let credentials = Credentials::from_header(Some(&format!("Bearer {text}"))).unwrap();
    for _ in 0..MINUTES_OF_USE {
        auth.authenticate(&credentials).await.unwrap();
        pass().await;
    }
    let written = bucket.puts()[1] - objects;
    let expected = MINUTES_OF_USE..=MINUTES_OF_USE + MAX_OBJECTS;
    assert!(expected.contains(&written), "a record of the use of tokens a minute: {written}");
}
