//! `tidegate aws destroy`: removes a deployment and the bucket with its code. What holds data stays:
//! the table, the bucket and the key.

use super::{
    DeploymentArgs, cloud::Cloud, code::Code, operation::Operation, question::Questions,
    stack::Stack,
};
use crate::cli::{Context, ExitCode, UsageError};

/// The options of `tidegate aws destroy`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The table, the bucket and the key of the secrets stay, and the output says how to \
    delete them, or how to deploy on them again.\n\n\
    Example:\n  \
    tidegate aws destroy --stack tidegate --confirm tidegate"
)]
pub struct Args {
    #[command(flatten)]
    pub deployment: DeploymentArgs,
    /// The name of the stack, as a confirmation without a terminal.
    #[arg(long, value_name = "NAME")]
    pub confirm: Option<String>,
}

/// Removes the deployment.
///
/// # Errors
///
/// It is not confirmed, there is no such stack or it is no deployment, or AWS does not answer or
/// refuses a request.
pub async fn run(
    args: Args,
    cloud: &Cloud,
    ctx: &Context,
    questions: &mut Questions<'_>,
) -> anyhow::Result<ExitCode> {
    let operation = Operation::begin(cloud, ctx, args.deployment.stack()).await?;
    // A stack whose failed update cannot be undone can still be deleted.
    let stack = operation.own(cloud.settled(&operation.name).await?)?;
    let name = operation.name;
    // A command that was interrupted has left the bucket only.
    let code_stack = Code::stack(cloud, &name).await?;
    if stack.is_none() && code_stack.is_none() {
        return Err(cloud.no_stack(&name).into());
    }
    let question = format!("This removes the deployment {name} in {}. Type its name", cloud.region);
    let typed = questions.value(args.confirm, "--confirm", &question, None)?;
    if typed != name {
        return Err(UsageError(format!("{typed} is not the name of the stack, {name}")).into());
    }
    if let Some(stack) = &stack {
        ctx.note("deleting the stack");
        let bar = ctx.progress(0, "resources");
        let deleted = cloud.delete(stack, |count| bar.set_position(count as u64)).await;
        bar.finish_and_clear();
        deleted?;
    }
    if let Some(code_stack) = &code_stack {
        ctx.note("deleting the code");
        if let Some(code) = Code::find(cloud, &name).await? {
            code.empty().await?;
        }
        cloud.delete(code_stack, |_| {}).await?;
    }
    ctx.print(match &stack {
        Some(stack) if ctx.json() => kept_json(&name, stack),
        None if ctx.json() => serde_json::json!({"stack": name}).to_string(),
        Some(stack) => kept(&name, stack),
        None => format!("the stack {name} is removed"),
    })?;
    Ok(ExitCode::Ok)
}

/// What stays, as JSON.
fn kept_json(name: &str, stack: &Stack) -> String {
    serde_json::json!({
        "stack": name,
        "kept": {
            "table": stack.output("TableName"),
            "bucket": stack.output("BucketName"),
            "key": stack.parameter("EncryptionKeyParameter"),
        },
    })
    .to_string()
}

/// What stays, how it is used again, and how it is deleted.
fn kept(name: &str, stack: &Stack) -> String {
    let key = stack.parameter("EncryptionKeyParameter");
    let (Some(table), Some(bucket)) = (stack.output("TableName"), stack.output("BucketName"))
    else {
        return format!("the stack {name} is removed");
    };
    format!(
        "the stack {name} is removed\n\n\
         These stay, with their costs:\n  \
         the table {table}\n  \
         the bucket {bucket}\n  \
         the parameter {key} of Systems Manager, without which secrets of the table are lost\n\n\
         To deploy on them again, add:\n  \
         --parameter TableName={table} --parameter BucketName={bucket} \
         --parameter EncryptionKeyParameter={key}\n\n\
         To delete them with all jobs:\n  \
         aws dynamodb update-table --table-name {table} --no-deletion-protection-enabled\n  \
         aws dynamodb delete-table --table-name {table}\n  \
         aws s3 rb --force s3://{bucket}\n  \
         aws ssm delete-parameter --name {key}"
    )
}
