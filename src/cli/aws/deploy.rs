//! `tidegate aws deploy`: from zips to a checked deployment. A repeat goes on where the last one
//! ended, and changes the parameters that are given.

use aws_config::default_provider::region::DefaultRegionChain;
use aws_sdk_lambda::types::AccountLimit;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::json;
use tidegate_api::{NewTokenBody, Scope};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::port::Entropy;
use tidegate_server::auth::TokenItem;

use super::{
    DeploymentArgs,
    cloud::Cloud,
    code::{Code, Release},
    functions::{self, Functions, Source},
    operation::{Change, Changed, Operation, Report},
    parameter,
    question::Questions,
    release,
    stack::Stack,
    template, token,
};
use crate::cli::{Context, ExitCode, UsageError, cost};

/// The budget without `--monthly-budget`, in dollars.
const DEFAULT_BUDGET: u32 = 20;
/// The parameters that reserve concurrency of the account.
const RESERVES: [&str; 4] = [
    "TickReservedConcurrency",
    "SweepReservedConcurrency",
    "EnqueueReservedConcurrency",
    "PluginsReservedConcurrency",
];
/// The concurrency that Lambda keeps for functions without a reserve.
const UNRESERVED: i64 = 100;

/// The options of `tidegate aws deploy`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Credentials are those of other tools of AWS: environment variables, AWS_PROFILE, \
    a single sign-on, or the role of the machine.\n\
    TIDEGATE_TOKEN, if it is set, becomes the first token of a new deployment. Otherwise a new one \
    is made and printed once. AWS gets only its hash.\n\n\
    Examples:\n  \
    tidegate aws deploy                                  asks for what it needs\n  \
    tidegate aws deploy --region eu-west-1 --alarm-email ops@example.com --yes\n  \
    tidegate aws deploy --functions target/functions     the zips of `cargo xtask package`\n  \
    tidegate aws deploy --parameter Alarms=all           changes a parameter of a deployment"
)]
pub struct Args {
    #[command(flatten)]
    pub deployment: DeploymentArgs,
    /// The address that receives alarms and warnings of the budget.
    #[arg(long, value_name = "ADDRESS")]
    pub alarm_email: Option<String>,
    /// Dollars a month from which the budget warns; 0 creates no budget [default: 20].
    #[arg(long, value_name = "DOLLARS")]
    pub monthly_budget: Option<u32>,
    /// The folder or URL of the functions' zips and their SHA256SUMS [default: those published with
    /// this release].
    #[arg(long, value_name = "FOLDER_OR_URL", value_parser = functions::source)]
    pub functions: Option<Source>,
    /// A parameter of the template; repeatable.
    #[arg(long = "parameter", value_name = "NAME=VALUE", value_parser = parameter)]
    pub parameters: Vec<(String, String)>,
    /// Also estimate the cost of this many small jobs a month, such as 10M.
    #[arg(long, value_name = "COUNT", value_parser = cost::count)]
    pub jobs_per_month: Option<f64>,
    /// Replace the first token of a deployment, because it was lost.
    #[arg(long)]
    pub new_token: bool,
    /// Do not run `doctor` and a smoke job at the end.
    #[arg(long)]
    pub no_checks: bool,
}

impl Args {
    /// Whether `--parameter` sets `name`.
    fn sets(&self, name: &str) -> bool {
        self.parameters.iter().any(|(given, _)| given == name)
    }
}

/// Asks for the region and deploys.
///
/// # Errors
///
/// AWS does not answer or refuses a request, or the deployment has a fault.
pub async fn run(
    args: Args,
    ctx: &Context,
    questions: &mut Questions<'_>,
) -> anyhow::Result<ExitCode> {
    let known = match &args.deployment.region {
        Some(region) => Some(region.clone()),
        None => DefaultRegionChain::builder().build().region().await.map(|it| it.to_string()),
    };
    let region =
        questions.value(args.deployment.region.clone(), "--region", "Region", known.as_deref())?;
    let cloud = Cloud::connect(&args.deployment, Some(region)).await?;
    deploy(args, &cloud, ctx, questions, &SystemEntropy).await
}

/// Deploys to the account of `cloud`.
///
/// # Errors
///
/// AWS does not answer or refuses a request, or the deployment has a fault.
pub async fn deploy(
    args: Args,
    cloud: &Cloud,
    ctx: &Context,
    questions: &mut Questions<'_>,
    entropy: &(dyn Entropy + Sync),
) -> anyhow::Result<ExitCode> {
    let name = questions.value(
        args.deployment.stack.clone(),
        "--stack",
        "Name of the stack",
        Some(super::DEFAULT_STACK),
    )?;
    let operation = Operation::begin(cloud, ctx, name.clone()).await?;
    let found = operation.stack().await?;
    let before = found.as_ref().filter(|stack| stack.is_created());
    before.map_or(Ok(()), release::refuse_downgrade)?;
    let mut parameters = flags(&args, before.is_none(), questions)?;
    if before.is_none() {
        reserve(&args, cloud, ctx, &mut parameters).await?;
    }
    let first = first_token(&args, before, ctx, entropy)?;
    parameters.extend(first.setting.map(|setting| ("AdminToken".to_owned(), setting)));
    parameters.extend(args.parameters.clone());
    let source = args.functions.clone().unwrap_or_else(Source::of_this_release);
    let architecture = release::architecture(&parameters, before);
    let functions = Functions::read(&source, &architecture).await?;

    ctx.note(format_args!(
        "Deploys tidegate {} as the stack {name} in {}, with the functions of {source}",
        env!("CARGO_PKG_VERSION"),
        cloud.region
    ));
    ctx.note(cost::of_deployment(&cloud.region, args.jobs_per_month));
    if !questions.confirm(args.deployment.yes, "Deploy?")? {
        return Ok(ExitCode::Refused);
    }
    if let Some(failed) = found.as_ref().filter(|stack| stack.was_never_created()) {
        ctx.note("removing the stack whose creation has failed");
        cloud.delete(failed, |_| {}).await?;
    }
    ctx.note("uploading the functions");
    let code = Code::create(cloud, &name, ctx.now()).await?;
    let (release, releases) =
        release::upload(cloud, &code, before, &functions, &architecture, ctx.now()).await?;
    let given_key = before.is_some() || args.sets("EncryptionKeyParameter");
    if !given_key {
        let key = format!("/{name}/key");
        create_key(cloud, ctx, &key, entropy).await?;
        parameters.push(("EncryptionKeyParameter".to_owned(), key));
    }
    // It is printed before it is used: an interruption must not lose it.
    if let (Some(token), false) = (&first.new, ctx.json()) {
        ctx.print(format_args!(
            "first token, with every right, which is not shown again: {token}"
        ))?;
    }
    parameters.push(("CodeBucket".to_owned(), release.bucket.clone()));
    parameters.push(("CodePrefix".to_owned(), release.prefix.clone()));
    let change = Change {
        // A stack that was never created is gone now.
        before: found.as_ref().filter(|stack| !stack.was_never_created()),
        template: cloud.object_url(&code.bucket, &release.template),
        parameters: release::parameters(before, &parameters)?,
    };
    let stack = match operation.change(change, true, questions).await {
        Ok(Changed::Done(stack)) => stack,
        Ok(Changed::Unchanged(stack)) => {
            ctx.note("nothing differs");
            stack
        }
        Ok(Changed::Declined) => return Ok(ExitCode::Refused),
        Err(error) => {
            // The stack may have the token, and may still be created.
            if let (Some(token), true) = (&first.new, ctx.json()) {
                let failure = format!("{error:#}");
                let printed = json!({"stack": name, "token": token, "failure": failure});
                ctx.print(printed)?;
            }
            return Err(error);
        }
    };
    let report = Report {
        release: release.name(),
        former: releases.former(&stack).map(Release::name),
        token: first.new.as_deref(),
        ..Report::default()
    };
    operation.finish(&stack, &report, first.checks).await
}

/// The parameters that have a flag. For a new deployment, questions to the user give the others.
fn flags(
    args: &Args,
    is_new: bool,
    questions: &mut Questions<'_>,
) -> anyhow::Result<Vec<(String, String)>> {
    let (email, budget) = (args.alarm_email.clone(), args.monthly_budget);
    let budget = budget.map(|dollars| dollars.to_string());
    let (of_email, of_budget) = ("AlarmEmail", "MonthlyBudget");
    let mut found = Vec::new();
    let mut add = |name: &str, value: String| found.push((name.to_owned(), value));
    match email {
        Some(email) => add(of_email, email),
        None if is_new && !args.sets(of_email) => {
            let question = "Address that receives alarms and warnings of the budget";
            add(of_email, questions.value(None, "--alarm-email", question, None)?);
        }
        None => {}
    }
    match budget {
        Some(budget) => add(of_budget, budget),
        None if is_new && !args.sets(of_budget) => {
            let question = "Dollars a month from which the budget warns; 0 for no budget";
            let default = DEFAULT_BUDGET.to_string();
            add(of_budget, questions.value(None, "--monthly-budget", question, Some(&default))?);
        }
        None => {}
    }
    Ok(found)
}

/// Reserves no concurrency if the account has too little: a new account may have 10.
async fn reserve(
    args: &Args,
    cloud: &Cloud,
    ctx: &Context,
    parameters: &mut Vec<(String, String)>,
) -> anyhow::Result<()> {
    if RESERVES.iter().any(|name| args.sets(name)) {
        return Ok(());
    }
    let defaults = template::parameters();
    let needed: i64 =
        RESERVES.iter().filter_map(|name| defaults.get(name)?.as_ref()?.parse::<i64>().ok()).sum();
    let account = cloud.lambda.get_account_settings().send().await;
    let account = account.map_err(super::failure::of_call)?;
    let free = account.account_limit().and_then(AccountLimit::unreserved_concurrent_executions);
    let Some(free) = free.map(i64::from).filter(|free| *free < needed + UNRESERVED) else {
        return Ok(());
    };
    ctx.note(format_args!(
        "The account has {free} concurrent executions without a reserve, too few for the reserves \
         of {needed}: nothing is reserved. Raise the quota, then set {} with --parameter",
        RESERVES.join(", ")
    ));
    parameters.extend(RESERVES.map(|name| (name.to_owned(), "0".to_owned())));
    Ok(())
}

/// Creates the key that encrypts the secrets of targets, unless it exists.
async fn create_key(
    cloud: &Cloud,
    ctx: &Context,
    name: &str,
    entropy: &(dyn Entropy + Sync),
) -> anyhow::Result<()> {
    let mut key = [0; 32];
    key[..16].copy_from_slice(&entropy.bits().to_be_bytes());
    key[16..].copy_from_slice(&entropy.bits().to_be_bytes());
    let is_new = cloud.parameters().await?.create(name, &BASE64.encode(key)).await?;
    ctx.note(format_args!(
        "the key for secrets is the parameter {name} of Systems Manager, {}",
        if is_new { "which is new" } else { "which exists" }
    ));
    Ok(())
}

/// The tokens of a deployment.
struct FirstToken {
    /// The value of the parameter `AdminToken`, if it is to change.
    setting: Option<String>,
    /// The token, if this command has made it.
    new: Option<String>,
    /// The token for the checks, unless they are left out.
    checks: Option<String>,
}

/// The first token of a new deployment: the given one, or a new one. A deployment keeps its own.
fn first_token(
    args: &Args,
    before: Option<&Stack>,
    ctx: &Context,
    entropy: &(dyn Entropy + Sync),
) -> anyhow::Result<FirstToken> {
    let checks = |token: &str| (!args.no_checks).then(|| token.to_owned());
    let wrong = || UsageError("the token must be tg_ID_SECRET, as tidegate makes them".into());
    let setting = |token: &str| TokenItem::admin_setting(token).ok_or_else(wrong);
    if before.is_some() && !args.new_token {
        let checks = if args.no_checks { None } else { Some(token(ctx)?) };
        return Ok(FirstToken { setting: None, new: None, checks });
    }
    if args.sets("AdminToken") {
        let checks = if args.no_checks { None } else { Some(token(ctx)?) };
        return Ok(FirstToken { setting: None, new: None, checks });
    }
    if let (Some(token), false) = (&ctx.global.token, args.new_token) {
        return Ok(FirstToken { setting: Some(setting(token)?), new: None, checks: checks(token) });
    }
    let request = NewTokenBody {
        name: "first".into(),
        scopes: [Scope::Admin].into_iter().collect(),
        expires_at: None,
        queues: None,
        types: None,
    };
    let (_, token) = TokenItem::create(request, ctx.now(), entropy)?;
    Ok(FirstToken { setting: Some(setting(&token)?), checks: checks(&token), new: Some(token) })
}
