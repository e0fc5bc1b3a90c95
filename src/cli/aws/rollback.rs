//! `tidegate aws rollback`: goes back to the zips and the template before the last upgrade. Two
//! neighbouring releases work on the same data (`docs/upgrade.md`).

use std::collections::BTreeMap;

use super::{
    Place,
    cloud::Cloud,
    code::{Code, Release},
    question::Questions,
    release::{self, Change, Changed, Report},
    stack::{Stack, Value},
    token,
};
use crate::cli::{Context, ExitCode, UsageError};

/// The options of `tidegate aws rollback`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Parameters stay as they are; those that only the former release has get their \
    former values. `tidegate aws upgrade` goes forward again."
)]
pub struct Args {
    #[command(flatten)]
    pub place: Place,
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
    let name = args.place.stack();
    let checks = if args.no_checks { None } else { Some(token(ctx)?) };
    cloud.credential().await?;
    let stack = cloud.settled(&name).await?.ok_or_else(|| cloud.no_stack(&name))?;
    let none = || {
        UsageError(format!(
            "the stack {name} has no former release: only `tidegate aws upgrade` leaves one"
        ))
    };
    let code = Code::find(cloud, &name).await?.ok_or_else(none)?;
    let releases = code.releases().await?;
    let former = releases.former(&stack).ok_or_else(none)?;
    ctx.note(format_args!("goes back from {} to {}", stack.parameter("CodePrefix"), former.prefix));
    let change = Change {
        name: &name,
        before: Some(&stack),
        template: cloud.object_url(&code.bucket, &former.template),
        parameters: parameters(&stack, former),
    };
    let stack = match release::change(cloud, ctx, change, args.place.yes, questions).await? {
        Changed::Done(stack) | Changed::Unchanged(stack) => stack,
        Changed::Declined => return Ok(ExitCode::Refused),
    };
    let mut report = Report {
        name: &name,
        release: former.name(),
        former: releases.former(&stack).map(Release::name),
        ..Report::default()
    };
    release::check(cloud, ctx, &stack, checks, &mut report).await?;
    release::print(cloud, ctx, &stack, &report)
}

/// The parameters of the former template: as they are now, or as they were.
fn parameters(stack: &Stack, former: &Release) -> BTreeMap<String, Value> {
    let mut parameters = BTreeMap::new();
    for (name, value) in &former.parameters {
        let value = match (name.as_str(), value) {
            ("CodeBucket", _) => Value::Given(former.bucket.clone()),
            ("CodePrefix", _) => Value::Given(former.prefix.clone()),
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
                ("Dropped", text("x")),
                ("AdminToken", None),
                ("DroppedSecret", None),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            deployed_at: Timestamp::EPOCH,
        };
        let now =
            [("CodePrefix", "tidegate/2"), ("Shards", "4"), ("AdminToken", "****"), ("New", "")];
        let now = now.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let stack = Stack { parameters: now.into(), ..Stack::default() };
        let given = |value: &str| Value::Given(value.to_owned());
        let expected = [
            ("CodeBucket", given("code")),
            ("CodePrefix", given("tidegate/1")),
            ("Shards", Value::Kept),
            ("Dropped", given("x")),
            ("AdminToken", Value::Kept),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(parameters(&stack, &former), expected.into());
    }
}
