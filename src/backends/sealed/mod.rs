//! Encryption of the secrets in stored job types: a layer around the job store.
//!
//! ```text
//!   {"config": {"target": {"url": ..., "signing_secret": {"$sealed": "v1.KEY.TEXT"}}}}
//! ```
//!
//! Each secret value is replaced by its ciphertext (AES-256-GCM with a random nonce). It is bound
//! to the type and the field, so it cannot be moved to another one. `KEY` names the key. The first
//! key encrypts; the others are earlier ones, which still decrypt. The engine sees only clear text.
//!
//! A type whose secret cannot be decrypted is an item that cannot be read: its jobs wait.

#[cfg(feature = "bucket")]
pub(crate) mod object;
#[cfg(feature = "bucket")]
mod store;

use std::{fmt, io, sync::Arc};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD as BASE64_URL},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[cfg(feature = "bucket")]
pub use self::{object::ObjectEncryption, store::EncryptedObjects};
use tidegate_core::port::{
    StoreLayer, Write,
    job_store::{Committed, Item, ItemKind, JobStore, SharedStore, StoreError, Txn},
};

/// The secrets of a stored type, as JSON pointers.
pub const SECRETS: [&str; 4] = [
    "/config/target/signing_secret",
    "/config/target/basic_auth",
    "/config/target/headers",
    "/config/callback_signing_secret",
];
/// The one field of an encrypted value.
const SEALED: &str = "$sealed";
/// The form of an encrypted value.
const VERSION: &str = "v1";
/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Most bytes of a file with keys.
#[cfg(feature = "sqlite")]
const MAX_FILE_BYTES: u64 = 4096;
/// Most keys: the one that encrypts, and earlier ones.
const MAX_KEYS: usize = 10;

/// A text is no list of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to 10 keys, each 32 random bytes in base64, separated by commas or lines")]
pub struct BadKeys;

/// A key, and its name in what it encrypts.
struct Key {
    id: String,
    cipher: RandomizedNonceKey,
    /// What the keys of objects are derived from.
    #[cfg(feature = "bucket")]
    derivable: aws_lc_rs::hkdf::Prk,
}

/// The keys of a deployment. The first encrypts, all decrypt. `Debug` shows none.
#[derive(Clone)]
pub struct Keys(Arc<Vec<Key>>);

impl Keys {
    /// The keys in `text`: each 32 bytes in base64, separated by commas or white space.
    ///
    /// # Errors
    ///
    /// [`BadKeys`].
    pub fn parse(text: &str) -> Result<Self, BadKeys> {
        let words = text.split([',', ' ', '\n', '\r', '\t']).filter(|word| !word.is_empty());
        let keys = words.map(Key::parse).collect::<Result<Vec<_>, _>>()?;
        if (1..=MAX_KEYS).contains(&keys.len()) { Ok(Self(Arc::new(keys))) } else { Err(BadKeys) }
    }

    /// `clear`, encrypted for `place`: letters, digits, `.`, `-` and `_`.
    pub(crate) fn seal(&self, clear: &Value, place: &str) -> Result<String, SecretError> {
        let [key, ..] = &self.0[..] else { return Err(SecretError::Cipher) };
        let mut text = clear.to_string().into_bytes();
        let sealed = key.cipher.seal_in_place_append_tag(Aad::from(place), &mut text);
        let nonce = sealed.map_err(|_| SecretError::Cipher)?;
        let whole = [nonce.as_ref().as_slice(), &text].concat();
        Ok(format!("{VERSION}.{}.{}", key.id, BASE64_URL.encode(whole)))
    }

    /// What [`Self::seal`] encrypted for `place`.
    pub(crate) fn open(&self, sealed: &str, place: &str) -> Result<Value, SecretError> {
        let mut parts = sealed.split('.');
        let (Some(VERSION), Some(id), Some(text), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(SecretError::UnknownForm);
        };
        let key = self.0.iter().find(|key| key.id == id);
        let key = key.ok_or_else(|| SecretError::KeyMissing(id.to_owned()))?;
        let damaged = || SecretError::Damaged(id.to_owned());
        let mut whole = BASE64_URL.decode(text).map_err(|_| damaged())?;
        if whole.len() < NONCE_LEN {
            return Err(damaged());
        }
        let mut text = whole.split_off(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(&whole).map_err(|_| damaged())?;
        let clear = key.cipher.open_in_place(nonce, Aad::from(place), &mut text);
        clear.ok().and_then(|clear| serde_json::from_slice(clear).ok()).ok_or_else(damaged)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.id)).finish()
    }
}

impl Key {
    fn parse(text: &str) -> Result<Self, BadKeys> {
        let bytes = BASE64.decode(text).map_err(|_| BadKeys)?;
        if bytes.len() != KEY_BYTES {
            return Err(BadKeys);
        }
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, &bytes).map_err(|_| BadKeys)?;
        let digest = Sha256::new().chain_update("tidegate key id").chain_update(&bytes).finalize();
        let (start, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
        let id = format!("{:08x}", u32::from_be_bytes(*start));
        Ok(Self {
            id,
            cipher,
            #[cfg(feature = "bucket")]
            derivable: object::derivable(&bytes),
        })
    }
}

/// Why the secrets of a type cannot be encrypted or decrypted.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The key that encrypted them is not among the keys.
    #[error("its secrets are encrypted with key {0}, which this server does not have")]
    KeyMissing(String),
    /// There is no key, but there was one: stored secrets are encrypted with it.
    #[error(
        "no key is created while stored types have secrets that are encrypted with key {0}: put \
         the key file back; if it is lost, write a new key into it (`openssl rand -base64 32`), and \
         set those types again"
    )]
    KeyFileMissing(String),
    /// The ciphertext has no known form.
    #[error("its secrets are encrypted in a form that is not known")]
    UnknownForm,
    /// The ciphertext was changed or moved.
    #[error("its secrets, encrypted with key {0}, are damaged")]
    Damaged(String),
    /// The keys cannot be read, or a new one cannot be written.
    #[error("its key: {0}")]
    Keys(#[from] io::Error),
    /// The cipher has failed.
    #[error("a secret cannot be encrypted")]
    Cipher,
}

impl SecretError {
    /// The error of a write that needs a secret encrypted. Nothing was written.
    fn of_write(self) -> StoreError {
        StoreError::unavailable_in("encrypting the secrets of a type", self)
    }
}

/// Where the keys come from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// They are given.
    Given(Keys),
    /// A file for its owner alone, which is created with a new key for the first secret.
    #[cfg(feature = "sqlite")]
    File(std::path::PathBuf),
}

impl KeySource {
    /// The keys; `None` if the file does not exist or is empty.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no keys.
    #[cfg_attr(not(feature = "sqlite"), allow(clippy::unnecessary_wraps, reason = "of a file"))]
    pub fn load(&self) -> io::Result<Option<Keys>> {
        match self {
            Self::Given(keys) => Ok(Some(keys.clone())),
            #[cfg(feature = "sqlite")]
            Self::File(path) => read_keys(path),
        }
    }

    /// The keys, with a new one if there is none.
    pub(crate) fn load_or_create(&self) -> io::Result<Keys> {
        if let Some(keys) = self.load()? {
            return Ok(keys);
        }
        match self {
            Self::Given(keys) => Ok(keys.clone()),
            #[cfg(feature = "sqlite")]
            Self::File(path) => create_key(path),
        }
    }
}

/// Reads the keys in the file at `path`, without following a link.
#[cfg(feature = "sqlite")]
fn read_keys(path: &std::path::Path) -> io::Result<Option<Keys>> {
    use io::Read as _;
    let mut text = String::new();
    match crate::private::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?.take(MAX_FILE_BYTES).read_to_string(&mut text)?,
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    Keys::parse(&text).map(Some).map_err(io::Error::other)
}

/// Writes a new key to the file at `path`, durably, and returns it. A crash leaves no part of it
/// there.
#[cfg(feature = "sqlite")]
fn create_key(path: &std::path::Path) -> io::Result<Keys> {
    use io::Write as _;
    let mut bytes = [0; KEY_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("no random bytes"))?;
    let text = BASE64.encode(bytes);
    let new = path.with_extension("new");
    let mut file = crate::private::open(&new)?;
    // One that crashed may have left something.
    file.set_len(0)?;
    file.write_all(format!("{text}\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    if let Some(dir) = path.parent() {
        std::fs::File::open(dir)?.sync_all()?;
    }
    Keys::parse(&text).map_err(io::Error::other)
}

/// A job store whose types have encrypted secrets.
pub struct SealedStore {
    store: SharedStore,
    source: KeySource,
    /// The keys of the source, once they were loaded.
    keys: Mutex<Option<Keys>>,
}

impl SealedStore {
    /// A layer around `store`.
    pub fn new(store: SharedStore, source: KeySource) -> Self {
        Self { store, source, keys: Mutex::default() }
    }

    /// The keys, from the source if they were not loaded before.
    fn keys(&self) -> io::Result<Option<Keys>> {
        let mut known = self.keys.lock();
        if known.is_none() {
            *known = self.source.load()?;
        }
        Ok(known.clone())
    }

    /// The keys; with a new one if there is none and no stored secret needs the one that is
    /// missing.
    async fn keys_to_encrypt(&self) -> Result<Keys, StoreError> {
        if let Some(keys) = self.keys().map_err(|error| SecretError::from(error).of_write())? {
            return Ok(keys);
        }
        let types = self.store.items(ItemKind::Type).await?;
        if let Some(key) = types.iter().find_map(key_of) {
            return Err(SecretError::KeyFileMissing(key).of_write());
        }
        let mut known = self.keys.lock();
        let keys = self.source.load_or_create();
        let keys = keys.map_err(|error| SecretError::from(error).of_write())?;
        *known = Some(keys.clone());
        Ok(keys)
    }

    /// Encrypts the secrets of the types in `writes`.
    async fn seal(&self, writes: &mut [Write]) -> Result<(), StoreError> {
        for write in writes {
            if let Write::SetItem { kind: ItemKind::Type, name, bytes: Some(bytes), .. } = write {
                self.seal_type(name, bytes).await?;
            }
        }
        Ok(())
    }

    async fn seal_type(&self, name: &str, bytes: &mut Vec<u8>) -> Result<(), StoreError> {
        let failed = |error| StoreError::unavailable_in("encrypting the secrets of a type", error);
        let mut item: Value = serde_json::from_slice(bytes).map_err(failed)?;
        let has_secret = |pointer: &&str| item.pointer(pointer).is_some_and(|it| !is_empty(it));
        let secrets: Vec<&str> = SECRETS.into_iter().filter(has_secret).collect();
        if secrets.is_empty() {
            return Ok(());
        }
        let keys = self.keys_to_encrypt().await?;
        for pointer in secrets {
            let Some(value) = item.pointer_mut(pointer) else { continue };
            let sealed = keys.seal(value, &place(name, pointer)).map_err(SecretError::of_write)?;
            *value = json!({ SEALED: sealed });
        }
        *bytes = serde_json::to_vec(&item).map_err(failed)?;
        Ok(())
    }

    /// Decrypts the secrets of a type. If one cannot be, the item cannot be read.
    fn open(&self, item: &mut Item) {
        let Some(bytes) = item.bytes.as_ref().ok().filter(|bytes| has_secrets(bytes)) else {
            return;
        };
        // An item that is no JSON is left to its reader.
        let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return };
        let opened = SECRETS.iter().try_for_each(|pointer| {
            let Some(value) = value.pointer_mut(pointer) else { return Ok(()) };
            let Some(sealed) = sealed(value) else { return Ok(()) };
            let keys = self.keys()?.unwrap_or_else(|| Keys(Arc::default()));
            *value = keys.open(sealed, &place(&item.name, pointer))?;
            Ok::<(), SecretError>(())
        });
        item.bytes = match opened {
            Ok(()) => Ok(value.to_string().into_bytes()),
            Err(error) => Err(error.to_string()),
        };
    }
}

impl StoreLayer for SealedStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }

    async fn commit(&self, mut txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        for txn in &mut txns {
            self.seal(txn).await?;
        }
        self.store.commit(txns).await
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError> {
        let mut items = self.store.items(kind).await?;
        if kind == ItemKind::Type {
            for item in &mut items {
                self.open(item);
            }
        }
        Ok(items)
    }
}

/// Whether a stored type may have encrypted secrets.
pub fn has_secrets(item: &[u8]) -> bool {
    item.windows(SEALED.len()).any(|bytes| bytes == SEALED.as_bytes())
}

/// The name of the key that encrypted a secret of a stored type, if it has one.
fn key_of(item: &Item) -> Option<String> {
    let bytes = item.bytes.as_ref().ok().filter(|bytes| has_secrets(bytes))?;
    let item: Value = serde_json::from_slice(bytes).ok()?;
    let sealed = SECRETS.iter().find_map(|pointer| sealed(item.pointer(pointer)?))?;
    Some(sealed.split('.').nth(1).unwrap_or_default().to_owned())
}

/// Replaces the encrypted secrets of a stored type by null. For readers without a key.
pub fn without_secrets(item: &mut Value) {
    for pointer in SECRETS {
        if let Some(value) = item.pointer_mut(pointer).filter(|value| sealed(value).is_some()) {
            *value = Value::Null;
        }
    }
}

/// The ciphertext, if `value` is encrypted.
fn sealed(value: &Value) -> Option<&str> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.get(SEALED)?.as_str()
}

/// Whether there is no secret in `value`.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// What a ciphertext is bound to.
fn place(name: &str, pointer: &str) -> String {
    format!("type/{name}{pointer}")
}

#[cfg(test)]
#[cfg(feature = "sqlite")]
mod tests;
