//! The server's own tokens: `tg_ID_SECRET`.
//!
//! Only a digest of the secret is stored. The secret has 128 random bits, so its plain SHA-256
//! cannot be reversed; a slow hash is only necessary for secrets that people choose.

use std::collections::HashMap;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{AuthError, Authenticate, Credentials, Principal, Scopes};
use tidegate_core::{port::Entropy, time::Timestamp};

/// The prefix of every token.
const PREFIX: &str = "tg_";

/// A token as it is stored: an item of the kind
/// [`Token`](tidegate_core::port::job_store::ItemKind::Token) under its id. One with a field that
/// this release does not know, such as a bound, accepts no caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenItem {
    /// The id in lists and for revocation; a part of the token itself.
    pub id: String,
    /// The name that its owner gave it.
    pub name: String,
    /// The scopes that it grants.
    pub scopes: Scopes,
    /// The SHA-256 of its secret, in base64.
    pub hash: String,
    /// When it was created.
    pub created_at: Timestamp,
}

impl TokenItem {
    /// A stored token. One that cannot be read accepts no caller, and keeps the server closed; the
    /// other tokens are not affected.
    pub fn read(json: &[u8]) -> Self {
        serde_json::from_slice(json).unwrap_or_else(|error| {
            let fields: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
            let id = fields["id"].as_str().unwrap_or_default().to_owned();
            tracing::error!(id, %error, "a stored token cannot be read, and accepts no caller");
            Self {
                id,
                name: "cannot be read".into(),
                scopes: Scopes::default(),
                hash: String::new(),
                created_at: Timestamp::EPOCH,
            }
        })
    }

    /// A new token: the item to store, and its text, which cannot be recovered later.
    pub(crate) fn mint(
        name: impl Into<String>,
        scopes: Scopes,
        now: Timestamp,
        entropy: &dyn Entropy,
    ) -> (Self, String) {
        let id = format!("{:08x}", entropy.bits() >> 96);
        let secret = format!("{:032x}", entropy.bits());
        let text = format!("{PREFIX}{id}_{secret}");
        (Self { id, name: name.into(), scopes, hash: digest(&secret), created_at: now }, text)
    }
}

fn digest(secret: &str) -> String {
    BASE64.encode(Sha256::digest(secret))
}

/// Whether the two are equal, in time that does not depend on where they differ.
fn same(left: &str, right: &str) -> bool {
    left.len() == right.len()
        && left.bytes().zip(right.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Authenticates stored tokens, from a snapshot that is replaced as a whole.
#[derive(Debug, Default)]
pub struct TokenAuthenticator(ArcSwap<HashMap<String, TokenItem>>);

impl TokenAuthenticator {
    /// Replaces the tokens.
    pub fn set_tokens(&self, tokens: Vec<TokenItem>) {
        self.0.store(
            tokens
                .into_iter()
                .map(|token| (token.id.clone(), token))
                .collect::<HashMap<_, _>>()
                .into(),
        );
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.0.load().is_empty()
    }

    fn find(&self, text: &str) -> Option<Principal> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let tokens = self.0.load();
        let token = tokens.get(id).filter(|token| same(&token.hash, &digest(secret)))?;
        Some(Principal { name: token.name.clone(), scopes: token.scopes })
    }
}

#[async_trait]
impl Authenticate for TokenAuthenticator {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError> {
        let text = credentials.secret().ok_or_else(|| AuthError::refused("a token is needed"))?;
        self.find(text).ok_or_else(|| AuthError::refused("the token is not known"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Scope;
    use tidegate_engine::memory::SeededEntropy;

    fn mint(seed: u64) -> (TokenItem, String) {
        TokenItem::mint(
            "ci",
            "enqueue work".parse().unwrap(),
            Timestamp::from_millis(5),
            &SeededEntropy::new(seed),
        )
    }

    async fn ask(known: &TokenAuthenticator, text: &str) -> Result<Principal, AuthError> {
        known
            .authenticate(&Credentials::from_header(Some(&format!("Bearer {text}"))).unwrap())
            .await
    }

    #[tokio::test]
    async fn only_the_exact_token_text_is_accepted() {
        let (item, text) = mint(1);
        let known = TokenAuthenticator::default();
        assert!(ask(&known, &text).await.is_err());
        known.set_tokens(vec![item.clone(), mint(2).0]);
        let principal = ask(&known, &text).await.unwrap();
        assert_eq!(
            (principal.name.as_str(), principal.may(Scope::Work), principal.may(Scope::Read)),
            ("ci", true, false)
        );

        let (head, last) = text.split_at(text.len() - 1);
        let other = if last == "0" { "1" } else { "0" };
        let swapped = format!("tg_{}_{}", item.id, mint(2).1.rsplit('_').next().unwrap());
        let stored = format!("tg_{}_{}", item.id, item.hash);
        for wrong in [
            head,
            &format!("{head}{other}"),
            &swapped,
            &stored,
            &text[3..],
            &format!("tg_{}_", item.id),
        ] {
            assert!(matches!(ask(&known, wrong).await, Err(AuthError::Refused(_))), "{wrong}");
        }
        assert!(known.authenticate(&Credentials::anonymous()).await.is_err());
        known.set_tokens(vec![TokenItem { hash: String::new(), ..item }]);
        assert!(ask(&known, &text).await.is_err(), "a damaged item accepts no caller");
        known.set_tokens(vec![mint(2).0]);
        assert!(ask(&known, &text).await.is_err(), "a revoked token is not known");
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_read_accepts_nobody_and_stays_listed() {
        let (item, text) = mint(1);
        let mut bounded = serde_json::to_value(&item).unwrap();
        bounded["queues"] = serde_json::json!(["mail"]);
        let read = TokenItem::read(bounded.to_string().as_bytes());
        assert_eq!((&read.id, &*read.hash), (&item.id, ""));
        let (other, other_text) = mint(2);
        let known = TokenAuthenticator::default();
        known.set_tokens(vec![read, other]);
        assert!(ask(&known, &text).await.is_err(), "its bound is not known");
        assert!(ask(&known, &other_text).await.is_ok());
        known.set_tokens(vec![TokenItem::read(b"damaged")]);
        assert!(!known.is_empty(), "the server stays closed");
    }

    #[test]
    fn a_stored_token_reads_back_without_its_secret() {
        let (item, text) = mint(1);
        let json = serde_json::to_string(&item).unwrap();
        assert!(!json.contains(text.rsplit('_').next().unwrap()), "{json}");
        assert_eq!(serde_json::from_str::<TokenItem>(&json).unwrap(), item);
        // 128 bits in 32 hexadecimal digits; 256 bits in 44 characters of base64.
        assert_eq!((text.len(), item.hash.len()), (3 + 8 + 1 + 32, 44));
    }
}
