//! `tidegate plugin push`: a component becomes a plugin's next version.
//!
//! Nothing is checked here that the server checks: it compiles the component in its own trusted place, and what it
//! refuses it says with every reason.

use std::{path::PathBuf, time::Duration};

use super::{Named, component};
use crate::cli::{Context, ExitCode};
use tidegate_api::PluginView;

/// The longest that a server takes to compile a component.
const COMPILING: Duration = Duration::from_mins(2);

/// The options of `tidegate plugin push`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The same bytes again change nothing. A plugin's first version is always live.\n\nExamples:\n  \
    tidegate plugin push region-share region-share.wasm             decides from the next round on\n  \
    tidegate plugin push region-share region-share.wasm --shadow    is asked too, and decides nothing"
)]
pub struct Args {
    #[command(flatten)]
    name: Named,
    /// The component.
    file: PathBuf,
    /// Ask it beside the live version, to see where it differs, and let it decide nothing.
    #[arg(long)]
    shadow: bool,
}

/// Sends the component.
///
/// # Errors
///
/// The file cannot be read; the server is unreachable or refuses.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let bytes = component(&args.file).await?;
    let client = ctx.client()?;
    let name = &args.name.name;
    let mut request =
        client.put(&["plugins", name]).body("application/wasm", bytes).wait(COMPILING);
    if args.shadow {
        request = request.query("shadow", "true");
    }
    let answer = request.send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print(said(&answer.read()?, answer.status == 201))?;
    }
    Ok(ExitCode::Ok)
}

/// What became of the component.
fn said(plugin: &PluginView, new: bool) -> String {
    let PluginView { name, live, pushed, .. } = plugin;
    let number = pushed.unwrap_or(*live);
    let make_live = format!("`tidegate plugin rollback {name} --to {number}` makes it live");
    let place = if number == *live {
        "is live".to_owned()
    } else if plugin.shadow == Some(number) {
        format!("runs in the shadow of version {live}; {make_live}")
    } else {
        format!("is kept, and version {live} is live; {make_live}")
    };
    let before = if new { "" } else { "these bytes are there already: " };
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
    async fn a_push_says_what_became_of_the_version() {
        for (status, answer, wanted) in [
            (201, sample::plugin(json!({"live": 3, "pushed": 3})), "version 3 of share is live\n"),
            (
                201,
                sample::plugin(json!({"live": 2, "shadow": 3, "pushed": 3})),
                "version 3 of share runs in the shadow of version 2; `tidegate plugin rollback share --to 3` makes it live\n",
            ),
            (
                200,
                sample::plugin(json!({"live": 3, "pushed": 3})),
                "these bytes are there already: version 3 of share is live\n",
            ),
        ] {
            let (_, code, out) = push(status, answer, &[]).await;
            assert_eq!((code, out.as_str()), (ExitCode::Ok, wanted));
        }
        let (_, _, kept) = push(200, sample::plugin(json!({"live": 3, "pushed": 1})), &[]).await;
        assert!(kept.contains("rollback share --to 1"), "{kept}");
    }

    #[tokio::test]
    async fn a_shadow_is_asked_for_in_the_query() {
        let (server, ..) =
            push(201, sample::plugin(json!({"shadow": 2, "pushed": 2})), &["--shadow"]).await;
        assert_eq!(server.seen()[0].line(), "PUT /v1/plugins/share?shadow=true");
    }

    #[tokio::test]
    async fn a_refused_push_ends_with_one() {
        let problem = json!({"title": "Invalid plugin", "status": 400, "code": "invalid_plugin", "detail": "it cannot be used",
                             "reasons": ["it imports wasi:cli", "it exports nothing"]});
        let (_, code, out) = push(400, problem, &[]).await;
        assert_eq!((code, out.as_str()), (ExitCode::Refused, ""));
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_wrong_usage() {
        let server = FakeServer::answering(|_| (500, json!(null))).await;
        assert_eq!(
            server.run(&["plugin", "push", "share", "/no/such.wasm"]).await.0,
            ExitCode::Usage
        );
        assert!(server.seen().is_empty());
    }
}
