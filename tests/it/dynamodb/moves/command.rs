//! `tidegate move` with a table: the emulated DynamoDB, and a bucket in memory, at one endpoint.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use object_store::ObjectStoreExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tidegate_engine::moves::Side;
use tidegate_server::runtime::Place;

use crate::{
    dynamodb::emulator::EmulatedTable,
    e2e::serve::{program, text},
    every_record::{every_answer, every_record},
    moves::committed,
};

const BUCKET: &str = "bodies";
/// 32 bytes in base64.
const KEY: &str = "bmV3IGtleSBvZiB0aGlydHktdHdvIGJ5dGVzLCB5ZXM=";

/// What the services of AWS are here.
struct Services {
    /// Where DynamoDB is.
    table: String,
    http: reqwest::Client,
    /// The objects of the bucket.
    objects: Mutex<BTreeMap<String, Bytes>>,
}

/// Starts them, and returns them with their URL.
async fn start(table: String) -> (Arc<Services>, String) {
    let (http, objects) = (reqwest::Client::new(), Mutex::default());
    let services = Arc::new(Services { table, http, objects });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().fallback(answer).with_state(Arc::clone(&services));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (services, url)
}

async fn answer(
    State(services): State<Arc<Services>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if headers.contains_key("x-amz-target") {
        let mut request = services.http.post(&services.table).body(body);
        for name in ["x-amz-target", "content-type", "authorization", "x-amz-date"] {
            if let Some(value) = headers.get(name) {
                request = request.header(name, value);
            }
        }
        let answered = request.send().await.unwrap();
        let status = StatusCode::from_u16(answered.status().as_u16()).unwrap();
        let json = [("content-type", "application/x-amz-json-1.0")];
        return (status, json, answered.bytes().await.unwrap()).into_response();
    }
    let path = uri.path().trim_start_matches('/').to_owned();
    let Some(key) = path.strip_prefix(BUCKET) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let key = key.trim_start_matches('/');
    let mut objects = services.objects.lock();
    let etag = [("etag", "\"1\""), ("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")];
    match method {
        Method::PUT => {
            objects.insert(key.to_owned(), body);
            etag.into_response()
        }
        Method::GET if key.is_empty() => list(&uri, &objects).into_response(),
        // A HEAD is answered without the body.
        _ => match objects.get(key) {
            Some(object) => (etag, object.clone()).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        },
    }
}

/// The objects whose names begin with the prefix in the query.
fn list(uri: &Uri, objects: &BTreeMap<String, Bytes>) -> String {
    let query = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let prefix = query.into_iter().find(|(name, _)| name == "prefix");
    let prefix = prefix.map(|(_, prefix)| prefix.into_owned()).unwrap_or_default();
    let contents =
        objects.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(key, object)| {
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
             <ETag>\"1\"</ETag><Size>{}</Size></Contents>",
                object.len()
            )
        });
    format!("<ListBucketResult>{}</ListBucketResult>", contents.collect::<String>())
}

/// Runs `tidegate move` as an operator with credentials.
async fn run(args: &[&str]) -> Output {
    let mut command = program([&["move"], args].concat());
    command.env("TIDEGATE_ENCRYPTION_KEY", KEY).env("AWS_EC2_METADATA_DISABLED", "true");
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    tokio::process::Command::from(command).kill_on_drop(true).output().await.unwrap()
}

async fn opened(dir: &Path) -> Side {
    Place::Directory(dir.to_owned()).open().await.unwrap()
}

/// A directory with jobs that no retention ends, and what its store answers.
async fn directory(dir: PathBuf) -> (PathBuf, String) {
    let side = opened(&dir).await;
    for txn in every_record() {
        committed(&*side.store, txn).await;
    }
    side.objects.put(&object_store::path::Path::from("bodies/a"), "body".into()).await.unwrap();
    let answers = every_answer(&*side.store).await;
    (dir, answers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_moves_a_directory_to_a_table_and_back() {
    let (emulator, home) = (EmulatedTable::new(), tempfile::tempdir().unwrap());
    let (services, endpoint) = start(emulator.url()).await;
    let (from, answers) = directory(home.path().join("from")).await;
    let query = format!("bucket={BUCKET}&prefix=a/&region=us-east-1&endpoint={endpoint}/");
    let table = format!("dynamodb://tidegate?{query}");

    let output = run(&["--from", text(&from), "--to", &table, "--json"]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["equal"], &answer["to"]), (&true.into(), &table.clone().into()));
    let keys: Vec<String> = services.objects.lock().keys().cloned().collect();
    assert_eq!(keys, ["a/bodies/a"]);

    let back = home.path().join("back");
    let output = run(&["--from", &table, "--to", text(&back)]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // A directory lists the jobs of one instant in the order in which they came.
    let in_any_order = |answers: &str| {
        let mut characters: Vec<char> = answers.chars().collect();
        characters.sort_unstable();
        characters
    };
    let moved = every_answer(&*opened(&back).await.store).await;
    assert!(in_any_order(&moved) == in_any_order(&answers), "{moved}\n{answers}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_does_not_exist_is_refused() {
    let (emulator, home) = (EmulatedTable::new(), tempfile::tempdir().unwrap());
    let (_, endpoint) = start(emulator.url()).await;
    let (from, _) = directory(home.path().join("from")).await;
    let table = format!("dynamodb://other?bucket=b&region=us-east-1&endpoint={endpoint}/");
    let output = run(&["--from", text(&from), "--to", &table]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("tidegate aws deploy"), "{said}");
}
