//! `tidegate plugin push`: makes a component the next version of a plugin.
//!
//! The server makes every check: it compiles the component itself, and a rejection lists every
//! reason.

use std::{path::PathBuf, time::Duration};

use super::{Named, component};
use crate::cli::{Context, ExitCode};
use tidegate_api::PluginView;

/// The longest time that a server takes to compile a component.
const MAX_COMPILE_TIME: Duration = Duration::from_mins(2);

/// The options of `tidegate plugin push`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A push of the same bytes changes nothing. The first version of a plugin is \
    always live.\n\n\
    Examples:\n  \
    tidegate plugin push region-share region-share.wasm             \
    is live from the next tick on\n  \
    tidegate plugin push region-share region-share.wasm --shadow    \
    is called for comparison, and decides nothing"
)]
pub struct Args {
    #[command(flatten)]
    name: Named,
    /// The component.
    file: PathBuf,
    /// Call it for comparison with the live version. It decides nothing.
    #[arg(long)]
    shadow: bool,
}

impl Args {
    /// A component as the shadow version of a plugin.
    pub(super) fn shadow(name: String, file: PathBuf) -> Self {
        Self { name: Named { name }, file, shadow: true }
    }
}

/// Sends the component.
///
/// # Errors
///
/// The file cannot be read, or the server is unreachable or rejects the component.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    send(args, ctx).await?;
    Ok(ExitCode::Ok)
}

/// Sends the component and prints the outcome. Returns the plugin, and whether the version is new.
///
/// # Errors
///
/// As of [`run`].
pub(super) async fn send(args: Args, ctx: &Context) -> anyhow::Result<(PluginView, bool)> {
    let bytes = component(&args.file).await?;
    let client = ctx.client()?;
    let name = &args.name.name;
    let mut request =
        client.put(&["plugins", name]).body("application/wasm", bytes).wait(MAX_COMPILE_TIME);
    if args.shadow {
        request = request.query("shadow", "true");
    }
    let answer = request.send().await?;
    let (plugin, is_new) = (answer.read()?, answer.status == 201);
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print(outcome(&plugin, is_new))?;
    }
    Ok((plugin, is_new))
}

/// Returns the outcome of the push in a sentence.
fn outcome(plugin: &PluginView, new: bool) -> String {
    let PluginView { name, live, pushed, .. } = plugin;
    let number = pushed.unwrap_or(*live);
    let make_live = format!("`tidegate plugin promote {name} --to {number}` makes it live");
    let place = if number == *live {
        "is live".to_owned()
    } else if plugin.shadow == Some(number) {
        format!("is the shadow of version {live}; {make_live}")
    } else {
        format!("is stored, and version {live} is live; {make_live}")
    };
    let before = if new { "" } else { "the server has these bytes already: " };
    format!("{before}version {number} of {name} {place}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::{
        ExitCode,
        testing::{FakeServer, sample},
    };

    async fn push(
        status: u16,
        answer: serde_json::Value,
        more: &[&str],
    ) -> (FakeServer, ExitCode, String) {
        let server = FakeServer::answering(move |_| (status, answer.clone())).await;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"\0asm").unwrap();
        let (code, out) = server
            .run(&[&["plugin", "push", "share", file.path().to_str().unwrap()], more].concat())
            .await;
        (server, code, out)
    }

    #[tokio::test]
    async fn a_push_prints_the_place_of_the_version() {
        for (status, answer, wanted) in [
            (201, sample::plugin(json!({"live": 3, "pushed": 3})), "version 3 of share is live\n"),
            (
                201,
                sample::plugin(json!({"live": 2, "shadow": 3, "pushed": 3})),
                "version 3 of share is the shadow of version 2; \
                 `tidegate plugin promote share --to 3` makes it live\n",
            ),
            (
                200,
                sample::plugin(json!({"live": 3, "pushed": 3})),
                "the server has these bytes already: version 3 of share is live\n",
            ),
        ] {
            let (_, code, out) = push(status, answer, &[]).await;
            assert_eq!((code, out.as_str()), (ExitCode::Ok, wanted));
        }
        let (_, _, kept) = push(200, sample::plugin(json!({"live": 3, "pushed": 1})), &[]).await;
        assert!(kept.contains("promote share --to 1"), "{kept}");
    }

    #[tokio::test]
    async fn the_query_requests_a_shadow() {
        let (server, ..) =
            push(201, sample::plugin(json!({"shadow": 2, "pushed": 2})), &["--shadow"]).await;
        assert_eq!(server.seen()[0].line(), "PUT /v1/plugins/share?shadow=true");
    }

    #[tokio::test]
    async fn a_rejected_push_ends_with_exit_code_1() {
        let problem = json!({
            "title": "Invalid plugin", "status": 400, "code": "invalid_plugin",
            "detail": "it cannot be used",
            "reasons": ["it imports wasi:cli", "it exports nothing"],
        });
        let (_, code, out) = push(400, problem, &[]).await;
        assert_eq!((code, out.as_str()), (ExitCode::Refused, ""));
    }

    #[tokio::test]
    async fn a_component_that_is_too_large_is_not_sent() {
        let server = FakeServer::answering(|_| (500, json!(null))).await;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((32 << 20) + 1).unwrap();
        let path = file.path().to_str().unwrap();
        let error = super::component(file.path()).await.unwrap_err().to_string();
        assert!(error.ends_with("has 33554433 bytes; a plugin has at most 33554432 (32 MiB)"));
        assert_eq!(server.run(&["plugin", "push", "share", path]).await.0, ExitCode::Usage);
        assert!(server.seen().is_empty());
    }

    #[tokio::test]
    async fn a_missing_file_is_wrong_usage() {
        let server = FakeServer::answering(|_| (500, json!(null))).await;
        assert_eq!(
            server.run(&["plugin", "push", "share", "/no/such.wasm"]).await.0,
            ExitCode::Usage
        );
        assert!(server.seen().is_empty());
    }
}
