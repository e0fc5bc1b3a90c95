//! Large bodies and the code of plugins: copied one by one, each as a whole.
//!
//! One object is in memory, and two while they are compared. A body has at most 64 MiB, the bound of the
//! setting `max_data_bytes`; a component of a plugin has 32 MiB, and its compiled code a few times as much.
//! Objects are in a store with their jobs, so a server must have room for each of them anyway, and parts of
//! an object would need a mark of their own for the one that is half written.

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::{Error, ObjectMeta, ObjectStoreExt as _, path::Path};

use super::{Move, MoveError, OnProgress, Part, PartComparison, Side};

impl Move {
    /// Copies every object, unless an earlier call has copied it. Returns how many it copied.
    pub(super) async fn copy_objects(&self, on_progress: OnProgress<'_>) -> Result<u64, MoveError> {
        let (from, to) = (&self.from, &self.to);
        let mut listed = from.objects.list(None);
        let mut copied = 0;
        while let Some(object) =
            listed.try_next().await.map_err(|error| from.failed_objects(error))?
        {
            // An object is written as a whole or not at all. The comparison reads its bytes.
            if to.object(&object.location).await?.is_some_and(|there| there.size == object.size) {
                continue;
            }
            let bytes = from.object_bytes(&object.location).await?;
            let bytes = bytes.ok_or_else(|| gone(from, &object.location))?;
            let put = to.objects.put(&object.location, bytes.into()).await;
            put.map_err(|error| to.failed_objects(error))?;
            copied += 1;
            on_progress(Part::Objects, 1);
        }
        Ok(copied)
    }

    /// Compares the objects of both sides, byte for byte.
    pub(super) async fn compare_objects(
        &self,
        on_progress: OnProgress<'_>,
    ) -> Result<PartComparison, MoveError> {
        let (from, to) = (&self.from, &self.to);
        let mut compared = PartComparison::new(Part::Objects);
        let mut listed = from.objects.list(None);
        while let Some(object) =
            listed.try_next().await.map_err(|error| from.failed_objects(error))?
        {
            compared.from += 1;
            on_progress(Part::Objects, 1);
            let path = &object.location;
            let here = from.object_bytes(path).await?.ok_or_else(|| gone(from, path))?;
            match to.object_bytes(path).await? {
                None => compared.missing(path),
                Some(there) if there != here => compared.different(path),
                Some(_) => {}
            }
        }
        let mut listed = to.objects.list(None);
        while let Some(object) =
            listed.try_next().await.map_err(|error| to.failed_objects(error))?
        {
            compared.to += 1;
            if from.object(&object.location).await?.is_none() {
                compared.extra(&object.location);
            }
        }
        Ok(compared)
    }
}

fn gone(side: &Side, path: &Path) -> MoveError {
    MoveError::refused(format!("the object {path} of {} has just been deleted", side.place))
}

impl Side {
    /// What is known of an object, if there is one.
    async fn object(&self, path: &Path) -> Result<Option<ObjectMeta>, MoveError> {
        match self.objects.head(path).await {
            Ok(meta) => Ok(Some(meta)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed_objects(error)),
        }
    }

    async fn object_bytes(&self, path: &Path) -> Result<Option<Bytes>, MoveError> {
        let read = match self.objects.get(path).await {
            Ok(object) => object.bytes().await,
            Err(error) => Err(error),
        };
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed_objects(error)),
        }
    }
}
