//! `tidegate token`: creates, lists and revokes access tokens.

use clap::{
    Subcommand,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

use std::path::{Path, PathBuf};

use super::{
    Context, ExitCode, UsageError, args, output, pages,
    token_store::{self, StoreArgs},
};
use tidegate_api::{NewTokenBody, Scope, TokenView};
use tidegate_backends::{
    http::Guard,
    sqlite::{database, forget_database},
};
use tidegate_core::{
    job::{QueueName, TypeName},
    time::{Seconds, Timestamp},
};
use tidegate_server::Server;

/// The commands about tokens.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a token and print its secret, which is never shown again.
    ///
    /// With --data it is created in the data directory of a stopped server: to close a server
    /// before its first start (with --new), or to make a new administrator when every token is
    /// lost. With --store it is created in the database of servers on Postgres, before their first
    /// start or while they run.
    Create(CreateArgs),
    /// List tokens, without their secrets.
    List(ListArgs),
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
    #[arg(long, value_name = "DIR", conflicts_with = "store")]
    data: Option<PathBuf>,
    /// Create the database: the directory has none, because no server has used it yet.
    #[arg(long, requires = "data")]
    new: bool,
    #[command(flatten)]
    store: StoreArgs,
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

/// The options of `tidegate token list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    store: StoreArgs,
}

/// The options of `tidegate token revoke`.
#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// The token's id, as `list` shows it.
    id: String,
    /// Revoke it even if it is the last with scope admin.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    store: StoreArgs,
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
/// The server is unreachable or rejects the request; the named store cannot be used.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(args) => create(args, ctx).await,
        Command::List(args) => list(&args, ctx).await,
        Command::Revoke(args) => revoke(&args, ctx).await,
    }
}

async fn list(args: &ListArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let (json, tokens) = if let Some(engine) = args.store.engine().await? {
        let page = token_store::list(&engine).await?;
        (serde_json::to_string(&page)?, page.tokens)
    } else {
        let client = ctx.client()?;
        let page = pages::collect(|client| client.get(&["tokens"]), &client, usize::MAX).await?;
        (serde_json::to_string(&page)?, page.read(&client)?)
    };
    if ctx.json() {
        ctx.print(json)?;
    } else {
        ctx.print_tables(render(ctx.look, &tokens, ctx.now()))?;
    }
    Ok(ExitCode::Ok)
}

async fn revoke(args: &RevokeArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let revoked = format!("{} is revoked", args.id);
    if let Some(engine) = args.store.engine().await? {
        let code = token_store::revoke(&engine, &args.id, args.force, ctx.now()).await?;
        match code {
            ExitCode::Ok if ctx.json() => {}
            ExitCode::Ok => ctx.print(revoked)?,
            _ => ctx.note(format_args!("there is no token {}", args.id)),
        }
        return Ok(code);
    }
    let client = ctx.client()?;
    let request = client.delete(&["tokens", &args.id]);
    let request = if args.force { request.query("force", "true") } else { request };
    let answer = request.send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print(revoked)?;
    }
    Ok(ExitCode::Ok)
}

async fn create(mut args: CreateArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let (data, is_new, store) = (args.data.take(), args.new, std::mem::take(&mut args.store));
    let new = args.request(ctx.now());
    let token: TokenView = if let Some(data) = data {
        create_in(&data, is_new, new, ctx.now()).await?
    } else if let Some(engine) = store.engine().await? {
        let (item, text) = token_store::new_token(new, ctx.now())?;
        token_store::add(&engine, item, text).await?
    } else {
        ctx.client()?.post(&["tokens"]).json(&new).send().await?.read()?
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

/// Refuses a directory without a database: its path is probably mistyped.
fn expect_database(dir: &Path) -> Result<(), UsageError> {
    if database(dir).exists() {
        return Ok(());
    }
    let problem = "has no database: give the data directory of the server, or --new before its \
                   first start";
    Err(UsageError(format!("{} {problem}", dir.display())))
}

/// Creates a token in the data directory of a stopped server. If `is_new`, the directory has no
/// database yet.
async fn create_in(
    dir: &Path,
    is_new: bool,
    new: NewTokenBody,
    now: Timestamp,
) -> anyhow::Result<TokenView> {
    super::make_files_private();
    let (item, text) = token_store::new_token(new, now)?;
    if is_new {
        token_store::check_first(&item)?;
        forget_database(dir)?;
    } else {
        expect_database(dir)?;
    }
    let engine = Server::open(dir, Guard::On)?.engine();
    token_store::add(&engine, item, text).await
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
    use clap::Parser as _;
    use serde_json::{Value, json};
    use tidegate_backends::postgres::test_server;

    use super::*;
    use crate::cli::{Cli, testing::FakeServer};

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

    #[tokio::test]
    async fn tokens_of_a_database_need_no_server() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        let schema = test_server::new_name();
        let address = format!("{}&schema={schema}", test_server::address("postgres"));
        let in_store = async |args: &[&str]| {
            let args = [&["token"][..], args, &["--store", address.as_str()]].concat();
            server.run(&args).await
        };
        let reader = ["create", "--name", "r", "--scope", "read"];
        assert_eq!(in_store(&reader).await.0, ExitCode::Usage, "the first one must be an admin's");
        let (code, made) = in_store(&["create", "--name", "a", "--scope", "admin"]).await;
        assert!(code == ExitCode::Ok && made.starts_with("tg_"), "{code:?} {made}");
        let admin = made.trim_start_matches("tg_").split('_').next().unwrap();
        assert_eq!(in_store(&reader).await.0, ExitCode::Ok);
        let (code, listed) = in_store(&["list", "--json"]).await;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let tokens = listed["tokens"].as_array().unwrap();
        assert_eq!((code, tokens.len()), (ExitCode::Ok, 2), "{listed}");
        assert!(tokens.iter().any(|token| token["id"] == admin && token["name"] == "a"));
        assert_eq!(in_store(&["revoke", "nothing"]).await.0, ExitCode::NotFound);
        assert_eq!(in_store(&["revoke", admin]).await.0, ExitCode::Refused, "it is the last one");
        assert_eq!(in_store(&["revoke", admin, "--force"]).await.0, ExitCode::Ok);
        let (_, left) = in_store(&["list"]).await;
        assert!(left.contains("read") && !left.contains("admin"), "{left}");
        assert!(server.seen().is_empty());
    }

    #[tokio::test]
    async fn tables_of_an_earlier_release_are_not_changed() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        let (schema, database) = (test_server::new_name(), test_server::address("postgres"));
        let address = format!("{database}&schema={schema}");
        let in_store = async |args: &[&str]| {
            let args = [&["token"][..], args, &["--store", address.as_str()]].concat();
            server.run(&args).await.0
        };
        let create = ["create", "--name", "a", "--scope", "admin"];
        assert_eq!(in_store(&create).await, ExitCode::Ok);
        let config: tokio_postgres::Config = database.parse().unwrap();
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let older = format!("DELETE FROM {schema}.schema_version WHERE n > 1");
        client.batch_execute(&older).await.unwrap();
        for args in [&create[..], &["list"], &["revoke", "nothing"]] {
            let code = in_store(args).await;
            assert!(code != ExitCode::Ok && code != ExitCode::NotFound, "{args:?}: {code:?}");
        }
        let newest = format!("SELECT max(n) FROM {schema}.schema_version");
        let row = client.query_one(&newest, &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 1, "it is as it was");
    }

    #[tokio::test]
    async fn a_store_that_is_no_database_is_wrong_usage() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        for store in [&["--store"][..], &["--store", "/var/lib/tidegate"]] {
            let args = [&["token", "list"][..], store].concat();
            assert_eq!(server.run(&args).await, (ExitCode::Usage, String::new()), "{store:?}");
        }
        let both = ["token", "create", "--name", "a", "--scope", "admin", "--data", "d", "--store"];
        let both = Cli::try_parse_from([&["tidegate"][..], &both].concat());
        assert_eq!(both.unwrap_err().kind(), clap::error::ErrorKind::ArgumentConflict);
    }

    #[tokio::test]
    async fn a_directory_without_a_database_is_refused() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("typo");
        let args = ["token", "create", "--name", "a", "--scope", "admin", "--data"];
        let args = [&args[..], &[data.to_str().unwrap()]].concat();
        assert_eq!(server.run(&args).await, (ExitCode::Usage, String::new()));
        assert!(!data.exists());
        let new = [&args[..], &["--new"]].concat();
        let brief = [&new[..], &["--expires-in", "1h"]].concat();
        assert_eq!(server.run(&brief).await.0, ExitCode::Usage, "no caller could enter after it");
        assert!(!data.exists());
        let (code, made) = server.run(&new).await;
        assert!(code == ExitCode::Ok && made.starts_with("tg_"), "{code:?} {made}");
        assert_ne!(server.run(&new).await.0, ExitCode::Ok, "it has a database");
        let reader = ["token", "create", "--name", "b", "--scope", "read", "--data"];
        let reader = [&reader[..], &[data.to_str().unwrap()]].concat();
        assert_eq!(server.run(&reader).await.0, ExitCode::Ok);
        assert!(server.seen().is_empty());
    }
}
