//! Object storage in memory, each of whose requests takes a while: what a server under test has its
//! log in. It answers as Google Cloud Storage does what such a server sends, in one page.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Bytes, to_bytes},
    extract::Request,
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use chrono::SecondsFormat;
use futures_util::TryStreamExt as _;
use object_store::{
    Error, GetOptions, GetRange, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode,
    memory::InMemory, path::Path,
};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinHandle};
use url::form_urlencoded;

use crate::cli::context::pause;

/// The header by which a PUT creates an object, and overwrites none.
const CONDITION: &str = "x-goog-if-generation-match";
/// The variable with the account of a server, which names the address of the storage.
pub(super) const ACCOUNT_VARIABLE: &str = "GOOGLE_SERVICE_ACCOUNT_KEY";
/// The address of a log in the storage.
pub(super) const LOG: &str = "gs://bench/log";
/// Where the claims of its epochs are.
const CLAIMS: &str = "bench/log/epoch";
/// Where its snapshots are.
const SNAPSHOTS: &str = "bench/log/snap";

/// The storage, until it is dropped.
pub(super) struct Storage {
    objects: Arc<InMemory>,
    /// How long each request takes, in milliseconds.
    delay: Arc<AtomicU64>,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Storage {
    /// Empty storage. Each request takes `delay`, and the time of this program.
    pub(super) async fn start(delay: Duration) -> anyhow::Result<Self> {
        let objects = Arc::new(InMemory::new());
        let delay = Arc::new(AtomicU64::new(delay.as_millis() as u64));
        let (stored, takes) = (Arc::clone(&objects), Arc::clone(&delay));
        let router = Router::new().fallback(async move |request: Request| {
            pause(Duration::from_millis(takes.load(Ordering::Relaxed))).await;
            answer(&stored, request).await.unwrap_or_else(|error| match error {
                Error::NotFound { .. } => StatusCode::NOT_FOUND.into_response(),
                Error::AlreadyExists { .. } => StatusCode::PRECONDITION_FAILED.into_response(),
                other => (StatusCode::BAD_REQUEST, other.to_string()).into_response(),
            })
        });
        let socket = TcpListener::bind("127.0.0.1:0").await?;
        let address = socket.local_addr()?;
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(socket, router).await {
                tracing::error!(%error, "the storage has ended");
            }
        });
        Ok(Self { objects, delay, address, serving })
    }

    /// Lets each request take `delay` from now on.
    pub(super) fn set_delay(&self, delay: Duration) {
        self.delay.store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// Whether the log has a snapshot of the state in which its newest epoch began.
    pub(super) async fn has_newest_snapshot(&self) -> anyhow::Result<bool> {
        let claims = self.numbers(CLAIMS, "").await?;
        let snapshots = self.numbers(SNAPSHOTS, "/manifest").await?;
        Ok(claims.iter().max().is_some_and(|newest| snapshots.contains(&(newest - 1))))
    }

    /// The epochs that name objects in `dir`, with `end` after them.
    async fn numbers(&self, dir: &str, end: &str) -> anyhow::Result<Vec<u64>> {
        let found: Vec<ObjectMeta> =
            self.objects.list(Some(&Path::from(dir))).try_collect().await?;
        let number = |meta: &ObjectMeta| {
            let name = meta.location.as_ref().strip_prefix(dir)?.strip_prefix('/')?;
            name.strip_suffix(end)?.parse::<u64>().ok()
        };
        Ok(found.iter().filter_map(number).collect())
    }

    /// The account of a server that uses it.
    pub(super) fn account(&self) -> String {
        let account = json!({
            "gcs_base_url": format!("http://{}", self.address),
            "disable_oauth": true,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        });
        account.to_string()
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(objects: &InMemory, request: Request) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let path = Path::from_url_path(parts.uri.path())?;
    match parts.method {
        Method::PUT => {
            let Ok(body) = to_bytes(body, usize::MAX).await else {
                return Ok(StatusCode::BAD_REQUEST.into_response());
            };
            put(objects, &path, &parts.headers, body).await
        }
        Method::GET => match parts.uri.query().filter(|query| query.contains("list-type=2")) {
            Some(query) => list(objects, &path, query).await,
            None => get(objects, &path, &parts.headers).await,
        },
        Method::DELETE => {
            objects.delete(&path).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        _ => Ok(StatusCode::NOT_IMPLEMENTED.into_response()),
    }
}

async fn put(
    objects: &InMemory,
    path: &Path,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, Error> {
    let mode = if headers.contains_key(CONDITION) { PutMode::Create } else { PutMode::Overwrite };
    let written = objects.put_opts(path, body.into(), mode.into()).await?;
    Ok([(header::ETAG, written.e_tag.unwrap_or_default())].into_response())
}

async fn get(objects: &InMemory, path: &Path, headers: &HeaderMap) -> Result<Response, Error> {
    let range = range_of(headers);
    let is_part = range.is_some();
    let found = objects.get_opts(path, GetOptions { range, ..GetOptions::default() }).await?;
    let (meta, part) = (found.meta.clone(), found.range.clone());
    let bytes = found.bytes().await?;
    let about =
        [(header::ETAG, etag(&meta)), (header::LAST_MODIFIED, meta.last_modified.to_rfc2822())];
    if !is_part {
        return Ok((about, bytes).into_response());
    }
    let part = format!("bytes {}-{}/{}", part.start, part.end.saturating_sub(1), meta.size);
    Ok((StatusCode::PARTIAL_CONTENT, about, [(header::CONTENT_RANGE, part)], bytes).into_response())
}

/// The part of an object that a request is for; none for all of it.
fn range_of(headers: &HeaderMap) -> Option<GetRange> {
    let range = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    let first = first.parse().ok()?;
    Some(
        last.parse()
            .map_or(GetRange::Offset(first), |last: u64| GetRange::Bounded(first..last + 1)),
    )
}

/// All objects of `bucket` that a list of it is for.
async fn list(objects: &InMemory, bucket: &Path, query: &str) -> Result<Response, Error> {
    let value = |name: &str| {
        let value = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name);
        value.map_or_else(String::new, |(_, value)| value.into_owned())
    };
    let (prefix, after) = (value("prefix"), value("start-after"));
    let mut found: Vec<ObjectMeta> = objects.list(Some(bucket)).try_collect().await?;
    found.sort_unstable_by(|one, other| one.location.cmp(&other.location));
    let in_bucket = format!("{bucket}/");
    let contents: String = found.iter().fold(String::new(), |all, meta| {
        let key = meta.location.as_ref().strip_prefix(&in_bucket).unwrap_or_default();
        if !key.starts_with(&prefix) || key <= after.as_str() {
            return all;
        }
        let time = meta.last_modified.to_rfc3339_opts(SecondsFormat::Millis, true);
        all + &format!(
            "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>{}</ETag>\
             <Size>{}</Size></Contents>",
            etag(meta),
            meta.size
        )
    });
    Ok(format!("<ListBucketResult>{contents}</ListBucketResult>").into_response())
}

fn etag(meta: &ObjectMeta) -> String {
    meta.e_tag.clone().unwrap_or_default()
}
