//! The tokens in the store: created, removed, and when they were used.
//!
//! The first token closes the server for good. This is a stored fact of its own
//! ([`ItemKind::Closed`]), so that revoking the last token does not let every caller in.

use std::collections::HashMap;

use super::TokenItem;
use tidegate_core::{
    port::{
        Write,
        job_store::{Committed, Item, ItemKind},
    },
    time::Timestamp,
};
use tidegate_engine::{Engine, Error};

/// The name of the one item of the kind [`ItemKind::Closed`].
const CLOSED: &str = "closed";

/// Stores a token. Before the first one, it stores that the server is closed.
///
/// # Errors
///
/// The store's.
pub async fn put(engine: &Engine, token: &TokenItem) -> Result<(), Error> {
    close(engine).await?;
    let json = serde_json::to_vec(token).map_err(|error| Error::Internal(error.to_string()))?;
    engine.put_item(ItemKind::Token, &token.id, Some(json)).await
}

/// Stores that callers need credentials from now on, if that is not stored yet.
async fn close(engine: &Engine) -> Result<(), Error> {
    if engine.ports().store.items(ItemKind::Closed).await?.is_empty() {
        engine.put_item(ItemKind::Closed, CLOSED, Some(b"true".to_vec())).await?;
    }
    Ok(())
}

/// Whether a token was ever stored.
///
/// # Errors
///
/// The store's.
pub async fn is_closed(engine: &Engine) -> Result<bool, Error> {
    Ok(!engine.ports().store.items(ItemKind::Closed).await?.is_empty())
}

/// All tokens, by id.
///
/// # Errors
///
/// The store's.
pub async fn all(engine: &Engine) -> Result<Vec<TokenItem>, Error> {
    let items = engine.ports().store.items(ItemKind::Token).await?;
    Ok(items.iter().map(TokenItem::read).collect())
}

/// When tokens were used last, by id.
///
/// # Errors
///
/// The store's.
pub async fn uses(engine: &Engine) -> Result<HashMap<String, Timestamp>, Error> {
    let items = engine.ports().store.items(ItemKind::TokenUse).await?;
    let used_at = |item: &Item| item.read().ok();
    Ok(items.into_iter().filter_map(|item| Some((item.name.clone(), used_at(&item)?))).collect())
}

/// Removes a token. `false`: there was none.
///
/// # Errors
///
/// The store's.
pub async fn remove(engine: &Engine, id: &str) -> Result<bool, Error> {
    let tokens = engine.ports().store.items(ItemKind::Token).await?;
    if !tokens.iter().any(|item| item.name == id) {
        return Ok(false);
    }
    close(engine).await?;
    engine.put_item(ItemKind::Token, id, None).await?;
    let uses = engine.ports().store.items(ItemKind::TokenUse).await?;
    if uses.iter().any(|item| item.name == id) {
        engine.put_item(ItemKind::TokenUse, id, None).await?;
    }
    Ok(true)
}

/// Records uses of tokens, if they are later than the recorded ones. A use of a token that was
/// removed meanwhile is not recorded. Of two that are recorded at the same time, one is lost.
///
/// # Errors
///
/// The store's.
pub async fn record_uses(engine: &Engine, uses: Vec<(String, Timestamp)>) -> Result<(), Error> {
    if uses.is_empty() {
        return Ok(());
    }
    let store = &engine.ports().store;
    let tokens = store.items(ItemKind::Token).await?;
    let recorded = store.items(ItemKind::TokenUse).await?;
    let mut transactions = Vec::new();
    for (id, at) in uses {
        let Some(token) = tokens.iter().find(|token| token.name == id) else { continue };
        let before = recorded.iter().find(|item| item.name == id);
        let was = before.map_or(0, |item| item.version);
        let known: Option<Timestamp> = before.and_then(|item| item.read().ok());
        if known.is_some_and(|known| known >= at) {
            continue;
        }
        let json = serde_json::to_vec(&at).map_err(|error| Error::Internal(error.to_string()))?;
        transactions.push(vec![
            Write::RequireItem {
                kind: ItemKind::Token,
                name: id.as_str().into(),
                version: token.version,
            },
            Write::SetItem {
                kind: ItemKind::TokenUse,
                name: id,
                was,
                version: was + 1,
                bytes: Some(json),
            },
        ]);
    }
    let _: Vec<Committed> = store.commit(transactions).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::Scope;
    use tidegate_core::port::policy::NoPolicy;
    use tidegate_engine::{
        Ports, Rules,
        memory::{FakeClock, MemoryStore, MemoryWorkQueue, SeededEntropy},
    };

    fn engine() -> Engine {
        let ports = Ports {
            store: Arc::new(MemoryStore::new()),
            objects: Arc::new(object_store::memory::InMemory::new()),
            work: Arc::new(MemoryWorkQueue::default()),
            clock: Arc::new(FakeClock::default()),
            entropy: Arc::new(SeededEntropy::new(1)),
            policy: Arc::new(NoPolicy),
        };
        Engine::new(ports, Rules::default())
    }

    fn token(seed: u64) -> TokenItem {
        let entropy = SeededEntropy::new(seed);
        TokenItem::mint("ci", Scope::Admin.into(), Timestamp::EPOCH, &entropy).0
    }

    #[tokio::test]
    async fn the_first_token_closes_the_server_for_good() {
        let engine = engine();
        assert!(!is_closed(&engine).await.unwrap());
        let one = token(1);
        put(&engine, &one).await.unwrap();
        assert_eq!(all(&engine).await.unwrap(), std::slice::from_ref(&one));
        assert!(remove(&engine, &one.id).await.unwrap());
        assert!(!remove(&engine, &one.id).await.unwrap());
        assert_eq!(all(&engine).await.unwrap(), []);
        assert!(is_closed(&engine).await.unwrap());
    }

    #[tokio::test]
    async fn the_latest_use_of_a_token_is_recorded_while_it_exists() {
        let engine = engine();
        let (one, two) = (token(1), token(2));
        put(&engine, &one).await.unwrap();
        put(&engine, &two).await.unwrap();
        let at = Timestamp::from_millis;
        let seen = [(one.id.clone(), at(5000)), (two.id.clone(), at(7000)), ("x".into(), at(1))];
        record_uses(&engine, seen.to_vec()).await.unwrap();
        let earlier = vec![(one.id.clone(), at(9000)), (two.id.clone(), at(6000))];
        record_uses(&engine, earlier).await.unwrap();
        let expected = HashMap::from([(one.id.clone(), at(9000)), (two.id.clone(), at(7000))]);
        assert_eq!(uses(&engine).await.unwrap(), expected);
        remove(&engine, &one.id).await.unwrap();
        record_uses(&engine, vec![(one.id.clone(), at(10_000))]).await.unwrap();
        let left = HashMap::from([(two.id.clone(), at(7000))]);
        assert_eq!(uses(&engine).await.unwrap(), left, "a removed token has no use");
    }
}
