//! `tidegate token`: creates, lists and revokes access tokens.

use clap::{
    Subcommand,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

use super::{Context, ExitCode, output, pages};
use tidegate_api::{NewTokenBody, Scope, TokenView};
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
    #[arg(
        long = "scope",
        value_name = "SCOPE",
        required = true,
        num_args = 1..,
        value_parser = scope(),
    )]
    scopes: Vec<Scope>,
}

/// The options of `tidegate token revoke`.
#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// The token's id, as `list` shows it.
    id: String,
}

/// Reads a scope. The help lists every one with its meaning.
fn scope() -> impl TypedValueParser<Value = Scope> {
    let known = Scope::ALL.map(|scope| {
        PossibleValue::new(scope.as_str()).help(match scope {
            Scope::Enqueue => "Enqueue jobs",
            Scope::EnqueueCritical => "Enqueue critical jobs",
            Scope::Work => "Lease jobs and report results",
            Scope::Read => "Read everything",
            Scope::Admin => "Configure and operate",
        })
    });
    PossibleValuesParser::new(known).try_map(|word| word.parse::<Scope>())
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
            let new = NewTokenBody { name: args.name, scopes: args.scopes.into_iter().collect() };
            let answer = client.post(&["tokens"]).json(&new).send().await?;
            if ctx.json() {
                ctx.print_body(&answer.body)?;
            } else {
                let token: TokenView = answer.read()?;
                ctx.print(token.token.unwrap_or_default())?;
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

fn render(look: output::OutputStyle, tokens: &[TokenView], now: Timestamp) -> String {
    let rows = tokens.iter().map(|token| {
        [
            token.id.clone(),
            token.name.clone(),
            token.scopes.to_string(),
            output::when(token.created_at, now),
        ]
    });
    output::table(look, ["id", "name", "scopes", "created"], rows)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::testing::FakeServer;

    fn token() -> Value {
        json!({"id": "t1", "name": "ci", "scopes": ["enqueue:critical", "read"],
            "created_at": "2001-09-09T01:44:40Z"})
    }

    #[test]
    fn tokens_are_listed_with_their_scopes() {
        let tokens = [serde_json::from_value(token()).unwrap()];
        let now = Timestamp::from_millis(1_000_000_000_000);
        insta::assert_snapshot!(render(output::OutputStyle::default(), &tokens, now));
    }

    #[tokio::test]
    async fn a_token_is_created_listed_and_revoked() {
        let server = FakeServer::answering(|seen| match seen.method.as_str() {
            "POST" => {
                let mut created = token();
                created["token"] = json!("tg_s3cret");
                (201, created)
            }
            "GET" => (200, json!({"tokens": [token()]})),
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
        let (code, listed) = server.run(&["token", "list"]).await;
        assert!(code == ExitCode::Ok && listed.contains("enqueue:critical read"), "{listed}");
        assert_eq!(server.run(&["token", "revoke", "t1"]).await.0, ExitCode::Ok);
        assert_eq!(server.seen()[2].line(), "DELETE /v1/tokens/t1");
    }
}
