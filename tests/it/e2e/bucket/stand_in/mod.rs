//! A stand-in for the object storage of Google and of Azure: an HTTP server with objects in memory.
//!
//! No emulator of Google Cloud Storage that is a package of a registry obeys
//! `x-goog-if-generation-match`. This one does: a log depends on it. It answers what a server with a log
//! sends: PUT, GET with a range, DELETE, and lists with pages, in the form of Google's XML API. Azure's
//! requests for single objects have the same form. No credentials are checked.
//!
//! A store has one address or more, each with faults of its own: what arrives there is refused, or late. Each
//! has a thread, so it also answers while a test waits for a command.

mod faults;

use std::{
    collections::{BTreeMap, HashMap},
    net::TcpListener,
    ops::{Bound, Range},
    sync::Arc,
    thread::JoinHandle,
};

use axum::{
    Router,
    body::{Bytes, to_bytes},
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use chrono::DateTime;
use object_store::path::Path;
use parking_lot::Mutex;
use serde_json::json;
use tidegate_backends::system::SystemClock;
use tidegate_core::port::Clock as _;
use tokio::sync::oneshot;
use url::form_urlencoded;

use self::faults::Faults;

/// The header of Google by which a PUT creates an object, and overwrites none.
const CONDITION: &str = "x-goog-if-generation-match";
/// The objects of a page of a list. Google has up to 1000.
const PAGE: usize = 20;

/// Whether the store obeys the condition of a PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    Obeyed,
    Ignored,
}

/// An address of the store, until it is dropped.
pub struct StandIn {
    objects: Arc<Mutex<Objects>>,
    faults: Arc<Faults>,
    url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// An empty store on a free port.
    pub fn start(conditions: Conditions) -> Self {
        Self::serve(Arc::new(Mutex::new(Objects::new(conditions))))
    }

    /// Another address of the same store.
    pub fn another_address(&self) -> Self {
        Self::serve(Arc::clone(&self.objects))
    }

    fn serve(objects: Arc<Mutex<Objects>>) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        let faults = Arc::<Faults>::default();
        let (served, disturbed) = (Arc::clone(&objects), Arc::clone(&faults));
        let router = Router::new().fallback(move |request: Request| {
            answer(Arc::clone(&served), Arc::clone(&disturbed), request)
        });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let socket = tokio::net::TcpListener::from_std(socket).unwrap();
                tokio::select! {
                    served = axum::serve(socket, router).into_future() => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self { objects, faults, url, stop: Some(stop), thread: Some(thread) }
    }

    /// The names of the objects that have `part` in them, in the order of names.
    pub fn names(&self, part: &str) -> Vec<String> {
        let objects = self.objects.lock();
        objects.by_path.keys().filter(|name| name.contains(part)).cloned().collect()
    }

    /// Sets whether every request is answered with 503 from now on.
    pub fn set_out(&self, is_out: bool) {
        self.faults.set_out(is_out);
    }

    /// Holds back the next `most` PUTs of objects that have `part` in their names. A client that does not
    /// wait for them cannot take them back.
    pub fn hold_puts(&self, part: &str, most: usize) {
        self.faults.hold_next(part, most);
    }

    /// The names of the objects of the PUTs that were held back since the last release.
    pub fn held_puts(&self) -> Vec<String> {
        self.faults.held()
    }

    /// Lets the PUTs that are held back arrive, and holds back no more. Returns after they have arrived.
    pub async fn release_puts(&self) {
        self.faults.release().await;
    }

    /// The variables by which a server takes it for Google Cloud Storage.
    pub fn as_google(&self) -> Vec<(&'static str, String)> {
        let account = json!({
            "gcs_base_url": self.url,
            "disable_oauth": true,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        });
        vec![("GOOGLE_SERVICE_ACCOUNT_KEY", account.to_string())]
    }

    /// The variables by which a server takes it for an emulator of Azure Blob Storage.
    pub fn as_azure(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AZURE_STORAGE_USE_EMULATOR", "true".to_owned()),
            ("AZURITE_BLOB_STORAGE_URL", self.url.clone()),
        ]
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let stopped = thread.join();
            assert!(stopped.is_ok() || std::thread::panicking(), "the stand-in failed");
        }
    }
}

/// Answers a request that arrives at an address.
async fn answer(objects: Arc<Mutex<Objects>>, faults: Arc<Faults>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    // Of a server that is killed, half an object may come.
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    if faults.is_out() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let Ok(path) = Path::from_url_path(parts.uri.path()) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let held = if parts.method == Method::PUT { faults.hold(path.as_ref()) } else { None };
    let arrive = move || {
        let query = parts.uri.query().unwrap_or_default();
        objects.lock().answer(&parts.method, path.as_ref(), query, &parts.headers, body)
    };
    let Some(releases) = held else { return arrive() };
    // A task of its own, because this one ends when its client does not wait.
    let late = tokio::spawn(async move {
        faults.released(releases).await;
        let answer = arrive();
        faults.note_arrival();
        answer
    });
    late.await.unwrap()
}

/// An object as it was last written.
struct Stored {
    bytes: Bytes,
    /// Another one after each write.
    generation: u64,
    /// When it was written, in milliseconds since the epoch.
    at: i64,
}

impl Stored {
    fn etag(&self) -> String {
        format!("\"{}\"", self.generation)
    }

    fn time(&self) -> DateTime<chrono::Utc> {
        DateTime::from_timestamp_millis(self.at).unwrap()
    }
}

/// All objects, by bucket and name.
struct Objects {
    by_path: BTreeMap<String, Stored>,
    written: u64,
    conditions: Conditions,
}

impl Objects {
    fn new(conditions: Conditions) -> Self {
        Self { by_path: BTreeMap::new(), written: 0, conditions }
    }

    fn answer(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Response {
        match *method {
            Method::PUT => self.put(path, headers.get(CONDITION), body),
            Method::GET if query.contains("list-type=2") => self.list(path, query),
            Method::GET => self.get(path, headers),
            Method::DELETE => match self.by_path.remove(path) {
                Some(_) => StatusCode::NO_CONTENT.into_response(),
                None => StatusCode::NOT_FOUND.into_response(),
            },
            _ => StatusCode::NOT_IMPLEMENTED.into_response(),
        }
    }

    fn put(&mut self, path: &str, condition: Option<&HeaderValue>, bytes: Bytes) -> Response {
        if self.conditions == Conditions::Obeyed {
            match condition.map(HeaderValue::as_bytes) {
                None => {}
                Some(b"0") if !self.by_path.contains_key(path) => {}
                Some(b"0") => return StatusCode::PRECONDITION_FAILED.into_response(),
                Some(_) => return StatusCode::NOT_IMPLEMENTED.into_response(),
            }
        }
        self.written += 1;
        let (generation, at) = (self.written, SystemClock.now().millis());
        let stored = Stored { bytes, generation, at };
        let etag = stored.etag();
        self.by_path.insert(path.to_owned(), stored);
        [(header::ETAG, etag)].into_response()
    }

    fn get(&self, path: &str, headers: &HeaderMap) -> Response {
        let Some(stored) = self.by_path.get(path) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let about =
            [(header::ETAG, stored.etag()), (header::LAST_MODIFIED, stored.time().to_rfc2822())];
        let length = stored.bytes.len();
        let Some(range) = range_of(headers, length) else {
            return (about, stored.bytes.clone()).into_response();
        };
        if range.is_empty() {
            return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
        }
        let part = format!("bytes {}-{}/{length}", range.start, range.end - 1);
        let bytes = stored.bytes.slice(range);
        (StatusCode::PARTIAL_CONTENT, about, [(header::CONTENT_RANGE, part)], bytes).into_response()
    }

    /// A page of the objects of `bucket`.
    fn list(&self, bucket: &str, query: &str) -> Response {
        let query: HashMap<String, String> =
            form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        if query.contains_key("delimiter") {
            return StatusCode::NOT_IMPLEMENTED.into_response();
        }
        let name = |parameter: &str| {
            format!("{bucket}/{}", query.get(parameter).map_or("", String::as_str))
        };
        let prefix = name("prefix");
        // The token of a page is the last name of the page before.
        let after = name("start-after").max(name("continuation-token"));
        let mut found = self
            .by_path
            .range::<str, _>((Bound::Excluded(after.as_str()), Bound::Unbounded))
            .filter(|(path, _)| path.starts_with(&prefix));
        let page: Vec<_> = found.by_ref().take(PAGE).collect();
        let key = |path: &str| {
            path[bucket.len() + 1..].replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
        };
        let next = match (found.next(), page.last()) {
            (Some(_), Some((path, _))) => {
                format!("<NextContinuationToken>{}</NextContinuationToken>", key(path))
            }
            _ => String::new(),
        };
        let contents: Vec<String> = page
            .iter()
            .map(|(path, stored)| {
                format!(
                    "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag>\
                     <Size>{}</Size></Contents>",
                    key(path),
                    stored.time().to_rfc3339(),
                    stored.etag(),
                    stored.bytes.len()
                )
            })
            .collect();
        let contents = contents.concat();
        format!("<ListBucketResult>{contents}{next}</ListBucketResult>").into_response()
    }
}

/// The part of an object of `length` bytes that a request is for; none for all of it.
fn range_of(headers: &HeaderMap, length: usize) -> Option<Range<usize>> {
    let range = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    let end = last.parse().map_or(length, |last: usize| length.min(last + 1));
    Some(first.parse().ok()?..end)
}
