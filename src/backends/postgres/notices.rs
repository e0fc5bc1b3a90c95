//! Notices between servers by `NOTIFY`, on a connection of their own. Never in a commit: there a
//! `NOTIFY` takes a lock that it holds over the fsync, which halves the commits of a database.
//!
//! Some connection poolers and databases accept `LISTEN` and send nothing, and others refuse it. So a
//! server sends a text to itself first. Unless that arrives, it finds new jobs by [polling](Arrivals).
//!
//! Before the notices of commits come the [places](super::due::Unsent) of their jobs. They are for the
//! store of the receiver: its next page finds the jobs.
//!
//! A send is a transaction of its own, and does not wait for the disk. The commits that it is about are
//! durable, and a notice that is lost with the database costs a poll. So receivers get it earlier, and
//! commits share the log with fewer flushes. The setting ends with the transaction: no later one of the
//! session has it, not even if a pooler gives the session to another connection.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    sync::{Mutex, mpsc},
    time::Instant,
};

use super::{
    PostgresStore, Shared,
    arrivals::Arrivals,
    connect::{Link, Notified, Readers, in_time},
    due::{DuePlace, sent_places},
    error::Fault,
};
use tidegate_core::port::{Clock, Notice, Notices, StoreError};

/// Sends a notification for each text of an array, in a transaction that does not wait for the disk.
const SEND: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, text) \
     FROM unnest($2::text[]) text";
/// The process of a connection's session.
const SESSION: &str = "SELECT pg_backend_pid()";
/// The text that a server sends to itself: no notice.
const ECHO: &str = "";
/// How long a server waits for its own text.
const ECHO_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a server polls before it tries to listen again.
const POLLING: Duration = Duration::from_mins(1);
/// Most notices that wait to be received: 16 MB. Of more, the rest is lost.
const MAX_WAITING: usize = 2000;
/// Most notices that are received at once.
const MAX_RECEIVED: usize = 1000;

/// The notices of one server.
pub struct PostgresNotices {
    readers: Arc<Readers>,
    clock: Arc<dyn Clock>,
    /// What its store knows.
    shared: Shared,
    /// Where its notices come from, after the first call.
    source: Mutex<Option<Source>>,
    /// The connection that sends.
    sending: Mutex<Option<Arc<Sending>>>,
    /// The latest such connection, while it exists.
    latest: parking_lot::Mutex<Weak<Sending>>,
}

/// A connection that sends.
struct Sending {
    link: Link,
    /// The process of its session.
    session: Option<i32>,
}

enum Source {
    /// The connection that listens. It is made again after it broke.
    Listening(Listening),
    /// Reads of new jobs, until the next attempt to listen.
    Polling(Arrivals, Instant),
}

struct Listening {
    /// Closed with this value.
    _link: Link,
    received: mpsc::Receiver<Notified>,
}

impl PostgresStore {
    /// Notices between the servers of this store. Those that are received move the places at which its
    /// pages start.
    pub fn notices(&self) -> PostgresNotices {
        PostgresNotices {
            readers: Arc::clone(&self.readers),
            clock: Arc::clone(&self.clock),
            shared: self.shared.clone(),
            source: Mutex::default(),
            sending: Mutex::default(),
            latest: parking_lot::Mutex::default(),
        }
    }
}

impl PostgresNotices {
    /// Where the notices come from now.
    async fn source(&self) -> Result<Source, StoreError> {
        if self.readers.connector().listens() {
            match self.listening().await {
                Ok(listening) => return Ok(Source::Listening(listening)),
                Err(Fault::Broken(error)) => return Err(error),
                Err(fault) => {
                    let error = fault.into_error();
                    tracing::warn!(error = %error.chain(), "new jobs of others are found by polling");
                }
            }
        }
        let positions = Arc::clone(&self.shared.positions);
        let arrivals = Arrivals::new(Arc::clone(&self.readers), Arc::clone(&self.clock), positions);
        Ok(Source::Polling(arrivals, Instant::now() + POLLING))
    }

    /// Listens on the channel, which has the name of the schema, and has received the own text.
    async fn listening(&self) -> Result<Listening, Fault> {
        let (sender, mut received) = mpsc::channel(MAX_WAITING);
        let connector = self.readers.connector();
        let link = connector.open_listening(Some(sender)).await.map_err(Fault::Broken)?;
        let listen = format!("LISTEN \"{}\"", connector.schema());
        in_time(link.client.batch_execute(&listen)).await?;
        self.send_texts(&[ECHO.to_owned()]).await?;
        let echo = tokio::time::timeout(ECHO_TIMEOUT, async {
            while received.recv().await.is_some_and(|it| it.text != ECHO) {}
        });
        match echo.await {
            Ok(()) if link.is_closed() => {
                Err(Fault::Broken(StoreError::unavailable("the connection for notices ended")))
            }
            Ok(()) => Ok(Listening { _link: link, received }),
            Err(_) => Err(Fault::Unable(StoreError::unavailable(
                "the database does not send notifications, perhaps because of a connection pooler",
            ))),
        }
    }

    async fn send_texts(&self, texts: &[String]) -> Result<(), Fault> {
        let mut sending = self.sending.lock().await;
        let open = match sending.take().filter(|it| !it.link.is_closed()) {
            Some(open) => open,
            None => self.open_sending().await?,
        };
        // Kept unless the call fails or its caller leaves.
        open.link.query(SEND, &[&self.readers.connector().schema(), &texts]).await?;
        *sending = Some(open);
        Ok(())
    }

    /// A new connection that sends.
    async fn open_sending(&self) -> Result<Arc<Sending>, Fault> {
        let link = self.readers.connector().open().await.map_err(Fault::Broken)?;
        let rows = link.query(SESSION, &[]).await?;
        let session = rows.first().and_then(|row| row.try_get(0).ok());
        let opened = Arc::new(Sending { link, session });
        *self.latest.lock() = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// The notice in a text that was received. None for other texts: a later release may have some. None
    /// for a notice of a queue that this server has sent: whatever commits a job here wakes the queue
    /// itself, and each wake has the next tick read the store.
    fn notice_in(&self, received: &Notified) -> Option<Notice> {
        let notice: Notice = received.text.parse().ok()?;
        let is_own = matches!(notice, Notice::Queue(_)) && self.has_session(received.session);
        (!is_own).then_some(notice)
    }

    /// Whether `process` is that of the session that sends. After the connection has ended, the number may
    /// be that of another server's session: a pooler reuses sessions, and the system reuses numbers.
    fn has_session(&self, process: i32) -> bool {
        let latest = self.latest.lock().upgrade();
        latest.is_some_and(|it| !it.link.is_closed() && it.session == Some(process))
    }
}

#[async_trait]
impl Notices for PostgresNotices {
    async fn send(&self, notices: &BTreeSet<Notice>) -> Result<(), StoreError> {
        // A receiver must know the places when it gets the notices.
        let places = self.shared.unsent.take(Instant::now());
        let texts: Vec<String> =
            places.into_iter().chain(notices.iter().map(Notice::to_string)).collect();
        self.send_texts(&texts).await.map_err(Fault::into_error)
    }

    async fn receive(&self) -> Result<BTreeSet<Notice>, StoreError> {
        let mut slot = self.source.lock().await;
        loop {
            let source = match slot.take() {
                Some(Source::Polling(_, until)) if until <= Instant::now() => self.source().await?,
                Some(source) => source,
                None => self.source().await?,
            };
            // A caller that leaves does not end it.
            match slot.insert(source) {
                Source::Listening(Listening { received, .. }) => {
                    let mut all = Vec::new();
                    if received.recv_many(&mut all, MAX_RECEIVED).await == 0 {
                        *slot = None;
                        return Err(StoreError::unavailable("the connection for notices ended"));
                    }
                    let places: Vec<DuePlace> =
                        all.iter().filter_map(|it| sent_places(&it.text)).flatten().collect();
                    self.shared.positions.scheduled(&places, Instant::now());
                    let notices: BTreeSet<Notice> =
                        all.iter().filter_map(|it| self.notice_in(it)).collect();
                    if !notices.is_empty() {
                        return Ok(notices);
                    }
                }
                Source::Polling(arrivals, _) => {
                    let queues = arrivals.next().await?;
                    if !queues.is_empty() {
                        return Ok(queues.into_iter().map(Notice::Queue).collect());
                    }
                }
            }
        }
    }
}
