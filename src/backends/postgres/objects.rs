//! Objects (large bodies and plugins) in a table of the database, so that a deployment needs no
//! bucket. An object is one row, which a statement writes or reads as a whole.

use std::{collections::VecDeque, fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use futures_util::{StreamExt as _, TryStreamExt as _, stream, stream::BoxStream};
use object_store::{
    Attributes, CopyOptions, Error, Extensions, GetOptions, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result, path::Path,
};
use tokio_postgres::Row;

use super::{PostgresStore, connect::Readers, row::column};
use tidegate_core::port::{Clock, StoreError};

const PUT: &str = "INSERT INTO objects (path, modified_at, bytes) VALUES ($1, $2, $3) \
     ON CONFLICT (path) DO UPDATE SET modified_at = excluded.modified_at, bytes = excluded.bytes";
const GET: &str =
    "SELECT path, modified_at, octet_length(bytes), bytes FROM objects WHERE path = $1";
const HEAD: &str = "SELECT path, modified_at, octet_length(bytes) FROM objects WHERE path = $1";
const DELETE: &str = "DELETE FROM objects WHERE path = ANY ($1::text[])";
const LIST: &str = "SELECT path, modified_at, octet_length(bytes) FROM objects \
     WHERE path > $1 AND path >= $2 AND ($3::text IS NULL OR path < $3) ORDER BY path LIMIT $4";

/// How many objects one statement lists or deletes.
const PAGE: usize = 1000;

/// The objects in the database of a store.
#[derive(Clone)]
pub struct PostgresObjects {
    readers: Arc<Readers>,
    clock: Arc<dyn Clock>,
}

impl PostgresStore {
    /// The objects in the database of this store.
    pub fn objects(&self) -> PostgresObjects {
        PostgresObjects { readers: Arc::clone(&self.readers), clock: Arc::clone(&self.clock) }
    }
}

impl fmt::Display for PostgresObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Postgres")
    }
}

impl fmt::Debug for PostgresObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresObjects(..)")
    }
}

fn failed(error: StoreError) -> Error {
    Error::Generic { store: "Postgres", source: Box::new(error) }
}

fn unsupported<T>(operation: &str) -> Result<T> {
    Err(Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: "Postgres".to_owned(),
    })
}

/// What the first three columns of a row say of an object.
fn meta(row: &Row) -> Result<ObjectMeta> {
    let path: String = column(row, 0).map_err(failed)?;
    let modified_at: i64 = column(row, 1).map_err(failed)?;
    let size: i32 = column(row, 2).map_err(failed)?;
    Ok(ObjectMeta {
        location: Path::parse(path)?,
        last_modified: DateTime::from_timestamp_millis(modified_at).unwrap_or_default(),
        size: u64::from(size.unsigned_abs()),
        e_tag: None,
        version: None,
    })
}

impl PostgresObjects {
    async fn rows(
        &self,
        sql: &'static str,
        params: &[super::connect::Param<'_>],
    ) -> Result<Vec<Row>> {
        self.readers.query(sql, params).await.map_err(failed)
    }

    /// The objects below `prefix` whose paths are after `after`, by path.
    fn list_from(
        &self,
        prefix: Option<&Path>,
        after: String,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        // Paths below a prefix begin with it and a slash. The character after the slash is a zero.
        let (from, until) = match prefix.filter(|prefix| !prefix.as_ref().is_empty()) {
            Some(prefix) => (format!("{prefix}/"), Some(format!("{prefix}0"))),
            None => (String::new(), None),
        };
        let first = Some((VecDeque::new(), after, true));
        let this = self.clone();
        stream::try_unfold(first, move |state| {
            let (this, from, until) = (this.clone(), from.clone(), until.clone());
            async move {
                let Some((mut page, mut after, mut may_go_on)) = state else { return Ok(None) };
                if page.is_empty() && may_go_on {
                    let rows = this.rows(LIST, &[&after, &from, &until, &(PAGE as i64)]).await?;
                    may_go_on = rows.len() == PAGE;
                    page = rows.iter().map(meta).collect::<Result<_>>()?;
                    if let Some(last) = page.back() {
                        after = last.location.to_string();
                    }
                }
                let next = page.pop_front();
                Ok(next.map(|object| (object, Some((page, after, may_go_on)))))
            }
        })
        .boxed()
    }
}

#[async_trait]
impl ObjectStore for PostgresObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let bytes = Bytes::from(payload);
        let (path, now) = (location.as_ref(), self.clock.now().millis());
        // Read as a repeat after an answer that was lost, a creation would refuse its own object.
        if options.mode != PutMode::Overwrite {
            return unsupported("a conditional write");
        }
        self.rows(PUT, &[&path, &now, &&*bytes]).await?;
        Ok(PutResult { e_tag: None, version: None, extensions: Extensions::default() })
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        unsupported("a multipart upload")
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let sql = if options.head { HEAD } else { GET };
        let rows = self.rows(sql, &[&location.as_ref()]).await?;
        let Some(row) = rows.first() else {
            let source = "there is no object of this path".into();
            return Err(Error::NotFound { path: location.to_string(), source });
        };
        let meta = meta(row)?;
        options.check_preconditions(&meta)?;
        let range: Range<u64> = match &options.range {
            Some(range) => range
                .as_range(meta.size)
                .map_err(|error| Error::Generic { store: "Postgres", source: error.into() })?,
            None => 0..meta.size,
        };
        let bytes = if options.head {
            Bytes::new()
        } else {
            let bytes: Vec<u8> = column(row, 3).map_err(failed)?;
            Bytes::from(bytes).slice(range.start as usize..range.end as usize)
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed()),
            meta,
            range,
            attributes: Attributes::default(),
            extensions: Extensions::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .try_chunks(PAGE)
            .map_err(|error| error.1)
            .and_then(move |paths| {
                let this = this.clone();
                async move {
                    let texts: Vec<&str> = paths.iter().map(AsRef::as_ref).collect();
                    this.rows(DELETE, &[&texts]).await?;
                    Ok(stream::iter(paths.into_iter().map(Ok)))
                }
            })
            .try_flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_from(prefix, String::new())
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_from(prefix, offset.to_string())
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        unsupported("a list of folders")
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        unsupported("a copy")
    }
}
