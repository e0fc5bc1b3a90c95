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
use tokio::{runtime::Handle, sync::mpsc, time::Instant};
use tokio_postgres::{
    AsyncMessage, Client, NoTls, Row, SimpleQueryMessage, Statement,
    tls::{MakeTlsConnect, TlsConnect},
    types::ToSql,
};

use super::{
    error::Fault, item_lock::ItemLock, session, settings::Settings, tls::Tls, wal::Watched,
};
use tidegate_core::port::StoreError;

/// How long a client waits for an answer. The server gives up a statement after five seconds, so
/// the connection is broken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection may take to open, with encryption, authentication and its settings.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// The warning of a commit that no standby has confirmed.
const NOT_REPLICATED: &str = "01000";

/// How often it is checked that connections have sessions of their own. A pooler may by chance give each
/// connection the same session twice.
const SESSION_CHECKS: usize = 3;
/// What a session is marked with.
const MARK: &str = "SELECT current_setting('tidegate.session', true)";

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

    /// Whether servers listen to notifications.
    pub(super) fn listens(&self) -> bool {
        self.settings.listens
    }

    /// A new connection with the settings of a session.
    pub(super) async fn open(&self) -> Result<Link, StoreError> {
        self.open_listening(None).await
    }

    /// As [`Self::open`]; notifications go to `notified` as far as it has room.
    pub(super) async fn open_listening(
        &self,
        notified: Option<mpsc::Sender<Notified>>,
    ) -> Result<Link, StoreError> {
        let this = self.clone();
        // A caller may be on a runtime that ends before the store does.
        let opened = self.handle.spawn(tokio::time::timeout(OPEN_TIMEOUT, async move {
            let link = match this.tls.clone() {
                Some(tls) => Link::open(&this.settings, tls, notified).await,
                None => Link::open(&this.settings, NoTls, notified).await,
            };
            let link = link.map_err(StoreError::unavailable)?;
            session::begin(&link, this.schema()).await?;
            Ok(link)
        }));
        opened.await.map_err(StoreError::unavailable)?.map_err(StoreError::unavailable)?
    }
}

impl Connector {
    /// Whether connections have sessions of their own: `one`, and another one.
    ///
    /// A pooler in transaction mode gives each transaction any session. Then a statement would run
    /// without the settings of its session, and notices would be lost. Nothing in the protocol shows
    /// that, but a mark of one connection is then on the session of the other, or gone.
    pub(super) async fn has_own_sessions(&self, one: &Link) -> Result<bool, StoreError> {
        let other = self.open().await?;
        for check in 0..SESSION_CHECKS {
            let marked = [(one, format!("one-{check}")), (&other, format!("other-{check}"))];
            for (link, mark) in &marked {
                let set = format!("SET tidegate.session = '{mark}'");
                link.run(&set).await.map_err(Fault::into_error)?;
            }
            for (link, mark) in &marked {
                let found = in_time(link.client.simple_query(MARK)).await;
                let found = found.map_err(Fault::into_error)?;
                let is_mark = |message: &SimpleQueryMessage| match message {
                    SimpleQueryMessage::Row(row) => {
                        row.try_get(0).ok().flatten() == Some(mark.as_str())
                    }
                    _ => false,
                };
                if !found.iter().any(is_mark) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// A notification that a connection has received.
pub(super) struct Notified {
    /// The process of the session that has sent it.
    pub session: i32,
    pub text: String,
}

/// A connection. Statements that are sent while others are under way follow them at once.
pub(super) struct Link {
    pub(super) client: Client,
    /// The release of Postgres that it leads to, as far as the server tells.
    pub(super) release: Option<u32>,
    statements: Mutex<HashMap<&'static str, Statement>>,
    /// How many commits were not confirmed by a standby.
    unconfirmed: Arc<AtomicU64>,
    /// What changes of items lock in its groups.
    pub(super) item_lock: ItemLock,
    /// The log of its server, if its commits are watched.
    pub(super) watched: Option<Watched>,
}

impl Link {
    async fn open<T>(
        settings: &Settings,
        tls: T,
        notified: Option<mpsc::Sender<Notified>>,
    ) -> Result<Self, tokio_postgres::Error>
    where
        T: MakeTlsConnect<tokio_postgres::Socket> + Clone + Send + 'static,
        T::TlsConnect: Send,
        T::Stream: Send + 'static,
        <T::TlsConnect as TlsConnect<tokio_postgres::Socket>>::Future: Send,
    {
        let (client, mut connection) = settings.config.connect(tls).await?;
        let release = connection.parameter("server_version").and_then(session::release);
        let unconfirmed = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&unconfirmed);
        tokio::spawn(async move {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                match message {
                    Ok(AsyncMessage::Notice(notice)) if notice.code().code() == NOT_REPLICATED => {
                        seen.fetch_add(1, Ordering::Release);
                    }
                    Ok(AsyncMessage::Notification(notification)) => {
                        if let Some(notified) = &notified {
                            let (session, text) =
                                (notification.process_id(), notification.payload().to_owned());
                            let _ = notified.try_send(Notified { session, text });
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a connection to the database ended");
                        break;
                    }
                }
            }
        });
        Ok(Self {
            client,
            release,
            statements: Mutex::default(),
            unconfirmed,
            item_lock: ItemLock::default(),
            watched: None,
        })
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

    /// Executes statements without parameters.
    pub(super) async fn run(&self, sql: &str) -> Result<(), Fault> {
        in_time(self.client.batch_execute(sql)).await
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
    Ok(answer(call).await??)
}

/// The answer to a call, which may be an error.
///
/// # Errors
///
/// [`Fault::Broken`] if it takes too long.
pub(super) async fn answer<A>(call: impl Future<Output = A>) -> Result<A, Fault> {
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, call).await;
    answer.map_err(|late| Fault::Broken(StoreError::unavailable(late)))
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
    /// Held while a connection opens, so that many callers open one at a time. When the latest one
    /// failed, and why.
    opening: tokio::sync::Mutex<Option<(Instant, StoreError)>>,
}

/// The connections from which a caller takes the one with the fewest callers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    /// The idle ones, as long as more may be opened.
    Idle,
    Any,
}

/// Most connections of readers.
const MAX_READERS: usize = 4;
/// How often a read is repeated after its connection broke.
const MAX_READ_REPEATS: usize = 2;

impl Readers {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, links: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    /// Opens connections that are not shared.
    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// A connection for some statements. While one opens, callers share those that are open.
    pub(super) async fn link(&self) -> Result<Arc<Link>, StoreError> {
        let began = Instant::now();
        if let Some(link) = self.least_used(Want::Idle) {
            return Ok(link);
        }
        let mut failed = if let Ok(failed) = self.opening.try_lock() {
            failed
        } else {
            if let Some(link) = self.least_used(Want::Any) {
                return Ok(link);
            }
            let failed = self.opening.lock().await;
            if let Some(link) = self.least_used(Want::Any) {
                return Ok(link);
            }
            // One attempt answers all who waited for it.
            match &*failed {
                Some((at, error)) if *at >= began => return Err(error.clone()),
                _ => failed,
            }
        };
        match self.connector.open().await {
            Ok(link) => {
                let link = Arc::new(link);
                self.links.lock().push(Arc::clone(&link));
                Ok(link)
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                self.least_used(Want::Any).ok_or(error)
            }
        }
    }

    /// The connection with the fewest callers.
    fn least_used(&self, want: Want) -> Option<Arc<Link>> {
        let mut links = self.links.lock();
        links.retain(|link| !link.is_closed());
        let is_full = links.len() >= MAX_READERS;
        let link = links.iter().min_by_key(|link| Arc::strong_count(link))?;
        // Each caller has a reference, and so has the list.
        let is_idle = Arc::strong_count(link) == 1;
        (want == Want::Any || is_full || is_idle).then(|| Arc::clone(link))
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
