//! A lean client of the HTTP API.

use std::time::Duration;

use reqwest::{Client, Method, header::HeaderMap};
use serde_json::{Value, json};

use super::{
    contract::{Contract, Exchange},
    wait::{PATIENCE, until},
};

/// A client of one server.
#[derive(Clone)]
pub struct Api {
    pub base: String,
    client: Client,
    token: Option<String>,
    patience: Duration,
    is_checked: bool,
}

impl Api {
    /// A client of the server at `base`.
    pub fn at(base: String) -> Self {
        Self { base, client: Client::new(), token: None, patience: PATIENCE, is_checked: false }
    }

    /// The same client, which compares every exchange with the document of the server.
    pub fn checked(self) -> Self {
        Self { is_checked: true, ..self }
    }

    /// The same client for requests that are accepted though the document does not have them.
    pub fn unchecked(&self) -> Self {
        Self { is_checked: false, ..self.clone() }
    }

    /// The same client with a token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The same client with as much time as a compiler may take.
    pub fn patient(&self) -> Self {
        Self { patience: 4 * PATIENCE, ..self.clone() }
    }

    /// A request with any body and headers; none if no answer came.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Option<ApiAnswer> {
        let body = body.into();
        let sent = body.as_bytes().filter(|_| self.is_checked).unwrap_or_default().to_vec();
        let mut request = self
            .client
            .request(method.clone(), format!("{}{path}", self.base))
            .body(body)
            .timeout(self.patience);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.ok()?;
        let (status, answered) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.ok()?.to_vec();
        let answer = ApiAnswer { status, headers: answered, body };
        let media = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        let media = media.map_or("", |(_, media)| *media);
        let exchange = Exchange { method: &method, path, media, body: &sent, answer: &answer };
        if self.is_checked
            && let Some(contract) = self.contract().await
        {
            contract.check(&exchange);
        }
        Some(answer)
    }

    /// What the server says about itself, if there is a document.
    async fn contract(&self) -> Option<&'static Contract> {
        static CONTRACT: tokio::sync::OnceCell<Option<Contract>> =
            tokio::sync::OnceCell::const_new();
        let read = async {
            let url = format!("{}/openapi.json", self.base);
            let document = self.client.get(url).timeout(self.patience).send().await.ok()?;
            serde_json::from_slice(&document.bytes().await.ok()?).ok().map(Contract::new)
        };
        CONTRACT.get_or_init(|| read).await.as_ref()
    }

    /// A request with any body and headers.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> ApiAnswer {
        self.try_send(method.clone(), path, headers, body)
            .await
            .unwrap_or_else(|| panic!("{method} {path} has no answer"))
    }

    /// A request in JSON.
    pub async fn ask(&self, method: Method, path: &str, body: &Value) -> ApiAnswer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, &[("content-type", "application/json")], body).await
    }

    pub async fn get(&self, path: &str) -> ApiAnswer {
        self.send(Method::GET, path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: Value) -> ApiAnswer {
        self.ask(Method::POST, path, &body).await
    }

    pub async fn put(&self, path: &str, body: Value) -> ApiAnswer {
        self.ask(Method::PUT, path, &body).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> ApiAnswer {
        self.ask(Method::PATCH, path, &body).await
    }

    pub async fn delete(&self, path: &str) -> ApiAnswer {
        self.send(Method::DELETE, path, &[], "").await
    }

    /// Configures a queue.
    pub async fn queue(&self, name: &str, config: Value) -> Value {
        self.put(&format!("/v1/queues/{name}"), config).await.good()
    }

    /// Configures a job type.
    pub async fn job_type(&self, name: &str, config: Value) -> Value {
        self.put(&format!("/v1/job-types/{name}"), config).await.good()
    }

    /// Enqueues a job that is new, and answers its id.
    pub async fn enqueue(&self, job: Value) -> String {
        self.post("/v1/jobs", job).await.is(201)["id"].as_str().unwrap().to_owned()
    }

    /// Enqueues a job of `job_type` without data.
    pub async fn enqueue_a(&self, job_type: &str) -> String {
        self.enqueue(json!({"type": job_type, "data": null})).await
    }

    /// A job's current view.
    pub async fn job(&self, id: &str) -> Value {
        self.get(&format!("/v1/jobs/{id}")).await.is(200)
    }

    /// A job, once `good` accepts it.
    pub async fn job_when(&self, id: &str, good: impl Fn(&Value) -> bool) -> Value {
        until(|| async {
            let job = self.job(id).await;
            (good(&job), job)
        })
        .await
    }

    /// A job, once it is in `state`.
    pub async fn job_in(&self, id: &str, state: &str) -> Value {
        self.job_when(id, |job| job["state"] == state).await
    }

    /// A lease call.
    pub async fn lease(&self, ask: Value) -> Vec<Lease> {
        let answer = self.post("/v1/leases", ask).await.is(200);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let leases = answer["leases"].as_array().unwrap().iter();
        let lease = |lease: &Value| Lease {
            id: text(&lease["job"]["id"]),
            path: format!("/v1/jobs/{}/{}", text(&lease["job"]["type"]), text(&lease["job"]["id"])),
            attempt: lease["attempt"].as_u64().unwrap(),
            token: text(&lease["token"]),
            whole: lease.clone(),
        };
        leases.map(lease).collect()
    }

    /// One lease of `job_type`, waited for.
    pub async fn lease_one(&self, job_type: &str) -> Lease {
        let mut leases = self.lease(json!({"types": [job_type], "wait_seconds": 20})).await;
        assert_eq!(leases.len(), 1, "a job of type {job_type} was to come");
        leases.remove(0)
    }

    /// Reports on a lease with a worker's token.
    pub async fn report(&self, lease: &Lease, status: &str) -> ApiAnswer {
        self.post(&lease.path, json!({"attempt": lease.attempt, "status": status})).await
    }

    /// What explains a job's wait.
    pub async fn explain(&self, job_type: &str, id: &str) -> Value {
        self.get(&format!("/v1/jobs/{job_type}/{id}/explain")).await.is(200)
    }
}

/// A leased attempt.
#[derive(Clone, Debug)]
pub struct Lease {
    pub id: String,
    pub path: String,
    pub attempt: u64,
    pub token: String,
    pub whole: Value,
}

/// An answer.
#[derive(Debug)]
pub struct ApiAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl ApiAnswer {
    /// Its body, decoded by its content type.
    #[track_caller]
    pub fn value(&self) -> Value {
        if self.body.is_empty() {
            return Value::Null;
        }
        let media = self.header("content-type").unwrap_or_default();
        if media.contains("msgpack") {
            rmp_serde::from_slice(&self.body)
                .unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
        } else {
            serde_json::from_slice(&self.body)
                .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Its body, if the status is the expected one.
    #[track_caller]
    pub fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.value()
    }

    /// Its body, if the status is a success.
    #[track_caller]
    pub fn good(&self) -> Value {
        assert!(
            (200..300).contains(&self.status),
            "{}: {}",
            self.status,
            String::from_utf8_lossy(&self.body)
        );
        self.value()
    }

    /// Its problem document, which must be complete and have this status and code.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.is(status);
        assert_eq!(problem["code"], code, "{problem}");
        assert!(
            self.header("content-type").unwrap().starts_with("application/problem+"),
            "{:?}",
            self.headers
        );
        assert_eq!(
            (&problem["status"], &problem["type"]),
            (&json!(status), &json!(format!("urn:tidegate:problem:{code}")))
        );
        for field in ["title", "detail", "instance"] {
            assert!(
                problem[field].as_str().is_some_and(|text| !text.is_empty()),
                "{field} of {problem}"
            );
        }
        problem
    }

    /// The same, blamed on `field`.
    #[track_caller]
    pub fn blames(&self, status: u16, code: &str, field: &str) -> Value {
        let problem = self.problem(status, code);
        assert_eq!(problem["field"], field, "{problem}");
        problem
    }
}
