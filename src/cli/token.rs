//! `tidegate token`: creates, lists and revokes access tokens.

use clap::{
    Subcommand,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

use std::path::{Path, PathBuf};

use super::{Context, ExitCode, UsageError, args, output, pages};
use tidegate_api::{NewTokenBody, Scope, TokenView};
use tidegate_backends::{http::Guard, system::SystemEntropy};
use tidegate_core::{
    job::{QueueName, TypeName},
    time::{Seconds, Timestamp},
};
use tidegate_server::{
    Server,
    auth::{TokenItem, stored},
};

/// The commands about tokens.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a token and print its secret, which is never shown again.
    ///
    /// With --data it is created in the data directory of a stopped server: to close a server
    /// before its first start, or to make a new administrator when every token is lost.
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
    /// Only jobs in this queue; repeatable.
    #[arg(long = "queue", value_name = "QUEUE", num_args = 1..)]
    queues: Vec<QueueName>,
    /// Only jobs of this type; repeatable.
    #[arg(long = "type", value_name = "TYPE", num_args = 1..)]
    types: Vec<TypeName>,
    /// How long it is accepted [default: until it is revoked].
    #[arg(long, value_name = "SPAN", value_parser = args::span)]
    expires_in: Option<Seconds>,
    /// The data directory of a stopped server, instead of the server at --url.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl CreateArgs {
    /// The request for the token, at `now`.
    fn request(self, now: Timestamp) -> NewTokenBody {
        NewTokenBody {
            name: self.name,
            scopes: self.scopes.into_iter().collect(),
            expires_at: self.expires_in.map(|span| now + span.duration()),
            queues: (!self.queues.is_empty()).then_some(self.queues),
            types: (!self.types.is_empty()).then_some(self.types),
        }
    }
}

/// The options of `tidegate token revoke`.
#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// The token's id, as `list` shows it.
    id: String,
    /// Revoke it even if it is the last with scope admin.
    #[arg(long)]
    force: bool,
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
    if let Command::Create(args) = command {
        return create(args, ctx).await;
    }
    let client = ctx.client()?;
    match command {
        Command::Create(_) => {}
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
            let request = client.delete(&["tokens", &args.id]);
            let request = if args.force { request.query("force", "true") } else { request };
            let answer = request.send().await?;
            if ctx.json() {
                ctx.print_body(&answer.body)?;
            } else {
                ctx.print(format_args!("{} is revoked", args.id))?;
            }
        }
    }
    Ok(ExitCode::Ok)
}

async fn create(args: CreateArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let data = args.data.clone();
    let new = args.request(ctx.now());
    let token: TokenView = match data {
        Some(data) => create_in(&data, new, ctx.now()).await?,
        None => ctx.client()?.post(&["tokens"]).json(&new).send().await?.read()?,
    };
    if ctx.json() {
        ctx.print(serde_json::to_string(&token)?)?;
    } else {
        ctx.print(token.token.unwrap_or_default())?;
        ctx.note(format_args!(
            "this is the only time {} ({}) is shown; keep it in TIDEGATE_TOKEN",
            token.name, token.id
        ));
    }
    Ok(ExitCode::Ok)
}

/// Creates a token in the data directory of a stopped server.
async fn create_in(dir: &Path, new: NewTokenBody, now: Timestamp) -> anyhow::Result<TokenView> {
    super::make_files_private();
    let engine = Server::open(dir, Guard::On)?.engine();
    let (item, text) = TokenItem::create(new, now, &SystemEntropy)
        .map_err(|invalid| UsageError(invalid.to_string()))?;
    let has_admin = |token: &TokenItem| token.scopes.allow(Scope::Admin);
    if !has_admin(&item) && !stored::all(&engine).await?.iter().any(has_admin) {
        let problem = "the first token must have scope admin: from then on every caller needs one";
        return Err(UsageError(problem.into()).into());
    }
    let catalog = engine.catalog().await?;
    engine.record_schema(catalog).await?;
    stored::put(&engine, &item).await?;
    Ok(item.view(None, Some(text)))
}

fn render(look: output::OutputStyle, tokens: &[TokenView], now: Timestamp) -> String {
    let rows = tokens.iter().map(|token| {
        [
            token.id.clone(),
            token.name.clone(),
            token.scopes.to_string(),
            bounds(token),
            output::when(token.created_at, now),
            token.expires_at.map_or_else(|| "never".into(), |at| output::when(at, now)),
            token.last_used_at.map_or_else(|| "never".into(), |at| output::when(at, now)),
        ]
    });
    let titles = ["id", "name", "scopes", "only", "created", "expires", "used"];
    output::table(look, titles, rows)
}

/// The queues and types of a token, `*` for all.
fn bounds(token: &TokenView) -> String {
    let queues = token.queues.iter().flatten().map(|name| format!("queue {name}"));
    let types = token.types.iter().flatten().map(|name| format!("type {name}"));
    let names: Vec<String> = queues.chain(types).collect();
    if names.is_empty() { "*".into() } else { names.join(", ") }
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

    fn bounded() -> Value {
        json!({"id": "t2", "name": "mail", "scopes": ["work"], "queues": ["mail", "bulk"],
            "types": ["letter"], "created_at": "2001-09-09T01:44:40Z",
            "expires_at": "2001-09-09T02:46:40Z", "last_used_at": "2001-09-09T01:45:40Z"})
    }

    #[test]
    fn tokens_are_listed_with_their_scopes() {
        let tokens = [token(), bounded()].map(|token| serde_json::from_value(token).unwrap());
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
        assert_eq!(server.run(&["token", "revoke", "t1", "--force"]).await.0, ExitCode::Ok);
        assert_eq!(server.seen()[3].line(), "DELETE /v1/tokens/t1?force=true");
        let bounded = [
            "token", "create", "--name", "m", "--scope", "work", "--queue", "mail", "--type", "a",
            "--type", "b",
        ];
        assert_eq!(server.run(&bounded).await.0, ExitCode::Ok);
        assert_eq!(
            server.seen()[4].body,
            json!({"name": "m", "scopes": ["work"], "queues": ["mail"], "types": ["a", "b"]})
        );
    }
}
