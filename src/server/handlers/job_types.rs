//! Job types: configured and shown.
//!
//! Secrets are never shown: signing secrets, passwords, and the values of headers whose names
//! suggest a secret. An answer names those that a type has, and that of a dry run those that
//! differ.

use std::{borrow::Cow, collections::BTreeMap};

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use serde_json::{Map, Value};
use tidegate_api::{History, HistoryRange, JobTypePage, JobTypeView, without_query};

use super::{
    Api, HandlerResult,
    access::outside,
    body::{self, Body},
    config::{Fields, patched, shown},
    error::Problem,
    media::Accept,
    params::{DryRun, IfMatch, Name, Params, PutMode},
    resource::{self, Configure, Delete, GetWithin, Item, ListWithin},
    routes::{Routes, routes},
};
use crate::auth::Scope;
use tidegate_core::{
    error_code::ErrorCode,
    job::{
        TypeName,
        type_config::{TypeConfig, TypeItem},
    },
    target::TargetConfig,
    time::Timestamp,
};

impl Item for TypeItem {
    type Name = TypeName;
    type View = JobTypeView<'static>;

    fn version(&self) -> u64 {
        self.version
    }

    fn view(self, name: TypeName, _: Accept, _: Timestamp) -> Result<Self::View, Problem> {
        let (config, secrets) = without_secrets(&self.config)?;
        Ok(JobTypeView {
            name: Cow::Owned(name),
            config,
            secrets: secrets.into_keys().collect(),
            changed_secrets: None,
            version: self.version,
        })
    }
}

/// Secrets by the paths of their settings.
type SecretsByPath = BTreeMap<String, Value>;

/// A configuration without its secrets, and these.
fn without_secrets(config: &TypeConfig) -> Result<(Map<String, Value>, SecretsByPath), Problem> {
    let Value::Object(mut fields) = shown(config)? else {
        return Err(Problem::internal("a configuration is not an object"));
    };
    let mut secrets = SecretsByPath::new();
    let mut take = |fields: &mut Map<String, Value>, parent: &str, name: &str| {
        if let Some(secret) = fields.remove(name).filter(|secret| !secret.is_null()) {
            secrets.insert(format!("{parent}{name}"), secret);
        }
    };
    take(&mut fields, "", "callback_signing_secret");
    if let Some(target) = fields.get_mut("target").and_then(Value::as_object_mut) {
        take(target, "target.", "signing_secret");
        if let Some(basic) = target.get_mut("basic_auth").and_then(Value::as_object_mut) {
            take(basic, "target.basic_auth.", "password");
        }
        if let Some(headers) = target.get_mut("headers").and_then(Value::as_object_mut) {
            let names: Vec<String> =
                headers.keys().filter(|name| is_secret(name)).cloned().collect();
            for name in names {
                take(headers, "target.headers.", &name);
            }
        }
    }
    Ok((fields, secrets))
}

/// The paths of the secrets in which `after` differs from the stored configuration, if there is
/// one.
fn changed_secrets(
    stored: Option<&TypeConfig>,
    after: &TypeConfig,
) -> Result<Vec<String>, Problem> {
    let before = stored.map(without_secrets).transpose()?.unwrap_or_default().1;
    let after = without_secrets(after)?.1;
    let removed = before.keys().filter(|path| !after.contains_key(*path));
    let set = after.iter().filter(|(path, secret)| before.get(*path) != Some(secret));
    let mut changed: Vec<String> = set.map(|(path, _)| path).chain(removed).cloned().collect();
    changed.sort_unstable();
    Ok(changed)
}

/// The answer to a dry run: what `config` would make of the type.
async fn previewed(
    api: &Api,
    accept: Accept,
    name: TypeName,
    config: TypeConfig,
    version: Option<u64>,
) -> HandlerResult {
    let stored = match api.server.job_type(&name).await {
        Err(tidegate_engine::Error::NotFound { .. }) => None,
        stored => Some(stored?),
    };
    let item = api.server.preview_type(&name, config, version).await;
    let item = item.map_err(|error| blamed(error.into()))?;
    let changed = changed_secrets(stored.as_ref().map(|stored| &stored.config), &item.config)?;
    let (version, view) = (item.version, item.view(name, accept, api.server.now())?);
    let view = JobTypeView { changed_secrets: Some(changed), ..view };
    Ok(accept.ok(view).etag(version).into_response())
}

/// Hides the queries of a type's URLs from a caller who may not configure it: they may have a key.
fn hide_queries(config: &mut TypeConfig) {
    if let Some(url) = &mut config.callback_url {
        *url = without_query(url).into_owned();
    }
    if let Some(TargetConfig::Push(push)) = &mut config.target
        && let Some((start, _)) = push.url.split_once('?')
    {
        push.url = format!("{start}?***");
    }
    for url in config.retry_targets.values_mut() {
        if let Some((start, _)) = url.split_once('?') {
            *url = format!("{start}?***");
        }
    }
}

/// Whether a header of this name carries a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["authorization", "cookie", "secret", "token", "password", "key"]
        .iter()
        .any(|word| name.contains(word))
}

/// `config` with `change` merged into it. A target of another kind replaces the whole old target,
/// because a target has exactly one kind.
pub(super) fn with_change(config: &TypeConfig, change: Fields) -> Result<TypeConfig, Problem> {
    let kind = config.target.as_ref().map(TargetConfig::kind);
    let names_another = |target: &Value| {
        let other = |(field, value): (&String, &Value)| {
            TargetConfig::is_kind(field) && Some(field.as_str()) != kind && !value.is_null()
        };
        target.as_object().is_some_and(|fields| fields.iter().any(other))
    };
    let other = kind.is_some() && change.get("target").is_some_and(names_another);
    if !other {
        return patched(config, change);
    }
    let mut bare = shown(config)?;
    if let Some(fields) = bare.as_object_mut() {
        fields.remove("target");
    }
    body::read(patched::<Value>(&bare, change)?.to_string().as_bytes())
}

/// Configure a job type; absent settings have their defaults.
///
/// A stored configuration that cannot be read is replaced only if `force` is true: it may be
/// damaged, written by a newer release, or have secrets whose key is lost.
#[utoipa::path(
    put, path = "/v1/job-types/{type}", operation_id = "put_job_type", tag = "job types",
    request_body = TypeConfig,
    params(
        ("type" = String, Path, description = "The type's name: 1 to 64 of `A-Z a-z 0-9 _ . -`"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
        (
            "dry_run" = Option<bool>, Query,
            description = "Check and show the change, and store nothing: the answer has the new \
                settings, the secrets that change, and the stored version, 0 if there is none",
        ),
        (
            "force" = Option<bool>, Query,
            description = "Replace a stored configuration that cannot be read",
        ),
    ),
    responses(
        (status = 201, description = "The type is new", body = JobTypeView),
        (status = 200, description = "Replaced, or a dry run", body = JobTypeView),
        (status = 404, description = "`queue_not_found`, `plugin_not_found`"),
        (
            status = 409,
            description = "`type_has_live_jobs`: its queue cannot change while it has live jobs",
        ),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn put(
    (State(api), accept, _, Name(name), IfMatch(version)): Configure<TypeName>,
    mode: PutMode,
    body: Body,
) -> HandlerResult {
    let config = body.read::<Fields>()?.config()?;
    if mode.dry_run {
        return previewed(&api, accept, name, config, version).await;
    }
    let put = if mode.force {
        api.server.replace_type(&name, config, version).await
    } else {
        api.server.put_type(&name, config, version).await
    };
    let put = put.map_err(|error| blamed(error.into()))?;
    resource::stored(&api, accept, name, put)
}

/// Change some settings of a job type, by JSON merge patch; null resets a setting to its default.
#[utoipa::path(
    patch, path = "/v1/job-types/{type}", operation_id = "patch_job_type", tag = "job types",
    request_body = TypeConfig,
    params(
        ("type" = String, Path, description = "The type's name"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
        (
            "dry_run" = Option<bool>, Query,
            description = "Check and show the change, and store nothing: the answer has the new \
                settings, the secrets that change, and the stored version",
        ),
    ),
    responses(
        (status = 200, description = "Changed", body = JobTypeView),
        (
            status = 404,
            description = "`job_type_not_found`, `queue_not_found`, `plugin_not_found`",
        ),
        (
            status = 409,
            description = "`type_has_live_jobs`: its queue cannot change while it has live jobs",
        ),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn patch(
    (State(api), accept, _, Name(name), IfMatch(version)): Configure<TypeName>,
    DryRun(dry_run): DryRun,
    body: Body,
) -> HandlerResult {
    let patch: Fields = body.read()?;
    if dry_run {
        let config = with_change(&api.server.job_type(&name).await?.config, patch)?;
        return previewed(&api, accept, name, config, version).await;
    }
    let item = resource::patch(
        version,
        || api.server.job_type(&name),
        |item| with_change(&item.config, patch.clone()),
        |config, version| api.server.put_type(&name, config, version),
    );
    let item = item.await.map_err(blamed)?;
    resource::shown(&api, accept, name, item)
}

/// `problem`, which blames the field `queue` for a missing queue.
pub(super) fn blamed(problem: Problem) -> Problem {
    if problem.error_code() == ErrorCode::QueueNotFound { problem.blame("queue") } else { problem }
}

/// A job type.
#[utoipa::path(
    get, path = "/v1/job-types/{type}", operation_id = "get_job_type", tag = "job types",
    params(("type" = String, Path, description = "The type's name")),
    responses(
        (status = 200, description = "The type, its `ETag` the version", body = JobTypeView),
        (status = 404, description = "`job_type_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn get((State(api), accept, caller, Name(name)): GetWithin<TypeName>) -> HandlerResult {
    if !caller.bounds().allow_type(&name) {
        return Err(outside());
    }
    let mut item = api.server.job_type(&name).await?;
    if !caller.bounds().allow_queue(&item.config.queue) {
        return Err(outside());
    }
    if !caller.caller.may(Scope::Admin) {
        hide_queries(&mut item.config);
    }
    resource::shown(&api, accept, name, item)
}

/// The last hour or day of a type in its queue, in steps: what came, what started and ended, and how
/// many jobs there were.
#[utoipa::path(
    get, path = "/v1/job-types/{type}/history", operation_id = "get_job_type_history",
    tag = "job types",
    params(
        ("type" = String, Path, description = "The type's name"),
        (
            "range" = Option<HistoryRange>, Query,
            description = "How far back, `hour` (default) or `day`",
        ),
    ),
    responses(
        (status = 200, description = "Its steps and its throughput", body = History),
        (status = 404, description = "`job_type_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn history(
    (State(api), accept, caller, Name(name)): GetWithin<TypeName>,
    mut params: Params,
) -> HandlerResult {
    let range = params.one::<HistoryRange>("range")?.unwrap_or_default();
    params.done()?;
    let bounds = caller.bounds();
    if !bounds.allow_type(&name) {
        return Err(outside());
    }
    if !bounds.allow_queue(&api.server.job_type(&name).await?.config.queue) {
        return Err(outside());
    }
    Ok(accept.ok(api.server.type_history(&name, range).await?).into_response())
}

/// Job types, by name.
#[utoipa::path(
    get, path = "/v1/job-types", operation_id = "list_job_types", tag = "job types",
    params(
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of types on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = JobTypePage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn list((State(api), accept, caller, request): ListWithin) -> HandlerResult {
    let mut types = api.server.job_types().await?;
    let bounds = caller.bounds();
    types.retain(|(name, item)| bounds.allow_type(name) && bounds.allow_queue(&item.config.queue));
    let (mut items, next_cursor) = request.page(types);
    if !caller.caller.may(Scope::Admin) {
        for (_, item) in &mut items {
            hide_queries(&mut item.config);
        }
    }
    let job_types = resource::views(&api, accept, items)?;
    Ok(accept.ok(JobTypePage { job_types, next_cursor }).into_response())
}

/// Delete a job type without live jobs.
#[utoipa::path(
    delete, path = "/v1/job-types/{type}", operation_id = "delete_job_type", tag = "job types",
    params(
        ("type" = String, Path, description = "The type's name"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
    ),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "`job_type_not_found`"),
        (status = 409, description = "`type_has_live_jobs`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn delete(
    (State(api), _, Name(name), IfMatch(version)): Delete<TypeName>,
) -> Result<StatusCode, Problem> {
    api.server.delete_type(&name, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The routes of job types.
pub fn routes() -> Routes {
    routes!(list, put, patch, get, delete, history)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use tidegate_core::target::Pull;

    fn config(value: Value) -> TypeConfig {
        serde_json::from_value(value).unwrap()
    }

    fn push() -> TypeConfig {
        config(json!({"concurrency": 4, "target": {
            "url": "http://127.0.0.1:9/", "signing_secret": ["hidden1", "hidden2"],
            "headers": {"Authorization": "hidden3", "x-team": "blue"},
            "basic_auth": {"username": "ann", "password": "hidden4"},
        }, "callback_signing_secret": "hidden5"}))
    }

    #[test]
    fn secrets_are_not_shown() {
        let (fields, secrets) = without_secrets(&push()).unwrap();
        let value = Value::Object(fields);
        assert!(!value.to_string().contains("hidden"), "{value}");
        assert_eq!(value["target"]["basic_auth"]["username"], "ann");
        assert_eq!(value["target"]["headers"], json!({"x-team": "blue"}));
        let paths: Vec<&str> = secrets.keys().map(String::as_str).collect();
        let wanted = [
            "callback_signing_secret",
            "target.basic_auth.password",
            "target.headers.Authorization",
            "target.signing_secret",
        ];
        assert_eq!(paths, wanted);
    }

    #[test]
    fn a_dry_run_names_secrets_that_are_set_replaced_or_removed() {
        let changed = |stored: Option<&TypeConfig>, after: &TypeConfig| {
            changed_secrets(stored, after).unwrap()
        };
        assert_eq!(changed(Some(&push()), &push()), Vec::<String>::new());
        assert_eq!(changed(None, &push()).len(), 4);
        assert_eq!(changed(Some(&push()), &TypeConfig::default()).len(), 4);
        let other = config(json!({"target": {
            "url": "http://127.0.0.1:9/", "signing_secret": ["hidden1"],
            "headers": {"Authorization": "hidden3", "x-team": "red", "x-key": "hidden6"},
            "basic_auth": {"username": "bob", "password": "hidden4"},
        }, "callback_signing_secret": "hidden5"}));
        let wanted = ["target.headers.x-key", "target.signing_secret"];
        assert_eq!(changed(Some(&push()), &other), wanted);
    }

    #[test]
    fn a_type_without_a_target_shows_none() {
        assert_eq!(without_secrets(&TypeConfig::default()).unwrap().0.get("target"), None);
    }

    fn fields(settings: Value) -> Fields {
        serde_json::from_value(settings).unwrap()
    }

    #[test]
    fn a_patch_keeps_the_secrets_that_it_does_not_name() {
        let change = fields(json!({"target": {"url": "http://127.0.0.1:10/"}}));
        let Some(TargetConfig::Push(target)) = with_change(&push(), change).unwrap().target else {
            panic!("a push target")
        };
        assert_eq!(
            (target.url.as_str(), target.signing_secret.list().len()),
            ("http://127.0.0.1:10/", 2)
        );
    }

    #[test]
    fn a_target_of_another_kind_replaces_the_old_one() {
        let pull = fields(json!({"target": {"pull": true}}));
        let changed = with_change(&push(), pull).unwrap();
        assert_eq!(
            (&changed.target, changed.concurrency),
            (&Some(TargetConfig::Pull(Pull { pull: true })), Some(4))
        );
        let back = fields(json!({"target": {"url": "http://127.0.0.1:11/"}}));
        assert!(matches!(with_change(&changed, back).unwrap().target, Some(TargetConfig::Push(_))));
    }

    #[test]
    fn another_service_replaces_a_target_and_the_same_one_is_merged() {
        let queue = config(json!({"target": {"sqs": {"queue_url": "https://h/q"}}}));
        let patched = |target: Value| {
            let changed = with_change(&queue, fields(json!({ "target": target }))).unwrap();
            serde_json::to_value(changed.target).unwrap()
        };
        assert_eq!(
            patched(json!({"lambda": {"function": "work"}})),
            json!({"lambda": {"function": "work"}, "complete": "on_result"})
        );
        assert_eq!(
            patched(json!({"sqs": {"message_group": "g"}, "complete": "on_delivery"})),
            json!({
                "sqs": {"queue_url": "https://h/q", "message_group": "g"},
                "complete": "on_delivery",
            })
        );
    }
}
