//! `tidegate plugin versions`, `promote`, `rollback`, `shadow`, `prune` and `delete`: the live
//! version, its shadow, and those that nothing needs.

use std::str::FromStr;

use serde_json::{Value, json};
use tidegate_api::{PluginView, PrunedView, VersionView};

use super::{Named, faults::word};
use crate::cli::{
    Context, ExitCode, UsageError,
    output::{self, OutputStyle},
    pages,
};
use tidegate_core::time::Timestamp;

/// The options of `tidegate plugin rollback`.
#[derive(Debug, clap::Args)]
pub struct RollbackArgs {
    #[command(flatten)]
    name: Named,
    /// The version to make live [default: the previously live one].
    #[arg(long, value_name = "VERSION")]
    to: Option<u32>,
}

/// The options of `tidegate plugin promote`.
#[derive(Debug, clap::Args)]
pub struct PromoteArgs {
    #[command(flatten)]
    name: Named,
    /// The version to make live [default: the shadow version].
    #[arg(long, value_name = "VERSION")]
    to: Option<u32>,
}

/// The options of `tidegate plugin shadow`.
#[derive(Debug, clap::Args)]
pub struct ShadowArgs {
    #[command(flatten)]
    name: Named,
    /// The version to call for comparison with the live one, or `off`.
    #[arg(value_name = "VERSION|off")]
    version: Shadow,
}

/// The options of `tidegate plugin prune`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The live version, the shadow version and the one that `rollback` would return to \
    are kept, too. A removed version can be pushed again, under a new number.\n\n\
    Example:\n  \
    tidegate plugin prune region-share --keep 3 --dry-run"
)]
pub struct PruneArgs {
    #[command(flatten)]
    name: Named,
    /// The latest versions to keep, 1 to 50.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    keep: u32,
    /// Show what would be removed, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// The choice of a shadow version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shadow {
    /// No version.
    Off,
    /// The version with this number.
    Version(u32),
}

impl FromStr for Shadow {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            number => number
                .parse()
                .map(Self::Version)
                .map_err(|_| "a version's number, or `off`, is expected"),
        }
    }
}

/// Lists a plugin's versions.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin.
pub async fn list(named: &Named, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let page = pages::collect(
        |client| client.get(&["plugins", &named.name, "versions"]),
        &client,
        usize::MAX,
    )
    .await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
    } else {
        ctx.print_tables(render(ctx.look, &page.read(&client)?, ctx.now()))?;
    }
    Ok(ExitCode::Ok)
}

fn render(look: OutputStyle, versions: &[VersionView], now: Timestamp) -> String {
    let rows = versions.iter().map(|version| {
        let place = match (version.live, version.shadow) {
            (true, _) => "live".to_owned(),
            (_, true) => "shadow".to_owned(),
            _ => output::dash(),
        };
        [
            version.number.to_string(),
            place,
            output::when(version.pushed_at, now),
            version.roles.iter().map(|role| word(*role)).collect::<Vec<_>>().join(", "),
            version.bytes.to_string(),
            version.sha256.chars().take(12).collect(),
        ]
    });
    output::table(look, ["version", "is", "pushed", "roles", "bytes", "sha256"], rows)
}

/// Makes the shadow version, or another one, live.
///
/// # Errors
///
/// As of [`rollback`]; and [`UsageError`] if no version is named and the plugin has no shadow.
pub async fn promote(args: PromoteArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let name = &args.name.name;
    let version = if let Some(version) = args.to {
        version
    } else {
        let answer = ctx.client()?.get(&["plugins", name]).send().await?;
        let plugin: PluginView = answer.read()?;
        plugin.shadow.ok_or_else(|| {
            let lists = format!("`tidegate plugin versions {name}` lists the others");
            UsageError(format!("{name} has no shadow version: name one with --to; {lists}"))
        })?
    };
    make_live(name, &json!({"version": version}), ctx).await
}

/// Makes the previously live version, or another one, live.
///
/// # Errors
///
/// The server is unreachable or does not know the version, or a queue or job type that uses the
/// plugin does not work with it.
pub async fn rollback(args: RollbackArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let body = args.to.map_or_else(|| json!({}), |version| json!({"version": version}));
    make_live(&args.name.name, &body, ctx).await
}

/// Makes the version in `body` live.
async fn make_live(name: &str, body: &Value, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let answer = client.post(&["plugins", name, "rollback"]).json(body).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        let plugin: PluginView = answer.read()?;
        ctx.print(format_args!(
            "version {} of {} is live from the next tick on",
            plugin.live, plugin.name
        ))?;
    }
    Ok(ExitCode::Ok)
}

/// Makes a version the shadow, or removes the shadow.
///
/// # Errors
///
/// The server is unreachable or does not know the version.
pub async fn shadow(args: ShadowArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let path = ["plugins", args.name.name.as_str(), "shadow"];
    let request = match args.version {
        Shadow::Off => client.delete(&path),
        Shadow::Version(number) => client.put(&path).json(&json!({ "version": number })),
    };
    let answer = request.send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        let plugin: PluginView = answer.read()?;
        let PluginView { name, live, shadow, .. } = &plugin;
        match shadow {
            Some(number) => ctx.print(format_args!(
                "version {number} of {name} is the shadow of version {live}"
            ))?,
            None => ctx.print(format_args!("version {live} of {name} has no shadow"))?,
        }
    }
    Ok(ExitCode::Ok)
}

/// Removes old versions.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin.
pub async fn prune(args: PruneArgs, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let name = args.name.name.as_str();
    let mut request = client.post(&["plugins", name, "prune"]).json(&json!({"keep": args.keep}));
    if args.dry_run {
        request = request.query("dry_run", "true");
    }
    let answer = request.send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
        return Ok(ExitCode::Ok);
    }
    let PrunedView { removed, kept } = answer.read()?;
    let verb = if args.dry_run { "would be removed" } else { "removed" };
    let removed = if removed.is_empty() { "none".to_owned() } else { listed(&removed) };
    ctx.print(format_args!("versions {verb}: {removed}; kept: {}", listed(&kept)))?;
    Ok(ExitCode::Ok)
}

/// Numbers in a line.
fn listed(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Deletes a plugin.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin, or a queue or job type uses it.
pub async fn delete(named: &Named, ctx: &Context) -> anyhow::Result<ExitCode> {
    let answer = ctx.client()?.delete(&["plugins", &named.name]).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print(format_args!("{} is deleted", named.name))?;
    }
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::{
        ExitCode,
        testing::{FakeServer, SeenRequest, sample},
    };

    #[tokio::test]
    async fn versions_show_the_live_one_and_its_shadow() {
        let version = |number: u32, live: bool, shadow: bool| {
            json!({
                "number": number, "live": live, "shadow": shadow, "compiled": [], "bytes": 70_000,
                "pushed_at": "2026-01-01T00:00:00Z", "sha256": "a".repeat(64),
                "roles": ["throttler", "retry"],
            })
        };
        let versions = [version(1, false, false), version(2, true, false), version(3, false, true)];
        let server = FakeServer::answering(move |_| (200, json!({ "versions": versions }))).await;
        let (code, out) = server.run(&["plugin", "versions", "share"]).await;
        assert_eq!(code, ExitCode::Ok);
        let places: Vec<&str> =
            out.lines().skip(1).map(|line| line.split_whitespace().nth(1).unwrap()).collect();
        assert_eq!(places, ["-", "live", "shadow"], "{out}");
    }

    #[tokio::test]
    async fn a_version_is_changed_by_its_route() {
        let server = FakeServer::answering(|_| (200, sample::plugin(json!({"live": 2})))).await;
        for (args, line, body) in [
            (&["rollback", "share"][..], "POST /v1/plugins/share/rollback", json!({})),
            (
                &["rollback", "share", "--to", "2"],
                "POST /v1/plugins/share/rollback",
                json!({"version": 2}),
            ),
            (
                &["promote", "share", "--to", "3"],
                "POST /v1/plugins/share/rollback",
                json!({"version": 3}),
            ),
            (&["shadow", "share", "3"], "PUT /v1/plugins/share/shadow", json!({"version": 3})),
            (&["shadow", "share", "off"], "DELETE /v1/plugins/share/shadow", json!(null)),
            (&["delete", "share"], "DELETE /v1/plugins/share", json!(null)),
        ] {
            assert_eq!(server.run(&[&["plugin"], args].concat()).await.0, ExitCode::Ok);
            let seen = server.seen();
            let last = seen.last().unwrap();
            assert_eq!((last.line().as_str(), &last.body), (line, &body));
        }
    }

    #[tokio::test]
    async fn the_shadow_is_promoted_if_no_version_is_named() {
        let shadowed = sample::plugin(json!({"live": 2, "shadow": 4}));
        let server = FakeServer::answering(move |_| (200, shadowed.clone())).await;
        assert_eq!(server.run(&["plugin", "promote", "share"]).await.0, ExitCode::Ok);
        let lines: Vec<String> = server.seen().iter().map(SeenRequest::line).collect();
        assert_eq!(lines, ["GET /v1/plugins/share", "POST /v1/plugins/share/rollback"]);
        assert_eq!(server.seen()[1].body, json!({"version": 4}));

        let server = FakeServer::answering(|_| (200, sample::plugin(json!({"live": 2})))).await;
        assert_eq!(server.run(&["plugin", "promote", "share"]).await.0, ExitCode::Usage);
        assert_eq!(server.seen().len(), 1, "nothing is changed");
    }

    #[tokio::test]
    async fn a_prune_shows_what_it_removed() {
        let server = FakeServer::answering(|seen| {
            let is_small = seen.path.contains("small");
            let removed = if is_small { json!([]) } else { json!([1, 2]) };
            (200, json!({"removed": removed, "kept": [3, 4]}))
        })
        .await;
        let (code, out) = server.run(&["plugin", "prune", "share", "--keep", "2"]).await;
        assert_eq!((code, out.as_str()), (ExitCode::Ok, "versions removed: 1, 2; kept: 3, 4\n"));
        let (_, out) = server.run(&["plugin", "prune", "small", "--dry-run"]).await;
        assert_eq!(out, "versions would be removed: none; kept: 3, 4\n");
        let seen = server.seen();
        assert_eq!(
            (seen[0].line().as_str(), &seen[0].body),
            ("POST /v1/plugins/share/prune", &json!({"keep": 2}))
        );
        assert_eq!(seen[1].path, "/v1/plugins/small/prune?dry_run=true");
        assert_eq!(seen[1].body, json!({"keep": 5}));
    }

    #[test]
    fn a_shadow_is_a_number_or_off() {
        use super::Shadow;
        assert_eq!("off".parse(), Ok(Shadow::Off));
        assert_eq!("7".parse(), Ok(Shadow::Version(7)));
        assert!("none".parse::<Shadow>().is_err() && "-1".parse::<Shadow>().is_err());
    }
}
