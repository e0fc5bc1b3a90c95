//! The bucket: what a node may ask of object storage, and the requests until they have an answer.
//!
//! No request of a [`LogBucket`] overwrites, and none lists: no decision of a node may depend on either. A
//! [`Removable`] is the only object that can be removed. [`Hints`] alone are overwritten.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
    path::Path,
};
use tidegate_core::{
    port::{Clock, Entropy},
    time::Timestamp,
};

use super::{
    answers::Answers,
    create::{Created, GetAnswer, PutAnswer, after_get, after_put},
    error::LogError,
    hints::{Hint, Hints},
    key::ObjectKey,
    object::CLEAR,
    truncate::Removable,
};
use crate::sealed::{
    Keys, ObjectEncryption,
    object::{ObjectCipher, ObjectError},
};

/// The first wait before a request is repeated; each further one is twice as long.
pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
/// The longest wait before a request is repeated.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Most bytes that are read of a hint. Hints are smaller.
const MAX_HINT_BYTES: u64 = 4096;
/// How often the removal of an object is tried. What is left is removed after a later snapshot, and
/// a store that removes nothing must not prevent that snapshot.
const MAX_REMOVALS: u32 = 10;

/// Object storage in which an object can be created once.
#[async_trait]
pub trait LogBucket: Send + Sync {
    /// Writes an object unless there is one.
    async fn create(&self, key: &ObjectKey, bytes: Bytes) -> PutAnswer;

    /// Reads an object, strongly consistent.
    async fn read(&self, key: &ObjectKey) -> GetAnswer;

    /// Removes an object; whether it is known that the store did so. Removing what is absent counts.
    async fn remove(&self, object: &Removable) -> bool;

    /// Whether the store answers, as far as the last requests show. No request is sent.
    fn answers(&self) -> bool {
        true
    }

    /// Notes that a GET has found the object of a PUT that had no clear answer: the store has answered it.
    fn note_decided(&self, _: &ObjectKey) {}

    /// Ends once a read was given up before it had an answer, and none has had one since. It does not end if
    /// that is not known.
    async fn doubted(&self) {
        pending::<()>().await;
    }
}

/// An object, as a store lists it.
#[derive(Clone, Debug)]
pub(super) struct ListedObject {
    /// Its name below the prefix of the log.
    pub name: String,
    /// How many bytes it has.
    pub bytes: u64,
    /// When it was written, by the clock of the store.
    pub written_at: Timestamp,
}

/// Whether requests for an object count. A probe is not repeated, and several PUTs of one at once may be too
/// many for a store. Parts have a client of their own, and may fail where records do not.
fn is_counted(key: &ObjectKey) -> bool {
    !matches!(key, ObjectKey::Part { .. } | ObjectKey::Probe(_))
}

/// A prefix of a bucket of an object store. The client must not repeat a request by itself: a
/// repeated PUT whose first answer was lost would return that the object exists.
#[derive(Debug)]
pub struct StoreBucket {
    store: Arc<dyn ObjectStore>,
    /// The client for the parts of snapshots, which take longer than other objects.
    parts: Arc<dyn ObjectStore>,
    prefix: Path,
    cipher: Option<ObjectCipher>,
    /// A PUT is repeated until its object is there, so no failed one stays counted on an idle leader. PUTs of
    /// hints are not among them: a store that writes one may hold back a record.
    puts: Answers,
    /// Beats show soon that GETs are answered again.
    gets: Answers,
}

impl StoreBucket {
    /// The objects below `prefix`.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        let parts = Arc::clone(&store);
        let (puts, gets) = (Answers::default(), Answers::default());
        Self { store, parts, prefix, cipher: None, puts, gets }
    }

    /// The same, with another client for the parts of snapshots.
    #[must_use]
    pub fn with_parts_in(self, parts: Arc<dyn ObjectStore>) -> Self {
        Self { parts, ..self }
    }

    /// The same, which decrypts objects with `keys`. `encryption` says whether new ones are encrypted,
    /// with the first of them, and whether clear ones are read.
    #[must_use]
    pub fn with_keys(self, keys: Keys, encryption: ObjectEncryption) -> Self {
        Self { cipher: Some(ObjectCipher::new(keys, encryption)), ..self }
    }

    /// The cipher of an object. The identity stays clear: it says which log this is to a server that has
    /// no key.
    fn cipher(&self, key: &ObjectKey) -> Option<&ObjectCipher> {
        self.cipher.as_ref().filter(|_| *key != ObjectKey::Identity)
    }

    /// Encrypts the bytes of a new object.
    fn seal(&self, key: &ObjectKey, bytes: Bytes) -> Result<Bytes, ObjectError> {
        match self.cipher(key) {
            Some(cipher) => cipher.seal(bytes, &key.to_string()),
            None => Ok(bytes),
        }
    }

    /// Decrypts the bytes of an object. What cannot be decrypted stays as it is, and
    /// [`Object::decode`](super::object::Object::decode) names its key. [`CLEAR`] takes the place of a
    /// clear object that is refused: a writer without a key may have made it.
    fn open(&self, key: &ObjectKey, bytes: Bytes) -> Bytes {
        let Some(cipher) = self.cipher(key) else { return bytes };
        match cipher.open(bytes.clone(), &key.to_string()) {
            Ok(clear) => clear,
            Err(ObjectError::Clear) => Bytes::from_static(CLEAR),
            Err(_) => bytes,
        }
    }

    fn store(&self, key: &ObjectKey) -> &dyn ObjectStore {
        if matches!(key, ObjectKey::Part { .. }) { &*self.parts } else { &*self.store }
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), Path::join)
    }

    /// Lists the objects below `folder`; none if the store does not do so. Only what no node needs is looked
    /// for with a list.
    pub(super) async fn list(&self, folder: &str) -> Option<Vec<ListedObject>> {
        let folder = self.path(folder);
        let listed = self.store.list(Some(&folder)).try_collect::<Vec<_>>().await;
        let listed = listed
            .inspect_err(|error| tracing::warn!(%folder, %error, "a list of the log failed"))
            .ok()?;
        let objects = listed.into_iter().filter_map(|object| {
            let (name, prefix): (&str, &str) = (object.location.as_ref(), self.prefix.as_ref());
            let name = name.strip_prefix(prefix)?.trim_start_matches('/').to_owned();
            Some(ListedObject {
                name,
                bytes: object.size,
                written_at: Timestamp::from_millis(object.last_modified.timestamp_millis()),
            })
        });
        Some(objects.collect())
    }
}

#[async_trait]
impl LogBucket for StoreBucket {
    async fn create(&self, key: &ObjectKey, bytes: Bytes) -> PutAnswer {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let bytes = match self.seal(key, bytes) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%key, %error, "an object of the log cannot be encrypted");
                return PutAnswer::Unknown;
            }
        };
        let (store, path) = (self.store(key), self.path(&key.to_string()));
        let pending = is_counted(key).then(|| self.puts.begin());
        let written = store.put_opts(&path, PutPayload::from(bytes), options).await;
        let answer = match written {
            Ok(_) => PutAnswer::Created,
            Err(
                Error::AlreadyExists { .. }
                | Error::Precondition { .. }
                | Error::NotModified { .. },
            ) => PutAnswer::Exists,
            Err(error) => {
                tracing::warn!(%key, %error, "a PUT of the log has no clear answer");
                PutAnswer::Unknown
            }
        };
        if let Some(pending) = pending {
            pending.end(answer != PutAnswer::Unknown);
        }
        answer
    }

    async fn read(&self, key: &ObjectKey) -> GetAnswer {
        let (store, path) = (self.store(key), self.path(&key.to_string()));
        let pending = is_counted(key).then(|| self.gets.begin());
        let read = async { store.get_opts(&path, GetOptions::default()).await?.bytes().await };
        let answer = match read.await {
            Ok(bytes) => GetAnswer::Found(self.open(key, bytes)),
            Err(Error::NotFound { .. }) => GetAnswer::Absent,
            Err(error) => {
                tracing::warn!(%key, %error, "a GET of the log failed");
                GetAnswer::Unknown
            }
        };
        if let Some(pending) = pending {
            pending.end(answer != GetAnswer::Unknown);
        }
        answer
    }

    async fn remove(&self, object: &Removable) -> bool {
        match self.store.delete(&self.path(&object.key().to_string())).await {
            Ok(()) | Err(Error::NotFound { .. }) => true,
            Err(error) => {
                tracing::warn!(key = %object.key(), %error, "a DELETE of the log failed");
                false
            }
        }
    }

    fn answers(&self) -> bool {
        self.puts.are_there() && self.gets.are_there()
    }

    fn note_decided(&self, key: &ObjectKey) {
        if is_counted(key) {
            self.puts.note_answer();
        }
    }

    async fn doubted(&self) {
        self.gets.doubted().await;
    }
}

#[async_trait]
impl Hints for StoreBucket {
    async fn write(&self, hint: Hint, bytes: Bytes) -> bool {
        let (path, payload) = (self.path(hint.name()), PutPayload::from(bytes));
        let written = self.store.put_opts(&path, payload, PutOptions::default()).await;
        if let Err(error) = &written {
            tracing::warn!(hint = hint.name(), %error, "a hint of the log was not written");
        }
        written.is_ok()
    }

    async fn read(&self, hint: Hint) -> Option<Bytes> {
        let path = self.path(hint.name());
        let range = GetOptions { range: Some((0..MAX_HINT_BYTES).into()), ..GetOptions::default() };
        let pending = self.gets.begin();
        let read = async { self.store.get_opts(&path, range).await?.bytes().await };
        let read = read.await;
        pending.end(matches!(read, Ok(_) | Err(Error::NotFound { .. })));
        match read {
            Ok(bytes) => Some(bytes),
            Err(Error::NotFound { .. }) => None,
            Err(error) => {
                tracing::debug!(hint = hint.name(), %error, "a hint of the log was not read");
                None
            }
        }
    }
}

/// A bucket, and the time and chance that repeating a request needs.
#[derive(Clone)]
pub struct Edge {
    /// The bucket.
    pub bucket: Arc<dyn LogBucket>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The random numbers.
    pub entropy: Arc<dyn Entropy>,
}

impl Edge {
    /// Creates an object, or finds out which one is there. It ends when the slot is decided.
    pub(super) async fn create(&self, key: &ObjectKey, bytes: &Bytes) -> Created {
        self.create_hedged(key, bytes, None).await
    }

    /// As [`Self::create`]. A PUT without an answer after `hedge_after` is sent a second time.
    pub(super) async fn create_hedged(
        &self,
        key: &ObjectKey,
        bytes: &Bytes,
        hedge_after: Option<Duration>,
    ) -> Created {
        let mut delay = MIN_RETRY_DELAY;
        loop {
            let put = match hedge_after {
                Some(after) => self.put_hedged(key, bytes, after).await,
                None => self.bucket.create(key, bytes.clone()).await,
            };
            if let Some(created) = after_put(put) {
                return created;
            }
            if let Some(created) = after_get(bytes, self.read(key).await) {
                self.bucket.note_decided(key);
                return created;
            }
            self.back_off(&mut delay).await;
        }
    }

    /// Reads an object, if there is one. It ends when the store has answered.
    pub(super) async fn read(&self, key: &ObjectKey) -> Option<Bytes> {
        let mut delay = MIN_RETRY_DELAY;
        loop {
            match self.bucket.read(key).await {
                GetAnswer::Found(bytes) => return Some(bytes),
                GetAnswer::Absent => return None,
                GetAnswer::Unknown => self.back_off(&mut delay).await,
            }
        }
    }

    /// Removes an object.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] if the store has not done so after [`MAX_REMOVALS`] requests.
    pub(super) async fn remove(&self, object: &Removable) -> Result<(), LogError> {
        let mut delay = MIN_RETRY_DELAY;
        for _ in 0..MAX_REMOVALS {
            if self.bucket.remove(object).await {
                return Ok(());
            }
            self.back_off(&mut delay).await;
        }
        Err(LogError::object(&object.key(), "the store does not remove it"))
    }

    /// Waits for `span`.
    pub(super) async fn pause(&self, span: Duration) {
        self.clock.sleep(span).await;
    }

    /// A random span from `least` up to `most`.
    pub(super) fn span(&self, least: Duration, most: Duration) -> Duration {
        least + most.saturating_sub(least).mul_f64(self.entropy.fraction())
    }

    /// Waits before a request is repeated, and doubles the next wait.
    pub(super) async fn back_off(&self, delay: &mut Duration) {
        self.pause(self.span(*delay / 2, *delay)).await;
        *delay = (*delay * 2).min(MAX_RETRY_DELAY);
    }
}
