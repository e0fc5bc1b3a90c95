//! `tidegate plugin differences`: decisions of the shadow version that differ from the live
//! version's.

use tidegate_api::{ShadowDecision, ShadowView};

use super::Named;
use crate::cli::{Context, ExitCode, output};

/// Shows the differences.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin.
pub async fn run(named: &Named, ctx: &Context) -> anyhow::Result<ExitCode> {
    let answer = ctx.client()?.get(&["plugins", &named.name, "differences"]).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
        return Ok(ExitCode::Ok);
    }
    let found: ShadowView = answer.read()?;
    let Some(version) = found.version else {
        ctx.print(format_args!(
            "{} has no shadow version; `tidegate plugin push --shadow` adds one",
            named.name
        ))?;
        return Ok(ExitCode::Ok);
    };
    ctx.print(summary(version, &found))?;
    if !found.differences.is_empty() {
        let now = ctx.now();
        let rows = found.differences.iter().map(|one| {
            [
                output::when(one.at, now),
                one.queue.to_string(),
                one.job.to_string(),
                line(&one.live),
                line(&one.shadow),
            ]
        });
        ctx.print_tables(format_args!(
            "\n{}",
            output::table(ctx.look, ["when", "queue", "job", "live", "shadow"], rows)
        ))?;
    }
    Ok(ExitCode::Ok)
}

/// Returns what was compared of the shadow version `version`, in a sentence.
pub(super) fn summary(version: u32, found: &ShadowView) -> String {
    let ShadowView { compared, different, failed, missed, .. } = found;
    format!(
        "version {version} and the live one: {compared} decisions compared, {different} different; \
         {failed} calls failed, {missed} were not compared"
    )
}

/// Returns a decision in words.
pub(super) fn line(decision: &ShadowDecision) -> String {
    let until = decision.until.map(|at| format!(" until {at}")).unwrap_or_default();
    let reason = decision.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{}{until}{reason}", decision.action)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::{ExitCode, testing::FakeServer};

    #[tokio::test]
    async fn differences_show_both_sides() {
        let difference = json!({
            "queue": "mail", "job": "01j", "at": "2026-01-01T00:00:00Z",
            "live": {"action": "run"}, "shadow": {"action": "hold", "reason": "east is full"},
        });
        let answer = json!({
            "version": 4, "compared": 120, "different": 1, "failed": 0, "missed": 2,
            "differences": [difference],
        });
        let server = FakeServer::answering(move |_| (200, answer.clone())).await;
        let (code, out) = server.run(&["plugin", "differences", "share"]).await;
        assert_eq!(
            (code, server.seen()[0].line().as_str()),
            (ExitCode::Ok, "GET /v1/plugins/share/differences")
        );
        for part in [
            "version 4 and the live one: 120 decisions compared, 1 different",
            "mail",
            "run",
            "hold (east is full)",
        ] {
            assert!(out.contains(part), "{part} in {out}");
        }
    }

    #[tokio::test]
    async fn without_a_shadow_the_output_says_how_to_get_one() {
        let server = FakeServer::answering(|_| {
            let none = json!({
                "version": null, "compared": 0, "different": 0, "failed": 0, "missed": 0,
                "differences": [],
            });
            (200, none)
        })
        .await;
        let (_, out) = server.run(&["plugin", "differences", "share"]).await;
        assert!(out.starts_with("share has no shadow version"), "{out}");
    }
}
