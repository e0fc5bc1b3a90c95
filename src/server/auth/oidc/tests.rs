use std::collections::HashMap;

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response as HttpResponse},
    routing::{get, post},
};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use parking_lot::Mutex as Plain;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::auth::{Authenticate as _, Credentials, Scope};
use tidegate_backends::http::Guard;
use tidegate_engine::memory::{FakeClock, SeededEntropy};

/// The form of a request for tokens, and its `Authorization`.
type Exchange = (HashMap<String, String>, Option<String>);

/// An identity provider on loopback.
#[derive(Clone)]
struct FakeIssuer {
    url: String,
    /// What the token endpoint got.
    exchanges: Arc<Plain<Vec<Exchange>>>,
    /// What it answers: the claims of the access token and of the ID token.
    claims: Arc<Plain<[Value; 2]>>,
}

fn key() -> EncodingKey {
    EncodingKey::from_ed_pem(include_bytes!("../testdata/ed.pem")).unwrap()
}

fn signed(claims: &Value) -> String {
    let header = Header { kid: Some("ed".into()), ..Header::new(Algorithm::EdDSA) };
    encode(&header, claims, &key()).unwrap()
}

impl FakeIssuer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/realm", listener.local_addr().unwrap());
        let issuer = Self {
            url,
            exchanges: Arc::default(),
            claims: Arc::new(Plain::new([Value::Null, Value::Null])),
        };
        let routes = Router::new()
            .route("/realm/.well-known/openid-configuration", get(discovery))
            .route("/realm/keys", get(keys))
            .route("/realm/token", post(token))
            .with_state(issuer.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        issuer
    }

    /// Lets it answer with these claims, in addition to those that every token has.
    fn answer(&self, clock: &FakeClock, access: &Value, id: &Value) {
        let all = |audience: &str, more: &Value| {
            let expires = clock.now().millis() / 1000 + 600;
            let mut claims =
                json!({"iss": self.url, "aud": audience, "sub": "ann", "exp": expires});
            let more = more.as_object().unwrap().clone();
            claims.as_object_mut().unwrap().extend(more);
            claims
        };
        *self.claims.lock() = [all("jobs", access), all("console", id)];
    }
}

async fn discovery(State(issuer): State<FakeIssuer>) -> String {
    let url = &issuer.url;
    let about = json!({
        "issuer": url, "authorization_endpoint": format!("{url}/authorize?tenant=1"),
        "token_endpoint": format!("{url}/token"), "jwks_uri": format!("{url}/keys"),
    });
    about.to_string()
}

async fn keys() -> String {
    let jwk = Jwk::from_encoding_key(&key(), Algorithm::EdDSA).unwrap();
    let mut jwk = serde_json::to_value(jwk).unwrap();
    jwk["kid"] = "ed".into();
    json!({"keys": [jwk]}).to_string()
}

async fn token(State(issuer): State<FakeIssuer>, headers: HeaderMap, body: String) -> HttpResponse {
    let form: HashMap<String, String> =
        form_urlencoded::parse(body.as_bytes()).into_owned().collect();
    let authorization = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap());
    let authorization = authorization.map(str::to_owned);
    let is_known = form["code"] == "the-code";
    issuer.exchanges.lock().push((form, authorization));
    if !is_known {
        let error = json!({"error": "invalid_grant"}).to_string();
        return (StatusCode::BAD_REQUEST, error).into_response();
    }
    let [access, id] = issuer.claims.lock().clone();
    let access = if access["opaque"] == true { "opaque".to_owned() } else { signed(&access) };
    json!({"access_token": access, "id_token": signed(&id), "token_type": "Bearer"})
        .to_string()
        .into_response()
}

/// A server's sign-in, and its provider.
struct World {
    issuer: FakeIssuer,
    clock: Arc<FakeClock>,
    jwt: Arc<JwtAuthenticator>,
    sign_in: SignIn,
}

impl World {
    async fn new(public_url: &str) -> Self {
        let issuer = FakeIssuer::start().await;
        let clock = Arc::new(FakeClock::default());
        clock.set(Timestamp::from_millis(1_800_000_000_000));
        let http = || HttpTarget::new(Guard::On).unwrap();
        let settings = settings::Jwt {
            jwks_url: format!("{}/keys", issuer.url).parse().ok(),
            issuer: Some(issuer.url.clone()),
            audience: Some("jobs".into()),
            ..settings::Jwt::default()
        };
        let jwt = JwtAuthenticator::new(&settings, http(), Arc::clone(&clock) as _);
        let jwt = Arc::new(jwt.unwrap());
        let settings = settings::Oidc {
            client_id: Some("console".into()),
            client_secret: Some("se cret".into()),
            scopes: "openid jobs".into(),
        };
        let (known, entropy) = (Some(Arc::clone(&jwt)), Arc::new(SeededEntropy::new(1)));
        let time = Arc::clone(&clock) as Arc<dyn Clock>;
        let sign_in = SignIn::new(&settings, public_url, known, http(), time, entropy).unwrap();
        Self { issuer, clock, jwt, sign_in }
    }

    /// The way to the provider: the parameters of its address, and the cookie of the browser.
    async fn begin(&self, place: &str) -> (HashMap<String, String>, HeaderMap) {
        let Redirect { to, cookies } = self.sign_in.begin(place).await.unwrap();
        assert!(to.as_str().starts_with(&format!("{}/authorize?tenant=1&", self.issuer.url)));
        let pair = cookies[0].split(';').next().unwrap();
        let headers = [(header::COOKIE, HeaderValue::from_str(pair).unwrap())];
        (to.query_pairs().into_owned().collect(), headers.into_iter().collect())
    }

    /// The way back, with this code, and with claims of the tokens.
    async fn finish(&self, code: &str, access: &Value, id: &Value) -> Redirect {
        let (asked, headers) = self.begin("#/queues/mail").await;
        let mut id = id.clone();
        id.as_object_mut().unwrap().entry("nonce").or_insert(json!(asked["nonce"]));
        self.issuer.answer(&self.clock, access, &id);
        let query = format!("code={code}&state={}", asked["state"]);
        self.sign_in.finish(&query, &headers).await
    }
}

/// Why the console says that a sign-in failed.
fn reason(redirect: &Redirect) -> String {
    let fragment = redirect.to.fragment().unwrap();
    let query = fragment.strip_prefix("/sign-in?").unwrap_or_else(|| panic!("{fragment}"));
    let (_, reason) = form_urlencoded::parse(query.as_bytes()).next().unwrap();
    reason.into_owned()
}

#[tokio::test]
async fn a_user_signs_in_with_a_code_that_the_server_exchanges() {
    let world = World::new("https://jobs.example/base").await;
    let (asked, _) = world.begin("#/queues/mail").await;
    assert_eq!(asked["redirect_uri"], "https://jobs.example/base/console/callback");
    let wanted = ["response_type", "client_id", "scope", "code_challenge_method"];
    let wanted = wanted.map(|name| asked[name].as_str());
    assert_eq!(wanted, ["code", "console", "openid jobs", "S256"]);

    let done = world.finish("the-code", &json!({"scope": "read admin"}), &json!({})).await;
    assert_eq!(done.to.as_str(), "https://jobs.example/base/#/queues/mail");
    let [session, forgotten] = &done.cookies[..] else { panic!("{done:?}") };
    assert!(session.starts_with("__Host-tidegate_session=ey"), "{session}");
    assert!(session.ends_with("; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure"));
    assert!(forgotten.starts_with("__Host-tidegate_sign_in=; Path=/; Max-Age=0;"));

    let exchanges = world.issuer.exchanges.lock().clone();
    let (form, authorization) = &exchanges[0];
    assert_eq!(form["grant_type"], "authorization_code");
    assert_eq!(form["redirect_uri"], asked["redirect_uri"]);
    assert!((43..=128).contains(&form["code_verifier"].len()));
    // The id and the encoded secret.
    let basic = base64::engine::general_purpose::STANDARD.encode("console:se+cret");
    assert_eq!(authorization.as_deref(), Some(format!("Basic {basic}").as_str()));
    assert!(!form.contains_key("client_secret"));

    let cookie = session.split(';').next().unwrap();
    let headers = [(header::COOKIE, HeaderValue::from_str(cookie).unwrap())];
    let token = world.sign_in.token_of(&headers.into_iter().collect()).unwrap();
    let caller = world.jwt.authenticate(&Credentials::from_cookie(token)).await.unwrap();
    assert_eq!((caller.name.as_str(), caller.may(Scope::Admin)), ("ann", true));
}

#[tokio::test]
async fn the_challenge_belongs_to_the_verifier() {
    let world = World::new("http://127.0.0.1:8080").await;
    let (asked, headers) = world.begin("").await;
    world.issuer.answer(&world.clock, &json!({"scope": "read"}), &json!({"nonce": asked["nonce"]}));
    let query = format!("code=the-code&state={}", asked["state"]);
    let done = world.sign_in.finish(&query, &headers).await;
    assert_eq!(done.to.as_str(), "http://127.0.0.1:8080/#");
    assert!(done.cookies[0].starts_with("tidegate_session=ey"), "without encryption: {done:?}");
    let verifier = world.issuer.exchanges.lock()[0].0["code_verifier"].clone();
    assert_eq!(challenge(&verifier), asked["code_challenge"]);
    // RFC 7636, appendix B.
    let example = challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
    assert_eq!(example, "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
}

#[tokio::test]
async fn an_id_token_with_scopes_is_used_without_an_access_token() {
    let world = World::new("http://127.0.0.1:8080").await;
    let id = json!({"scope": "read", "aud": ["console", "jobs"], "azp": "console"});
    let done = world.finish("the-code", &json!({"opaque": true}), &id).await;
    assert!(done.cookies[0].starts_with("tidegate_session=ey"), "{done:?}");
}

#[tokio::test]
async fn a_wrong_answer_of_the_provider_signs_no_user_in() {
    let world = World::new("http://127.0.0.1:8080").await;
    let scope = json!({"scope": "read"});
    let long = json!({"scope": "read", "groups": "x".repeat(MAX_TOKEN_BYTES)});
    for (code, access, id, expected) in [
        ("the-code", &scope, json!({"nonce": "other"}), "answers another sign-in"),
        ("the-code", &scope, json!({"aud": "others"}), "meant for another audience"),
        ("the-code", &scope, json!({"azp": "others"}), "is for another client"),
        ("the-code", &scope, json!({"exp": 1}), "has expired"),
        ("the-code", &scope, json!({"iss": "http://other"}), "of another issuer"),
        ("the-code", &json!({"aud": "others"}), json!({}), "neither token"),
        ("the-code", &long, json!({}), "a cookie takes 3800"),
        ("stolen", &scope, json!({}), "refuses the code: invalid_grant"),
    ] {
        let failed = world.finish(code, access, &id).await;
        assert!(reason(&failed).contains(expected), "{expected}: {}", reason(&failed));
        assert!(failed.cookies.iter().all(|cookie| !cookie.contains("session")), "{failed:?}");
    }
}

#[tokio::test]
async fn a_sign_in_ends_in_the_browser_that_began_it() {
    let world = World::new("http://127.0.0.1:8080").await;
    let (asked, headers) = world.begin("").await;
    let (_, others) = world.begin("").await;
    let query = format!("code=the-code&state={}", asked["state"]);
    for (headers, query, expected) in [
        (&others, query.as_str(), "was started elsewhere"),
        (&headers, "code=the-code", "was started elsewhere"),
        (&HeaderMap::new(), query.as_str(), "more than ten minutes"),
    ] {
        let failed = world.sign_in.finish(query, headers).await;
        assert!(reason(&failed).contains(expected), "{failed:?}");
        assert!(failed.cookies.is_empty(), "the other sign-in goes on: {failed:?}");
    }
    let denied = format!("error=access_denied&error_description=no&state={}", asked["state"]);
    let failed = world.sign_in.finish(&denied, &headers).await;
    assert_eq!(reason(&failed), "the identity provider refuses: access_denied: no");
    assert_eq!(world.issuer.exchanges.lock().len(), 0, "no code was exchanged");
}

#[tokio::test]
async fn a_user_returns_to_the_console_alone() {
    let world = World::new("http://127.0.0.1:8080").await;
    for place in
        ["https://evil.example", "//evil.example", "#\n", &format!("#{}", "x".repeat(1024))]
    {
        let refused = world.sign_in.begin(place).await.unwrap_err();
        assert!(matches!(refused, SignInError::Refused(_)), "{place}: {refused}");
    }
}

#[tokio::test]
async fn a_provider_that_does_not_answer_is_asked_again_later() {
    let world = World::new("http://127.0.0.1:8080").await;
    let settings = settings::Jwt {
        jwks_url: "http://127.0.0.1:1/keys".parse().ok(),
        issuer: Some("http://127.0.0.1:1".into()),
        audience: Some("jobs".into()),
        ..settings::Jwt::default()
    };
    let http = || HttpTarget::new(Guard::On).unwrap();
    let jwt = JwtAuthenticator::new(&settings, http(), Arc::clone(&world.clock) as _);
    let oidc = settings::Oidc { client_id: Some("console".into()), ..settings::Oidc::default() };
    let (time, entropy) = (Arc::clone(&world.clock), Arc::new(SeededEntropy::new(1)));
    let jwt = jwt.map(Arc::new);
    let sign_in = SignIn::new(&oidc, "http://127.0.0.1:8080", jwt, http(), time, entropy).unwrap();
    for _ in 0..2 {
        let failed = sign_in.begin("").await.unwrap_err();
        assert!(matches!(failed, SignInError::Unavailable(_)), "{failed}");
    }
}
