//! A pooler that gives each transaction the same session, whichever connection it comes from; and `PgBouncer`
//! where it keeps a session for each connection.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::{Mutex, OwnedMutexGuard},
};
use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::server::{RUNTIME, clock, settings, settings_at};
use crate::postgres::{
    OpenError, PostgresStore,
    test_server::{address, address_in, socket},
};

/// Version 3.0 of the protocol.
const VERSION: u32 = 3 << 16;
/// Authentication is not needed, and the connection is idle.
const WELCOME: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";

/// A message without a type, as the first one of a connection.
async fn untyped(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = length.to_be_bytes().to_vec();
    message.resize(length as usize, 0);
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}

async fn message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut message = vec![from.read_u8().await?];
    message.extend(untyped(from).await?);
    Ok(message)
}

/// A session of the database.
async fn session() -> io::Result<UnixStream> {
    let mut server = UnixStream::connect(socket()).await?;
    let parameters = b"user\0tidegate\0database\0postgres\0\0";
    server.write_u32(8 + parameters.len() as u32).await?;
    server.write_u32(VERSION).await?;
    server.write_all(parameters).await?;
    while message(&mut server).await?[0] != b'Z' {}
    Ok(server)
}

/// Serves a connection, and has the session for a transaction at a time.
async fn serve(mut client: UnixStream, server: Arc<Mutex<UnixStream>>) -> io::Result<()> {
    untyped(&mut client).await?;
    client.write_all(WELCOME).await?;
    let mut held: Option<OwnedMutexGuard<UnixStream>> = None;
    let mut request = Vec::new();
    loop {
        let part = message(&mut client).await?;
        let kind = part[0];
        request.extend(part);
        match kind {
            b'X' => return Ok(()),
            b'Q' | b'S' => {}
            _ => continue,
        }
        let mut session = match held.take() {
            Some(session) => session,
            None => Arc::clone(&server).lock_owned().await,
        };
        session.write_all(&request).await?;
        request.clear();
        let state = loop {
            let answer = message(&mut *session).await?;
            client.write_all(&answer).await?;
            if answer[0] == b'Z' {
                break answer[5];
            }
        };
        // A transaction that is open keeps its session.
        held = (state != b'I').then_some(session);
    }
}

#[test]
fn a_pooler_in_transaction_mode_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings_at(&address_in(dir.path(), "postgres"));
    let opened = RUNTIME.block_on(async {
        let listener = UnixListener::bind(dir.path().join(".s.PGSQL.5432")).unwrap();
        let server = Arc::new(Mutex::new(session().await.unwrap()));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, Arc::clone(&server)));
            }
        });
        let opened = PostgresStore::open(settings, clock()).await;
        accepting.abort();
        opened
    });
    let refused = opened.err().expect("it gives no connection a session of its own");
    assert!(matches!(refused, OpenError::Pooler), "{refused:?}");
}

/// What the console of `PgBouncer` shows for a setting.
async fn shown(setting: &str) -> Option<String> {
    let (console, connection) =
        tokio_postgres::connect(&address("pgbouncer"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let rows = console.simple_query("SHOW CONFIG").await.unwrap();
    rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) if row.get("key") == Some(setting) => {
            row.get("value").map(str::to_owned)
        }
        _ => None,
    })
}

/// It also shows that the addresses of the tests lead through the pooler.
#[test]
#[ignore = "needs PgBouncer; tests/postgres/pooler starts it"]
fn sessions_are_kept_through_pgbouncer() {
    RUNTIME.block_on(async {
        assert_eq!(shown("pool_mode").await.as_deref(), Some("session"));
        let opened = PostgresStore::open(settings(), clock()).await;
        assert!(opened.is_ok(), "{:?}", opened.err());
    });
}
