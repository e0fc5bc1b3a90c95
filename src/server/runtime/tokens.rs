//! Tokens as methods of the server: stored items, and the listener that receives them after a
//! change.

use std::sync::Arc;

use super::Server;
use tidegate_core::port::job_store::ItemKind;
use tidegate_engine::Error;

impl Server {
    /// Stores the item of a token.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn put_token(&self, id: &str, json: Vec<u8>) -> Result<(), Error> {
        self.inner.engine.put_item(ItemKind::Token, id, Some(json)).await?;
        self.publish_tokens().await
    }

    /// Calls `listener` with the items of all tokens after every change, before the change returns.
    pub fn watch_tokens(&self, listener: impl Fn(Vec<Vec<u8>>) + Send + Sync + 'static) {
        *self.inner.tokens.lock() = Some(Arc::new(listener));
    }

    /// Reloads the tokens for the [listener](Self::watch_tokens): another process may have changed
    /// one.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn publish_tokens(&self) -> Result<(), Error> {
        let listener = self.inner.tokens.lock().clone();
        if let Some(listener) = listener {
            listener(self.tokens().await?);
        }
        Ok(())
    }

    /// The items of all tokens.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn tokens(&self) -> Result<Vec<Vec<u8>>, Error> {
        Ok(self
            .inner
            .engine
            .ports()
            .store
            .items(ItemKind::Token)
            .await?
            .into_iter()
            .map(|item| item.bytes)
            .collect())
    }

    /// Removes a token. `false`: there was none.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn delete_token(&self, id: &str) -> Result<bool, Error> {
        let exists = self
            .inner
            .engine
            .ports()
            .store
            .items(ItemKind::Token)
            .await?
            .iter()
            .any(|item| item.name == id);
        if exists {
            self.inner.engine.put_item(ItemKind::Token, id, None).await?;
            self.publish_tokens().await?;
        }
        Ok(exists)
    }
}
