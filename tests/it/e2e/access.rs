//! Access: tokens that the command line creates and revokes, their scopes, and a server that never
//! opens by mistake.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::Method;
use serde_json::{Value, json};

use super::serve::{Setup, Tidegate};

/// Makes a token by the command line.
async fn make(tide: &Tidegate, admin: Option<&str>, name: &str, scopes: &[&str]) -> String {
    let args = [&["token", "create", "--name", name, "--scope"], scopes].concat();
    tide.cli_as(admin, &args).await.ok().trim().to_owned()
}

#[tokio::test]
async fn a_token_opens_what_its_scopes_say_and_nothing_else() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.post("/v1/tokens", json!({"name": "x", "scopes": ["read"]})).await.blames(
        409,
        "admin_token_required",
        "scopes",
    );
    let admin = make(&tide, None, "ops", &["admin"]).await;
    let mut tokens = vec![("admin", admin.clone())];
    for (name, scopes) in [
        ("enqueue", &["enqueue"][..]),
        ("critical", &["enqueue", "enqueue:critical"]),
        ("work", &["work"]),
        ("read", &["read"]),
    ] {
        tokens.push((name, make(&tide, Some(&admin), name, scopes).await));
    }
    let job = json!({"type": "t", "data": 1});
    let critical = json!({"type": "t", "data": 1, "critical": true});
    let cases: &[(Method, &str, Value, &[&str])] = &[
        (Method::POST, "/v1/jobs", job.clone(), &["admin", "enqueue", "critical"]),
        (Method::POST, "/v1/jobs", critical, &["admin", "critical"]),
        (Method::POST, "/v1/jobs/batch", json!({"jobs": [job]}), &["admin", "enqueue", "critical"]),
        (Method::POST, "/v1/leases", json!({"max": 0}), &["admin", "work"]),
        (Method::PUT, "/v1/workers/w", json!({}), &["admin", "work"]),
        (Method::GET, "/v1/jobs", Value::Null, &["admin", "read"]),
        (Method::GET, "/v1/queues", Value::Null, &["admin", "read"]),
        (Method::GET, "/metrics", Value::Null, &["admin", "read"]),
        (Method::PUT, "/v1/queues/q", json!({}), &["admin"]),
        (Method::PUT, "/v1/job-types/u", json!({}), &["admin"]),
        (Method::POST, "/v1/queues/default/pause", Value::Null, &["admin"]),
        (Method::POST, "/v1/queues/default/resume", Value::Null, &["admin"]),
        (Method::POST, "/v1/jobs/cancel", json!({"filter": {"type": "none"}}), &["admin"]),
        (Method::GET, "/v1/tokens", Value::Null, &["admin"]),
        (Method::GET, "/v1/doctor", Value::Null, &["admin"]),
    ];
    let mut wrong = Vec::new();
    for (method, path, body, may) in cases {
        tide.ask(method.clone(), path, body).await.problem(401, "unauthorized");
        tide.with_token("tg_nonsense")
            .ask(method.clone(), path, body)
            .await
            .problem(401, "unauthorized");
        for (scope, token) in &tokens {
            let answer = tide.with_token(token).ask(method.clone(), path, body).await;
            let let_in = answer.status < 300;
            if let_in != may.contains(scope) || (!let_in && answer.status != 403) {
                wrong.push(format!(
                    "{method} {path} {body} with {scope}: {} {}",
                    answer.status,
                    answer.value()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for open in ["/healthz", "/readyz", "/openapi.json"] {
        tide.get(open).await.is(200);
    }
    let challenged = tide.get("/v1/jobs").await;
    let challenges: Vec<_> = challenged
        .headers
        .get_all("www-authenticate")
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    assert!(
        challenges.iter().any(|one| one.starts_with("Bearer"))
            && challenges.iter().any(|one| one.starts_with("Basic")),
        "{challenges:?}"
    );
    let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("any-user:{}", tokens[4].1)));
    tide.send(Method::GET, "/v1/jobs", &[("authorization", &basic)], "").await.is(200);
}

#[tokio::test]
async fn an_open_server_refuses_pages_that_rebind_its_dns_name() {
    let tide = Setup::new().env("TIDEGATE_PUBLIC_URL", "https://queue.example").start().await;
    let asked = async |api: &super::api::Api, host: &str| {
        api.send(Method::GET, "/v1/jobs", &[("host", host)], "").await
    };
    asked(&tide, "evil.example:8080").await.problem(403, "host_not_allowed");
    for own in ["queue.example", "localhost:8080"] {
        asked(&tide, own).await.is(200);
    }
    let admin = make(&tide, None, "ops", &["admin"]).await;
    asked(&tide.with_token(&admin), "queue.internal").await.is(200);
    asked(&tide, "queue.internal").await.problem(401, "unauthorized");
}

#[tokio::test]
async fn replaying_a_critical_job_needs_the_right_to_enqueue_one() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"max_attempts": 1})).await;
    let id = tide.enqueue(json!({"type": "t", "data": 1, "critical": true})).await;
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "failed").await.is(200);
    let admin = make(&tide, None, "ops", &["admin"]).await;
    let plain = make(&tide, Some(&admin), "plain", &["enqueue"]).await;
    let replay = format!("/v1/jobs/t/{id}/replay");
    tide.with_token(&plain).post(&replay, Value::Null).await.problem(403, "forbidden");
    assert_eq!(tide.with_token(&admin).post(&replay, Value::Null).await.is(201)["critical"], true);
}

#[tokio::test]
async fn tokens_hide_secrets_revoke_at_once_and_survive_a_restart() {
    let tide = Tidegate::start().await;
    let admin = make(&tide, None, "ops", &["admin"]).await;
    let reader = make(&tide, Some(&admin), "reader", &["read"]).await;
    let listed = tide.cli_as(Some(&admin), &["token", "list"]).await.ok();
    assert!(listed.contains("reader") && !listed.contains(&reader), "{listed}");
    let refused = tide.cli_as(Some(&reader), &["token", "list"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("no scope admin"), "{refused:?}");
    let tide = tide.stop().await.start().await;
    tide.get("/v1/jobs").await.problem(401, "unauthorized");
    tide.with_token(&reader).get("/v1/jobs").await.is(200);
    let all = tide.with_token(&admin).get("/v1/tokens").await.is(200);
    let id = all["tokens"].as_array().unwrap().iter().find(|one| one["name"] == "reader").unwrap()
        ["id"]
        .as_str()
        .unwrap()
        .to_owned();
    tide.cli_as(Some(&admin), &["token", "revoke", &id]).await.ok();
    tide.with_token(&reader).get("/v1/jobs").await.problem(401, "unauthorized");
    assert_eq!(tide.cli_as(Some(&admin), &["token", "revoke", &id]).await.code, Some(4));
    let files = std::fs::read(tide.data().join("tidegate.db")).unwrap();
    assert!(
        !files.windows(admin.len()).any(|window| window == admin.as_bytes()),
        "tokens are stored hashed"
    );
}

#[tokio::test]
async fn an_address_for_others_needs_tokens() {
    let setup = Setup::new().flag("--listen", "0.0.0.0:0");
    let (status, said) = setup.refused().await;
    assert!(
        !status.success() && said.contains("listen") && said.contains("tidegate token create"),
        "{said}"
    );
    // Once there is a token it may be listened on.
    let data = setup.data();
    let closed = Setup::new().flag("--data", data.to_str().unwrap()).start().await;
    make(&closed, None, "ops", &["admin"]).await;
    closed.stop().await;
    let open = setup.start().await;
    open.get("/v1/jobs").await.problem(401, "unauthorized");
}
