//! Who is asking, and what they may do.
//!
//! [`Authenticate`] is the one port: the server asks it on every request, and a program that
//! embeds the server brings its own. [`BuiltIn`] is what the server has: tokens of its own
//! ([`token`]) and those that an identity provider signs ([`jwt`]). The secret of a single attempt
//! is no matter of this module: it opens nothing but that attempt.

pub mod credentials;
pub mod jwt;
pub mod token;

use async_trait::async_trait;

pub use credentials::Credentials;
pub use jwt::JwtAuthenticator;
pub use tidegate_api::{Scope, Scopes};
pub use token::{TokenAuthenticator, TokenItem};

/// Somebody who is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// What they are called in logs.
    pub name: String,
    /// What they may do.
    pub scopes: Scopes,
}

impl Principal {
    /// Whether they may do what `scope` is for.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.allow(scope)
    }
}

/// Why nobody is known by some credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// They are missing or not good; the same ones will not become so.
    #[error("{0}")]
    Refused(String),
    /// Whoever knows cannot be asked now. Repeating may help.
    #[error("credentials cannot be checked now: {0}")]
    Unavailable(String),
}

impl AuthError {
    fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }
}

/// Tells who somebody is by what they show.
#[async_trait]
pub trait Authenticate: Send + Sync {
    /// Who shows `credentials`. Asked on every request, those without credentials too.
    ///
    /// # Errors
    ///
    /// [`AuthError`].
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError>;

    /// Whether anybody is let in, whatever they show, since only this machine reaches the server. Then what is meant for another host is
    /// refused: a page that this machine's user looks at may have had its own name point here.
    fn is_open(&self) -> bool {
        false
    }
}

/// Whether somebody without credentials is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Never.
    Refused,
    /// As long as there is neither a token nor an identity provider, anybody may do everything: only for a
    /// server that nobody but this machine can reach.
    AdminWithoutTokens,
}

/// The server's own way: tokens, and signed tokens of an identity provider if there is one.
#[derive(Debug)]
pub struct BuiltIn {
    tokens: TokenAuthenticator,
    jwt: Option<JwtAuthenticator>,
    anonymous: Anonymous,
}

impl BuiltIn {
    /// Without any tokens yet.
    pub fn new(jwt: Option<JwtAuthenticator>, anonymous: Anonymous) -> Self {
        Self { tokens: TokenAuthenticator::default(), jwt, anonymous }
    }

    /// Takes `tokens` instead of those before, for every request that begins from now on.
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
    async fn a_server_for_this_machine_alone_is_open_until_it_has_a_token() {
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
    async fn a_server_for_others_stays_closed_when_its_last_token_goes() {
        let server = BuiltIn::new(None, Anonymous::Refused);
        let (item, credentials) = token();
        server.set_tokens(vec![item]);
        assert!(server.authenticate(&credentials).await.is_ok());
        server.set_tokens(Vec::new());
        assert!(server.authenticate(&credentials).await.is_err());
        assert!(server.authenticate(&Credentials::anonymous()).await.is_err());
    }
}
