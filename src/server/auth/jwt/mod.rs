//! Tokens that an identity provider signs (JWT), checked by the keys it publishes (JWKS).
//!
//! Keys are fetched with the first token, when a token names an unknown key, and once an hour,
//! which drops withdrawn keys; but at most once a minute. While the provider does not answer, the
//! last fetched keys stay valid.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use jsonwebtoken::{
    Algorithm, DecodingKey, Header, Validation, decode, decode_header, errors::ErrorKind, jwk::Jwk,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::{Mutex, MutexGuard};

use super::{AuthError, Authenticate, Credentials, Principal, Scopes};
use crate::settings;
use tidegate_backends::http::HttpTarget;
use tidegate_core::{port::Clock, time::Timestamp};

/// The minimum interval after a fetch.
pub(crate) const FETCH_INTERVAL: Duration = Duration::from_mins(1);
/// The minimum interval after a failed fetch.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Keys older than this are fetched again before use.
pub(crate) const MAX_KEY_AGE: Duration = Duration::from_hours(1);
/// How far the provider's clock may differ from the server's.
pub(crate) const LEEWAY: Duration = Duration::from_secs(30);
/// How long a fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of the published keys.
const MAX_KEYS_BYTES: usize = 1 << 20;
/// The accepted algorithms. HMAC is excluded: a public key must never serve as its secret.
const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];

/// Authenticates tokens that an identity provider signed.
pub struct JwtAuthenticator {
    url: String,
    issuer: String,
    audience: String,
    scope_claim: String,
    http: HttpTarget,
    clock: Arc<dyn Clock>,
    keys: ArcSwapOption<Keys>,
    /// No fetch may start before this instant. The call that fetches holds the lock.
    next_fetch: Mutex<Timestamp>,
}

/// The keys of one fetch.
struct Keys {
    fetched_at: Timestamp,
    keys: Vec<Key>,
}

struct Key {
    id: Option<String>,
    /// The one algorithm that it is meant for.
    algorithm: Option<String>,
    decoding: DecodingKey,
}

impl Key {
    /// Whether it is meant for signatures of `algorithm`.
    fn is_for(&self, algorithm: Algorithm) -> bool {
        self.decoding.family() == algorithm.family()
            && self.algorithm.as_deref().is_none_or(|named| match algorithm {
                Algorithm::RS256 => named == "RS256",
                Algorithm::ES256 => named == "ES256",
                // RFC 9864 names the curve.
                Algorithm::EdDSA => matches!(named, "EdDSA" | "Ed25519"),
                _ => false,
            })
    }
}

impl Keys {
    /// The keys that may have signed a token with this header.
    fn matching(&self, header: &Header) -> Vec<DecodingKey> {
        let fits = |key: &&Key| {
            key.is_for(header.alg)
                && header.kid.as_ref().is_none_or(|id| key.id.as_ref() == Some(id))
        };
        self.keys.iter().filter(fits).map(|key| key.decoding.clone()).collect()
    }
}

impl JwtAuthenticator {
    /// The authenticator for `settings`, if they name a provider. It fetches nothing yet.
    pub fn new(settings: &settings::Jwt, http: HttpTarget, clock: Arc<dyn Clock>) -> Option<Self> {
        Some(Self {
            url: settings.jwks_url.as_ref()?.to_string(),
            issuer: settings.issuer.clone()?,
            audience: settings.audience.clone()?,
            scope_claim: settings.scope_claim.clone(),
            http,
            clock,
            keys: ArcSwapOption::empty(),
            next_fetch: Mutex::new(Timestamp::EPOCH),
        })
    }

    /// The keys that may have signed a token with this header, fetched if necessary.
    async fn keys(&self, header: &Header) -> Result<Vec<DecodingKey>, AuthError> {
        let known = self.keys.load_full();
        let matching = known.as_ref().map(|keys| keys.matching(header)).unwrap_or_default();
        let old = known.is_none_or(|keys| self.clock.now().since(keys.fetched_at) >= MAX_KEY_AGE);
        let fetched = if matching.is_empty() {
            self.fetch(self.next_fetch.lock().await).await
        } else if let (true, Ok(turn)) = (old, self.next_fetch.try_lock()) {
            // The first call that finds old keys fetches; the others use the old ones meanwhile.
            self.fetch(turn).await
        } else {
            return Ok(matching);
        };
        match self.keys.load_full() {
            Some(keys) => Ok(keys.matching(header)),
            None => Err(AuthError::Unavailable(
                fetched.err().unwrap_or_else(|| "the identity provider returned no keys".into()),
            )),
        }
    }

    /// Fetches the keys, unless another call fetched them while this one waited for the lock.
    async fn fetch(&self, mut next_fetch: MutexGuard<'_, Timestamp>) -> Result<(), String> {
        if self.clock.now() < *next_fetch {
            return Ok(());
        }
        let fetched = self.fetch_now().await;
        let now = self.clock.now();
        *next_fetch = now + if fetched.is_ok() { FETCH_INTERVAL } else { RETRY_INTERVAL };
        match fetched {
            Ok(keys) => {
                self.keys.store(Some(Arc::new(Keys { fetched_at: now, keys })));
                Ok(())
            }
            Err(reason) => {
                tracing::warn!(
                    url = self.url,
                    reason,
                    "fetching the identity provider's keys failed"
                );
                Err(reason)
            }
        }
    }

    async fn fetch_now(&self) -> Result<Vec<Key>, String> {
        let answer = self
            .http
            .get(&self.url, FETCH_TIMEOUT, MAX_KEYS_BYTES)
            .await
            .map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(format!("the answer has status {}", answer.status));
        }
        let published: Published =
            serde_json::from_slice(&answer.body).map_err(|_| "the answer is not a set of keys")?;
        Ok(published.keys.into_iter().filter_map(key).collect())
    }

    /// The `iss` of the tokens.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The `aud` of the tokens.
    pub fn audience(&self) -> &str {
        &self.audience
    }

    /// The scopes in the claims of a token.
    pub fn scopes_of(&self, claims: &Map<String, Value>) -> Scopes {
        let scopes = claims.get(&self.scope_claim).or_else(|| claims.get("scp"));
        scopes.map(scopes_of).unwrap_or_default()
    }

    /// Checks the issuer and the times of a token with these claims, whose signature is valid.
    fn check(&self, claims: &Map<String, Value>) -> Result<(), AuthError> {
        // The library also takes a list with the issuer among others (RFC 7519, 4.1.1: one text).
        if claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err(AuthError::refused("the token is of another issuer"));
        }
        let now = self.clock.now();
        let instant = |name: &str| {
            claims
                .get(name)
                .and_then(Value::as_f64)
                .map(|seconds| Timestamp::from_millis((seconds * 1000.0) as i64))
        };
        if instant("exp").is_none_or(|end| end + LEEWAY <= now) {
            return Err(AuthError::refused("the token has expired"));
        }
        if claims.contains_key("nbf") && instant("nbf").is_none_or(|start| start > now + LEEWAY) {
            return Err(AuthError::refused("the token is not valid yet"));
        }
        Ok(())
    }

    /// The claims of a token for `audience` that the provider has signed, and that is valid now.
    ///
    /// # Errors
    ///
    /// [`AuthError`].
    pub async fn verify(
        &self,
        token: &str,
        audience: &str,
    ) -> Result<Map<String, Value>, AuthError> {
        let header =
            decode_header(token).map_err(|_| AuthError::refused("the token cannot be read"))?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(AuthError::refused("the token must be signed with RS256, ES256 or EdDSA"));
        }
        if has_critical_extensions(token) {
            return Err(AuthError::refused("the token has extensions that this server must know"));
        }
        let mut validation = Validation::new(header.alg);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        // `check` checks times, by the clock port.
        validation.validate_exp = false;
        for key in self.keys(&header).await? {
            match decode::<Map<String, Value>>(token, &key, &validation)
                .map_err(jsonwebtoken::errors::Error::into_kind)
            {
                Ok(token) => {
                    self.check(&token.claims)?;
                    return Ok(token.claims);
                }
                Err(ErrorKind::InvalidIssuer) => {
                    return Err(AuthError::refused("the token is of another issuer"));
                }
                Err(ErrorKind::InvalidAudience) => {
                    return Err(AuthError::refused("the token is meant for another audience"));
                }
                Err(ErrorKind::MissingRequiredClaim(claim)) => {
                    return Err(AuthError::refused(format!("the token has no `{claim}`")));
                }
                Err(_) => {}
            }
        }
        Err(AuthError::refused("the token is not signed by a known key"))
    }
}

#[async_trait]
impl Authenticate for JwtAuthenticator {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError> {
        let token = credentials.secret().ok_or_else(|| AuthError::refused("a token is needed"))?;
        let claims = self.verify(token, &self.audience).await?;
        let name = claims.get("sub").and_then(Value::as_str).unwrap_or(Principal::UNNAMED);
        let (name, scopes) = (name.to_owned(), self.scopes_of(&claims));
        Ok(Principal { name, scopes, bounds: Arc::default() })
    }
}

impl std::fmt::Debug for JwtAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JwtAuthenticator").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// The keys as separate values, so that one of an unknown kind does not invalidate the others.
#[derive(Deserialize)]
struct Published {
    keys: Vec<Value>,
}

/// A published key, unless it is not meant for signatures (RFC 7517, 4.2 to 4.4).
fn key(published: Value) -> Option<Key> {
    let is_for_verification = published.get("key_ops").is_none_or(|operations| {
        operations.as_array().is_some_and(|list| list.iter().any(|one| one == "verify"))
    });
    let is_for_signatures = published.get("use").is_none_or(|used| used == "sig");
    if !is_for_verification || !is_for_signatures {
        return None;
    }
    let algorithm = match published.get("alg") {
        None => None,
        Some(named) => Some(named.as_str()?.to_owned()),
    };
    let jwk: Jwk = serde_json::from_value(published).ok()?;
    Some(Key { decoding: DecodingKey::from_jwk(&jwk).ok()?, algorithm, id: jwk.common.key_id })
}

/// Whether the header of a token demands the knowledge of extensions (RFC 7515, 4.1.11). This
/// server knows none. `b64` is the one that changes what is signed.
fn has_critical_extensions(token: &str) -> bool {
    let header = token.split('.').next().and_then(|part| BASE64.decode(part).ok());
    let header: Option<Map<String, Value>> =
        header.and_then(|json| serde_json::from_slice(&json).ok());
    header.is_none_or(|header| header.contains_key("crit") || header.contains_key("b64"))
}

/// The scopes of this server in a claim, which can also contain those of other services.
fn scopes_of(claim: &Value) -> Scopes {
    let words: Vec<&str> = match claim {
        Value::String(text) => text.split(' ').collect(),
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    words.into_iter().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests;
