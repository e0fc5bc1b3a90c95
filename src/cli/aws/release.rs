//! What `deploy`, `upgrade` and `rollback` share: the upload of a release, the change of the stack,
//! the checks, and what they print.

use std::collections::BTreeMap;

use serde_json::json;
use tidegate_core::time::Timestamp;

use super::{
    cloud::Cloud,
    code::{Code, Release, Releases},
    functions::Functions,
    question::Questions,
    stack::{Stack, Template, Value},
    template::{self, TEMPLATE},
    verify,
};
use crate::cli::{Context, ExitCode, UsageError, doctor::DoctorReport};

/// The parameters of a change to this release: the given ones, and those that the stack has. The
/// template's defaults apply to the others.
///
/// # Errors
///
/// A parameter without a default has no value.
pub fn parameters(
    before: Option<&Stack>,
    given: &[(String, String)],
) -> Result<BTreeMap<String, Value>, UsageError> {
    let mut values = BTreeMap::new();
    for (name, default) in template::parameters() {
        let given = given.iter().rev().find(|(given, _)| given == name);
        let value = match given {
            Some((_, value)) => Value::Given(value.clone()),
            None if before.is_some_and(|stack| stack.parameters.contains_key(name)) => Value::Kept,
            None if default.is_some() => continue,
            None => {
                let missing = format!(
                    "the parameter {name} has no default: give it with --parameter {name}=VALUE"
                );
                return Err(UsageError(missing));
            }
        };
        values.insert(name.to_owned(), value);
    }
    Ok(values)
}

/// The processor of the functions.
pub fn architecture(parameters: &[(String, String)], before: Option<&Stack>) -> String {
    let given = parameters.iter().rev().find(|(name, _)| name == "Architecture");
    let of_stack = before.and_then(|stack| stack.parameters.get("Architecture"));
    let default = template::parameters()["Architecture"].unwrap_or_default();
    given.map(|(_, value)| value).or(of_stack).map_or(default, |value| value).to_owned()
}

/// Uploads a release for the stack `name` and records it after the one that the stack runs.
///
/// # Errors
///
/// AWS does not answer or denies access.
pub async fn upload(
    cloud: &Cloud,
    code: &Code,
    before: Option<&Stack>,
    functions: &Functions,
    architecture: &str,
    now: Timestamp,
) -> anyhow::Result<Release> {
    let template = code.store(functions, architecture, TEMPLATE).await?;
    let next = Release {
        bucket: code.bucket.clone(),
        prefix: functions.prefix.clone(),
        template,
        parameters: BTreeMap::new(),
        deployed_at: now,
    };
    let mut releases = code.releases().await?;
    if let Some(stack) = before {
        adopt(cloud, code, stack, &mut releases, now).await?;
    }
    releases.follow(before, next.clone());
    code.set_releases(&releases).await?;
    Ok(next)
}

/// Records what the stack runs if another tool has deployed it, so that it can be rolled back to.
async fn adopt(
    cloud: &Cloud,
    code: &Code,
    stack: &Stack,
    releases: &mut Releases,
    now: Timestamp,
) -> anyhow::Result<()> {
    if releases.know(stack) {
        return Ok(());
    }
    let template = cloud.template(&stack.id).await?;
    releases.adopt(Release {
        bucket: stack.parameter("CodeBucket").to_owned(),
        prefix: stack.parameter("CodePrefix").to_owned(),
        template: code.store_template(&template).await?,
        parameters: BTreeMap::new(),
        deployed_at: now,
    });
    Ok(())
}

/// What became of a change.
pub enum Changed {
    /// The stack has the release.
    Done(Stack),
    /// It had it before, with the same parameters.
    Unchanged(Stack),
    /// The user did not want it.
    Declined,
}

/// A change of a stack.
pub struct Change<'a> {
    /// The name of the stack.
    pub name: &'a str,
    /// The stack as it is.
    pub before: Option<&'a Stack>,
    /// The template, in the bucket of the code.
    pub template: String,
    /// The parameters.
    pub parameters: BTreeMap<String, Value>,
}

/// Changes the stack, once the user has confirmed it, and waits for the end.
///
/// # Errors
///
/// AWS refuses the change, or it fails. The stack is then as it was.
pub async fn change(
    cloud: &Cloud,
    ctx: &Context,
    change: Change<'_>,
    yes: bool,
    questions: &mut Questions<'_>,
) -> anyhow::Result<Changed> {
    let Change { name, before, template, parameters } = change;
    let template = Template::Url(template);
    ctx.note("CloudFormation prepares the change");
    let prepared = cloud.prepare(name, before, &template, &parameters, ctx.now()).await?;
    let Some(prepared) = prepared else {
        let stack = cloud.stack(name).await?.ok_or_else(|| cloud.no_stack(name))?;
        return Ok(Changed::Unchanged(stack));
    };
    ctx.note(&prepared);
    if !questions.confirm(yes, "Change the stack?")? {
        return Ok(Changed::Declined);
    }
    let bar = ctx.progress(prepared.resources() as u64, "resources");
    let done = cloud.execute(name, prepared, |count| bar.set_position(count as u64)).await;
    bar.finish_and_clear();
    Ok(Changed::Done(done?))
}

/// What a command has done.
#[derive(Clone, Debug, Default)]
pub struct Report<'a> {
    /// The name of the stack.
    pub name: &'a str,
    /// The release that the stack runs.
    pub release: &'a str,
    /// The release before it, to which `rollback` goes back.
    pub former: Option<&'a str>,
    /// A token that this command has made.
    pub token: Option<&'a str>,
    /// The checks, unless they were left out.
    pub checks: Option<DoctorReport>,
    /// Whether a smoke job has succeeded.
    pub smoke_job: bool,
}

/// Checks the deployment with `token`, and with a smoke job if it is new.
///
/// # Errors
///
/// It does not answer, or a check fails.
pub async fn check(
    cloud: &Cloud,
    ctx: &Context,
    stack: &Stack,
    token: Option<String>,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let checked = token.is_some();
    let api = verify::api(ctx, stack, token)?;
    let client = api.client()?;
    ctx.note("waiting until the functions answer");
    verify::answering(cloud, stack, &client).await?;
    if !checked {
        return Ok(());
    }
    ctx.note("running doctor");
    report.checks = Some(verify::doctor(&api).await?);
    ctx.note("running a smoke job");
    verify::smoke_job(&client).await?;
    report.smoke_job = true;
    Ok(())
}

/// Prints what the command has done and returns its exit code: 1 if `doctor` found an error.
///
/// # Errors
///
/// The reader is gone.
pub fn print(
    cloud: &Cloud,
    ctx: &Context,
    stack: &Stack,
    report: &Report<'_>,
) -> anyhow::Result<ExitCode> {
    let errors = report.checks.as_ref().map_or(0, DoctorReport::errors);
    let code = if errors == 0 { ExitCode::Ok } else { ExitCode::Refused };
    if ctx.json() {
        let mut printed = json!({
            "stack": report.name,
            "region": cloud.region,
            "release": report.release,
            "url": stack.output("Url"),
            "plugins_url": stack.output("PluginsUrl"),
        });
        for (name, value) in [("former", report.former), ("token", report.token)] {
            if let Some(value) = value {
                printed[name] = json!(value);
            }
        }
        if let Some(checks) = &report.checks {
            printed["doctor"] =
                json!({"ok": errors == 0, "checks": checks.checks, "findings": checks.findings});
            printed["smoke_job"] = json!(report.smoke_job);
        }
        ctx.print(printed)?;
        return Ok(code);
    }
    if let Some(checks) = &report.checks {
        checks.print(false, ctx)?;
    }
    if report.smoke_job {
        ctx.print("a job was enqueued, leased and completed")?;
    }
    ctx.print(format_args!(
        "\ntidegate {} runs as the stack {} in {}\nURL: {}\nplugins are pushed to: {}",
        report.release,
        report.name,
        cloud.region,
        stack.output("Url"),
        stack.output("PluginsUrl")
    ))?;
    if let Some(former) = report.former {
        ctx.print(format_args!("`tidegate aws rollback` goes back to {former}"))?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_kept_unless_they_are_given() {
        let given = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let all = [
            ("CodeBucket", "b"),
            ("CodePrefix", "p"),
            ("EncryptionKeyParameter", "/k"),
            ("AlarmEmail", "a@example.com"),
            ("MonthlyBudget", "5"),
        ];
        let new = parameters(None, &given(&all)).unwrap();
        assert_eq!(new.len(), all.len(), "defaults are those of the template: {new:?}");
        let error = parameters(None, &given(&all[..4])).unwrap_err().to_string();
        assert!(error.contains("--parameter MonthlyBudget=VALUE"), "{error}");

        let kept = [("Shards", "4"), ("AdminToken", "****"), ("Retired", "x")];
        let stack = Stack { parameters: given(&kept).into_iter().collect(), ..Stack::default() };
        let changed = parameters(Some(&stack), &given(&all)).unwrap();
        assert_eq!(changed["Shards"], Value::Kept);
        assert_eq!(changed["AdminToken"], Value::Kept);
        assert_eq!(changed.get("Retired"), None, "the new template does not know it");
        let again = parameters(Some(&stack), &given(&[&all[..], &[("Shards", "8")]].concat()));
        assert_eq!(again.unwrap()["Shards"], Value::Given("8".into()));
    }
}
