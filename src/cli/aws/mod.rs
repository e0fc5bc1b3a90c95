//! `tidegate aws`: deploys the serverless mode from published zips, upgrades it, rolls it back and
//! removes it. It needs neither Rust nor the command line of AWS.
//!
//! ```text
//!   zips, template ─▶ bucket of the stack NAME-code ─▶ change set ─▶ stack NAME ─▶ checks
//! ```
//!
//! The one thing to know: nothing is kept on this machine. The stack says which release it runs, the
//! bucket has the releases before it and the last rollback, and every step looks first at what exists.
//! So an interrupted command is repeated as it was.

mod cloud;
mod code;
mod credentials;
mod deploy;
mod destroy;
mod failure;
mod functions;
mod operation;
mod question;
mod release;
mod rollback;
mod stack;
mod template;
#[cfg(test)]
mod tests;
mod upgrade;
mod verify;

use std::io;

use clap::Subcommand;
use url::Url;

use self::question::Questions;
pub use self::{cloud::Cloud, failure::Failure};
use super::{Context, ExitCode, UsageError, client::base_url};

/// Maximum letters of a stack's name: names of its queues and functions begin with it.
const MAX_STACK_LETTERS: usize = 40;

/// The commands about a deployment on AWS.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Deploy this release, or change the parameters of a deployment.
    Deploy(deploy::Args),
    /// Replace a deployment's functions and template by those of this release.
    Upgrade(upgrade::Args),
    /// Go back to the release before the current one.
    Rollback(rollback::Args),
    /// Remove a deployment. Its jobs and its key stay.
    Destroy(destroy::Args),
}

/// Where the deployment is.
#[derive(Clone, Debug, clap::Args)]
pub struct DeploymentArgs {
    /// The region [default: that of `AWS_REGION` or of the AWS profile].
    #[arg(long, help_heading = "Deployment")]
    pub region: Option<String>,
    /// The name of the stack, and the start of the names of its resources [default: tidegate].
    #[arg(long, value_name = "NAME", value_parser = stack_name, help_heading = "Deployment")]
    pub stack: Option<String>,
    /// The endpoint of all AWS services, for a stack on this machine [default: AWS's own].
    #[arg(
        long,
        value_name = "URL",
        env = "AWS_ENDPOINT_URL",
        value_parser = base_url,
        help_heading = "Deployment",
    )]
    pub endpoint_url: Option<Url>,
    /// Do not ask for a confirmation.
    #[arg(long)]
    pub yes: bool,
}

impl DeploymentArgs {
    /// The name of the stack.
    pub fn stack(&self) -> String {
        self.stack.clone().unwrap_or_else(|| DEFAULT_STACK.to_owned())
    }
}

/// The name of the stack without `--stack`.
const DEFAULT_STACK: &str = "tidegate";

/// Reads the name of a stack.
fn stack_name(text: &str) -> Result<String, String> {
    let mut letters = text.chars();
    let valid = text.len() <= MAX_STACK_LETTERS
        && letters.next().is_some_and(|first| first.is_ascii_lowercase())
        && letters.all(|each| each.is_ascii_lowercase() || each.is_ascii_digit() || each == '-');
    if !valid {
        return Err(format!(
            "1 to {MAX_STACK_LETTERS} lower-case letters, digits and hyphens are expected, a letter \
             first"
        ));
    }
    // The deployment NAME has its code in the stack NAME-code.
    let base = text.strip_suffix(code::STACK_SUFFIX);
    base.map_or(Ok(text.to_owned()), |base| Err(format!("the deployment {base} has this stack")))
}

/// Reads a parameter of the template, `Name=Value`.
fn parameter(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("Name=Value is expected")?;
    if template::parameters().contains_key(name) {
        return Ok((name.to_owned(), value.to_owned()));
    }
    Err(format!("the template has no parameter {name}; docs/deploy-aws.md lists them"))
}

/// Runs the command.
///
/// # Errors
///
/// AWS does not answer or refuses a request, or the deployment has a fault.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    let mut input = io::BufReader::new(io::stdin());
    let mut questions =
        if Questions::has_terminal() { Questions::to(&mut input) } else { Questions::none() };
    match command {
        Command::Deploy(args) => deploy::run(args, ctx, &mut questions).await,
        Command::Upgrade(args) => {
            let cloud = Cloud::connect(&args.deployment, args.deployment.region.clone()).await?;
            upgrade::run(args, &cloud, ctx, &mut questions).await
        }
        Command::Rollback(args) => {
            let cloud = Cloud::connect(&args.deployment, args.deployment.region.clone()).await?;
            rollback::run(args, &cloud, ctx, &mut questions).await
        }
        Command::Destroy(args) => {
            let cloud = Cloud::connect(&args.deployment, args.deployment.region.clone()).await?;
            destroy::run(args, &cloud, ctx, &mut questions).await
        }
    }
}

/// The token of an administrator, which the checks of a deployment need.
///
/// # Errors
///
/// There is none.
fn token(ctx: &Context) -> anyhow::Result<String> {
    let missing =
        "the checks need a token with scope admin: set TIDEGATE_TOKEN, or add --no-checks";
    Ok(ctx.global.token.clone().ok_or_else(|| UsageError(missing.into()))?)
}
