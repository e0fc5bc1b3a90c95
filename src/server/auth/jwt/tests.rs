use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{FutureExt, poll};
use jsonwebtoken::{EncodingKey, encode};
use parking_lot::Mutex as Plain;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use tidegate_backends::http::Guard;
use tidegate_engine::memory::FakeClock;

fn rsa() -> EncodingKey {
    EncodingKey::from_rsa_pem(include_bytes!("../testdata/rsa.pem")).unwrap()
}

fn ec() -> EncodingKey {
    EncodingKey::from_ec_pem(include_bytes!("../testdata/ec.pem")).unwrap()
}

fn ed() -> EncodingKey {
    EncodingKey::from_ed_pem(include_bytes!("../testdata/ed.pem")).unwrap()
}

fn other() -> EncodingKey {
    EncodingKey::from_ed_pem(include_bytes!("../testdata/other.pem")).unwrap()
}

fn published(id: &str, key: &EncodingKey, algorithm: Algorithm) -> Value {
    let mut jwk = serde_json::to_value(Jwk::from_encoding_key(key, algorithm).unwrap()).unwrap();
    jwk["kid"] = id.into();
    jwk["use"] = "sig".into();
    jwk
}

fn all_keys() -> Value {
    let strange = json!({"kty": "lattice", "kid": "future", "alg": "PQ1", "x": 1});
    json!({"keys": [
        strange,
        published("rsa", &rsa(), Algorithm::RS256),
        published("ec", &ec(), Algorithm::ES256),
        published("ed", &ed(), Algorithm::EdDSA),
    ]})
}

/// A status that means that the provider never answers.
const SILENT: u16 = 0;

/// An identity provider on loopback, its answer, and the number of its requests.
struct Provider {
    url: String,
    answer: Arc<Plain<(u16, String)>>,
    requests: Arc<AtomicUsize>,
}

impl Provider {
    async fn start(keys: &Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let answer = Arc::new(Plain::new((200, keys.to_string())));
        let requests = Arc::new(AtomicUsize::new(0));
        let (said, counted) = (answer.clone(), requests.clone());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut request).await.unwrap();
                }
                assert!(request.starts_with(b"GET /keys "));
                counted.fetch_add(1, Ordering::SeqCst);
                let (status, body) = said.lock().clone();
                if status == SILENT {
                    std::future::pending::<()>().await;
                }
                let head = format!(
                    "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
        });
        Self { url, answer, requests }
    }

    fn authenticator(&self, clock: &Arc<FakeClock>) -> JwtAuthenticator {
        let settings = settings::Jwt {
            jwks_url: Some(self.url.parse().unwrap()),
            issuer: Some("https://id.example".into()),
            audience: Some("jobs".into()),
            ..settings::Jwt::default()
        };
        JwtAuthenticator::new(&settings, HttpTarget::new(Guard::On).unwrap(), clock.clone())
            .unwrap()
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn claims(clock: &FakeClock) -> Value {
    let now = clock.now().millis() / 1000;
    json!({
        "iss": "https://id.example", "aud": "jobs", "sub": "ann", "exp": now + 600,
        "scope": "openid work read",
    })
}

fn sign(id: Option<&str>, key: &EncodingKey, algorithm: Algorithm, claims: &Value) -> Credentials {
    let header = Header { kid: id.map(Into::into), ..Header::new(algorithm) };
    Credentials::from_header(Some(&format!("Bearer {}", encode(&header, claims, key).unwrap())))
        .unwrap()
}

fn reason(answer: Result<Principal, AuthError>) -> String {
    match answer {
        Err(AuthError::Refused(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn any_published_key_is_accepted_after_one_fetch() {
    let (provider, clock) = (Provider::start(&all_keys()).await, Arc::new(FakeClock::default()));
    let jwt = provider.authenticator(&clock);
    for (id, key, algorithm) in [
        ("rsa", rsa(), Algorithm::RS256),
        ("ec", ec(), Algorithm::ES256),
        ("ed", ed(), Algorithm::EdDSA),
    ] {
        for id in [Some(id), None] {
            let credentials = sign(id, &key, algorithm, &claims(&clock));
            assert!(credentials.is_jwt());
            let principal = jwt.authenticate(&credentials).await.unwrap();
            assert_eq!(
                (principal.name.as_str(), principal.scopes.to_string().as_str()),
                ("ann", "work read")
            );
        }
    }
    assert_eq!(provider.requests(), 1);
}

#[tokio::test]
async fn times_issuer_and_audience_are_checked() {
    let (provider, clock) = (Provider::start(&all_keys()).await, Arc::new(FakeClock::default()));
    let jwt = provider.authenticator(&clock);
    let now = clock.now().millis() / 1000;
    let ask = async |change: Value| {
        let mut claims = claims(&clock);
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        jwt.authenticate(&sign(Some("ed"), &ed(), Algorithm::EdDSA, &claims)).await
    };
    assert!(ask(json!({"aud": ["others", "jobs"], "nbf": now, "exp": now + 1})).await.is_ok());
    assert!(ask(json!({"exp": now - 29, "nbf": now + 30})).await.is_ok(), "clocks differ a little");
    for (change, expected) in [
        (json!({"exp": now - 30}), "expired"),
        (json!({"exp": null}), "no `exp`"),
        (json!({"exp": "soon"}), "exp"),
        (json!({"nbf": now + 31}), "not valid yet"),
        (json!({"nbf": "soon"}), "not valid yet"),
        (json!({"iss": "https://evil.example"}), "issuer"),
        (json!({"iss": null}), "no `iss`"),
        (json!({"iss": ["https://id.example"]}), "issuer"),
        (json!({"iss": ["https://evil.example", "https://id.example"]}), "issuer"),
        (json!({"aud": "others"}), "audience"),
        (json!({"aud": ["others"]}), "audience"),
        (json!({"aud": null}), "no `aud`"),
    ] {
        let shown = change.to_string();
        let reason = reason(ask(change).await);
        assert!(reason.contains(expected), "{shown}: {reason}");
    }
}

#[tokio::test]
async fn scopes_come_from_the_claim_as_words_or_as_a_list() {
    let (provider, clock) = (Provider::start(&all_keys()).await, Arc::new(FakeClock::default()));
    let jwt = provider.authenticator(&clock);
    for (name, value, scopes) in [
        ("scope", json!("enqueue enqueue:critical email"), "enqueue enqueue:critical"),
        ("scope", json!(["admin", 1]), "admin"),
        ("scp", json!("read"), "read"),
        ("scp", json!(["work"]), "work"),
        ("roles", json!("admin"), ""),
        ("scope", json!({"admin": true}), ""),
    ] {
        let mut claims = claims(&clock);
        claims.as_object_mut().unwrap().remove("scope");
        claims[name] = value;
        let principal =
            jwt.authenticate(&sign(Some("ed"), &ed(), Algorithm::EdDSA, &claims)).await.unwrap();
        assert_eq!(principal.scopes.to_string(), scopes, "{claims}");
    }
}

#[tokio::test]
async fn other_keys_and_other_algorithms_are_refused() {
    let (provider, clock) = (Provider::start(&all_keys()).await, Arc::new(FakeClock::default()));
    let jwt = provider.authenticator(&clock);
    let claims = claims(&clock);
    // A public key as the secret of an HMAC, a key of one kind under the id of another, and a key
    // that the provider does not publish.
    let public = EncodingKey::from_secret(
        published("rsa", &rsa(), Algorithm::RS256)["n"].as_str().unwrap().as_bytes(),
    );
    for (id, key, algorithm) in [
        ("rsa", &public, Algorithm::HS256),
        ("rsa", &ed(), Algorithm::EdDSA),
        ("ed", &other(), Algorithm::EdDSA),
        ("rsa", &rsa(), Algorithm::RS512),
    ] {
        assert!(
            matches!(
                jwt.authenticate(&sign(Some(id), key, algorithm, &claims)).await,
                Err(AuthError::Refused(_))
            ),
            "{id} {algorithm:?}"
        );
    }
    let good = sign(Some("ed"), &ed(), Algorithm::EdDSA, &claims);
    let [header, _, signature] = good.secret().unwrap().split('.').collect::<Vec<_>>()[..] else {
        panic!()
    };
    let changed = sign(Some("ed"), &other(), Algorithm::EdDSA, &json!({"scope": "admin"}));
    let body = changed.secret().unwrap().split('.').nth(1).unwrap();
    // {"alg":"none"}
    for forged in [
        format!("{header}.{body}.{signature}"),
        format!("eyJhbGciOiJub25lIn0.{body}."),
        "a.b.c".into(),
    ] {
        let credentials = Credentials::from_header(Some(&format!("Bearer {forged}"))).unwrap();
        assert!(
            matches!(jwt.authenticate(&credentials).await, Err(AuthError::Refused(_))),
            "{forged}"
        );
    }
}

#[tokio::test]
async fn a_token_with_critical_extensions_is_refused() {
    let (provider, clock) = (Provider::start(&all_keys()).await, Arc::new(FakeClock::default()));
    let jwt = provider.authenticator(&clock);
    for (extension, is_accepted) in [
        (json!({}), true),
        (json!({"cty": "JSON"}), true),
        (json!({"crit": ["exp"]}), false),
        (json!({"crit": []}), false),
        (json!({"crit": ["b64"], "b64": false}), false),
        (json!({"b64": true}), false),
    ] {
        let mut header = json!({"alg": "EdDSA", "kid": "ed"});
        header.as_object_mut().unwrap().extend(extension.as_object().unwrap().clone());
        let part = |value: &Value| BASE64.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims(&clock)));
        let signature =
            jsonwebtoken::crypto::sign(signed.as_bytes(), &ed(), Algorithm::EdDSA).unwrap();
        let bearer = format!("Bearer {signed}.{signature}");
        let credentials = Credentials::from_header(Some(&bearer)).unwrap();
        let answer = jwt.authenticate(&credentials).await;
        assert_eq!(answer.is_ok(), is_accepted, "{header}: {answer:?}");
    }
}

#[tokio::test]
async fn a_key_is_used_only_for_what_it_is_meant() {
    for (change, is_accepted) in [
        (json!({}), true),
        (json!({"alg": null, "use": null}), false),
        (json!({"alg": "Ed25519"}), true),
        (json!({"alg": "ES256"}), false),
        (json!({"alg": 1}), false),
        (json!({"use": "enc"}), false),
        (json!({"use": "both"}), false),
        (json!({"key_ops": ["verify"]}), true),
        (json!({"key_ops": ["sign", "verify"]}), true),
        (json!({"key_ops": ["sign"]}), false),
        (json!({"key_ops": []}), false),
        (json!({"key_ops": "verify"}), false),
    ] {
        let mut key = published("ed", &ed(), Algorithm::EdDSA);
        key.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let provider = Provider::start(&json!({"keys": [key]})).await;
        let clock = Arc::new(FakeClock::default());
        let jwt = provider.authenticator(&clock);
        let answer =
            jwt.authenticate(&sign(Some("ed"), &ed(), Algorithm::EdDSA, &claims(&clock))).await;
        assert_eq!(answer.is_ok(), is_accepted, "{change}: {answer:?}");
    }
}

#[tokio::test]
async fn an_unknown_key_id_causes_at_most_one_fetch_a_minute() {
    let first = json!({"keys": [published("ed", &ed(), Algorithm::EdDSA)]});
    let (provider, clock) = (Provider::start(&first).await, Arc::new(FakeClock::default()));
    let jwt = provider.authenticator(&clock);
    let (old, new) = (
        sign(Some("ed"), &ed(), Algorithm::EdDSA, &claims(&clock)),
        sign(Some("ec"), &ec(), Algorithm::ES256, &claims(&clock)),
    );
    jwt.authenticate(&old).await.unwrap();

    *provider.answer.lock() = (200, all_keys().to_string());
    clock.advance(Duration::from_millis(59_999));
    assert!(reason(jwt.authenticate(&new).await).contains("known key"));
    assert_eq!(provider.requests(), 1);
    clock.advance(Duration::from_millis(1));
    jwt.authenticate(&new).await.unwrap();
    assert_eq!(provider.requests(), 2);
}

#[tokio::test]
async fn a_withdrawn_key_is_dropped_after_an_hour() {
    let (provider, clock) = (Provider::start(&all_keys()).await, Arc::new(FakeClock::default()));
    let jwt = provider.authenticator(&clock);
    let ask = async || {
        jwt.authenticate(&sign(Some("ed"), &ed(), Algorithm::EdDSA, &claims(&clock))).await
    };
    ask().await.unwrap();
    *provider.answer.lock() = (500, String::new());
    clock.advance(MAX_KEY_AGE);
    ask().await.unwrap();
    assert_eq!(provider.requests(), 2);
    *provider.answer.lock() = (200, r#"{"keys": []}"#.into());
    clock.advance(RETRY_INTERVAL);
    assert!(reason(ask().await).contains("known key"));
}

#[tokio::test]
async fn a_silent_provider_does_not_block_calls_with_old_keys() {
    let (provider, clock) = (Provider::start(&all_keys()).await, Arc::new(FakeClock::default()));
    let jwt = provider.authenticator(&clock);
    let ask = async || {
        jwt.authenticate(&sign(Some("ed"), &ed(), Algorithm::EdDSA, &claims(&clock))).await
    };
    ask().await.unwrap();
    *provider.answer.lock() = (SILENT, String::new());
    clock.advance(MAX_KEY_AGE);
    let mut first = Box::pin(ask());
    while provider.requests() < 2 {
        assert!(poll!(&mut first).is_pending());
        tokio::task::yield_now().await;
    }
    ask().now_or_never().expect("nothing to wait for").unwrap();
    assert!(poll!(&mut first).is_pending());
}

#[tokio::test]
async fn tokens_cannot_be_checked_before_the_first_fetch() {
    let (provider, clock) = (Provider::start(&all_keys()).await, Arc::new(FakeClock::default()));
    let jwt = provider.authenticator(&clock);
    let token = sign(Some("ed"), &ed(), Algorithm::EdDSA, &claims(&clock));
    for bad in [
        (500, String::new()),
        (200, "<html>".into()),
        (302, String::new()),
        (200, "x".repeat(MAX_KEYS_BYTES + 1)),
    ] {
        *provider.answer.lock() = bad;
        for _ in 0..2 {
            assert!(matches!(jwt.authenticate(&token).await, Err(AuthError::Unavailable(_))));
        }
        clock.advance(RETRY_INTERVAL);
    }
    assert_eq!(provider.requests(), 4, "a failed fetch is not repeated at once");
    *provider.answer.lock() = (200, all_keys().to_string());
    jwt.authenticate(&token).await.unwrap();
}
