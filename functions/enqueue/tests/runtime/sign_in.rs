//! Users sign in to the console at an identity provider.

use std::path::Path;

use serde_json::{Value, json};
use tidegate_server::lambda::testkit::{Function, request};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{TOKEN, call};

/// A provider that describes itself, at the address that is returned.
async fn provider() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("http://{}", listener.local_addr().unwrap());
    let document = json!({
        "issuer": issuer, "authorization_endpoint": "https://id.example/authorize",
        "token_endpoint": "https://id.example/token", "keys": [],
    });
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(connection.read_u8().await.unwrap());
            }
            let body = document.to_string();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{body}",
                body.len()
            );
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    issuer
}

async fn start(more: &[(&str, &str)]) -> Function {
    // The SHA-256 of `secret`, in base64.
    let first = ("TIDEGATE_ADMIN_TOKEN", "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=");
    let vars = [&[first, ("TIDEGATE_PRIVATE_TARGETS", "true")], more].concat();
    Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-enqueue")), &vars).await
}

#[tokio::test]
async fn a_user_is_sent_to_the_identity_provider() {
    let issuer = provider().await;
    let function = start(&[
        ("TIDEGATE_PUBLIC_URL", "https://jobs.example"),
        ("TIDEGATE_JWT__JWKS_URL", &format!("{issuer}/keys")),
        ("TIDEGATE_JWT__ISSUER", &issuer),
        ("TIDEGATE_JWT__AUDIENCE", "jobs"),
        ("TIDEGATE_OIDC__CLIENT_ID", "console"),
        ("TIDEGATE_OIDC__SCOPES", "openid jobs"),
    ])
    .await;
    let begin = request("GET", "/console/sign-in", None, None);
    let answer = function.call(begin).await.unwrap();
    assert_eq!(answer["statusCode"], 303, "{answer}");
    let location = answer["headers"]["location"].as_str().unwrap();
    assert!(location.starts_with("https://id.example/authorize?response_type=code"), "{location}");
    for part in [
        "&client_id=console&",
        "&redirect_uri=https%3A%2F%2Fjobs.example%2Fconsole%2Fcallback&",
        "&scope=openid+jobs&",
    ] {
        assert!(location.contains(part), "{part} in {location}");
    }
    let cookie = answer["cookies"][0].as_str().unwrap();
    assert!(cookie.starts_with("__Host-tidegate_sign_in="), "{cookie}");

    // A callback that belongs to no sign-in leads back to the console.
    let mut back = request("GET", "/console/callback", None, None);
    back["rawQueryString"] = json!("state=x&code=y");
    let answer = function.call(back).await.unwrap();
    let location = answer["headers"]["location"].as_str().unwrap();
    assert!(location.starts_with("https://jobs.example/#/sign-in?error="), "{location}");

    // A token of the provider is checked, and a stored one still counts.
    let (status, problem) = call(&function, "GET", "/v1/jobs", Some("a.b.c"), None).await;
    assert_eq!((status, &problem["code"]), (401, &json!("unauthorized")));
    assert_eq!(call(&function, "GET", "/v1/jobs", Some(TOKEN), None).await.0, 200);
    let (_, session) = call(&function, "GET", "/v1/session", None, None).await;
    assert_eq!(session["sign_in"], json!(["token", "oidc"]));
}

#[tokio::test]
async fn without_a_provider_there_is_no_sign_in() {
    let function = start(&[("TIDEGATE_CONSOLE__TITLE", "jobs in eu")]).await;
    let begin = request("GET", "/console/sign-in", None, None);
    assert_eq!(function.call(begin).await.unwrap()["statusCode"], 404);
    let (_, session) = call(&function, "GET", "/v1/session", Some(TOKEN), None).await;
    let Value::Object(console) = &session["console"] else { panic!("{session}") };
    assert_eq!(console["title"], "jobs in eu");
}
