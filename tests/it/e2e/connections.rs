//! Connections: their number, the time that each may wait, and what is answered when a head or a
//! body is not what it should be.

use std::time::Duration;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    serve::{Setup, Tidegate},
    wait::{PATIENCE, eventually},
};

/// A connection, and what it sends and receives.
struct Raw(TcpStream);

/// The head of a response in lower case, and its body.
#[derive(Debug)]
struct Received {
    head: String,
    body: Vec<u8>,
}

impl Received {
    fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn ends(&self) -> bool {
        self.head.contains("\r\nconnection: close\r\n")
    }

    /// The code of the problem document.
    fn code(&self) -> String {
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        for header in ["x-request-id: ", "server: tidegate", "x-content-type-options: nosniff"] {
            assert!(self.head.contains(header), "{header} in {self:?}");
        }
        let value: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(value["status"], self.status());
        value["code"].as_str().unwrap().to_owned()
    }
}

impl Raw {
    async fn to(tide: &Tidegate) -> Self {
        let address = tide.base.strip_prefix("http://").unwrap();
        Self(TcpStream::connect(address).await.unwrap())
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        // The server may end the connection before it has read everything.
        let _ = self.0.write_all(bytes.as_ref()).await;
        self
    }

    /// The next response, or none at the end of the connection.
    async fn next(&mut self) -> Option<Received> {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("a response, or the end")
    }

    async fn read(&mut self) -> Option<Received> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let (_, rest) = head.split_once("content-length: ").expect("a length");
        let length = rest.split_once("\r\n").unwrap().0.parse().unwrap();
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.ok()?;
        Some(Received { head, body })
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
}

#[tokio::test]
async fn heads_that_are_no_http_get_problem_documents() {
    let tide = Tidegate::start().await;
    let many = "a: b\r\n".repeat(101);
    let cases: [(&str, String, u16, &str); 8] = [
        (
            "a header without a colon",
            "GET / HTTP/1.1\r\nbad\r\n\r\n".into(),
            400,
            "invalid_request",
        ),
        ("no version", "GET /\r\n\r\n".into(), 400, "invalid_request"),
        ("a wrong method", "G@T / HTTP/1.1\r\n\r\n".into(), 400, "invalid_request"),
        (
            "two lengths",
            "POST /v1/jobs HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"
                .into(),
            400,
            "invalid_request",
        ),
        (
            "a coding alone",
            "POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: gzip\r\n\r\n".into(),
            400,
            "invalid_request",
        ),
        ("many headers", format!("GET / HTTP/1.1\r\n{many}\r\n"), 431, "headers_too_large"),
        (
            "a long header",
            format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "x".repeat(1 << 20)),
            431,
            "headers_too_large",
        ),
        ("a long path", get(&format!("/{}", "x".repeat(65_535))), 414, "uri_too_long"),
    ];
    for (what, sent, status, code) in cases {
        let mut raw = Raw::to(&tide).await;
        // The same after a response on the connection.
        for before in [false, true] {
            if before {
                raw = Raw::to(&tide).await;
                assert_eq!(raw.send(get("/healthz")).await.next().await.unwrap().status(), 200);
            }
            let answer = raw.send(&sent).await.next().await;
            let answer = answer.unwrap_or_else(|| panic!("{what}: no answer"));
            assert_eq!((answer.status(), &*answer.code()), (status, code), "{what}");
            assert!(answer.ends(), "{what}: {}", answer.head);
            assert!(raw.next().await.is_none(), "{what}: the connection ends");
        }
    }
    let metrics = tide.get("/metrics").await;
    let text = String::from_utf8(metrics.body).unwrap();
    assert!(text.contains("tidegate_http_requests_total{status=\"4xx\"} 16"), "{text}");
}

#[tokio::test]
async fn unread_bodies_are_drained_or_the_response_says_close() {
    let tide = Tidegate::start().await;
    let json = "content-type: application/json\r\n";
    let cases = [
        ("POST", "/v2/none", json, 404),
        ("POST", "/healthz", json, 405),
        ("GET", "/v1/jobs", "", 200),
        ("DELETE", "/v1/queues/none", "", 404),
        ("POST", "/v1/jobs", "content-type: text/csv\r\n", 415),
        ("POST", "/v1/jobs", "content-encoding: gzip\r\n", 415),
        ("POST", "/v1/jobs", "sec-fetch-site: cross-site\r\n", 403),
        ("POST", "/v1/queues/default/pause", json, 200),
    ];
    for case in cases {
        check_unread(&tide, case).await;
    }
    tide.post("/v1/tokens", serde_json::json!({"name": "ops", "scopes": ["admin"]})).await.is(201);
    check_unread(&tide, ("POST", "/v1/jobs", json, 401)).await;
}

/// Checks the responses to one request with bodies of several lengths. Some are sent whole.
async fn check_unread(tide: &Tidegate, (method, path, headers, status): (&str, &str, &str, u16)) {
    for (length, sent, kept) in [
        (10, 10, true),
        (60 << 10, 60 << 10, true),
        (10, 0, false),
        (1 << 20, 1 << 20, false),
        (1 << 20, 0, false),
    ] {
        let what = format!("{method} {path} with {sent} of {length} bytes");
        let mut raw = Raw::to(tide).await;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        raw.send(head).await.send(vec![b' '; sent]).await;
        let answer = raw.next().await.unwrap_or_else(|| panic!("{what}: no answer"));
        assert_eq!((answer.status(), answer.ends()), (status, !kept), "{what}: {answer:?}");
        let next = raw.send(get("/healthz")).await.next().await;
        assert_eq!(next.map(|next| next.status()), kept.then_some(200), "{what}");
    }
    let mut raw = Raw::to(tide).await;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nexpect: 100-continue\r\n\
         content-length: 10\r\n{headers}\r\n"
    );
    let answer = raw.send(head).await.next().await.unwrap();
    assert_eq!((answer.status(), answer.ends()), (status, true), "{method} {path}: {answer:?}");
}

#[tokio::test]
async fn silent_connections_do_not_shut_out_others() {
    let tide = Setup::new().files(256).start().await;
    let mut silent = Vec::new();
    for n in 0..300 {
        let mut raw = Raw::to(&tide).await;
        if n % 2 == 0 {
            raw.send("GET /healthz HTTP/1.1\r\nhost: ").await;
        }
        silent.push(raw);
    }
    for _ in 0..20 {
        let mut raw = Raw::to(&tide).await;
        assert_eq!(raw.send(get("/healthz")).await.next().await.unwrap().status(), 200);
    }
    // Connections that have not waited since the last sweep make no room.
    eventually("requests are answered", || async {
        let mut raw = Raw::to(&tide).await;
        (raw.send(get("/v1/jobs")).await.next().await?.status() == 200).then_some(())
    })
    .await;
    tide.job_type("t", serde_json::json!({})).await;
    let enqueued = tide.enqueue_a("t").await;
    assert_eq!(tide.job(&enqueued).await["state"], "scheduled");
    eventually("the log has a line", || async {
        tide.log().contains("all connections are taken").then_some(())
    })
    .await;
    let metrics = String::from_utf8(tide.get("/metrics").await.body).unwrap();
    assert!(
        metrics.contains("tidegate_connections_closed_total{reason=\"made_room\"}"),
        "{metrics}"
    );
}

#[tokio::test]
async fn too_many_requests_at_once_are_refused_in_words() {
    let tide = Setup::new().env("TIDEGATE_MAX_CONNECTIONS", "16").start().await;
    tide.job_type("t", serde_json::json!({})).await;
    let body = "{\"types\": [\"t\"], \"wait_seconds\": 60}";
    let poll = format!(
        "POST /v1/leases HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut polls = Vec::new();
    let refused = loop {
        let mut raw = Raw::to(&tide).await;
        raw.send(&poll).await;
        polls.push(raw);
        let answer = Raw::to(&tide).await.send(get("/v1/jobs")).await.next().await;
        if let Some(answer) = answer.filter(|answer| answer.status() == 503) {
            break answer;
        }
        assert!(polls.len() < 100, "no request is refused");
    };
    assert_eq!(refused.code(), "unavailable");
    assert!(refused.ends() && refused.head.contains("retry-after: 1"), "{}", refused.head);
    let mut raw = Raw::to(&tide).await;
    assert_eq!(raw.send(get("/healthz")).await.next().await.unwrap().status(), 200);
    // After the clients have left, the very first request is served.
    for poll in &mut polls {
        poll.0.shutdown().await.unwrap();
    }
    for poll in &mut polls {
        while poll.next().await.is_some() {}
    }
    let mut raw = Raw::to(&tide).await;
    assert_eq!(raw.send(get("/v1/jobs")).await.next().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_request_names_its_host() {
    let tide = Tidegate::start().await;
    let mut raw = Raw::to(&tide).await;
    let answer = raw.send("GET /healthz HTTP/1.1\r\n\r\n").await.next().await.unwrap();
    assert_eq!((answer.status(), &*answer.code()), (400, "invalid_header"), "{answer:?}");
    let mut old = Raw::to(&tide).await;
    let answer = old.send("GET /healthz HTTP/1.0\r\n\r\n").await.next().await.unwrap();
    assert_eq!(answer.status(), 200, "HTTP/1.0 needs none");
}

#[tokio::test]
async fn slow_clients_are_cut_off() {
    let tide = Setup::new()
        .env("TIDEGATE_HEAD_TIMEOUT_SECONDS", "1")
        .env("TIDEGATE_BODY_TIMEOUT_SECONDS", "1")
        .env("TIDEGATE_IDLE_TIMEOUT_SECONDS", "3")
        .start()
        .await;
    let (mut nothing, mut half, mut body, mut idle, mut deaf) = (
        Raw::to(&tide).await,
        Raw::to(&tide).await,
        Raw::to(&tide).await,
        Raw::to(&tide).await,
        Raw::to(&tide).await,
    );
    half.send("GET /healthz HTTP/1.1\r\n").await;
    body.send(
        "POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         content-length: 10\r\n\r\n{",
    )
    .await;
    assert_eq!(idle.send(get("/healthz")).await.next().await.unwrap().status(), 200);
    // Responses that no client reads fill the buffers of the connection.
    let pages = get("/openapi.json").repeat(200);
    deaf.send(&pages).await;
    assert!(nothing.next().await.is_none());
    assert!(half.next().await.is_none());
    let late = body.next().await.unwrap();
    assert_eq!((late.status(), &*late.code()), (408, "body_timeout"));
    assert!(late.ends(), "{}", late.head);
    assert!(idle.next().await.is_none());
    let filled = async { while deaf.0.write_all(pages.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, filled).await.expect("a client that reads nothing is cut off");
    // The connections of the test's client have been idle for too long.
    let answer = Raw::to(&tide).await.send(get("/metrics")).await.next().await.unwrap();
    let metrics = String::from_utf8(answer.body).unwrap();
    for reason in ["head_timeout\"} 2", "idle\"} ", "response_timeout\"} 1"] {
        let line = format!("tidegate_connections_closed_total{{reason=\"{reason}");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    assert!(tide.log().contains("did not send a request"), "{}", tide.log());
}

#[tokio::test]
async fn a_body_that_comes_slowly_but_steadily_is_read() {
    let tide = Setup::new().env("TIDEGATE_BODY_TIMEOUT_SECONDS", "1").start().await;
    tide.job_type("t", serde_json::json!({})).await;
    let body = format!("{{\"type\": \"t\", \"data\": \"{}\"}}", "x".repeat(96 << 10));
    let mut raw = Raw::to(&tide).await;
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    raw.send(head).await;
    let mut interval = tokio::time::interval(Duration::from_millis(100));
    for part in body.as_bytes().chunks(body.len() / 20) {
        interval.tick().await;
        raw.send(part).await;
    }
    assert_eq!(raw.next().await.unwrap().status(), 201);
}
