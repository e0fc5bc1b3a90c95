//! An account of AWS on loopback: `CloudFormation`, S3 and the Parameter Store as far as the commands
//! use them, and the API of the deployment.

use std::{collections::BTreeMap, sync::Arc};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::{Credentials, provider::SharedCredentialsProvider};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate_backends::aws::Calls;

use super::super::cloud::Cloud;

/// A stack.
#[derive(Clone, Debug, Default)]
pub struct FakeStack {
    pub status: String,
    pub parameters: BTreeMap<String, String>,
    /// The key of the template, or its text.
    pub template: String,
    /// The change set that waits: whether it changes anything, parameters, template.
    pending: Option<(bool, BTreeMap<String, String>, String)>,
    /// Events, the oldest first: resource, status, reason.
    events: Vec<(&'static str, String, &'static str)>,
}

/// What the account has.
#[derive(Debug, Default)]
pub struct Account {
    pub stacks: BTreeMap<String, FakeStack>,
    /// Objects by bucket and key.
    pub objects: BTreeMap<String, Bytes>,
    /// Parameters of Systems Manager.
    pub secrets: BTreeMap<String, String>,
    /// Actions and requests, in their order.
    pub requests: Vec<String>,
    /// The resource whose change fails, with the reason.
    pub fails: Option<(&'static str, &'static str)>,
    /// The request to the API of the deployment that is refused.
    pub refuses: Option<&'static str>,
    /// The concurrency of the account that is not reserved.
    pub concurrency: u32,
    /// Whether a smoke job waits.
    job: bool,
}

/// The account and its endpoint.
pub struct FakeAws {
    pub account: Arc<Mutex<Account>>,
    url: String,
}

type Shared = (Arc<Mutex<Account>>, String);

impl FakeStack {
    /// Whether a change set waits.
    pub fn has_change_set(&self) -> bool {
        self.pending.is_some()
    }

    /// A stack that another tool has deployed.
    pub fn deployed(parameters: &[(&str, &str)]) -> Self {
        let parameters = parameters.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Self {
            status: "CREATE_COMPLETE".into(),
            parameters: parameters.collect(),
            ..Self::default()
        }
    }
}

impl FakeAws {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let account = Arc::new(Mutex::new(Account { concurrency: 1000, ..Account::default() }));
        let app = Router::new().fallback(answer).with_state((account.clone(), url.clone()));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { account, url }
    }

    /// The signed-in user.
    pub fn cloud(&self) -> Cloud {
        let credentials = Credentials::new("test", "test", None, None, "test");
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .endpoint_url(&self.url)
            .http_client(Calls::new().unwrap())
            .build();
        let mut cloud = Cloud::new(config, Calls::new().unwrap()).unwrap();
        cloud.poll = std::time::Duration::from_millis(1);
        cloud
    }

    /// A stack.
    pub fn stack(&self, name: &str) -> FakeStack {
        self.account.lock().stacks[name].clone()
    }

    /// A parameter of the stack `tidegate`.
    pub fn parameter(&self, name: &str) -> String {
        self.stack("tidegate").parameters.get(name).cloned().unwrap_or_default()
    }

    /// The number of requests that begin with `start`.
    pub fn count(&self, start: &str) -> usize {
        self.account.lock().requests.iter().filter(|each| each.starts_with(start)).count()
    }
}

async fn answer(
    State((account, url)): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut account = account.lock();
    let path = uri.path().trim_start_matches('/').to_owned();
    if path.starts_with("v1/") || path == "healthz" {
        account.requests.push(format!("{method} {path}"));
        if account.refuses == Some(path.as_str()) {
            return (StatusCode::FORBIDDEN, "{}").into_response();
        }
        return api(&mut account, &method, &path, &headers);
    }
    if path.ends_with("account-settings") {
        let limit = json!({"UnreservedConcurrentExecutions": account.concurrency});
        return (StatusCode::OK, json!({"AccountLimit": limit}).to_string()).into_response();
    }
    if let Some(action) = headers.get("x-amz-target") {
        let action = action.to_str().unwrap().to_owned();
        account.requests.push(action);
        return secret(&mut account, &serde_json::from_slice(&body).unwrap());
    }
    if path.is_empty() {
        let form: BTreeMap<String, String> =
            url::form_urlencoded::parse(&body).into_owned().collect();
        account.requests.push(form["Action"].clone());
        return formation(&mut account, &form, &url);
    }
    account.requests.push(format!("{method} {path}"));
    bucket(&mut account, &method, &path, &uri, body)
}

/// The API of the deployment.
fn api(account: &mut Account, method: &Method, path: &str, headers: &HeaderMap) -> Response {
    if path != "healthz" && !headers.contains_key("authorization") {
        return (StatusCode::UNAUTHORIZED, "{}").into_response();
    }
    let body = match (method.as_str(), path) {
        ("GET", "v1/doctor") => {
            json!({"version": env!("CARGO_PKG_VERSION"), "checks": [{"level": "ok", "about": "table", "finding": "it answers", "advice": ""}]})
        }
        ("POST", "v1/jobs") => {
            account.job = true;
            json!({"id": "smoke-1"})
        }
        ("POST", "v1/leases") => {
            json!({"leases": [{"job": {"id": "smoke-1"}, "attempt": 1, "token": "t"}], "reports": []})
        }
        ("GET", "v1/jobs/tidegate-smoke/smoke-1") if account.job => json!({"state": "succeeded"}),
        ("GET", "v1/queues") => json!({"queues": []}),
        ("GET", "v1/job-types") => json!({"job_types": []}),
        ("GET", "v1/plugins") => json!({"plugins": []}),
        ("GET", "v1/tokens") => json!({"tokens": []}),
        _ => json!({}),
    };
    (StatusCode::OK, [("content-type", "application/json")], body.to_string()).into_response()
}

fn secret(account: &mut Account, request: &Value) -> Response {
    let name = request["Name"].as_str().unwrap().to_owned();
    if account.secrets.contains_key(&name) {
        let taken = json!({"__type": "ParameterAlreadyExists"}).to_string();
        return (StatusCode::BAD_REQUEST, taken).into_response();
    }
    account.secrets.insert(name, request["Value"].as_str().unwrap().to_owned());
    (StatusCode::OK, "{}").into_response()
}

fn bucket(account: &mut Account, method: &Method, path: &str, uri: &Uri, body: Bytes) -> Response {
    let found = account.objects.get(path).cloned();
    let length = found.as_ref().map_or(0, Bytes::len).to_string();
    let head = [
        ("last-modified", "Tue, 24 Nov 2026 00:00:00 GMT".to_owned()),
        ("etag", "\"e\"".to_owned()),
        ("content-length", length),
    ];
    match (method.as_str(), found) {
        ("PUT", _) => {
            account.objects.insert(path.to_owned(), body);
            (StatusCode::OK, [("etag", "\"e\"")]).into_response()
        }
        ("GET", _) if uri.query().is_some_and(|query| query.contains("list-type=2")) => {
            let key = |path: &String| {
                let key = path.split_once('/').unwrap().1;
                format!(
                    "<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-11-24T00:00:00.000Z</LastModified><ETag>\"e\"</ETag></Contents>"
                )
            };
            let keys: String = account.objects.keys().map(key).collect();
            let list = format!(
                "<ListBucketResult><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>"
            );
            (StatusCode::OK, list).into_response()
        }
        ("DELETE", Some(_)) => {
            account.objects.remove(path);
            StatusCode::NO_CONTENT.into_response()
        }
        ("POST", _) => {
            let text = String::from_utf8(body.to_vec()).unwrap();
            let bucket = path.trim_end_matches('/');
            for key in text.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
                account.objects.remove(&format!("{bucket}/{key}"));
            }
            let deleted = "<Deleted><Key>all</Key></Deleted>";
            (StatusCode::OK, format!("<DeleteResult>{deleted}</DeleteResult>")).into_response()
        }
        ("HEAD", Some(_)) => (StatusCode::OK, head).into_response(),
        ("GET", Some(bytes)) => (StatusCode::OK, head, bytes).into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// The parameters or the other list `name` of a request, such as `Parameters.member.1.ParameterKey`.
fn parameters(
    form: &BTreeMap<String, String>,
    before: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for number in 1.. {
        let field = |name: &str| form.get(&format!("Parameters.member.{number}.{name}"));
        let Some(key) = field("ParameterKey") else { return found };
        let kept = field("UsePreviousValue").is_some_and(|value| value == "true");
        let value =
            if kept { before[key].clone() } else { field("ParameterValue").unwrap().clone() };
        found.insert(key.clone(), value);
    }
    found
}

fn formation(account: &mut Account, form: &BTreeMap<String, String>, url: &str) -> Response {
    let action = form["Action"].as_str();
    let name = form["StackName"].trim_start_matches("arn:").to_owned();
    let fails = account.fails;
    let missing = || {
        let text = format!("Stack with id {name} does not exist");
        (
            StatusCode::BAD_REQUEST,
            format!("<ErrorResponse><Error><Code>ValidationError</Code><Message>{text}</Message></Error></ErrorResponse>"),
        )
            .into_response()
    };
    if action == "CreateChangeSet" {
        let stack = account.stacks.entry(name.clone()).or_default();
        let is_new = form["ChangeSetType"] == "CREATE";
        assert_eq!(is_new, matches!(stack.status.as_str(), "" | "REVIEW_IN_PROGRESS"));
        if is_new {
            stack.status = "REVIEW_IN_PROGRESS".into();
        }
        let template = form.get("TemplateURL").or(form.get("TemplateBody")).unwrap().clone();
        let mut parameters = parameters(form, &stack.parameters);
        if !name.ends_with("-code") {
            for (name, default) in super::super::template::parameters() {
                if let Some(default) = default {
                    parameters.entry(name.to_owned()).or_insert_with(|| default.to_owned());
                }
            }
        }
        let differs = parameters != stack.parameters || template != stack.template || is_new;
        stack.pending = Some((differs, parameters, template));
        return done(action, "<Id>arn:change</Id>");
    }
    let Some(stack) = account.stacks.get_mut(&name) else { return missing() };
    match action {
        "DescribeStacks" => {
            let shown = |(key, value): (&String, &String)| {
                let value = if key == "AdminToken" { "****" } else { value };
                format!(
                    "<member><ParameterKey>{key}</ParameterKey><ParameterValue>{value}</ParameterValue></member>"
                )
            };
            let parameters: Vec<String> = stack.parameters.iter().map(shown).collect();
            let parameters = parameters.concat();
            let outputs = if stack.template.contains("CodeBucketName:") {
                vec![("CodeBucketName", format!("{name}-bucket"))]
            } else {
                vec![
                    ("Url", format!("{url}/")),
                    ("PluginsUrl", format!("{url}/")),
                    ("TableName", format!("{name}-table")),
                    ("BucketName", format!("{name}-bucket")),
                ]
            };
            let outputs = outputs.into_iter().map(|(key, value)| {
                format!("<member><OutputKey>{key}</OutputKey><OutputValue>{value}</OutputValue></member>")
            });
            let outputs: String = outputs.collect();
            done(
                action,
                &format!(
                    "<Stacks><member><StackId>arn:{name}</StackId><StackName>{name}</StackName><StackStatus>{}</StackStatus><CreationTime>2026-11-24T00:00:00Z</CreationTime><Parameters>{parameters}</Parameters><Outputs>{outputs}</Outputs></member></Stacks>",
                    stack.status
                ),
            )
        }
        "DescribeChangeSet" => {
            let (differs, _, _) = stack.pending.as_ref().unwrap();
            let (status, reason) = if *differs {
                ("CREATE_COMPLETE", "")
            } else {
                ("FAILED", "The submitted information didn't contain changes.")
            };
            done(
                action,
                &format!(
                    "<Status>{status}</Status><StatusReason>{reason}</StatusReason><Changes><member><Type>Resource</Type><ResourceChange><Action>Add</Action></ResourceChange></member></Changes>"
                ),
            )
        }
        "ExecuteChangeSet" => {
            assert_eq!(form["RetainExceptOnCreate"], "true");
            let (_, parameters, template) = stack.pending.take().unwrap();
            let verb = if stack.status == "REVIEW_IN_PROGRESS" { "CREATE" } else { "UPDATE" };
            stack.events.push(("stack", format!("{verb}_IN_PROGRESS"), ""));
            if let Some((resource, reason)) = fails.filter(|_| !name.ends_with("-code")) {
                if verb == "CREATE" {
                    stack.parameters = parameters;
                }
                stack.events.push((resource, format!("{verb}_FAILED"), reason));
                let cancelled = "Resource creation cancelled";
                stack.events.push(("Other", "CREATE_FAILED".into(), cancelled));
                let ended = if verb == "CREATE" { "" } else { "UPDATE_" };
                stack.status = format!("{ended}ROLLBACK_COMPLETE");
            } else {
                (stack.parameters, stack.template) = (parameters, template);
                stack.status = format!("{verb}_COMPLETE");
            }
            done(action, "")
        }
        "DescribeStackEvents" => {
            let event = |(number, (resource, status, reason)): (usize, &(&str, String, &str))| {
                let physical = if *resource == "stack" {
                    format!("arn:{name}")
                } else {
                    (*resource).to_owned()
                };
                format!(
                    "<member><StackId>arn:{name}</StackId><EventId>{number}</EventId><StackName>{name}</StackName><LogicalResourceId>{resource}</LogicalResourceId><PhysicalResourceId>{physical}</PhysicalResourceId><ResourceType>AWS::Some::Type</ResourceType><ResourceStatus>{status}</ResourceStatus><ResourceStatusReason>{reason}</ResourceStatusReason><Timestamp>2026-11-24T00:00:00Z</Timestamp></member>"
                )
            };
            let events: String = stack.events.iter().enumerate().rev().map(event).collect();
            done(action, &format!("<StackEvents>{events}</StackEvents>"))
        }
        "GetTemplate" => done(action, "<TemplateBody>former</TemplateBody>"),
        "DeleteStack" => {
            if let Some((resource, reason)) = fails {
                stack.events.push((resource, "DELETE_FAILED".into(), reason));
                stack.status = "DELETE_FAILED".into();
            } else {
                account.stacks.remove(&name);
            }
            done(action, "")
        }
        "ContinueUpdateRollback" => {
            stack.events.push(("stack", "UPDATE_ROLLBACK_IN_PROGRESS".into(), ""));
            stack.status = "UPDATE_ROLLBACK_COMPLETE".into();
            if let Some((resource, reason)) = fails {
                stack.events.push((resource, "UPDATE_FAILED".into(), reason));
                stack.status = "UPDATE_ROLLBACK_FAILED".into();
            }
            done(action, "")
        }
        "DeleteChangeSet" => {
            stack.pending = None;
            done(action, "")
        }
        other => panic!("{other} is not known here"),
    }
}

fn done(action: &str, result: &str) -> Response {
    let body =
        format!("<{action}Response><{action}Result>{result}</{action}Result></{action}Response>");
    (StatusCode::OK, [("content-type", "text/xml")], body).into_response()
}
