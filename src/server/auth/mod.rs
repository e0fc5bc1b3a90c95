//! Authentication of callers, and their scopes.
//!
//! [`Authenticate`] is the one port: the server calls it for every request, and a program that
//! embeds the server can bring its own. [`BuiltIn`] is the server's own: stored tokens ([`token`])
//! and tokens signed by an identity provider ([`jwt`]). The token of a single attempt is not
//! handled here: it allows nothing but that attempt.

pub mod credentials;
pub mod jwt;
pub mod token;

use async_trait::async_trait;

pub use credentials::Credentials;
pub use jwt::JwtAuthenticator;
pub use tidegate_api::{Scope, Scopes};
pub use token::{TokenAuthenticator, TokenItem};

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name of the caller in logs.
    pub name: String,
    /// What the caller may do.
    pub scopes: Scopes,
}

impl Principal {
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

    /// Whether every caller is accepted, because only this machine can reach the server. Requests
    /// for other host names are then refused, which stops DNS rebinding by web pages.
    fn is_open(&self) -> bool {
        false
    }
}

/// Whether callers without credentials are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Never.
    Refused,
    /// Every caller has the scope `admin` while there is neither a token nor an identity provider.
    /// Only for a server that no other machine can reach.
    AdminWithoutTokens,
}

/// The server's own authentication: stored tokens, and tokens signed by an identity provider if one
/// is configured.
#[derive(Debug)]
pub struct BuiltIn {
    tokens: TokenAuthenticator,
    jwt: Option<JwtAuthenticator>,
    anonymous: Anonymous,
}

impl BuiltIn {
    /// Without stored tokens.
    pub fn new(jwt: Option<JwtAuthenticator>, anonymous: Anonymous) -> Self {
        Self { tokens: TokenAuthenticator::default(), jwt, anonymous }
    }

    /// Replaces the stored tokens, for every later request.
    pub fn set_tokens(&self, tokens: Vec<TokenItem>) {
        self.tokens.set_tokens(tokens);
    }
}

#[async_trait]
impl Authenticate for BuiltIn {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError> {
        if self.is_open() {
            return Ok(Principal { name: "anonymous".into(), scopes: Scope::Admin.into() });
        }
        match &self.jwt {
            Some(jwt) if credentials.is_jwt() => jwt.authenticate(credentials).await,
            _ => self.tokens.authenticate(credentials).await,
        }
    }

    fn is_open(&self) -> bool {
        self.anonymous == Anonymous::AdminWithoutTokens
            && self.jwt.is_none()
            && self.tokens.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::time::Timestamp;
    use tidegate_engine::memory::SeededEntropy;

    fn token() -> (TokenItem, Credentials) {
        let (item, text) =
            TokenItem::mint("ci", Scope::Read.into(), Timestamp::EPOCH, &SeededEntropy::new(1));
        (item, Credentials::from_header(Some(&format!("Bearer {text}"))).unwrap())
    }

    #[tokio::test]
    async fn a_local_server_is_open_until_it_has_a_token() {
        let server = BuiltIn::new(None, Anonymous::AdminWithoutTokens);
        assert!(server.authenticate(&Credentials::anonymous()).await.unwrap().may(Scope::Admin));
        let (item, credentials) = token();
        server.set_tokens(vec![item]);
        assert!(server.authenticate(&Credentials::anonymous()).await.is_err());
        let known = server.authenticate(&credentials).await.unwrap();
        assert_eq!(
            (known.name.as_str(), known.may(Scope::Read), known.may(Scope::Work)),
            ("ci", true, false)
        );
    }

    #[tokio::test]
    async fn a_reachable_server_stays_closed_without_its_last_token() {
        let server = BuiltIn::new(None, Anonymous::Refused);
        let (item, credentials) = token();
        server.set_tokens(vec![item]);
        assert!(server.authenticate(&credentials).await.is_ok());
        server.set_tokens(Vec::new());
        assert!(server.authenticate(&credentials).await.is_err());
        assert!(server.authenticate(&Credentials::anonymous()).await.is_err());
    }
}
