//! What the commands share: they find the deployment, change its stack, check it, and print what they
//! have done.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    cloud::Cloud,
    question::Questions,
    stack::{Stack, Template, Value},
    verify,
};
use crate::cli::{Context, ExitCode, UsageError, doctor::DoctorReport};

/// A command about one deployment.
pub struct Operation<'a> {
    pub cloud: &'a Cloud,
    pub ctx: &'a Context,
    /// The name of the stack.
    pub name: String,
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
    /// The stack as it is.
    pub before: Option<&'a Stack>,
    /// The URL of the template.
    pub template: String,
    /// The parameters.
    pub parameters: BTreeMap<String, Value>,
}

/// What a command has done.
#[derive(Clone, Debug, Default)]
pub struct Report<'a> {
    /// The release that the stack runs.
    pub release: &'a str,
    /// The release before it.
    pub former: Option<&'a str>,
    /// Whether `rollback` must name the former release to go back to it.
    pub was_rolled_back: bool,
    /// A token that this command has made.
    pub token: Option<&'a str>,
}

/// What the checks of a deployment have found.
#[derive(Debug, Default)]
struct Checks {
    /// The findings of `doctor`, unless the checks were left out.
    doctor: Option<DoctorReport>,
    /// Whether a smoke job has succeeded.
    smoke_job: bool,
    /// Why the checks ended early.
    failure: Option<anyhow::Error>,
}

impl<'a> Operation<'a> {
    /// A command about the stack `name`, by the signed-in user.
    ///
    /// # Errors
    ///
    /// There are no credentials.
    pub async fn begin(cloud: &'a Cloud, ctx: &'a Context, name: String) -> anyhow::Result<Self> {
        cloud.credential().await?;
        Ok(Self { cloud, ctx, name })
    }

    /// Refuses a stack that is no deployment.
    ///
    /// # Errors
    ///
    /// It is none.
    pub fn own(&self, found: Option<Stack>) -> Result<Option<Stack>, UsageError> {
        let is_foreign = |stack: &Stack| !stack.is_review() && !stack.is_deployment();
        if found.as_ref().is_some_and(is_foreign) {
            let name = &self.name;
            return Err(UsageError(format!(
                "the stack {name} is no deployment of tidegate, and stays as it is"
            )));
        }
        Ok(found)
    }

    /// The stack, once it can be changed.
    ///
    /// # Errors
    ///
    /// It is no deployment, AWS does not answer, or a failed update cannot be undone.
    pub async fn stack(&self) -> anyhow::Result<Option<Stack>> {
        Ok(self.own(self.cloud.repaired(&self.name).await?)?)
    }

    /// The stack of a deployment that exists, once it can be changed.
    ///
    /// # Errors
    ///
    /// As those of [`Self::stack`]; or there is none.
    pub async fn deployment(&self) -> anyhow::Result<Stack> {
        let found = self.stack().await?.filter(Stack::is_created);
        Ok(found.ok_or_else(|| self.cloud.no_stack(&self.name))?)
    }

    /// Changes the stack, once the user has confirmed it, and waits for the end.
    ///
    /// # Errors
    ///
    /// AWS refuses the change, or it fails. The stack is then as it was, unless that fails too.
    pub async fn change(
        &self,
        change: Change<'_>,
        yes: bool,
        questions: &mut Questions<'_>,
    ) -> anyhow::Result<Changed> {
        let (cloud, ctx, name) = (self.cloud, self.ctx, &self.name);
        let Change { before, template, parameters } = change;
        let template = Template::Url(template);
        ctx.note("CloudFormation prepares the change");
        let prepared = cloud.prepare(name, before, &template, &parameters, ctx.now()).await?;
        let Some(prepared) = prepared else {
            let stack = cloud.stack(name).await?.ok_or_else(|| cloud.no_stack(name))?;
            return Ok(Changed::Unchanged(stack));
        };
        ctx.note(&prepared);
        match questions.confirm(yes, "Change the stack?") {
            Ok(true) => {}
            declined => {
                cloud.discard(name, prepared).await?;
                return declined.map(|_| Changed::Declined);
            }
        }
        let bar = ctx.progress(prepared.resources() as u64, "resources");
        let done = cloud.execute(name, prepared, |count| bar.set_position(count as u64)).await;
        bar.finish_and_clear();
        Ok(Changed::Done(done?))
    }

    /// Checks the deployment, with `doctor` and a smoke job if there is a `token` for them, and prints
    /// the report. Returns exit code 1 if `doctor` found an error.
    ///
    /// # Errors
    ///
    /// The deployment does not answer, or a check fails. The report is printed first.
    pub async fn finish(
        &self,
        stack: &Stack,
        report: &Report<'_>,
        token: Option<String>,
    ) -> anyhow::Result<ExitCode> {
        let mut checks = Checks::default();
        let done = self.check(stack, token, &mut checks).await;
        checks.failure = done.err();
        let code = self.print(stack, report, &checks)?;
        checks.failure.map_or(Ok(code), Err)
    }

    async fn check(
        &self,
        stack: &Stack,
        token: Option<String>,
        checks: &mut Checks,
    ) -> anyhow::Result<()> {
        let is_checked = token.is_some();
        let api = verify::api(self.ctx, stack, token)?;
        let client = api.client()?;
        self.ctx.note("waiting until the functions answer");
        verify::answering(self.cloud, stack, &client).await?;
        if !is_checked {
            return Ok(());
        }
        self.ctx.note("running doctor");
        checks.doctor = Some(verify::doctor(&api).await?);
        self.ctx.note("running a smoke job");
        verify::smoke_job(&client).await?;
        checks.smoke_job = true;
        Ok(())
    }

    fn print(
        &self,
        stack: &Stack,
        report: &Report<'_>,
        checks: &Checks,
    ) -> anyhow::Result<ExitCode> {
        let (ctx, name, region) = (self.ctx, &self.name, &self.cloud.region);
        let errors = checks.doctor.as_ref().map_or(0, DoctorReport::errors);
        let code = if errors == 0 { ExitCode::Ok } else { ExitCode::Refused };
        let (url, plugins_url) = (stack.output("Url"), stack.output("PluginsUrl"));
        if ctx.json() {
            let mut printed = json!({
                "stack": name,
                "region": region,
                "release": report.release,
                "url": url,
                "plugins_url": plugins_url,
            });
            for (name, value) in [("former", report.former), ("token", report.token)] {
                if let Some(value) = value {
                    printed[name] = json!(value);
                }
            }
            if let Some(doctor) = &checks.doctor {
                printed["doctor"] = json!({
                    "ok": errors == 0, "checks": doctor.checks, "findings": doctor.findings,
                });
                printed["smoke_job"] = json!(checks.smoke_job);
            }
            if let Some(failure) = &checks.failure {
                printed["failure"] = json!(format!("{failure:#}"));
            }
            ctx.print(printed)?;
            return Ok(code);
        }
        if let Some(doctor) = &checks.doctor {
            doctor.print(false, ctx)?;
        }
        if checks.smoke_job {
            ctx.print("a job was enqueued, leased and completed")?;
        }
        ctx.print(format_args!(
            "\ntidegate {} runs as the stack {name} in {region}\nURL: {}\nplugins are pushed to: {}",
            report.release,
            url.unwrap_or("none"),
            plugins_url.unwrap_or("none"),
        ))?;
        match report.former {
            Some(former) if report.was_rolled_back => {
                ctx.print(format_args!("`tidegate aws rollback --to {former}` goes back further"))?;
            }
            Some(former) => {
                ctx.print(format_args!("`tidegate aws rollback` goes back to {former}"))?;
            }
            None => {}
        }
        Ok(code)
    }
}
