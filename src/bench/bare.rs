//! The baseline of an enqueue: a handler that parses the JSON, commits a row to SQLite together
//! with the other waiting requests, and answers after the commit. It has no checks and no other
//! function.

use std::{net::SocketAddr, path::Path};

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
    sync::{mpsc, oneshot},
};

use super::raw;

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

/// Serves until the process is killed.
///
/// # Errors
///
/// The table cannot be created, or the address cannot be used.
pub(crate) async fn serve(listen: SocketAddr, dir: &Path) -> anyhow::Result<()> {
    let db = raw::table(dir)?;
    let (sender, waiting) = mpsc::channel(4096);
    std::thread::Builder::new().name("bare-writer".into()).spawn(move || write(&db, waiting))?;
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
        let id = format!("01k{number:023}");
        raw::insert(db, &id, insert.data.get().as_bytes())?;
        ids.push(id);
    }
    db.prepare_cached("COMMIT")?.execute([])?;
    Ok(ids)
}
