//! A store of objects whose contents are encrypted.

use std::{fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    path::Path,
};

use super::{
    Keys,
    object::{ObjectCipher, ObjectEncryption, ObjectError},
};

/// Objects that are encrypted, each for its path.
#[derive(Debug)]
pub struct EncryptedObjects {
    store: Arc<dyn ObjectStore>,
    cipher: ObjectCipher,
}

impl EncryptedObjects {
    /// The objects of `store`. New ones are encrypted with the first of `keys`, and clear ones are read,
    /// as `encryption` says.
    pub fn new(store: Arc<dyn ObjectStore>, keys: Keys, encryption: ObjectEncryption) -> Self {
        Self { store, cipher: ObjectCipher::new(keys, encryption) }
    }
}

impl fmt::Display for EncryptedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, encrypted", self.store)
    }
}

fn failed(path: &Path, source: &ObjectError) -> Error {
    Error::Generic { store: "encrypted objects", source: format!("{path}: {source}").into() }
}

fn unsupported<T>(operation: &str) -> Result<T> {
    Err(Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: "encrypted objects".to_owned(),
    })
}

#[async_trait]
impl ObjectStore for EncryptedObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let sealed = self.cipher.seal(payload.into(), location.as_ref());
        let sealed = sealed.map_err(|error| failed(location, &error))?;
        self.store.put_opts(location, sealed.into(), options).await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        unsupported("a multipart upload")
    }

    /// The size in the answer is that of the clear text. With [`GetOptions::head`], which reads no
    /// content, it is that of the stored object.
    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        if options.head {
            return self.store.get_opts(location, options).await;
        }
        // A part cannot be decrypted without the whole.
        let wanted = options.range.take();
        let found = self.store.get_opts(location, options).await?;
        let (mut meta, attributes, extensions) =
            (found.meta.clone(), found.attributes.clone(), found.extensions.clone());
        let clear = self.cipher.open(found.bytes().await?, location.as_ref());
        let bytes = clear.map_err(|error| failed(location, &error))?;
        meta.size = bytes.len() as u64;
        let range: Range<u64> = match wanted {
            Some(range) => range.as_range(meta.size).map_err(|error| Error::Generic {
                store: "encrypted objects",
                source: error.into(),
            })?,
            None => 0..meta.size,
        };
        let part = bytes.slice(range.start as usize..range.end as usize);
        let payload = GetResultPayload::Stream(stream::once(async { Ok(part) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        // The copy would be encrypted for the path of the other.
        unsupported("a copy")
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use object_store::{ObjectStoreExt as _, memory::InMemory};

    use super::{
        ObjectEncryption::{Off, On, Required},
        *,
    };

    const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    const OTHER: &str = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

    fn objects(store: &Arc<InMemory>, key: &str, encryption: ObjectEncryption) -> EncryptedObjects {
        EncryptedObjects::new(Arc::clone(store) as _, Keys::parse(key).unwrap(), encryption)
    }

    #[tokio::test]
    async fn objects_are_stored_encrypted_and_read_clear() {
        let store = Arc::new(InMemory::new());
        let (path, clear) = (Path::from("bodies/one"), Bytes::from_static(b"the text of a body"));
        objects(&store, KEY, On).put(&path, clear.clone().into()).await.unwrap();
        let stored = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert!(!stored.windows(4).any(|part| part == b"text"), "{stored:?}");
        for encryption in [Off, On, Required] {
            let objects = objects(&store, KEY, encryption);
            let found = objects.get(&path).await.unwrap();
            assert_eq!(found.meta.size, clear.len() as u64);
            assert_eq!(found.bytes().await.unwrap(), clear);
            assert_eq!(objects.get_range(&path, 4..8).await.unwrap(), &clear[4..8]);
        }
        let error = objects(&store, OTHER, On).get(&path).await.unwrap_err().to_string();
        assert!(error.contains("bodies/one: it is encrypted with key "), "{error}");
    }

    #[tokio::test]
    async fn objects_from_before_are_read_unless_all_must_be_encrypted() {
        let store = Arc::new(InMemory::new());
        let path = Path::from("bodies/one");
        objects(&store, KEY, Off).put(&path, "clear".into()).await.unwrap();
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "clear");
        let read = objects(&store, KEY, On).get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!(read, "clear");
        let error = objects(&store, KEY, Required).get(&path).await.unwrap_err().to_string();
        assert!(error.contains("bodies/one: it is not encrypted"), "{error}");
    }

    #[tokio::test]
    async fn an_object_that_was_moved_is_not_read() {
        let store = Arc::new(InMemory::new());
        let (one, two) = (Path::from("one"), Path::from("two"));
        let objects = objects(&store, KEY, On);
        objects.put(&one, "clear".into()).await.unwrap();
        store.copy(&one, &two).await.unwrap();
        let error = objects.get(&two).await.unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }
}
