//! Tokens as methods of the server: stored items, and the listener that receives them after a
//! change.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::Server;
use crate::auth::{BuiltIn, TokenItem, stored};
use tidegate_core::time::Timestamp;
use tidegate_engine::Error;

impl Server {
    /// Stores a token. From the first one on the server is [closed](Self::is_closed).
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn put_token(&self, token: &TokenItem) -> Result<(), Error> {
        stored::put(&self.inner.engine, token).await?;
        self.publish_tokens().await
    }

    /// Calls `listener` with all tokens after every change, before the change returns.
    pub fn watch_tokens(&self, listener: impl Fn(Vec<TokenItem>) + Send + Sync + 'static) {
        *self.inner.tokens.lock() = Some(Arc::new(listener));
    }

    /// Reloads the tokens for the [listener](Self::watch_tokens): another process may have changed
    /// one.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn publish_tokens(&self) -> Result<(), Error> {
        // A read that began before another one must not be published after it.
        let _turn = self.inner.token_reads.lock().await;
        let listener = self.inner.tokens.lock().clone();
        if let Some(listener) = listener {
            listener(self.tokens().await?);
        }
        Ok(())
    }

    /// All tokens, by id.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn tokens(&self) -> Result<Vec<TokenItem>, Error> {
        stored::all(&self.inner.engine).await
    }

    /// When tokens were used last, by id.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn token_uses(&self) -> Result<HashMap<String, Timestamp>, Error> {
        stored::uses(&self.inner.engine).await
    }

    /// Records the uses of tokens that are at least `interval` after their recorded ones. A failure
    /// is logged, and the next call records them.
    pub async fn record_token_uses(&self, auth: &BuiltIn, interval: Duration) {
        let uses = auth.unrecorded_uses(interval);
        match stored::record_uses(&self.inner.engine, uses.clone()).await {
            Ok(()) => auth.mark_recorded(&uses),
            Err(error) => tracing::warn!(%error, "the last use of tokens was not recorded"),
        }
    }

    /// Whether the server ever had a token. Then callers need credentials for good.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn is_closed(&self) -> Result<bool, Error> {
        stored::is_closed(&self.inner.engine).await
    }

    /// Removes a token, unless `keep` is true of it after the tokens were read again. Removals run
    /// one after the other.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn delete_token(
        &self,
        id: &str,
        keep: impl FnOnce() -> bool + Send,
    ) -> Result<TokenRemoval, Error> {
        let _turn = self.inner.token_removal.lock().await;
        self.publish_tokens().await?;
        if keep() {
            return Ok(TokenRemoval::Kept);
        }
        let exists = stored::remove(&self.inner.engine, id).await?;
        if exists {
            self.publish_tokens().await?;
        }
        Ok(if exists { TokenRemoval::Removed } else { TokenRemoval::Unknown })
    }
}

/// What became of a token that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRemoval {
    /// It is removed.
    Removed,
    /// The caller keeps it.
    Kept,
    /// There is none.
    Unknown,
}
