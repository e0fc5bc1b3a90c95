//! The baseline of an enqueue: a handler that parses the JSON, commits a row to SQLite or Postgres
//! together with the other waiting requests, and answers after the commit. It has no checks and no
//! other function.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderName, StatusCode, header},
    routing::{get, post},
};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::{
    net::TcpListener,
    sync::{Mutex, mpsc, oneshot},
};

use super::raw;
use tidegate_backends::postgres::RawPostgres;

/// Most rows of one commit.
const GROUP: usize = 256;

#[derive(Deserialize)]
struct BareLease {
    r#type: String,
    data: Box<RawValue>,
}

#[derive(Serialize)]
struct Accepted {
    id: String,
    r#type: String,
    state: &'static str,
}

struct Insert {
    data: Box<RawValue>,
    done: oneshot::Sender<String>,
}

/// Serves until the process is killed, with the table in `dir`, or in the schema of `database` if that
/// is given.
///
/// # Errors
///
/// The table cannot be created, or the address cannot be used.
pub(crate) async fn serve(
    listen: SocketAddr,
    dir: &Path,
    database: Option<&str>,
) -> anyhow::Result<()> {
    let (sender, waiting) = mpsc::channel(4096);
    match database {
        None => {
            let db = raw::sqlite::table(dir)?;
            let thread = std::thread::Builder::new().name("bare-writer".into());
            thread.spawn(move || write(&db, waiting))?;
        }
        Some(address) => {
            let (waiting, numbers) = (Arc::new(Mutex::new(waiting)), Arc::default());
            for raw in raw::postgres::connections(&address.parse()?).await? {
                tokio::spawn(write_to_postgres(raw, Arc::clone(&waiting), Arc::clone(&numbers)));
            }
        }
    }
    let router = Router::new()
        .route("/v1/jobs", post(accept))
        .route("/readyz", get(async || "ok"))
        .with_state(sender);
    axum::serve(TcpListener::bind(listen).await?, router).await?;
    Ok(())
}

/// An answer: its status, its one header, its JSON.
type Answer = (StatusCode, [(HeaderName, &'static str); 1], Vec<u8>);

async fn accept(
    State(writer): State<mpsc::Sender<Insert>>,
    body: Bytes,
) -> Result<Answer, StatusCode> {
    let ask: BareLease = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let (done, id) = oneshot::channel();
    writer
        .send(Insert { data: ask.data, done })
        .await
        .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let id = id.await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let accepted = Accepted { id, r#type: ask.r#type, state: "scheduled" };
    let json = serde_json::to_vec(&accepted).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok((StatusCode::CREATED, [(header::CONTENT_TYPE, "application/json")], json))
}

/// Commits all waiting requests, then answers them. A failed commit ends the thread, and its
/// callers get a 503.
fn write(db: &Connection, mut waiting: mpsc::Receiver<Insert>) {
    let mut number = 0_u64;
    let mut group = Vec::with_capacity(GROUP);
    while let Some(first) = waiting.blocking_recv() {
        group.push(first);
        while group.len() < GROUP
            && let Ok(next) = waiting.try_recv()
        {
            group.push(next);
        }
        match commit(db, &group, &mut number) {
            Ok(ids) => {
                for (insert, id) in group.drain(..).zip(ids) {
                    let _ = insert.done.send(id);
                }
            }
            Err(error) => {
                tracing::error!(%error, "the bare handler cannot commit");
                return;
            }
        }
    }
}

fn commit(db: &Connection, group: &[Insert], number: &mut u64) -> rusqlite::Result<Vec<String>> {
    db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let mut ids = Vec::with_capacity(group.len());
    for insert in group {
        *number += 1;
        let id = raw::id(*number);
        raw::sqlite::insert(db, &id, insert.data.get().as_bytes())?;
        ids.push(id);
    }
    db.prepare_cached("COMMIT")?.execute([])?;
    Ok(ids)
}

/// Commits the waiting requests that no other connection has taken, then answers them. A failed commit
/// ends the task, and its callers get a 503.
async fn write_to_postgres(
    raw: RawPostgres,
    waiting: Arc<Mutex<mpsc::Receiver<Insert>>>,
    numbers: Arc<AtomicU64>,
) {
    loop {
        let mut group = Vec::with_capacity(GROUP);
        if waiting.lock().await.recv_many(&mut group, GROUP).await == 0 {
            return;
        }
        let jobs = group.len() as u64;
        let first = numbers.fetch_add(jobs, Ordering::Relaxed);
        let ids: Vec<String> = (first..first + jobs).map(raw::id).collect();
        let data: Vec<&[u8]> = group.iter().map(|insert| insert.data.get().as_bytes()).collect();
        if let Err(error) = raw.insert(&ids, &data).await {
            tracing::error!(%error, "the bare handler cannot commit");
            return;
        }
        for (insert, id) in group.into_iter().zip(ids) {
            let _ = insert.done.send(id);
        }
    }
}
