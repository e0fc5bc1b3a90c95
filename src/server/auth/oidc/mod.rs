//! Sign-in of people at an identity provider: `OpenID` Connect, code flow with PKCE.
//!
//! ```text
//!   browser ─▶ sign-in ─▶ provider ─▶ callback ─▶ this server exchanges the code ─▶ cookie
//! ```
//!
//! The cookie has a token that the provider signed, and [`JwtAuthenticator`] checks it at each
//! request like one in an `Authorization` header. So there is no session to store, and it ends with
//! the token. Scripts cannot read the cookie.
//!
//! What must survive the way to the provider and back (state, nonce and code verifier) is in
//! another cookie, for ten minutes.

mod cookies;

use std::{sync::Arc, time::Duration};

use axum::http::HeaderMap;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, Semaphore};
use url::{Url, form_urlencoded};

use self::cookies::{Cookie, cookie};
use super::{AuthError, JwtAuthenticator, jwt::RETRY_INTERVAL, local::is_confidential};
use crate::settings;
use tidegate_backends::http::HttpTarget;
use tidegate_core::{
    port::{
        Clock, Entropy, Target as _,
        target::{Request, Response},
    },
    time::Timestamp,
};

/// How long a user has to sign in at the provider.
const SIGN_IN_TIME: Duration = Duration::from_mins(10);
/// How old the description of the provider may be.
const MAX_DISCOVERY_AGE: Duration = Duration::from_hours(1);
/// How long a request to the provider may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a response of the provider.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// Maximum bytes of the token in the cookie. Browsers take 4096 with the name and the attributes.
const MAX_TOKEN_BYTES: usize = 3800;
/// Most codes that are exchanged at once.
const MAX_EXCHANGES: usize = 16;
/// Maximum bytes of the place in the console to return to.
const MAX_RETURN_BYTES: usize = 1024;

/// Why a user is not signed in; for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignInError {
    /// The request or what the provider answered is wrong.
    #[error("{0}")]
    Refused(String),
    /// The provider does not answer.
    #[error("the identity provider cannot be reached: {0}")]
    Unavailable(String),
}

impl SignInError {
    fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }
}

impl From<AuthError> for SignInError {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Refused(reason) => Self::Refused(reason),
            AuthError::Unavailable(reason) => Self::Unavailable(reason),
        }
    }
}

/// Where to send the browser, and the values of `Set-Cookie`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The location.
    pub to: Url,
    /// The cookies.
    pub cookies: Vec<String>,
}

/// Signs users in.
pub struct SignIn {
    client_id: String,
    client_secret: Option<String>,
    scopes: String,
    /// Where browsers reach the server, with a slash at the end.
    public_url: Url,
    jwt: Arc<JwtAuthenticator>,
    http: HttpTarget,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    discovered: Mutex<Discovered>,
    /// One permit for each code that may be exchanged at once.
    exchanges: Semaphore,
}

/// The description of the provider, and when it may be fetched again.
#[derive(Default)]
struct Discovered {
    provider: Option<Arc<Provider>>,
    next_fetch: Timestamp,
}

/// What a provider publishes about itself (`OpenID` Connect Discovery 1.0, 3).
#[derive(Debug, Deserialize)]
struct Provider {
    issuer: String,
    authorization_endpoint: Url,
    token_endpoint: Url,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

/// What must survive the way to the provider and back.
#[derive(Debug, Serialize, Deserialize)]
struct Attempt {
    state: String,
    nonce: String,
    verifier: String,
    /// The place in the console to return to.
    return_to: String,
}

/// The answer to a code (RFC 6749, 5.1).
#[derive(Deserialize)]
struct Tokens {
    id_token: String,
    #[serde(default)]
    access_token: Option<String>,
}

impl SignIn {
    /// The sign-in for `settings`, if they name a client, at the provider of `jwt`. It fetches
    /// nothing yet.
    pub fn new(
        settings: &settings::Oidc,
        public_url: &str,
        jwt: Option<Arc<JwtAuthenticator>>,
        http: HttpTarget,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Option<Self> {
        Some(Self {
            client_id: settings.client_id.clone()?,
            client_secret: settings.client_secret.clone(),
            scopes: settings.scopes.clone(),
            public_url: format!("{}/", public_url.trim_end_matches('/')).parse().ok()?,
            jwt: jwt?,
            http,
            clock,
            entropy,
            discovered: Mutex::default(),
            exchanges: Semaphore::new(MAX_EXCHANGES),
        })
    }

    /// Whether browsers reach the server encrypted, so that cookies can require it.
    fn is_secure(&self) -> bool {
        self.public_url.scheme() == "https"
    }

    /// The address of a route of the console.
    fn address(&self, path: &str) -> Url {
        self.public_url.join(path).expect("the path of a route is one of an address")
    }

    /// The console at `place`, which begins with `#`.
    fn console(&self, place: &str) -> Url {
        let mut url = self.public_url.clone();
        url.set_fragment(Some(place.trim_start_matches('#')));
        url
    }

    /// Sends a user to the provider, who is to return to `place` in the console.
    ///
    /// # Errors
    ///
    /// [`SignInError`].
    pub async fn begin(&self, place: &str) -> Result<Redirect, SignInError> {
        let is_place = place.is_empty() || place.starts_with('#');
        if !is_place || place.len() > MAX_RETURN_BYTES || place.chars().any(char::is_control) {
            return Err(SignInError::refused("`return` must begin with # and be of 1024 bytes"));
        }
        let provider = self.provider().await?;
        let attempt = Attempt {
            state: self.secret(),
            nonce: self.secret(),
            verifier: self.secret(),
            return_to: place.to_owned(),
        };
        let mut to = provider.authorization_endpoint.clone();
        to.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client_id)
            .append_pair("redirect_uri", self.address("console/callback").as_str())
            .append_pair("scope", &self.scopes)
            .append_pair("state", &attempt.state)
            .append_pair("nonce", &attempt.nonce)
            .append_pair("code_challenge", &challenge(&attempt.verifier))
            .append_pair("code_challenge_method", "S256");
        let json = serde_json::to_vec(&attempt)
            .map_err(|error| SignInError::refused(error.to_string()))?;
        let kept = Cookie::SignIn.set(self.is_secure(), &BASE64.encode(json), SIGN_IN_TIME);
        Ok(Redirect { to, cookies: vec![kept] })
    }

    /// Signs in a user who comes from the provider with this query. After a failure the console
    /// shows the reason.
    pub async fn finish(&self, query: &str, headers: &HeaderMap) -> Redirect {
        let attempt = match self.attempt(query, headers) {
            Ok(attempt) => attempt,
            // The cookie may be that of another sign-in, which goes on.
            Err(error) => return self.failed(&error, Vec::new()),
        };
        let forgotten = Cookie::SignIn.delete(self.is_secure());
        match self.signed_in(query, &attempt).await {
            Ok(session) => {
                let cookies = vec![session, forgotten];
                Redirect { to: self.console(&attempt.return_to), cookies }
            }
            Err(error) => {
                tracing::info!(%error, "a user was not signed in");
                self.failed(&error, vec![forgotten])
            }
        }
    }

    /// Returns a user to the console, which shows why signing in failed.
    pub fn failed(&self, error: &SignInError, cookies: Vec<String>) -> Redirect {
        let reason = form_urlencoded::Serializer::new(String::new())
            .append_pair("error", &error.to_string())
            .finish();
        Redirect { to: self.console(&format!("#/sign-in?{reason}")), cookies }
    }

    /// The value of `Set-Cookie` that signs a user out.
    pub fn sign_out(&self) -> String {
        Cookie::Session.delete(self.is_secure())
    }

    /// The token in the cookie of a request. None if there is no cookie, or it has no token of a
    /// provider.
    pub fn token_of(&self, headers: &HeaderMap) -> Option<String> {
        let token = cookie(headers, &Cookie::Session.name(self.is_secure()))?;
        let is_jwt = token.len() <= MAX_TOKEN_BYTES && token.split('.').count() == 3;
        is_jwt.then(|| token.to_owned())
    }

    /// The sign-in that this browser has begun, if the query belongs to it.
    fn attempt(&self, query: &str, headers: &HeaderMap) -> Result<Attempt, SignInError> {
        let kept = cookie(headers, &Cookie::SignIn.name(self.is_secure()));
        let attempt = kept.and_then(|text| BASE64.decode(text).ok());
        let attempt = attempt.and_then(|json| serde_json::from_slice::<Attempt>(&json).ok());
        let attempt = attempt.ok_or_else(|| {
            SignInError::refused("the sign-in took more than ten minutes: try again")
        })?;
        if parameter(query, "state").as_deref() != Some(&attempt.state) {
            return Err(SignInError::refused("the sign-in was started elsewhere: try again"));
        }
        Ok(attempt)
    }

    /// The cookie of the session.
    async fn signed_in(&self, query: &str, attempt: &Attempt) -> Result<String, SignInError> {
        let answer = |name: &str| parameter(query, name);
        if let Some(error) = answer("error") {
            let about = answer("error_description").map(|about| format!(": {about}"));
            let reason = format!("{error}{}", about.unwrap_or_default());
            let shown: String = reason.chars().filter(|one| !one.is_control()).take(300).collect();
            return Err(SignInError::refused(format!("the identity provider refuses: {shown}")));
        }
        let code = answer("code");
        let code =
            code.ok_or_else(|| SignInError::refused("the identity provider sent no code"))?;
        let tokens = self.exchange(&code, &attempt.verifier).await?;
        let claims = self.jwt.verify(&tokens.id_token, &self.client_id).await?;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if text("nonce") != Some(&attempt.nonce) {
            return Err(SignInError::refused("the identity provider answers another sign-in"));
        }
        if text("azp").is_some_and(|party| party != self.client_id) {
            return Err(SignInError::refused("the ID token is for another client"));
        }
        let (token, claims) = self.accepted(tokens).await?;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(SignInError::refused(format!(
                "the token has {} bytes, and a cookie takes {MAX_TOKEN_BYTES}: let the identity \
                 provider put fewer claims into it",
                token.len()
            )));
        }
        let expires = claims.get("exp").and_then(Value::as_f64).unwrap_or_default();
        let left = Timestamp::from_millis((expires * 1000.0) as i64).since(self.clock.now());
        if left.as_secs() == 0 {
            return Err(SignInError::refused("the token has expired"));
        }
        Ok(Cookie::Session.set(self.is_secure(), &token, left))
    }

    /// The token that this server accepts, and its claims: the access token or the ID token, rather
    /// one with scopes.
    async fn accepted(&self, tokens: Tokens) -> Result<(String, Map<String, Value>), SignInError> {
        let mut accepted = None;
        let mut refused = None;
        for token in tokens.access_token.into_iter().chain([tokens.id_token]) {
            // Access tokens of some providers are no JWTs.
            match self.jwt.verify(&token, self.jwt.audience()).await {
                Ok(claims) if !self.jwt.scopes_of(&claims).is_empty() => {
                    return Ok((token, claims));
                }
                Ok(claims) => accepted = accepted.or(Some((token, claims))),
                Err(error) => refused = Some(error),
            }
        }
        let reason = |error| match error {
            Some(AuthError::Unavailable(reason)) => SignInError::Unavailable(reason),
            Some(AuthError::Refused(reason)) => SignInError::refused(format!(
                "neither token of the identity provider is for this server (jwt.audience is {}): \
                 {reason}",
                self.jwt.audience()
            )),
            None => SignInError::refused("the identity provider sent no token"),
        };
        accepted.ok_or_else(|| reason(refused))
    }

    /// The request for the tokens of a code.
    fn request(&self, provider: &Provider, code: &str, verifier: &str) -> Request {
        let methods = provider.token_endpoint_auth_methods_supported.as_deref();
        let supports =
            |method: &str| methods.is_none_or(|methods| methods.iter().any(|one| one == method));
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", self.address("console/callback").as_str())
            .append_pair("code_verifier", verifier);
        let mut basic_auth = None;
        match &self.client_secret {
            // Both are form-encoded first (RFC 6749, 2.3.1).
            Some(secret) if supports("client_secret_basic") => {
                let encoded =
                    |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect();
                basic_auth = Some((encoded(&self.client_id), encoded(secret)));
            }
            secret => {
                form.append_pair("client_id", &self.client_id);
                if let Some(secret) = secret {
                    form.append_pair("client_secret", secret);
                }
            }
        }
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Request {
            url: provider.token_endpoint.to_string(),
            headers: vec![
                header("content-type", "application/x-www-form-urlencoded"),
                header("accept", "application/json"),
            ],
            basic_auth,
            body: Bytes::from(form.finish()),
            timeout: TIMEOUT,
            most_bytes: MAX_RESPONSE_BYTES,
        }
    }

    /// Exchanges a code for tokens.
    async fn exchange(&self, code: &str, verifier: &str) -> Result<Tokens, SignInError> {
        // Any caller can send a code.
        let Ok(_permit) = self.exchanges.try_acquire() else {
            return Err(SignInError::refused("too many users sign in at this moment: try again"));
        };
        let provider = self.provider().await?;
        let request = self.request(&provider, code, verifier);
        let answer = self.http.call(request).await;
        let answer = answer.map_err(|error| SignInError::Unavailable(error.to_string()))?;
        if answer.status != 200 {
            #[derive(Deserialize)]
            struct Refusal {
                error: String,
            }
            let refusal = serde_json::from_slice::<Refusal>(&answer.body);
            let reason =
                refusal.map_or_else(|_| answer.status.to_string(), |refusal| refusal.error);
            let reason = format!("the identity provider refuses the code: {reason}");
            return Err(SignInError::refused(reason));
        }
        read(&answer, "the answer to the code")
    }

    /// The description of the provider, fetched if necessary.
    async fn provider(&self) -> Result<Arc<Provider>, SignInError> {
        let mut discovered = self.discovered.lock().await;
        let now = self.clock.now();
        if let Some(provider) = discovered.provider.as_ref().filter(|_| now < discovered.next_fetch)
        {
            return Ok(Arc::clone(provider));
        }
        if now < discovered.next_fetch {
            return Err(SignInError::Unavailable("it did not answer some seconds ago".into()));
        }
        let fetched = self.discover().await;
        let wait = if fetched.is_ok() { MAX_DISCOVERY_AGE } else { RETRY_INTERVAL };
        discovered.next_fetch = self.clock.now() + wait;
        match fetched {
            Ok(provider) => {
                let provider = Arc::new(provider);
                discovered.provider = Some(Arc::clone(&provider));
                Ok(provider)
            }
            // The last one that was fetched is better than none.
            Err(error) => discovered.provider.clone().ok_or(error),
        }
    }

    async fn discover(&self) -> Result<Provider, SignInError> {
        let issuer = self.jwt.issuer();
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let answer = self.http.get(&url, TIMEOUT, MAX_RESPONSE_BYTES).await;
        let answer = answer.map_err(|error| SignInError::Unavailable(error.to_string()))?;
        if answer.status != 200 {
            return Err(SignInError::Unavailable(format!("{url} has status {}", answer.status)));
        }
        let provider: Provider = read(&answer, &url)?;
        if provider.issuer != issuer {
            let reason = format!("{url} is of another issuer: {:?}", provider.issuer);
            return Err(SignInError::refused(reason));
        }
        let is_web = |url: &Url| matches!(url.scheme(), "https" | "http") && is_confidential(url);
        if !is_web(&provider.authorization_endpoint) || !is_web(&provider.token_endpoint) {
            let reason = format!("{url} has an endpoint that is no address with https");
            return Err(SignInError::refused(reason));
        }
        Ok(provider)
    }

    /// 256 random bits as 43 letters.
    fn secret(&self) -> String {
        let bits = [self.entropy.bits(), self.entropy.bits()].map(u128::to_be_bytes);
        BASE64.encode(bits.concat())
    }
}

/// A parameter of a query.
fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(have, _)| have == name).map(|(_, value)| value.into_owned())
}

/// The challenge of a code verifier (RFC 7636, 4.2).
fn challenge(verifier: &str) -> String {
    BASE64.encode(Sha256::digest(verifier))
}

fn read<T: DeserializeOwned>(answer: &Response, what: &str) -> Result<T, SignInError> {
    if answer.body.len() > MAX_RESPONSE_BYTES {
        return Err(SignInError::refused(format!(
            "{what} has more than {MAX_RESPONSE_BYTES} bytes"
        )));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|error| SignInError::refused(format!("{what} cannot be read: {error}")))
}

impl std::fmt::Debug for SignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignIn").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
