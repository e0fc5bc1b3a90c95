//! Secrets are never logged, at any level: the test sends every request that carries one, also a
//! failing one, and reads the whole log.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::logged::Log;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
    routing::post,
};
use object_store::memory::InMemory;
use serde_json::{Value, json};
use tidegate_backends::{
    http::{Guard, HttpTarget},
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::port::{Clock, policy::NoPolicy};
use tidegate_engine::{
    Ports, Rules,
    memory::{MemoryStore, MemoryWorkQueue},
};
use tidegate_server::{
    Server,
    auth::TokenItem,
    lambda::{self, ApiFunction},
};
use tower::ServiceExt as _;

/// A serverless server, its API, its queue.
struct Home {
    server: Server,
    api: Router,
    work: Arc<MemoryWorkQueue>,
}

impl Home {
    async fn new() -> Self {
        let work = Arc::new(MemoryWorkQueue::default());
        let ports = Ports {
            store: Arc::new(MemoryStore::new()),
            objects: Arc::new(InMemory::new()),
            work: Arc::clone(&work) as _,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            policy: Arc::new(NoPolicy),
        };
        let target = Arc::new(HttpTarget::new(Guard::Off).unwrap());
        let server = Server::builder(ports, target)
            .rules(Rules::default())
            .serverless()
            .start()
            .await
            .unwrap();
        // The SHA-256 of `secret`, in base64.
        let setting = "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=";
        let first = TokenItem::of_admin_setting(setting).unwrap();
        let options = ApiFunction {
            max_data_bytes: 1 << 20,
            first_token: Some(first),
            ..ApiFunction::default()
        };
        let api = lambda::router(server.clone(), options, lambda::Metrics::off()).await;
        Self { server, api, work }
    }

    async fn call(
        &self,
        method: &str,
        path: &str,
        token: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {token}"))
            .header("host", "127.0.0.1:8080");
        let request = request
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()))
            .unwrap();
        let answer = self.api.clone().oneshot(request).await.unwrap();
        let (status, bytes) =
            (answer.status(), to_bytes(answer.into_body(), 1 << 20).await.unwrap());
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Delivers what was sent.
    async fn deliver(&self) {
        let now = SystemClock.now();
        let work = self.work.take(100, now);
        assert!(!work.is_empty());
        self.server.deliver(work, now + Duration::from_secs(20)).await;
    }
}

#[tokio::test]
async fn no_secret_is_logged_at_any_level_by_server_or_dependencies() {
    let (log, _logging) = Log::capture(tracing::level_filters::LevelFilter::TRACE);

    let home = Home::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let worker = format!("http://{}", listener.local_addr().unwrap());
    let attempt = Arc::new(Mutex::new(String::new()));
    let seen = Arc::clone(&attempt);
    let later = post(async move |body: axum::body::Bytes| {
        let body: Value = serde_json::from_slice(&body).unwrap();
        *seen.lock().unwrap() = body["callback"]["token"].as_str().unwrap().to_owned();
        StatusCode::ACCEPTED
    });
    let app = Router::new()
        .route("/fails", post(async || StatusCode::INTERNAL_SERVER_ERROR))
        .route("/later", later);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let admin = "tg_first_secret";
    let (status, made) =
        home.call("POST", "/v1/tokens", admin, json!({"name": "app", "scopes": ["enqueue"]})).await;
    assert_eq!(status, 201);
    let made = made["token"].as_str().unwrap().to_owned();
    for path in ["fails", "later"] {
        let target = json!({
            "url": format!("{worker}/{path}"), "signing_secret": ["a-signing-secret-of-a-target"],
            "basic_auth": {"username": "app", "password": "a-password-of-a-target"}, "headers": {"x-api-key": "a-key-of-a-target"},
        });
        assert_eq!(
            home.call("PUT", &format!("/v1/job-types/{path}"), admin, json!({"target": target}))
                .await
                .0,
            201
        );
        let job = json!({"type": path, "data": {"card": "data-of-a-job"}, "headers": {"x-client": "a-header-of-a-job"}});
        assert_eq!(home.call("POST", "/v1/jobs", &made, job).await.0, 201);
        home.deliver().await;
    }
    let attempt = attempt.lock().unwrap().clone();
    assert_eq!(attempt.len(), 32);
    let jobs = home.call("GET", "/v1/jobs?type=later", admin, Value::Null).await.1;
    let path = format!("/v1/jobs/later/{}", jobs["jobs"][0]["id"].as_str().unwrap());
    let report = json!({"status": "succeeded", "attempt": 1});
    // Unknown tokens are secrets too, because they may be valid elsewhere.
    assert_eq!(
        home.call("POST", &path, "ffffffffffffffffffffffffffffffff", report.clone()).await.0,
        403
    );
    assert_eq!(
        home.call("POST", "/v1/jobs", "tg_first_wrongsecret", json!({"type": "later"})).await.0,
        401
    );
    assert_eq!(home.call("POST", &path, &attempt, report).await.0, 200);
    assert_eq!(
        home.call("POST", "/v1/jobs", &made, json!({"type": "none", "data": "data-of-a-job"}))
            .await
            .0,
        404
    );

    let log = log.text();
    assert!(log.len() > 1000, "nothing was logged: {log}");
    let secret = made.rsplit('_').next().unwrap();
    let secrets = [
        admin,
        secret,
        "a-signing-secret",
        "a-password-of",
        "YXBwOmEtcGFzc3dvcmQ",
        "a-key-of-a-target",
        "a-header-of-a-job",
        "data-of-a-job",
        &attempt,
        "ffffffffffffffff",
        "wrongsecret",
    ];
    for secret in secrets {
        let at = log.lines().find(|line| line.contains(secret));
        assert!(at.is_none(), "{secret} is in the log: {}", at.unwrap_or_default());
    }
}
