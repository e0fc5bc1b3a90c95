//! `tidegate aws upgrade`: replaces the functions and the template of a deployment by those of this
//! release, and keeps its parameters.

use super::{
    DeploymentArgs,
    cloud::Cloud,
    code::{Code, Release},
    functions::{self, Functions, Source},
    operation::{Change, Changed, Operation, Report},
    parameter,
    question::Questions,
    release, token,
};
use crate::cli::{Context, ExitCode};

/// The options of `tidegate aws upgrade`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Old and new functions work side by side until all are replaced. If the change of the \
    stack fails, AWS undoes it, and the output names the reason. If a check fails after it, the \
    deployment has the new release: `tidegate aws rollback` goes back.\n\n\
    Examples:\n  \
    tidegate aws upgrade --region eu-west-1\n  \
    tidegate aws upgrade --functions https://example.com/tidegate/mirror/ --yes"
)]
pub struct Args {
    #[command(flatten)]
    pub deployment: DeploymentArgs,
    /// The folder or URL of the functions' zips and their SHA256SUMS [default: those published with
    /// this release].
    #[arg(long, value_name = "FOLDER_OR_URL", value_parser = functions::source)]
    pub functions: Option<Source>,
    /// A parameter of the template that changes; repeatable.
    #[arg(long = "parameter", value_name = "NAME=VALUE", value_parser = parameter)]
    pub parameters: Vec<(String, String)>,
    /// Do not run `doctor` and a smoke job at the end.
    #[arg(long)]
    pub no_checks: bool,
}

/// Upgrades the deployment.
///
/// # Errors
///
/// There is no such stack, AWS does not answer or refuses a request, or the deployment has a fault.
pub async fn run(
    args: Args,
    cloud: &Cloud,
    ctx: &Context,
    questions: &mut Questions<'_>,
) -> anyhow::Result<ExitCode> {
    let checks = if args.no_checks { None } else { Some(token(ctx)?) };
    let operation = Operation::begin(cloud, ctx, args.deployment.stack()).await?;
    let stack = operation.deployment().await?;
    release::refuse_downgrade(&stack)?;
    let architecture = release::architecture(&args.parameters, Some(&stack));
    let source = args.functions.clone().unwrap_or_else(Source::of_this_release);
    let functions = Functions::read(&source, &architecture).await?;

    ctx.note("uploading the functions");
    let code = Code::create(cloud, &operation.name, ctx.now()).await?;
    let (release, releases) =
        release::upload(cloud, &code, Some(&stack), &functions, &architecture, ctx.now()).await?;
    let mut parameters = args.parameters.clone();
    parameters.push(("CodeBucket".to_owned(), release.bucket.clone()));
    parameters.push(("CodePrefix".to_owned(), release.prefix.clone()));
    let change = Change {
        before: Some(&stack),
        template: cloud.object_url(&code.bucket, &release.template),
        parameters: release::parameters(Some(&stack), &parameters)?,
    };
    let stack = match operation.change(change, args.deployment.yes, questions).await? {
        Changed::Done(stack) => stack,
        Changed::Unchanged(stack) => {
            ctx.note("the deployment has this release");
            stack
        }
        Changed::Declined => return Ok(ExitCode::Refused),
    };
    let former = releases.former(&stack).map(Release::name);
    let report = Report { release: release.name(), former, ..Report::default() };
    operation.finish(&stack, &report, checks).await
}
