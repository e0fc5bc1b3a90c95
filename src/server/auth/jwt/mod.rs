//! Tokens that an identity provider signs (JWT), checked by the keys it publishes (JWKS).
//!
//! Keys are fetched when the first token comes, again when a token names a key that is not there,
//! and once an hour, so that a withdrawn key is forgotten; never more than once a minute. While
//! the provider does not answer, the keys that are there go on being good.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use jsonwebtoken::{
    Algorithm, DecodingKey, Header, Validation, decode, decode_header,
    errors::ErrorKind,
    jwk::{Jwk, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::{Mutex, MutexGuard};

use super::{AuthError, Authenticate, Credentials, Principal, Scopes};
use crate::settings;
use tidegate_backends::http::HttpTarget;
use tidegate_core::{port::Clock, time::Timestamp};

/// How long after a fetch the next one may be.
pub const FETCH_EVERY: Duration = Duration::from_mins(1);
/// The same after a fetch that failed.
pub const FETCH_AGAIN: Duration = Duration::from_secs(5);
/// Keys older than this are fetched again before they are used.
pub const KEYS_LIVE: Duration = Duration::from_hours(1);
/// How far the provider's clock may differ from ours.
pub const LEEWAY: Duration = Duration::from_secs(30);
/// How long a fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of the published keys.
const MAX_KEYS_BYTES: usize = 1 << 20;
/// The only algorithms that are taken: a public key must never be used as a secret of HMAC.
const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];

/// Knows the owners of signed tokens.
pub struct JwtAuthenticator {
    url: String,
    issuer: String,
    audience: String,
    scope_claim: String,
    http: HttpTarget,
    clock: Arc<dyn Clock>,
    keys: ArcSwapOption<Keys>,
    /// Held by whoever fetches: no fetch before this instant.
    next_fetch: Mutex<Timestamp>,
}

/// The keys as they were published at one time.
struct Keys {
    fetched_at: Timestamp,
    keys: Vec<Key>,
}

struct Key {
    id: Option<String>,
    key: DecodingKey,
}

impl Keys {
    /// The keys that may have signed a token with this header.
    fn fitting(&self, header: &Header) -> Vec<DecodingKey> {
        let fits = |key: &&Key| {
            key.key.family() == header.alg.family()
                && header.kid.as_ref().is_none_or(|id| key.id.as_ref() == Some(id))
        };
        self.keys.iter().filter(fits).map(|key| key.key.clone()).collect()
    }
}

impl JwtAuthenticator {
    /// What `settings` say, if they name a provider. Nothing is fetched yet.
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

    /// The keys that may have signed a token with this header, fetched if need be.
    async fn keys(&self, header: &Header) -> Result<Vec<DecodingKey>, AuthError> {
        let known = self.keys.load_full();
        let fitting = known.as_ref().map(|keys| keys.fitting(header)).unwrap_or_default();
        let old = known.is_none_or(|keys| self.clock.now().since(keys.fetched_at) >= KEYS_LIVE);
        let fetched = if fitting.is_empty() {
            self.fetch(self.next_fetch.lock().await).await
        } else if let (true, Ok(turn)) = (old, self.next_fetch.try_lock()) {
            // Whoever finds the keys old first fetches them; the others go on with what is there.
            self.fetch(turn).await
        } else {
            return Ok(fitting);
        };
        match self.keys.load_full() {
            Some(keys) => Ok(keys.fitting(header)),
            None => Err(AuthError::Unavailable(
                fetched.err().unwrap_or_else(|| "the identity provider gave no keys".into()),
            )),
        }
    }

    /// Fetches the keys unless that was done a moment ago, if only by another call while this one waited for its turn.
    async fn fetch(&self, mut next_fetch: MutexGuard<'_, Timestamp>) -> Result<(), String> {
        if self.clock.now() < *next_fetch {
            return Ok(());
        }
        let fetched = self.fetch_now().await;
        let now = self.clock.now();
        *next_fetch = now + if fetched.is_ok() { FETCH_EVERY } else { FETCH_AGAIN };
        match fetched {
            Ok(keys) => {
                self.keys.store(Some(Arc::new(Keys { fetched_at: now, keys })));
                Ok(())
            }
            Err(reason) => {
                tracing::warn!(
                    url = self.url,
                    reason,
                    "the identity provider's keys could not be fetched"
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
            return Err(format!("the answer was {}", answer.status));
        }
        let published: Published =
            serde_json::from_slice(&answer.body).map_err(|_| "the answer is not a set of keys")?;
        Ok(published.keys.into_iter().filter_map(key).collect())
    }

    /// Who a token with these claims, whose signature is good, speaks of.
    fn judge(&self, claims: &Map<String, Value>) -> Result<Principal, AuthError> {
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
        let name = claims.get("sub").and_then(Value::as_str).unwrap_or("unnamed").to_owned();
        let scopes = claims.get(&self.scope_claim).or_else(|| claims.get("scp"));
        Ok(Principal { name, scopes: scopes.map(scopes_of).unwrap_or_default() })
    }
}

#[async_trait]
impl Authenticate for JwtAuthenticator {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError> {
        let token = credentials.secret().ok_or_else(|| AuthError::refused("a token is needed"))?;
        let header =
            decode_header(token).map_err(|_| AuthError::refused("the token cannot be read"))?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(AuthError::refused(
                "the token is signed by another way than RS256, ES256 or EdDSA",
            ));
        }
        let mut validation = Validation::new(header.alg);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        // Times are judged by our own clock, in `judge`.
        validation.validate_exp = false;
        for key in self.keys(&header).await? {
            match decode::<Map<String, Value>>(token, &key, &validation)
                .map_err(jsonwebtoken::errors::Error::into_kind)
            {
                Ok(token) => return self.judge(&token.claims),
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

impl std::fmt::Debug for JwtAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JwtAuthenticator").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// The keys one by one, so that one of a kind that is not known does not spoil the others.
#[derive(Deserialize)]
struct Published {
    keys: Vec<Value>,
}

fn key(published: Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(published).ok()?;
    if jwk.common.public_key_use == Some(PublicKeyUse::Encryption) {
        return None;
    }
    Some(Key { key: DecodingKey::from_jwk(&jwk).ok()?, id: jwk.common.key_id })
}

/// Our own scopes among those of a claim; it may hold others, meant for others.
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
