//! Notices between servers by `NOTIFY`, on a connection of their own. Never in a commit: there a
//! `NOTIFY` takes a lock that it holds over the fsync, which halves the commits of a database.

use std::collections::BTreeSet;

use async_trait::async_trait;
use tokio::sync::{Mutex, mpsc};

use super::{
    PostgresStore,
    connect::{Connector, Link, in_time},
    error::Fault,
};
use tidegate_core::port::{Notice, Notices, StoreError};

/// Sends a notification for each text of an array.
const SEND: &str = "SELECT pg_notify($1, text) FROM unnest($2::text[]) text";
/// Most notices that wait to be received: 16 MB. Of more, the rest is lost.
const MAX_WAITING: usize = 2000;
/// Most notices that are received at once.
const MAX_RECEIVED: usize = 1000;

/// The notices of one server.
pub struct PostgresNotices {
    connector: Connector,
    /// The connection that listens. It is made when it is first needed, and again after it broke.
    listening: Mutex<Option<Listening>>,
    /// The connection that sends.
    sending: Mutex<Option<Link>>,
}

struct Listening {
    /// Closed with this value.
    _link: Link,
    received: mpsc::Receiver<String>,
}

impl PostgresStore {
    /// Notices between the servers of this store.
    pub fn notices(&self) -> PostgresNotices {
        PostgresNotices {
            connector: self.readers.connector().clone(),
            listening: Mutex::default(),
            sending: Mutex::default(),
        }
    }
}

impl PostgresNotices {
    /// Starts to listen on the channel, which has the name of the schema.
    async fn listen(&self) -> Result<Listening, StoreError> {
        let (sender, received) = mpsc::channel(MAX_WAITING);
        let link = self.connector.open_listening(Some(sender)).await?;
        let listen = format!("LISTEN \"{}\"", self.connector.schema());
        in_time(link.client.batch_execute(&listen)).await.map_err(Fault::into_error)?;
        Ok(Listening { _link: link, received })
    }
}

#[async_trait]
impl Notices for PostgresNotices {
    async fn send(&self, notices: &BTreeSet<Notice>) -> Result<(), StoreError> {
        let texts: Vec<String> = notices.iter().map(Notice::to_string).collect();
        let mut sending = self.sending.lock().await;
        let link = match sending.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => self.connector.open().await?,
        };
        // Kept unless the call fails or its caller leaves.
        link.query(SEND, &[&self.connector.schema(), &texts]).await.map_err(Fault::into_error)?;
        *sending = Some(link);
        Ok(())
    }

    async fn receive(&self) -> Result<BTreeSet<Notice>, StoreError> {
        let mut slot = self.listening.lock().await;
        let listening = match &mut *slot {
            Some(listening) => listening,
            None => slot.insert(self.listen().await?),
        };
        let mut texts = Vec::new();
        if listening.received.recv_many(&mut texts, MAX_RECEIVED).await == 0 {
            *slot = None;
            return Err(StoreError::unavailable("the connection for notices ended"));
        }
        // A later release may have notices that this one does not know.
        Ok(texts.iter().filter_map(|text| text.parse().ok()).collect())
    }
}
