//! `tidegate aws rollback`: goes back to the zips and the template before the current ones. Two
//! neighbouring releases work on the same data (`docs/upgrade.md`), so a repeat goes no further back.

use std::collections::BTreeMap;

use super::{
    DeploymentArgs,
    cloud::Cloud,
    code::{Back, Code, Release},
    operation::{Change, Changed, Operation, Report},
    question::Questions,
    stack::{Stack, Value},
    token,
};
use crate::cli::{Context, ExitCode, UsageError};

/// The options of `tidegate aws rollback`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Parameters stay as they are, except for the processor of the functions; those that \
    only the former release has get their former values. A repeat waits for the end of the first call \
    and checks the deployment again, but goes no further back: releases work only on the data of \
    their neighbours. `tidegate aws upgrade` goes forward again."
)]
pub struct Args {
    #[command(flatten)]
    pub deployment: DeploymentArgs,
    /// The release to go back to, as the output of the last rollback names it; only to go back
    /// further, by one release.
    #[arg(long, value_name = "RELEASE")]
    pub to: Option<String>,
    /// Do not run `doctor` and a smoke job at the end.
    #[arg(long)]
    pub no_checks: bool,
}

/// Goes back to the former release.
///
/// # Errors
///
/// There is no such stack or no former release, AWS does not answer or refuses a request, or the
/// deployment has a fault.
pub async fn run(
    args: Args,
    cloud: &Cloud,
    ctx: &Context,
    questions: &mut Questions<'_>,
) -> anyhow::Result<ExitCode> {
    let checks = if args.no_checks { None } else { Some(token(ctx)?) };
    let operation = Operation::begin(cloud, ctx, args.deployment.stack()).await?;
    let stack = operation.deployment().await?;
    let none = || {
        let name = &operation.name;
        UsageError(match &args.to {
            Some(to) => format!("the stack {name} does not run the release after {to}"),
            None => format!(
                "the stack {name} has no former release: only `tidegate aws upgrade` leaves one"
            ),
        })
    };
    let code = Code::find(cloud, &operation.name).await?.ok_or_else(none)?;
    let mut releases = code.releases().await?;
    let (release, stack) = match releases.back(&stack, args.to.as_deref()).ok_or_else(none)? {
        Back::Done(release) => {
            ctx.note(format_args!("the last rollback went back to {}", release.name()));
            (release.clone(), stack)
        }
        Back::To(former) => {
            let former = former.clone();
            ctx.note(format_args!(
                "goes back from {} to {}",
                stack.parameter("CodePrefix"),
                former.prefix
            ));
            // Before the change, so that a repeat of an interrupted command knows it.
            releases.go_back(&former.prefix);
            code.set_releases(&releases).await?;
            let change = Change {
                before: Some(&stack),
                template: cloud.object_url(&code.bucket, &former.template),
                parameters: parameters(&stack, &former),
            };
            match operation.change(change, args.deployment.yes, questions).await? {
                Changed::Done(stack) | Changed::Unchanged(stack) => (former, stack),
                Changed::Declined => return Ok(ExitCode::Refused),
            }
        }
    };
    let report = Report {
        release: release.name(),
        former: releases.former(&stack).map(Release::name),
        was_rolled_back: true,
        ..Report::default()
    };
    operation.finish(&stack, &report, checks).await
}

/// The parameters of the former template: as they are now, or as they were.
fn parameters(stack: &Stack, former: &Release) -> BTreeMap<String, Value> {
    let mut parameters = BTreeMap::new();
    for (name, value) in &former.parameters {
        let value = match (name.as_str(), value) {
            ("CodeBucket", _) => Value::Given(former.bucket.clone()),
            ("CodePrefix", _) => Value::Given(former.prefix.clone()),
            // The zips of a release are those of one processor.
            ("Architecture", Some(value)) => Value::Given(value.clone()),
            _ if stack.parameters.contains_key(name) => Value::Kept,
            (_, Some(value)) => Value::Given(value.clone()),
            // A secret that was not kept: the default of the template applies.
            (_, None) => continue,
        };
        parameters.insert(name.clone(), value);
    }
    parameters
}

#[cfg(test)]
mod tests {
    use tidegate_core::time::Timestamp;

    use super::*;

    #[test]
    fn parameters_stay_and_dropped_ones_come_back() {
        let text = |text: &str| Some(text.to_owned());
        let former = Release {
            bucket: "code".into(),
            prefix: "tidegate/1".into(),
            template: "templates/1.yaml".into(),
            parameters: [
                ("CodeBucket", text("code")),
                ("CodePrefix", text("tidegate/1")),
                ("Shards", text("1")),
                ("Architecture", text("arm64")),
                ("Dropped", text("x")),
                ("AdminToken", None),
                ("DroppedSecret", None),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            deployed_at: Timestamp::EPOCH,
        };
        let now = [
            ("CodePrefix", "tidegate/2"),
            ("Shards", "4"),
            ("Architecture", "x86_64"),
            ("AdminToken", "****"),
            ("New", ""),
        ];
        let now = now.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let stack = Stack { parameters: now.into(), ..Stack::default() };
        let given = |value: &str| Value::Given(value.to_owned());
        let expected = [
            ("CodeBucket", given("code")),
            ("CodePrefix", given("tidegate/1")),
            ("Shards", Value::Kept),
            ("Architecture", given("arm64")),
            ("Dropped", given("x")),
            ("AdminToken", Value::Kept),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(parameters(&stack, &former), expected.into());
    }
}
