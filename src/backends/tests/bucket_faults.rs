//! The log over object stores: those that create once, those that do not, and answers that are
//! lost or wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue must fail")]

use std::{
    fmt::{self, Display, Formatter},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, local::LocalFileSystem, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tidegate_backends::{
    bucket_log::{Edge, LogError, Node, NodeSettings, StoreBucket, UnfitStore, identify, probe},
    sqlite::SqliteReplica,
    system::{SystemClock, SystemEntropy},
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

/// A store in memory with faults.
#[derive(Debug, Default)]
struct Faulty {
    inner: InMemory,
    faults: Mutex<Vec<PutFault>>,
    ignores_conditions: bool,
    is_read_only: bool,
    keeps_removed: bool,
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
        if self.keeps_removed { paths } else { self.inner.delete_stream(paths) }
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
        (Faulty { keeps_removed: true, ..Faulty::default() }, UnfitStore::NoRemovals),
    ] {
        assert_eq!(probe(&edge(Arc::new(store))).await, Err(problem));
    }
}

/// Runs a node with an empty disk until it has led for a while, or stops: then why.
async fn run_node(store: &Arc<InMemory>, submits: bool) -> Option<LogError> {
    let dir = TempDir::new().unwrap();
    let replica = Arc::new(SqliteReplica::open(dir.path()).unwrap());
    let settings = NodeSettings {
        log_interval: Duration::ZERO,
        rollover_records: 4,
        kept_snapshots: if submits { 1 } else { 2 },
        poll_interval: Duration::from_millis(1),
        patience: (Duration::ZERO, Duration::ZERO),
        ..NodeSettings::default()
    };
    let edge = edge(Arc::clone(store) as _);
    let opened = Node::open(edge, Arc::clone(&replica), settings).await;
    let (node, handle) = match opened {
        Ok(opened) => opened,
        Err(error) => return Some(error),
    };
    let submitted = async {
        let mut left = if submits { 20_u32 } else { 1 };
        while left > 0 || (submits && !has_snapshot(store).await) {
            match handle.submit(Vec::new()).await {
                Ok(_) => left = left.saturating_sub(1),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    tokio::select! {
        ended = node.run() => ended.err(),
        () = submitted => None,
    }
}

async fn has_snapshot(store: &InMemory) -> bool {
    let objects = store.list(None).collect::<Vec<_>>().await;
    objects.into_iter().any(|object| object.unwrap().location.as_ref().ends_with("/manifest"))
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
