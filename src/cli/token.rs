//! `tidegate token`: creates, lists and revokes access tokens.

use clap::{Subcommand, ValueEnum};
use serde::Serialize;

use super::{Context, ExitCode, output, pages, wire::Token};
use tidegate_core::time::Timestamp;

/// The commands about tokens.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a token and print its secret, which is never shown again.
    Create(CreateArgs),
    /// List tokens, without their secrets.
    List,
    /// Revoke a token at once.
    Revoke(RevokeArgs),
}

/// The options of `tidegate token create`.
#[derive(Debug, clap::Args)]
pub struct CreateArgs {
    /// The name of the token.
    #[arg(long)]
    name: String,
    /// A scope of the token; repeatable.
    #[arg(long = "scope", value_name = "SCOPE", required = true, num_args = 1..)]
    scopes: Vec<Scope>,
}

/// The options of `tidegate token revoke`.
#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// The token's id, as `list` shows it.
    id: String,
}

/// The scopes of a token.
#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Scope {
    /// Hand in jobs.
    Enqueue,
    /// Hand in critical jobs.
    #[value(name = "enqueue:critical")]
    #[serde(rename = "enqueue:critical")]
    EnqueueCritical,
    /// Lease jobs and report results.
    Work,
    /// Read everything.
    Read,
    /// Configure and operate.
    Admin,
}

#[derive(Serialize)]
struct NewToken<'a> {
    name: &'a str,
    scopes: &'a [Scope],
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    match command {
        Command::Create(args) => {
            let answer = client
                .post(&["tokens"])
                .json(&NewToken { name: &args.name, scopes: &args.scopes })
                .send()
                .await?;
            if ctx.json() {
                ctx.print_body(&answer.body)?;
            } else {
                let token: Token = answer.read()?;
                ctx.print(token.secret.unwrap_or_default())?;
                ctx.note(format_args!(
                    "this is the only time {} ({}) is shown; keep it in TIDEGATE_TOKEN",
                    token.name, token.id
                ));
            }
        }
        Command::List => {
            let page =
                pages::collect(|client| client.get(&["tokens"]), &client, usize::MAX).await?;
            if ctx.json() {
                ctx.print(serde_json::to_string(&page)?)?;
            } else {
                ctx.print(render(ctx.look, &page.read(&client)?, ctx.now()))?;
            }
        }
        Command::Revoke(args) => {
            let answer = client.delete(&["tokens", &args.id]).send().await?;
            if ctx.json() {
                ctx.print_body(&answer.body)?;
            } else {
                ctx.print(format_args!("{} is revoked", args.id))?;
            }
        }
    }
    Ok(ExitCode::Ok)
}

fn render(look: output::OutputStyle, tokens: &[Token], now: Timestamp) -> String {
    let rows = tokens.iter().map(|token| {
        [
            token.id.clone(),
            token.name.clone(),
            token.scopes.join(" "),
            output::when_known(token.created_at, now),
        ]
    });
    output::table(look, ["id", "name", "scopes", "created"], rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::testing::FakeServer;

    #[tokio::test]
    async fn a_token_is_created_listed_and_revoked() {
        let server = FakeServer::answering(|seen| match seen.method.as_str() {
            "POST" => (201, json!({"id": "t1", "name": "ci", "scopes": ["enqueue:critical", "read"], "token": "tg_s3cret"})),
            "GET" => (200, json!({"tokens": [{"id": "t1", "name": "ci", "scopes": ["enqueue:critical", "read"]}]})),
            _ => (204, json!(null)),
        })
        .await;
        let created = server
            .run(&["token", "create", "--name", "ci", "--scope", "enqueue:critical", "read"])
            .await;
        assert_eq!(created, (ExitCode::Ok, "tg_s3cret\n".to_owned()));
        assert_eq!(
            server.seen()[0].body,
            json!({"name": "ci", "scopes": ["enqueue:critical", "read"]})
        );
        let (_, listed) = server.run(&["token", "list"]).await;
        insta::assert_snapshot!(listed);
        assert_eq!(server.run(&["token", "revoke", "t1"]).await.0, ExitCode::Ok);
        assert_eq!(server.seen()[2].line(), "DELETE /v1/tokens/t1");
    }
}
