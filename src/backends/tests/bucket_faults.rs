//! The log over object stores: those that create once, those that do not, and answers that are
//! lost or wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue must fail")]

use std::{
    fmt::{self, Display, Formatter},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, local::LocalFileSystem, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tidegate_backends::{
    bucket_log::{
        Edge, Ended, Handle, LogBucket as _, LogError, LogRefusal, Node, NodeSettings, Pace,
        StoreBucket, UnfitStore, identify, key::ObjectKey, probe,
    },
    sqlite::SqliteReplica,
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::{
    port::{Clock, job_store::Committed},
    time::Timestamp,
};

/// What the store does with the next PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PutFault {
    /// It is written, and the answer is an error of the server or of the connection.
    ErrorAfterWrite,
    /// It is not written, and the answer is an error.
    ErrorBeforeWrite,
    /// It is written, and the client has repeated it: one's own object exists.
    RepeatedByClient,
    /// It is not written, because another request for the name is under way: a 409 of S3, which the
    /// client takes for "it exists".
    Conflict,
    /// Another process was faster.
    Overtaken,
}

/// What the store does with a DELETE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Removal {
    #[default]
    Works,
    /// The answer is a success, and the object is still there.
    DoesNothing,
    /// There is no answer.
    Hangs,
}

/// A store in memory with faults.
#[derive(Debug, Default)]
struct Faulty {
    inner: InMemory,
    faults: Mutex<Vec<PutFault>>,
    ignores_conditions: bool,
    is_read_only: bool,
    removal: Removal,
    /// How many removals have begun.
    removals: AtomicUsize,
    /// The number of the beat that fails, from 1 on; 0 for none.
    failing_beat: usize,
    /// How many beats were sent.
    beats: AtomicUsize,
    /// What another process has written.
    another: InMemory,
}

impl Display for Faulty {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a store with faults")
    }
}

fn server_error() -> Error {
    Error::Generic { store: "test", source: "500 Internal Server Error".into() }
}

fn exists(path: &Path) -> Error {
    Error::AlreadyExists { path: path.to_string(), source: "it exists".into() }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if self.ignores_conditions {
            options.mode = PutMode::Overwrite;
        }
        if self.is_read_only {
            return Err(server_error());
        }
        if path.as_ref().ends_with("hint/leader")
            && self.beats.fetch_add(1, Ordering::Relaxed) + 1 == self.failing_beat
        {
            return Err(server_error());
        }
        let fault = self.faults.lock().pop();
        match fault {
            None => self.inner.put_opts(path, payload, options).await,
            Some(PutFault::ErrorBeforeWrite) => Err(server_error()),
            Some(PutFault::Conflict) => Err(exists(path)),
            Some(PutFault::ErrorAfterWrite) => {
                self.inner.put_opts(path, payload, options).await?;
                Err(server_error())
            }
            Some(PutFault::RepeatedByClient) => {
                self.inner.put_opts(path, payload, options).await?;
                Err(exists(path))
            }
            Some(PutFault::Overtaken) => {
                let other = identity(&self.another).await;
                self.inner.put(path, other.into()).await?;
                self.inner.put_opts(path, payload, options).await
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.removals.fetch_add(1, Ordering::Relaxed);
        match self.removal {
            Removal::Works => self.inner.delete_stream(paths),
            Removal::DoesNothing => paths,
            Removal::Hangs => stream::pending().boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn edge(store: Arc<dyn ObjectStore>) -> Edge {
    Edge {
        bucket: Arc::new(StoreBucket::new(store, Path::from("a/prefix"))),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    }
}

/// What is stored as the identity of the log.
async fn identity(store: &dyn ObjectStore) -> Bytes {
    store.get(&Path::from("a/prefix/log.json")).await.unwrap().bytes().await.unwrap()
}

#[tokio::test]
async fn an_object_is_created_once_whatever_the_store_answers() {
    use PutFault::{Conflict, ErrorAfterWrite, ErrorBeforeWrite, Overtaken, RepeatedByClient};
    for faults in [
        &[][..],
        &[ErrorAfterWrite],
        &[ErrorBeforeWrite],
        &[RepeatedByClient],
        &[Conflict],
        &[Conflict, ErrorBeforeWrite, RepeatedByClient],
        &[ErrorBeforeWrite, ErrorBeforeWrite, ErrorAfterWrite],
    ] {
        let reversed: Vec<PutFault> = faults.iter().rev().copied().collect();
        let store = Arc::new(Faulty { faults: reversed.into(), ..Faulty::default() });
        let edge = edge(Arc::clone(&store) as _);
        let log = identify(&edge).await.unwrap();
        let text = String::from_utf8(identity(&*store).await.to_vec()).unwrap();
        assert!(text.contains(&format!("{:032x}", log.0)), "{faults:?}: {text}");
        assert_eq!(identify(&edge).await.unwrap(), log, "{faults:?}");
        assert!(store.faults.lock().is_empty(), "{faults:?} were met");
    }
    let another = Arc::new(InMemory::new());
    let log = identify(&edge(Arc::clone(&another) as _)).await.unwrap();
    let faults = vec![Overtaken].into();
    let store = Faulty { faults, another: another.fork(), ..Faulty::default() };
    assert_eq!(identify(&edge(Arc::new(store))).await.unwrap(), log, "the other process won");
}

#[tokio::test]
async fn stores_that_create_once_are_fit_for_a_log() {
    let dir = TempDir::new().unwrap();
    let files = LocalFileSystem::new_with_prefix(dir.path()).unwrap().with_fsync(true);
    let stores: [Arc<dyn ObjectStore>; 2] = [Arc::new(InMemory::new()), Arc::new(files)];
    for store in stores {
        probe(&edge(Arc::clone(&store))).await.unwrap();
        assert_eq!(store.list(None).count().await, 0, "the probe is removed");
    }
}

#[tokio::test]
async fn stores_that_cannot_have_a_log_are_refused() {
    for (store, problem) in [
        (Faulty { ignores_conditions: true, ..Faulty::default() }, UnfitStore::Overwrites),
        (Faulty { is_read_only: true, ..Faulty::default() }, UnfitStore::NoWrites),
        (Faulty { removal: Removal::DoesNothing, ..Faulty::default() }, UnfitStore::NoRemovals),
    ] {
        assert_eq!(probe(&edge(Arc::new(store))).await, Err(problem));
    }
}

#[tokio::test]
async fn a_bucket_answers_until_three_requests_have_failed() {
    let faults = vec![PutFault::ErrorBeforeWrite; 3].into();
    let store = Arc::new(Faulty { faults, ..Faulty::default() });
    let bucket = StoreBucket::new(store, Path::from("a/prefix"));
    for is_answered in [true, true, false, true] {
        bucket.create(&ObjectKey::Identity, Bytes::from_static(b"an identity")).await;
        bucket.read(&ObjectKey::Identity).await;
        assert_eq!(bucket.answers(), is_answered, "whatever is read meanwhile");
    }
}

#[tokio::test]
async fn a_bucket_answers_a_put_whose_object_a_get_finds() {
    use PutFault::{ErrorAfterWrite, ErrorBeforeWrite};
    let faults = vec![ErrorAfterWrite, ErrorBeforeWrite, ErrorBeforeWrite].into();
    let store = Arc::new(Faulty { faults, ..Faulty::default() });
    let edge = edge(Arc::clone(&store) as _);
    identify(&edge).await.unwrap();
    assert!(store.faults.lock().is_empty(), "three PUTs have failed");
    assert!(edge.bucket.answers(), "no PUT follows on an idle leader");
}

#[tokio::test]
async fn probes_do_not_show_whether_a_bucket_answers() {
    let edge = edge(Arc::new(Faulty { is_read_only: true, ..Faulty::default() }));
    assert_eq!(probe(&edge).await, Err(UnfitStore::NoWrites));
    assert!(edge.bucket.answers(), "no PUT follows on an idle leader");
}

/// A node with an empty disk, once it is open.
async fn open_node(
    edge: Edge,
    settings: NodeSettings,
) -> Result<(TempDir, Node<SqliteReplica>, Handle<Committed>), LogError> {
    let dir = TempDir::new().unwrap();
    let replica = Arc::new(SqliteReplica::open(dir.path()).unwrap());
    let (node, handle) = Node::open(edge, replica, settings).await?;
    Ok((dir, node, handle))
}

/// The bounds of a node that leads soon, and rolls over often.
fn settings(kept_snapshots: usize) -> NodeSettings {
    NodeSettings {
        pace: Pace::Latency { interval: Duration::from_millis(1) },
        rollover_records: 4,
        kept_snapshots,
        poll_interval: Duration::from_millis(1),
        patience: (Duration::ZERO, Duration::ZERO),
        ..NodeSettings::default()
    }
}

/// Submits an empty request; whether it was executed.
async fn submits(handle: &Handle<Committed>) -> bool {
    let is_executed = handle.submit(Vec::new()).await.is_ok();
    if !is_executed {
        tokio::task::yield_now().await;
    }
    is_executed
}

/// Runs a node with an empty disk until it has led for a while, or stops: then why.
async fn run_node(store: &Arc<InMemory>, submits_many: bool) -> Option<LogError> {
    let settings = settings(if submits_many { 1 } else { 2 });
    let opened = open_node(edge(Arc::clone(store) as _), settings).await;
    let (_dir, node, handle) = match opened {
        Ok(opened) => opened,
        Err(error) => return Some(error),
    };
    let submitted = async {
        let mut left = if submits_many { 20_u32 } else { 1 };
        while left > 0 || (submits_many && !has_snapshot(store).await) {
            left = left.saturating_sub(u32::from(submits(&handle).await));
        }
    };
    tokio::select! {
        ended = node.run() => ended.err(),
        () = submitted => None,
    }
}

/// A clock that is set back by an hour whenever it is read.
#[derive(Default)]
struct SetBack(AtomicI64);

#[async_trait]
impl Clock for SetBack {
    fn now(&self) -> Timestamp {
        let hours = self.0.fetch_add(1, Ordering::Relaxed);
        Timestamp::from_millis(SystemClock.now().millis() - hours * 3_600_000)
    }

    async fn sleep_until(&self, _: Timestamp) {
        std::future::pending::<()>().await;
    }

    async fn sleep(&self, span: Duration) {
        SystemClock.sleep(span).await;
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_stop_the_log() {
    let faults = vec![PutFault::ErrorBeforeWrite; 3].into();
    let store = Arc::new(Faulty { faults, ..Faulty::default() });
    let edge = Edge { clock: Arc::new(SetBack::default()), ..edge(store) };
    let (_dir, node, handle) = open_node(edge, settings(1)).await.unwrap();
    let submitted = async {
        let mut left = 10_u32;
        while left > 0 {
            left -= u32::from(submits(&handle).await);
        }
    };
    tokio::select! {
        ended = node.run() => panic!("{ended:?}"),
        () = submitted => {}
    }
}

#[tokio::test]
async fn snapshots_go_on_while_removals_hang() {
    let store = Arc::new(Faulty { removal: Removal::Hangs, ..Faulty::default() });
    let edge = edge(Arc::clone(&store) as _);
    let (_dir, node, handle) = open_node(edge, settings(1)).await.unwrap();
    let submitted = async {
        while manifests(&store.inner).await < 3 {
            submits(&handle).await;
        }
    };
    tokio::select! {
        ended = node.run() => panic!("{ended:?}"),
        () = submitted => {}
    }
    let begun = store.removals.load(Ordering::Relaxed);
    assert!((2..=32).contains(&begun), "one truncation removes {begun} records at once");
}

#[tokio::test]
async fn a_node_whose_run_was_dropped_serves_no_request() {
    let edge = edge(Arc::new(InMemory::new()));
    let (_dir, node, handle) = open_node(edge, settings(1)).await.unwrap();
    let submitted = async { while !submits(&handle).await {} };
    tokio::select! {
        ended = node.run() => panic!("{ended:?}"),
        () = submitted => {}
    }
    assert_eq!(handle.epoch(), None);
    assert_eq!(handle.submit(Vec::new()).await.err(), Some(LogRefusal::NotLeader));
}

#[tokio::test]
async fn a_leader_that_was_replaced_names_the_next_one() {
    let store = Arc::new(InMemory::new());
    let named = |address: &str| NodeSettings {
        address: address.to_owned(),
        leads_at_start: true,
        rollover_records: 10_000,
        ..settings(2)
    };
    let edge = || edge(Arc::clone(&store) as _);
    let (_dir, first, of_first) = open_node(edge(), named("http://a")).await.unwrap();
    let (_other_dir, second, of_second) = open_node(edge(), named("http://b")).await.unwrap();
    let mut running = pin!(first.run_once());
    let leads = async { while !submits(&of_first).await {} };
    tokio::select! {
        ended = &mut running => panic!("{ended:?}"),
        () = leads => {}
    }
    assert_eq!(of_first.leader(), None);
    let refused = async {
        while of_second.epoch().is_none() {
            tokio::task::yield_now().await;
        }
        of_first.submit(Vec::new()).await
    };
    let (ended, refused) = tokio::select! {
        ended = second.run() => panic!("{ended:?}"),
        both = async { tokio::join!(running, refused) } => both,
    };
    assert_eq!(ended.unwrap(), Ended::Lost);
    assert!(refused.is_err());
    assert_eq!(of_first.leader().as_deref(), Some("http://b"));
    assert_eq!(of_first.submit(Vec::new()).await.err(), Some(LogRefusal::NotLeader));
}

/// The interval of beats, longer than other waits of a node.
const BEAT_INTERVAL: Duration = Duration::from_secs(400);
/// The time until a beat that failed is repeated: a fifth of it.
const REPEAT_INTERVAL: Duration = Duration::from_secs(80);

/// A clock whose waits are over at once. It records those between beats.
#[derive(Default)]
struct NoWait(Mutex<Vec<Duration>>);

#[async_trait]
impl Clock for NoWait {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    async fn sleep_until(&self, _: Timestamp) {
        tokio::task::yield_now().await;
    }

    async fn sleep(&self, span: Duration) {
        if (REPEAT_INTERVAL..=BEAT_INTERVAL).contains(&span) {
            self.0.lock().push(span);
        }
        tokio::task::yield_now().await;
    }
}

/// The last object of the epoch before `epoch`: its seal.
async fn seal_before(store: &InMemory, epoch: u64) -> Path {
    let prefix = Path::from(format!("a/prefix/log/{:010}", epoch - 1));
    let objects = store.list(Some(&prefix)).map(|object| object.unwrap().location);
    objects.collect::<Vec<Path>>().await.into_iter().max().unwrap()
}

#[tokio::test]
async fn a_leader_stops_when_its_claim_or_the_last_seal_is_gone() {
    for loses_claim in [true, false] {
        let store = Arc::new(InMemory::new());
        let clock = Arc::new(NoWait::default());
        let edge = Edge { clock: clock as _, ..edge(Arc::clone(&store) as _) };
        let settings =
            NodeSettings { rollover_records: 10_000, leads_at_start: true, ..settings(2) };
        // Another process has led before, so there is a seal.
        let (_first_dir, first, of_first) =
            open_node(edge.clone(), settings.clone()).await.unwrap();
        let has_led = async { while !submits(&of_first).await {} };
        tokio::select! {
            ended = first.run() => panic!("{ended:?}"),
            () = has_led => {}
        }
        let (_dir, node, handle) = open_node(edge, settings).await.unwrap();
        let mut lost = Path::default();
        let loses = async {
            while !submits(&handle).await {}
            let epoch = handle.epoch().unwrap().number();
            lost = if loses_claim {
                Path::from(format!("a/prefix/epoch/{epoch:010}"))
            } else {
                seal_before(&store, epoch).await
            };
            store.delete(&lost).await.unwrap();
            std::future::pending::<()>().await;
        };
        let error = tokio::select! {
            ended = node.run() => ended.unwrap_err().to_string(),
            () = loses => unreachable!("it waits for ever"),
        };
        let name = lost.as_ref().strip_prefix("a/prefix/").unwrap();
        assert!(error.contains(name) && error.contains("lifecycle rule"), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_beat_that_fails_once_is_repeated_soon() {
    let store = Arc::new(Faulty { failing_beat: 2, ..Faulty::default() });
    let bucket = Arc::new(StoreBucket::new(Arc::clone(&store) as _, Path::from("a/prefix")));
    let clock = Arc::new(NoWait::default());
    let edge = Edge {
        bucket: Arc::clone(&bucket) as _,
        clock: Arc::clone(&clock) as _,
        entropy: Arc::new(SystemEntropy),
    };
    let settings = NodeSettings { beat_interval: BEAT_INTERVAL, ..settings(1) };
    let (_dir, node, _handle) = open_node(edge, settings).await.unwrap();
    let node = node.with_hints(bucket);
    let has_beaten = async {
        while clock.0.lock().len() < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ended = node.run() => panic!("{ended:?}"),
        () = has_beaten => {}
    }
    let waits = clock.0.lock()[..3].to_vec();
    assert_eq!(waits, [BEAT_INTERVAL, REPEAT_INTERVAL, BEAT_INTERVAL]);
}

/// How many snapshots there are.
async fn manifests(store: &InMemory) -> usize {
    let objects = store.list(None).collect::<Vec<_>>().await;
    let names = objects.into_iter().map(|object| object.unwrap().location);
    names.filter(|name| name.as_ref().ends_with("/manifest")).count()
}

async fn has_snapshot(store: &InMemory) -> bool {
    manifests(store).await > 0
}

/// The names and bytes of all objects.
async fn objects(store: &InMemory) -> Vec<(Path, Bytes)> {
    let mut objects = Vec::new();
    for meta in store.list(None).collect::<Vec<_>>().await {
        let path = meta.unwrap().location;
        let bytes = store.get(&path).await.unwrap().bytes().await.unwrap();
        objects.push((path, bytes));
    }
    objects
}

/// A bucket with these objects; `change` makes another object of each, or removes it.
async fn bucket_with(
    objects: &[(Path, Bytes)],
    change: impl Fn(&Path, &Bytes) -> Option<Bytes>,
) -> Arc<InMemory> {
    let store = Arc::new(InMemory::new());
    for (path, bytes) in objects {
        if let Some(bytes) = change(path, bytes) {
            store.put(path, bytes.into()).await.unwrap();
        }
    }
    store
}

/// An object that is damaged or gone is refused with its name, and nothing is built on what is left.
/// What no restore reads, such as an older claim, may be damaged.
#[tokio::test]
async fn a_damaged_object_is_refused_with_its_name() {
    let store = Arc::new(InMemory::new());
    assert!(run_node(&store, true).await.is_none());
    assert!(run_node(&store, true).await.is_none());
    let all = objects(&store).await;
    let newest_claim = all.iter().rfind(|(path, _)| path.as_ref().contains("epoch/"));
    let newest_claim = newest_claim.unwrap().0.clone();
    let mut refused = Vec::new();
    for (broken, _) in &all {
        let store = bucket_with(&all, |path, bytes| {
            let mut bytes = bytes.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= u8::from(path == broken);
            Some(bytes.into())
        });
        match run_node(&store.await, false).await {
            Some(LogError::Object { key, .. }) => {
                assert_eq!(format!("a/prefix/{key}"), broken.as_ref());
                refused.push(key);
            }
            Some(error) => panic!("{broken}: {error}"),
            None => {}
        }
    }
    let is_refused = |start: &str, end: &str| {
        refused.iter().any(|key| key.starts_with(start) && key.ends_with(end))
    };
    let newest_claim = newest_claim.filename().unwrap();
    for (start, end) in [
        ("log.json", ""),
        ("snap/", "/manifest"),
        ("snap/", "/00000"),
        ("log/", ""),
        ("epoch/", newest_claim),
    ] {
        assert!(is_refused(start, end), "{start}...{end}: {refused:?}");
    }
}

/// The newest claim names a snapshot, so there must be one.
#[tokio::test]
async fn a_manifest_that_is_gone_is_refused_with_its_name() {
    let store = Arc::new(InMemory::new());
    assert!(run_node(&store, true).await.is_none());
    assert!(run_node(&store, true).await.is_none());
    let all = objects(&store).await;
    let is_manifest = |path: &Path| path.as_ref().ends_with("/manifest");
    let store = bucket_with(&all, |path, bytes| (!is_manifest(path)).then(|| bytes.clone())).await;
    let error = run_node(&store, false).await.expect("it is refused").to_string();
    assert!(error.contains("/manifest") && error.contains("it is gone"), "{error}");
}

#[tokio::test]
async fn a_record_that_is_gone_is_refused_with_its_name() {
    let store = Arc::new(InMemory::new());
    // No epoch ends before another machine takes over, so there is no snapshot yet.
    assert!(run_node(&store, false).await.is_none());
    assert!(run_node(&store, false).await.is_none());
    let all = objects(&store).await;
    let log = |path: &Path| path.as_ref().contains("log/0000000001/");
    let all: Vec<_> =
        all.into_iter().filter(|(path, _)| !path.as_ref().contains("snap/")).collect();
    for (gone, _) in all.iter().filter(|(path, _)| log(path)) {
        let store = bucket_with(&all, |path, bytes| (path != gone).then(|| bytes.clone())).await;
        let error = run_node(&store, false).await.expect("it is refused").to_string();
        let name = gone.as_ref().trim_start_matches("a/prefix/");
        assert!(error.contains(name) && error.contains("it is gone"), "{name}: {error}");
        assert_eq!(store.head(gone).await.ok(), None, "nothing takes its place");
    }
}
