//! Configuration as code: declarations of queues, types, schedules and triggers, and the plan that
//! leads to them.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    client::Client,
    defaults::DEFAULTS,
    error::{Error, ErrorKind},
    transport::{Request, path},
};

/// What can be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    // In the order in which they are applied: types name queues, schedules name types.
    /// A queue.
    Queue,
    /// A job type.
    JobType,
    /// A schedule.
    Schedule,
    /// A trigger.
    Trigger,
}

impl Resource {
    /// Returns its word in plans.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::JobType => "job type",
            Self::Schedule => "schedule",
            Self::Trigger => "trigger",
        }
    }

    fn path(self, name: &str) -> String {
        let route = match self {
            Self::Queue => "queues",
            Self::JobType => "job-types",
            Self::Schedule => "schedules",
            Self::Trigger => "triggers",
        };
        path(&[route, name])
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The settings of a resource, by their names in the API.
pub type Settings = Map<String, Value>;

/// Settings of job types that the server accepts and never shows.
const WRITE_ONLY: [&str; 3] = ["signing_secret", "callback_signing_secret", "password"];
/// Words in the names of a target's headers that the server does not show either.
const SECRET_WORDS: [&str; 6] = ["authorization", "cookie", "secret", "token", "password", "key"];
/// What is shown of a secret.
const SECRET: &str = "***";

/// Declares queues, types, schedules and triggers, in any order.
///
/// A declaration is the whole configuration of its resource: a setting that it leaves out has its
/// default. Resources that are not declared are left alone; nothing is ever deleted.
///
/// Settings are an object, such as `json!({"concurrency": 10})`, or a
/// [`QueueConfig`](tidegate_api::QueueConfig) and the like.
#[derive(Clone, Debug, Default)]
pub struct Config {
    declared: BTreeMap<(Resource, String), Settings>,
}

impl Config {
    /// Declares a queue.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the settings are not an object, or if it is declared with
    /// others.
    pub fn queue(&mut self, name: &str, settings: impl Serialize) -> Result<&mut Self, Error> {
        self.declare(Resource::Queue, name, settings)
    }

    /// Declares a job type.
    ///
    /// # Errors
    ///
    /// As [`queue`](Self::queue).
    pub fn job_type(&mut self, name: &str, settings: impl Serialize) -> Result<&mut Self, Error> {
        self.declare(Resource::JobType, name, settings)
    }

    /// Declares a schedule.
    ///
    /// # Errors
    ///
    /// As [`queue`](Self::queue).
    pub fn schedule(&mut self, name: &str, settings: impl Serialize) -> Result<&mut Self, Error> {
        self.declare(Resource::Schedule, name, settings)
    }

    /// Declares a trigger.
    ///
    /// # Errors
    ///
    /// As [`queue`](Self::queue).
    pub fn trigger(&mut self, name: &str, settings: impl Serialize) -> Result<&mut Self, Error> {
        self.declare(Resource::Trigger, name, settings)
    }

    fn declare(
        &mut self,
        kind: Resource,
        name: &str,
        settings: impl Serialize,
    ) -> Result<&mut Self, Error> {
        let Ok(Value::Object(settings)) = serde_json::to_value(settings) else {
            return Err(Error::argument(format_args!(
                "the settings of the {kind} {name} are not an object"
            )));
        };
        let key = (kind, name.to_owned());
        if self.declared.get(&key).is_some_and(|other| *other != settings) {
            return Err(Error::argument(format_args!(
                "the {kind} {name} is declared twice, with different settings"
            )));
        }
        self.declared.insert(key, settings);
        Ok(self)
    }

    /// Whether a resource is declared.
    pub fn has(&self, kind: Resource, name: &str) -> bool {
        self.declared.contains_key(&(kind, name.to_owned()))
    }
}

/// What a plan does with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It does not exist yet.
    Create,
    /// A setting differs.
    Change,
    /// Nothing differs.
    Keep,
}

impl Action {
    /// Returns `create`, `change` or `keep`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Change => "change",
            Self::Keep => "keep",
        }
    }
}

/// A setting that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The setting.
    pub field: String,
    /// What the server has.
    pub current: Value,
    /// What is declared, or the default.
    pub wanted: Value,
}

/// What a plan does with one resource.
#[derive(Clone, Debug)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// The kind of the resource.
    pub kind: Resource,
    /// Its name.
    pub name: String,
    /// The settings that differ, by name.
    pub differences: Vec<Difference>,
    settings: Settings,
    etag: Option<String>,
}

/// The steps that lead from the server's configuration to the declared one. Displayed, it is the
/// changes as text for people.
#[derive(Clone, Debug)]
pub struct Plan {
    client: Client,
    /// One step for each declared resource.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Whether anything is to change.
    pub fn has_changes(&self) -> bool {
        self.steps.iter().any(|step| step.action != Action::Keep)
    }

    /// Does the steps.
    ///
    /// # Errors
    ///
    /// Of the kind [`PreconditionFailed`](ErrorKind::PreconditionFailed) if a resource has changed
    /// since the plan was made. The steps before it are done then; a new plan has the rest.
    pub async fn apply(&self) -> Result<(), Error> {
        for step in self.steps.iter().filter(|step| step.action != Action::Keep) {
            let mut request = Request::put(step.kind.path(&step.name)).json(&step.settings);
            if let Some(etag) = &step.etag {
                // A repeat with `If-Match` could be refused after its first delivery succeeded.
                request = request.header("if-match", etag).repeatable(false);
            }
            self.client.request(request).await?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for step in &self.steps {
            let sign = match step.action {
                Action::Create => '+',
                Action::Change => '~',
                Action::Keep => continue,
            };
            lines.push(format!("{sign} {} {}", step.kind, step.name));
            for Difference { field, current, wanted } in &step.differences {
                let old = match step.action {
                    Action::Change => format!("{} -> ", shown(field, current)),
                    _ => String::new(),
                };
                lines.push(format!("    {field}: {old}{}", shown(field, wanted)));
            }
        }
        if lines.is_empty() {
            f.write_str("nothing to change")
        } else {
            f.write_str(&lines.join("\n"))
        }
    }
}

impl Client {
    /// Compares a configuration with the server, and changes nothing.
    ///
    /// Secrets cannot be read. With `secrets`, the server compares those of a job type that
    /// declares or has one, which needs the scope `admin`. Without, they are not compared, and
    /// `read` is enough.
    ///
    /// # Errors
    ///
    /// The server refused, or did not answer.
    pub async fn plan(&self, config: &Config, secrets: bool) -> Result<Plan, Error> {
        let defaults: BTreeMap<String, Settings> =
            serde_json::from_str(DEFAULTS).expect("the generated defaults are JSON");
        let mut steps = Vec::new();
        for ((kind, name), declared) in &config.declared {
            let (kind, name, settings) = (*kind, name.clone(), declared.clone());
            let answer = match self.request(Request::get(kind.path(&name))).await {
                Err(err) if err.kind() == ErrorKind::NotFound => {
                    let wanted = |(field, wanted): (&String, &Value)| Difference {
                        field: field.clone(),
                        current: Value::Null,
                        wanted: wanted.clone(),
                    };
                    let mut differences: Vec<_> = settings.iter().map(wanted).collect();
                    differences.sort_by(|a, b| a.field.cmp(&b.field));
                    let (action, etag) = (Action::Create, None);
                    steps.push(Step { action, kind, name, differences, settings, etag });
                    continue;
                }
                answer => answer?,
            };
            let current: Settings = answer.read()?;
            let is_type = kind == Resource::JobType;
            let compared = if is_type { without_secrets(&settings) } else { settings.clone() };
            let mut differences = differences(&defaults[kind.as_str()], &compared, &current);
            if secrets && (compared != settings || !texts(&current, "secrets").is_empty()) {
                let preview = Request::put(kind.path(&name)).query("dry_run", "true");
                let preview: Settings = self.request(preview.json(&settings)).await?.read()?;
                differences.extend(changed_secrets(&preview, &current));
            }
            let action = if differences.is_empty() { Action::Keep } else { Action::Change };
            let etag = answer.header("etag").map(str::to_owned);
            steps.push(Step { action, kind, name, differences, settings, etag });
        }
        Ok(Plan { client: self.clone(), steps })
    }

    /// Creates or changes what a configuration declares, and returns what was done; see
    /// [`Client::plan`].
    ///
    /// # Errors
    ///
    /// As [`Plan::apply`].
    pub async fn apply(&self, config: &Config, secrets: bool) -> Result<Plan, Error> {
        let plan = self.plan(config, secrets).await?;
        plan.apply().await?;
        Ok(plan)
    }
}

/// The secrets that a change makes other ones: only the server can compare them.
fn changed_secrets(preview: &Settings, current: &Settings) -> Vec<Difference> {
    let shown_in = |view: &Settings, field: &str| {
        if texts(view, "secrets").contains(&field) { Value::from(SECRET) } else { Value::Null }
    };
    let difference = |field: &str| Difference {
        field: field.to_owned(),
        current: shown_in(current, field),
        wanted: shown_in(preview, field),
    };
    texts(preview, "changed_secrets").into_iter().map(difference).collect()
}

/// The texts in the list `name`.
fn texts<'a>(view: &'a Settings, name: &str) -> Vec<&'a str> {
    let list = view.get(name).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).collect()
}

/// The settings of a job type as the server shows them.
fn without_secrets(settings: &Settings) -> Settings {
    let mut shown = settings.clone();
    let hide = |fields: &mut Settings| fields.retain(|name, _| !WRITE_ONLY.contains(&&**name));
    hide(&mut shown);
    if let Some(target) = shown.get_mut("target").and_then(Value::as_object_mut) {
        hide(target);
        if let Some(basic) = target.get_mut("basic_auth").and_then(Value::as_object_mut) {
            hide(basic);
        }
        if let Some(headers) = target.get_mut("headers").and_then(Value::as_object_mut) {
            headers.retain(|name, _| !is_secret_header(name));
        }
    }
    shown
}

fn is_secret_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

fn differences(defaults: &Settings, settings: &Settings, current: &Settings) -> Vec<Difference> {
    let mut fields: Vec<&String> = defaults.keys().chain(settings.keys()).collect();
    fields.sort_unstable();
    fields.dedup();
    let mut found = Vec::new();
    for field in fields {
        let actual = current.get(field).unwrap_or(&Value::Null);
        let mut wanted = settings.get(field).unwrap_or(&Value::Null);
        if field == "paused" && wanted.is_null() {
            // A PUT without it leaves a schedule paused or not.
            continue;
        }
        if wanted.is_null() {
            wanted = defaults.get(field).unwrap_or(&Value::Null);
        }
        if !covers(actual, wanted) {
            let (current, wanted) = (actual.clone(), wanted.clone());
            found.push(Difference { field: field.clone(), current, wanted });
        }
    }
    found
}

/// Whether `actual` is `wanted` with nothing but defaults in addition.
fn covers(actual: &Value, wanted: &Value) -> bool {
    if is_empty(wanted) {
        return is_empty(actual);
    }
    match (actual, wanted) {
        (Value::Object(actual), Value::Object(wanted)) => {
            let is_covered = |(name, value): (&String, &Value)| {
                covers(actual.get(name).unwrap_or(&Value::Null), value)
            };
            wanted.iter().all(is_covered)
                && actual
                    .iter()
                    .all(|(name, value)| wanted.contains_key(name) || is_default(name, value))
        }
        (Value::Array(actual), Value::Array(wanted)) => {
            actual.len() == wanted.len()
                && actual.iter().zip(wanted).all(|(actual, wanted)| covers(actual, wanted))
        }
        (Value::Number(actual), Value::Number(wanted)) => actual.as_f64() == wanted.as_f64(),
        _ => actual == wanted,
    }
}

/// Whether the server adds it to an object that leaves it out.
fn is_default(name: &str, value: &Value) -> bool {
    match (name, value) {
        (_, Value::Object(fields)) => fields.iter().all(|(name, value)| is_default(name, value)),
        ("base_seconds", Value::Number(number)) => number.as_f64() == Some(2.0),
        ("max_seconds", Value::Number(number)) => number.as_f64() == Some(3600.0),
        ("complete", Value::String(text)) => text == "on_delivery" || text == "on_result",
        ("encoding", Value::String(text)) => text == "json",
        ("invocation", Value::String(text)) => text == "wait",
        ("jitter", Value::String(text)) => text == "full",
        ("strategy", Value::String(text)) => text == "exponential",
        ("tz", Value::String(text)) => text == "UTC",
        _ => is_empty(value),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn shown(field: &str, value: &Value) -> String {
    let is_secret = value == SECRET || (WRITE_ONLY.contains(&field) && !value.is_null());
    if is_secret { SECRET.to_owned() } else { hidden(value).to_string() }
}

/// The value without its secrets.
fn hidden(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| {
                let is_secret = WRITE_ONLY.contains(&name.as_str()) || name == "headers";
                (name.clone(), if is_secret { Value::from(SECRET) } else { hidden(value) })
            })
            .collect(),
        Value::Array(items) => items.iter().map(hidden).collect(),
        value => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_server_adds_to_an_object_is_no_difference() {
        for (actual, wanted, same) in [
            (
                json!({"from": "08:00", "to": "17:00", "tz": "UTC"}),
                json!({"from": "08:00", "to": "17:00"}),
                true,
            ),
            (
                json!({"from": "08:00", "to": "17:00", "tz": "CET"}),
                json!({"from": "08:00", "to": "17:00"}),
                false,
            ),
            (json!(2), json!(2.0), true),
            (json!(null), json!([]), true),
            (json!([1, 2]), json!([1]), false),
            (json!("a"), json!("b"), false),
        ] {
            assert_eq!(covers(&actual, &wanted), same, "{actual} {wanted}");
        }
    }

    #[test]
    fn a_job_type_is_compared_as_the_server_shows_it() {
        let declared = json!({"weight": 2, "callback_signing_secret": "a", "target": {
            "url": "u", "signing_secret": ["b"], "headers": {"X-Api-Key": "c", "x-team": "blue"},
            "basic_auth": {"username": "ann", "password": "d"},
        }});
        let shown = json!({"weight": 2, "target": {
            "url": "u", "headers": {"x-team": "blue"}, "basic_auth": {"username": "ann"},
        }});
        assert_eq!(Value::Object(without_secrets(declared.as_object().unwrap())), shown);
    }

    #[test]
    fn a_declaration_is_made_once_or_twice_the_same() {
        let mut config = Config::default();
        config.queue("mail", json!({"concurrency": 3})).unwrap();
        config.queue("mail", json!({"concurrency": 3})).unwrap();
        assert!(config.queue("mail", json!({"concurrency": 4})).is_err());
        assert!(config.job_type("letter", json!([])).is_err());
        assert!(config.has(Resource::Queue, "mail") && !config.has(Resource::JobType, "mail"));
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(shown("signing_secret", &json!("s")), "***");
        let target = json!({"url": "u", "basic_auth": {"username": "u", "password": "p"}});
        assert!(!shown("target", &target).contains("\"p\""));
    }
}
