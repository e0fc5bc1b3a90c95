//! The server's own tokens: `tg_ID_SECRET`.
//!
//! Only a digest of the secret is stored. The secret has 128 random bits, so its plain SHA-256
//! cannot be reversed; a slow hash is only necessary for secrets that people choose.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{AuthError, Authenticate, Bounds, Credentials, Principal, Scope, Scopes, bounds};
use tidegate_api::{NewTokenBody, TokenView};
use tidegate_core::{
    port::{Clock, Entropy, job_store::Item},
    time::Timestamp,
};

/// The prefix of every token.
const PREFIX: &str = "tg_";
/// The base64 of a SHA-256 has this length.
const DIGEST_BASE64_BYTES: usize = 44;
/// The use of a token that was never used, in milliseconds since the epoch.
const NEVER: i64 = i64::MIN;

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
    /// From when on it is not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The jobs that it concerns.
    #[serde(default, skip_serializing_if = "Bounds::is_everything")]
    pub bounds: Bounds,
}

/// A token must not be created as it was requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidToken {
    /// The wrong field of the request.
    pub field: &'static str,
    /// What it must be.
    pub problem: String,
}

impl TokenItem {
    /// The token that a request describes: the item to store, and its text, which cannot be
    /// recovered later.
    ///
    /// # Errors
    ///
    /// [`InvalidToken`].
    pub fn create(
        new: NewTokenBody,
        now: Timestamp,
        entropy: &dyn Entropy,
    ) -> Result<(Self, String), InvalidToken> {
        let invalid = |field, problem: &str| Err(InvalidToken { field, problem: problem.into() });
        if !(1..=128).contains(&new.name.len()) {
            return invalid("name", "must have 1 to 128 bytes");
        }
        if new.scopes.is_empty() {
            return invalid("scopes", "must have at least one");
        }
        if new.expires_at.is_some_and(|end| end <= now) {
            return invalid("expires_at", "must be in the future");
        }
        let counts = [
            ("queues", new.queues.as_ref().map(Vec::len)),
            ("types", new.types.as_ref().map(Vec::len)),
        ];
        for (field, count) in counts {
            let Some(count) = count else { continue };
            if !(1..=bounds::MAX_NAMES).contains(&count) {
                let problem = format!("must have 1 to {} names", bounds::MAX_NAMES);
                return Err(InvalidToken { field, problem });
            }
            if new.scopes.allow(Scope::Admin) {
                return invalid(field, "must not be given with scope admin, which concerns all");
            }
        }
        let (item, text) = Self::mint(new.name, new.scopes, now, entropy);
        let bounds = Bounds {
            queues: new.queues.map(|names| names.into_iter().collect()),
            types: new.types.map(|names| names.into_iter().collect()),
        };
        Ok((Self { expires_at: new.expires_at, bounds, ..item }, text))
    }

    /// The setting `TIDEGATE_ADMIN_TOKEN` that accepts the token `text`, and does not contain its
    /// secret. `None` if it is no token.
    pub fn admin_setting(text: &str) -> Option<String> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let valid = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (valid && !secret.is_empty()).then(|| format!("{id}:{}", digest(secret)))
    }

    /// The admin token that the setting `TIDEGATE_ADMIN_TOKEN` describes: its id, `:`, and the base64
    /// of its secret's SHA-256. `None` if `setting` has another form.
    pub fn of_admin_setting(setting: &str) -> Option<Self> {
        let (id, hash) = setting.split_once(':')?;
        let valid = !id.is_empty()
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && hash.len() == DIGEST_BASE64_BYTES;
        valid.then(|| Self {
            id: id.to_owned(),
            name: "first".into(),
            scopes: Scope::Admin.into(),
            hash: hash.to_owned(),
            created_at: Timestamp::EPOCH,
            expires_at: None,
            bounds: Bounds::default(),
        })
    }

    /// Whether it is the token of an administrator, and never expires. Only such tokens keep a
    /// server from having none.
    pub fn is_lasting_admin(&self) -> bool {
        self.scopes.allow(Scope::Admin) && self.expires_at.is_none() && !self.hash.is_empty()
    }

    /// Checks that it may be the only token of an administrator.
    ///
    /// # Errors
    ///
    /// [`InvalidToken`] unless it [is one for good](Self::is_lasting_admin).
    pub fn check_first(&self) -> Result<(), InvalidToken> {
        let invalid = |field, problem: &str| Err(InvalidToken { field, problem: problem.into() });
        if !self.scopes.allow(Scope::Admin) {
            let problem = "the first token must have scope admin: from then on every caller needs \
                           a token";
            return invalid("scopes", problem);
        }
        if self.expires_at.is_some() {
            let problem = "must not be given for the first token: no caller could enter after it";
            return invalid("expires_at", problem);
        }
        Ok(())
    }

    /// The token as callers see it, with its text if it is new.
    pub fn view(self, last_used_at: Option<Timestamp>, token: Option<String>) -> TokenView {
        TokenView {
            id: self.id,
            name: self.name,
            scopes: self.scopes,
            created_at: self.created_at,
            expires_at: self.expires_at,
            last_used_at,
            queues: self.bounds.queues.map(|names| names.into_iter().collect()),
            types: self.bounds.types.map(|names| names.into_iter().collect()),
            token,
        }
    }

    /// Whether it accepts a caller at `now`.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        !self.hash.is_empty() && self.expires_at.is_none_or(|end| now < end)
    }

    /// A stored token. One that cannot be read accepts no caller; the other tokens are not
    /// affected.
    pub fn read(stored: &Item) -> Self {
        let id = stored.name.clone();
        let item = stored.read().unwrap_or_else(|error| {
            tracing::error!(id, error, "a stored token cannot be read, and accepts no caller");
            Self {
                id: String::new(),
                name: "cannot be read".into(),
                scopes: Scopes::default(),
                hash: String::new(),
                created_at: Timestamp::EPOCH,
                expires_at: None,
                bounds: Bounds::default(),
            }
        });
        Self { id, ..item }
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
        let item = Self {
            id,
            name: name.into(),
            scopes,
            hash: digest(&secret),
            created_at: now,
            expires_at: None,
            bounds: Bounds::default(),
        };
        (item, text)
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

/// A token in use.
#[derive(Debug)]
struct Known {
    item: TokenItem,
    principal: Principal,
    /// When it was used last, in milliseconds since the epoch.
    used: AtomicI64,
    /// The latest stored one, as far as this process knows.
    recorded: AtomicI64,
}

/// Authenticates stored tokens, from a snapshot that is replaced as a whole.
pub struct TokenAuthenticator {
    tokens: ArcSwap<HashMap<String, Arc<Known>>>,
    clock: Arc<dyn Clock>,
}

impl TokenAuthenticator {
    /// Without tokens.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { tokens: ArcSwap::default(), clock }
    }

    /// Replaces the tokens. Those that stay keep their last use.
    pub fn set_tokens(&self, tokens: Vec<TokenItem>) {
        let before = self.tokens.load();
        let known = |item: TokenItem| {
            let same = before.get(&item.id).filter(|known| known.item == item).cloned();
            let known = same.unwrap_or_else(|| {
                let principal = Principal {
                    name: item.name.clone(),
                    scopes: item.scopes,
                    bounds: Arc::new(item.bounds.clone()),
                };
                let (used, recorded) = (AtomicI64::new(NEVER), AtomicI64::new(NEVER));
                Arc::new(Known { item, principal, used, recorded })
            });
            (known.item.id.clone(), known)
        };
        self.tokens.store(tokens.into_iter().map(known).collect::<HashMap<_, _>>().into());
    }

    /// Whether `id` is a token of an administrator, and no other one lasts.
    pub fn is_last_admin(&self, id: &str) -> bool {
        let now = self.clock.now();
        let tokens = self.tokens.load();
        let is_admin =
            |known: &Arc<Known>| known.item.scopes.allow(Scope::Admin) && known.item.is_valid(now);
        tokens.get(id).is_some_and(is_admin)
            && !tokens.iter().any(|(other, known)| other != id && known.item.is_lasting_admin())
    }

    /// The tokens whose latest use is at least `interval` after their recorded one, and when that
    /// use was.
    pub fn unrecorded_uses(&self, interval: Duration) -> Vec<(String, Timestamp)> {
        let tokens = self.tokens.load();
        let last = |at: &AtomicI64| Timestamp::from_millis(at.load(Ordering::Relaxed));
        let due = |known: &Arc<Known>| {
            let (used, recorded) = (last(&known.used), last(&known.recorded));
            let is_due = used > recorded && used.since(recorded) >= interval;
            is_due.then(|| (known.item.id.clone(), used))
        };
        tokens.values().filter_map(due).collect()
    }

    /// Marks these uses as recorded.
    pub fn mark_recorded(&self, uses: &[(String, Timestamp)]) {
        let tokens = self.tokens.load();
        for (id, at) in uses {
            if let Some(known) = tokens.get(id) {
                known.recorded.fetch_max(at.millis(), Ordering::Relaxed);
            }
        }
    }

    fn find(&self, text: &str) -> Option<Result<Principal, AuthError>> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let tokens = self.tokens.load();
        let known = tokens.get(id).filter(|known| same(&known.item.hash, &digest(secret)))?;
        let now = self.clock.now();
        if !known.item.is_valid(now) {
            return Some(Err(AuthError::refused("the token has expired")));
        }
        known.used.fetch_max(now.millis(), Ordering::Relaxed);
        Some(Ok(known.principal.clone()))
    }
}

impl std::fmt::Debug for TokenAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenAuthenticator").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

#[async_trait]
impl Authenticate for TokenAuthenticator {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError> {
        let text = credentials.secret().ok_or_else(|| AuthError::refused("a token is needed"))?;
        self.find(text).unwrap_or_else(|| Err(AuthError::refused("the token is not known")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::memory::{FakeClock, SeededEntropy};

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

    #[test]
    fn an_admin_setting_has_the_hash_of_the_token() {
        let (item, text) = mint(1);
        let setting = TokenItem::admin_setting(&text).unwrap();
        assert_eq!(setting, format!("{}:{}", item.id, item.hash));
        for text in ["", "tg_", "tg_a", "tg_a_", "tg_a-b_c", "xx_a_b"] {
            assert_eq!(TokenItem::admin_setting(text), None, "{text}");
        }
    }

    #[tokio::test]
    async fn only_the_exact_token_text_is_accepted() {
        let (item, text) = mint(1);
        let known = TokenAuthenticator::new(Arc::new(FakeClock::default()));
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

    fn stored(id: &str, json: &serde_json::Value) -> Item {
        Item { name: id.into(), version: 1, bytes: Ok(json.to_string().into_bytes()) }
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_read_accepts_no_caller() {
        let (item, text) = mint(1);
        let mut bounded = serde_json::to_value(&item).unwrap();
        bounded["bounds"] = serde_json::json!({"tenants": ["mail"]});
        let read = TokenItem::read(&stored(&item.id, &bounded));
        assert_eq!((&read.id, &*read.hash), (&item.id, ""));
        let (other, other_text) = mint(2);
        let known = TokenAuthenticator::new(Arc::new(FakeClock::default()));
        known.set_tokens(vec![read, other]);
        assert!(ask(&known, &text).await.is_err(), "its bound is not known");
        assert!(ask(&known, &other_text).await.is_ok());
    }

    #[tokio::test]
    async fn an_expired_token_is_refused_and_its_uses_are_coarse() {
        let clock = Arc::new(FakeClock::default());
        let known = TokenAuthenticator::new(clock.clone());
        let (item, text) = mint(1);
        let end = clock.now() + Duration::from_secs(90);
        known.set_tokens(vec![TokenItem { expires_at: Some(end), ..item.clone() }]);
        let minute = Duration::from_mins(1);
        assert_eq!(known.unrecorded_uses(minute), []);
        let first = clock.now();
        for _ in 0..3 {
            assert!(ask(&known, &text).await.is_ok());
            clock.advance(Duration::from_secs(20));
        }
        let uses = [(item.id.clone(), first + Duration::from_secs(40))];
        assert_eq!(known.unrecorded_uses(minute), uses);
        assert_eq!(known.unrecorded_uses(minute), uses, "a write may fail");
        known.mark_recorded(&uses);
        clock.advance(Duration::from_secs(29));
        assert!(ask(&known, &text).await.is_ok());
        assert_eq!(known.unrecorded_uses(minute), [], "49 s after the recorded use");
        let latest = [(item.id.clone(), first + Duration::from_secs(89))];
        assert_eq!(known.unrecorded_uses(Duration::ZERO), latest);
        known.mark_recorded(&latest);
        clock.advance(Duration::from_secs(1));
        let Err(AuthError::Refused(why)) = ask(&known, &text).await else { panic!("refused") };
        assert!(why.contains("expired"), "{why}");
        assert_eq!(known.unrecorded_uses(Duration::ZERO), [], "a refused token is not used");
    }

    #[test]
    fn an_admin_token_that_expires_is_no_other_administrator() {
        let clock = Arc::new(FakeClock::default());
        let known = TokenAuthenticator::new(clock.clone());
        let admin = |seed| {
            TokenItem::mint("a", Scope::Admin.into(), clock.now(), &SeededEntropy::new(seed)).0
        };
        let (one, other) = (admin(1), admin(2));
        let end = clock.now() + Duration::from_secs(1);
        let brief = TokenItem { expires_at: Some(end), ..admin(4) };
        known.set_tokens(vec![one.clone(), brief.clone(), mint(3).0]);
        assert!(known.is_last_admin(&one.id), "the other will expire");
        assert!(!known.is_last_admin(&brief.id) && !known.is_last_admin(&mint(3).0.id));
        known.set_tokens(vec![one.clone(), other.clone(), brief.clone()]);
        assert!(!known.is_last_admin(&one.id) && !known.is_last_admin("none"));
        let damaged = TokenItem { hash: String::new(), ..other };
        known.set_tokens(vec![one.clone(), damaged]);
        assert!(known.is_last_admin(&one.id), "the other accepts no caller");
        known.set_tokens(vec![brief.clone()]);
        assert!(known.is_last_admin(&brief.id));
        clock.advance(Duration::from_secs(1));
        assert!(!known.is_last_admin(&brief.id), "it accepts no caller any more");
        for (item, field) in [(one, None), (brief, Some("expires_at")), (mint(3).0, Some("scopes"))]
        {
            assert_eq!(item.check_first().err().map(|invalid| invalid.field), field);
        }
    }

    #[test]
    fn a_token_is_not_created_with_values_out_of_bounds() {
        type Change = fn(&mut NewTokenBody);
        let now = Timestamp::from_millis(1000);
        let create = |change: Change| {
            let mut new = NewTokenBody {
                name: "ci".into(),
                scopes: Scope::Read.into(),
                expires_at: Some(Timestamp::from_millis(1001)),
                queues: Some(vec!["mail".parse().unwrap()]),
                types: Some(vec!["a".parse().unwrap(); bounds::MAX_NAMES]),
            };
            change(&mut new);
            TokenItem::create(new, now, &SeededEntropy::new(1))
        };
        let (item, _) = create(|_| ()).unwrap();
        assert_eq!(item.bounds.types.as_ref().unwrap().len(), 1);
        let json = serde_json::to_value(&item).unwrap();
        assert_eq!(TokenItem::read(&stored(&item.id, &json)), item);
        let refused: [(&str, Change); 7] = [
            ("name", |new| new.name = String::new()),
            ("name", |new| new.name = "x".repeat(129)),
            ("scopes", |new| new.scopes = Scopes::default()),
            ("expires_at", |new| new.expires_at = Some(Timestamp::from_millis(1000))),
            ("queues", |new| new.queues = Some(Vec::new())),
            ("queues", |new| new.scopes = Scope::Admin.into()),
            ("types", |new| {
                new.types = Some(vec!["a".parse().unwrap(); bounds::MAX_NAMES + 1]);
            }),
        ];
        for (index, (field, change)) in refused.into_iter().enumerate() {
            assert_eq!(create(change).unwrap_err().field, field, "{index}");
        }
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
