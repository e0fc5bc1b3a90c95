//! Connections: opened on the store's own runtime, each with its prepared statements.

use std::{
    collections::HashMap,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::future::{MaybeDone, maybe_done};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_postgres::{
    AsyncMessage, Client, NoTls, Row, Statement,
    tls::{MakeTlsConnect, TlsConnect},
    types::ToSql,
};

use super::{error::Fault, settings::Settings, tls::Tls};
use tidegate_core::port::StoreError;

/// How long a client waits for an answer. The server gives up a statement after five seconds, so
/// the connection is broken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// The warning of a commit that no standby has confirmed.
const NOT_REPLICATED: &str = "01000";

/// The settings of every session. Without them a plan may be right for an empty table and read all
/// of a full one, or lock rows in the order of the heap, in which two servers deadlock; and a frozen
/// server would hold its locks.
const SESSION: &str = "SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off; \
     SET enable_nestloop = off; SET enable_mergejoin = off; \
     SET max_parallel_workers_per_gather = 0; SET statement_timeout = '5s'; \
     SET idle_in_transaction_session_timeout = '2s'; SET lock_timeout = '2s'; \
     SET default_transaction_isolation = 'read committed'; SET synchronous_commit = on";

/// A parameter of a statement.
pub(super) type Param<'a> = &'a (dyn ToSql + Sync);

/// How connections are opened.
#[derive(Clone)]
pub(super) struct Connector {
    settings: Arc<Settings>,
    tls: Option<Tls>,
    handle: Handle,
}

impl Connector {
    /// Connections by `settings`. They belong to the runtime that calls this.
    pub(super) fn new(settings: Settings) -> Result<Self, StoreError> {
        let tls = settings.may_encrypt().then(|| Tls::of(&settings)).transpose()?;
        Ok(Self { settings: Arc::new(settings), tls, handle: Handle::current() })
    }

    /// The schema of the tables.
    pub(super) fn schema(&self) -> &str {
        &self.settings.schema
    }

    /// A new connection with the settings of a session.
    pub(super) async fn open(&self) -> Result<Link, StoreError> {
        let this = self.clone();
        // A caller may be on a runtime that ends before the store does.
        let opened = self.handle.spawn(async move {
            let link = match this.tls.clone() {
                Some(tls) => Link::open(&this.settings, tls).await,
                None => Link::open(&this.settings, NoTls).await,
            };
            let link = link.map_err(StoreError::unavailable)?;
            let session = format!("{SESSION}; SET search_path = {}", this.schema());
            link.client.batch_execute(&session).await.map_err(StoreError::unavailable)?;
            Ok(link)
        });
        opened.await.map_err(StoreError::unavailable)?
    }
}

/// A connection. Statements that are sent while others are under way follow them at once.
pub(super) struct Link {
    pub(super) client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
    /// How many commits were not confirmed by a standby.
    unconfirmed: Arc<AtomicU64>,
}

impl Link {
    async fn open<T>(settings: &Settings, tls: T) -> Result<Self, tokio_postgres::Error>
    where
        T: MakeTlsConnect<tokio_postgres::Socket> + Clone + Send + 'static,
        T::TlsConnect: Send,
        T::Stream: Send + 'static,
        <T::TlsConnect as TlsConnect<tokio_postgres::Socket>>::Future: Send,
    {
        let (client, mut connection) = settings.config.connect(tls).await?;
        let unconfirmed = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&unconfirmed);
        tokio::spawn(async move {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                match message {
                    Ok(AsyncMessage::Notice(notice)) if notice.code().code() == NOT_REPLICATED => {
                        seen.fetch_add(1, Ordering::Release);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a connection to the database ended");
                        break;
                    }
                }
            }
        });
        Ok(Self { client, statements: Mutex::default(), unconfirmed })
    }

    /// Whether nothing can be sent any more.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// How many commits of this connection no standby has confirmed, although one must.
    pub(super) fn unconfirmed(&self) -> u64 {
        self.unconfirmed.load(Ordering::Acquire)
    }

    /// Prepares `sql` unless it was prepared before.
    pub(super) async fn prepared(&self, sql: &'static str) -> Result<Statement, Fault> {
        if let Some(statement) = self.statements.lock().get(sql) {
            return Ok(statement.clone());
        }
        let statement = in_time(self.client.prepare(sql)).await?;
        self.statements.lock().insert(sql, statement.clone());
        Ok(statement)
    }

    /// The rows of `sql`.
    pub(super) async fn query(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        let statement = self.prepared(sql).await?;
        in_time(self.client.query(&statement, params)).await
    }
}

/// The answer to a call, unless it takes too long.
pub(super) async fn in_time<T>(
    call: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_TIMEOUT, call).await {
        Ok(answer) => Ok(answer?),
        Err(late) => Err(Fault::Broken(StoreError::unavailable(late))),
    }
}

/// The outputs of `calls`. Their first polls are in this order, so that statements are sent in this
/// order, before the first answer.
pub(super) async fn in_order<C: Future + Send>(calls: Vec<C>) -> Vec<C::Output> {
    let mut calls: Vec<Pin<Box<MaybeDone<C>>>> =
        calls.into_iter().map(|call| Box::pin(maybe_done(call))).collect();
    poll_fn(|cx| {
        let mut all = true;
        for call in &mut calls {
            all &= call.as_mut().poll(cx).is_ready();
        }
        if all { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    calls.iter_mut().map(|call| call.as_mut().take_output().expect("it has ended")).collect()
}

/// The connections of readers. A caller gets an idle one, or else one of few that it shares.
pub(super) struct Readers {
    connector: Connector,
    links: Mutex<Vec<Arc<Link>>>,
}

/// Most connections of readers.
const MAX_READERS: usize = 4;
/// How often a read is repeated after its connection broke.
const MAX_READ_REPEATS: usize = 2;

impl Readers {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, links: Mutex::default() }
    }

    /// A connection for some statements.
    pub(super) async fn link(&self) -> Result<Arc<Link>, StoreError> {
        {
            let mut links = self.links.lock();
            links.retain(|link| !link.is_closed());
            // Each caller has a reference, and so has the list.
            let least = links.iter().min_by_key(|link| Arc::strong_count(link));
            let is_full = links.len() >= MAX_READERS;
            if let Some(link) = least.filter(|link| is_full || Arc::strong_count(link) == 1) {
                return Ok(Arc::clone(link));
            }
        }
        let link = Arc::new(self.connector.open().await?);
        let mut links = self.links.lock();
        if links.len() < MAX_READERS {
            links.push(Arc::clone(&link));
        }
        Ok(link)
    }

    /// The rows of `sql`.
    pub(super) async fn query(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut repeats = 0;
        loop {
            let link = self.link().await?;
            match link.query(sql, params).await {
                Ok(rows) => return Ok(rows),
                Err(fault) if fault.is_worth_another_read() && repeats < MAX_READ_REPEATS => {
                    repeats += 1;
                    if matches!(fault, Fault::Broken(_)) {
                        self.links.lock().retain(|known| !Arc::ptr_eq(known, &link));
                    }
                }
                Err(fault) => return Err(fault.into_error()),
            }
        }
    }
}
