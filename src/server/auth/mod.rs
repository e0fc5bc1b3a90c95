//! Authentication of callers, and their scopes.
//!
//! [`Authenticate`] is the one port: the server calls it for every request, and a program that
//! embeds the server can bring its own. [`BuiltIn`] is the server's own: stored tokens ([`token`])
//! and tokens signed by an identity provider ([`jwt`]), at which users can sign in ([`oidc`]). The
//! token of a single attempt is not handled here: it allows nothing but that attempt. [`stored`]
//! has the tokens in the store.

pub mod bounds;
pub mod credentials;
pub mod jwt;
pub mod local;
pub mod oidc;
pub mod stored;
pub mod token;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

pub use bounds::Bounds;
pub use credentials::Credentials;
pub use jwt::JwtAuthenticator;
pub use tidegate_api::{Scope, Scopes};
use tidegate_core::{job::Spec, port::Clock, time::Timestamp};
pub use token::{InvalidToken, TokenAuthenticator, TokenItem};

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name of the caller in logs.
    pub name: String,
    /// What the caller may do.
    pub scopes: Scopes,
    /// The jobs that it concerns.
    pub bounds: Arc<Bounds>,
}

impl Principal {
    /// The name of a caller whose credentials name none.
    pub const UNNAMED: &str = "unnamed";

    /// The name that jobs keep as [`Spec::enqueued_by`]. None for a caller without a name of its
    /// own, or with one of over 256 bytes: no job is its own.
    pub fn producer(&self) -> Option<&str> {
        let has_name =
            self.name != Self::UNNAMED && (1..=Spec::MAX_CALLER_BYTES).contains(&self.name.len());
        has_name.then_some(self.name.as_str())
    }

    /// Whether the caller has `scope`.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.allow(scope)
    }
}

/// Why credentials were not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// They are missing or invalid. Repeating cannot help.
    #[error("{0}")]
    Refused(String),
    /// They cannot be checked now. Repeating may help.
    #[error("credentials cannot be checked now: {0}")]
    Unavailable(String),
}

impl AuthError {
    fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }
}

/// Finds the caller by its credentials.
#[async_trait]
pub trait Authenticate: Send + Sync {
    /// The caller with `credentials`. Called for every request, also for those without credentials.
    ///
    /// # Errors
    ///
    /// [`AuthError`].
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError>;

    /// Whether every caller is accepted without credentials.
    fn is_open(&self) -> bool {
        false
    }

    /// Whether requests for other host names, and those through a proxy, are refused: every caller
    /// is accepted because only this machine can reach the server. It stops DNS rebinding by web
    /// pages.
    fn serves_this_machine_alone(&self) -> bool {
        self.is_open()
    }

    /// Whether no caller could administer the server without the stored token `id`.
    fn is_last_admin(&self, _id: &str) -> bool {
        false
    }
}

/// Whether callers without credentials are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Never.
    Refused,
    /// Every caller has the scope `admin` until the first token is stored, if there is no identity
    /// provider. Only for a server that no other machine can reach.
    AdminWithoutTokens,
    /// As [`AdminWithoutTokens`](Self::AdminWithoutTokens), from every machine. Only for a server of
    /// tests, whose operator has asked for it by name.
    AdminFromEveryMachine,
}

/// The server's own authentication: stored tokens, and tokens signed by an identity provider if one
/// is configured.
#[derive(Debug)]
pub struct BuiltIn {
    tokens: TokenAuthenticator,
    jwt: Option<Arc<JwtAuthenticator>>,
    /// Whether callers without credentials are accepted. Once false, it stays false.
    open: AtomicBool,
    /// Whether such callers may come from other machines.
    from_every_machine: bool,
}

impl BuiltIn {
    /// Without stored tokens.
    pub fn new(
        jwt: Option<Arc<JwtAuthenticator>>,
        anonymous: Anonymous,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let open = anonymous != Anonymous::Refused && jwt.is_none();
        Self {
            tokens: TokenAuthenticator::new(clock),
            jwt,
            open: AtomicBool::new(open),
            from_every_machine: anonymous == Anonymous::AdminFromEveryMachine,
        }
    }

    /// Replaces the stored tokens, for every later request. The first token closes the server for
    /// good.
    pub fn set_tokens(&self, tokens: Vec<TokenItem>) {
        if !tokens.is_empty() {
            self.close();
        }
        self.tokens.set_tokens(tokens);
    }

    /// Requires credentials of every later request, whether or not there is a token.
    pub fn close(&self) {
        self.open.store(false, Ordering::Release);
    }

    /// The uses of tokens that are to be stored: see [`TokenAuthenticator::unrecorded_uses`].
    pub fn unrecorded_uses(&self, interval: Duration) -> Vec<(String, Timestamp)> {
        self.tokens.unrecorded_uses(interval)
    }

    /// Marks these uses of tokens as stored.
    pub fn mark_recorded(&self, uses: &[(String, Timestamp)]) {
        self.tokens.mark_recorded(uses);
    }
}

#[async_trait]
impl Authenticate for BuiltIn {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError> {
        if self.is_open() {
            return Ok(Principal {
                name: "anonymous".into(),
                scopes: Scope::Admin.into(),
                bounds: Arc::default(),
            });
        }
        match &self.jwt {
            Some(jwt) if credentials.is_jwt() => jwt.authenticate(credentials).await,
            _ => self.tokens.authenticate(credentials).await,
        }
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    fn serves_this_machine_alone(&self) -> bool {
        self.is_open() && !self.from_every_machine
    }

    fn is_last_admin(&self, id: &str) -> bool {
        // An identity provider may name administrators at any time.
        self.jwt.is_none() && self.tokens.is_last_admin(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::memory::{FakeClock, SeededEntropy};

    fn server(anonymous: Anonymous) -> BuiltIn {
        BuiltIn::new(None, anonymous, Arc::new(FakeClock::default()))
    }

    fn token() -> (TokenItem, Credentials) {
        let (item, text) =
            TokenItem::mint("ci", Scope::Read.into(), Timestamp::EPOCH, &SeededEntropy::new(1));
        (item, Credentials::from_header(Some(&format!("Bearer {text}"))).unwrap())
    }

    #[tokio::test]
    async fn a_local_server_is_open_until_its_first_token() {
        let server = server(Anonymous::AdminWithoutTokens);
        assert!(server.authenticate(&Credentials::anonymous()).await.unwrap().may(Scope::Admin));
        let (item, credentials) = token();
        server.set_tokens(vec![item]);
        assert!(server.authenticate(&Credentials::anonymous()).await.is_err());
        let known = server.authenticate(&credentials).await.unwrap();
        assert_eq!(
            (known.name.as_str(), known.may(Scope::Read), known.may(Scope::Work)),
            ("ci", true, false)
        );
        server.set_tokens(Vec::new());
        assert!(server.authenticate(&Credentials::anonymous()).await.is_err(), "it stays closed");
    }

    #[tokio::test]
    async fn a_reachable_server_stays_closed_without_its_last_token() {
        let server = server(Anonymous::Refused);
        let (item, credentials) = token();
        server.set_tokens(vec![item]);
        assert!(server.authenticate(&credentials).await.is_ok());
        server.set_tokens(Vec::new());
        assert!(server.authenticate(&credentials).await.is_err());
        assert!(server.authenticate(&Credentials::anonymous()).await.is_err());
    }
}
