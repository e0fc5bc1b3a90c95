//! `tidegate plugin list` and `get`: plugins with their users and the statistics of their calls.

use super::{Named, faults::word, local, user};
use crate::cli::{
    Context, ExitCode,
    output::{self, OutputStyle},
    pages,
    safe::line,
};
use tidegate_api::{PluginHealth, PluginView};
use tidegate_core::time::Timestamp;

/// Lists the plugins.
///
/// # Errors
///
/// The server is unreachable or rejects the request.
pub async fn list(ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let page = pages::collect(|client| client.get(&["plugins"]), &client, usize::MAX).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
    } else {
        ctx.print_tables(render(ctx.look, &page.read(&client)?, ctx.now()))?;
    }
    Ok(ExitCode::Ok)
}

/// Shows one plugin.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin.
pub async fn get(named: &Named, ctx: &Context) -> anyhow::Result<ExitCode> {
    let answer = ctx.client()?.get(&["plugins", &named.name]).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
        return Ok(ExitCode::Ok);
    }
    let plugin: PluginView = answer.read()?;
    ctx.print_tables(render(ctx.look, std::slice::from_ref(&plugin), ctx.now()))?;
    for (role, description) in [("throttler", &plugin.throttler), ("retry strategy", &plugin.retry)]
    {
        if let Some(description) = description {
            ctx.print(format_args!("\n{role}: {}", description.about))?;
        }
    }
    if let Some(usage) = &plugin.health.last_usage {
        ctx.print(format_args!("latest call: {}", local::used(usage)))?;
    }
    if let (Some(number), Some(PluginHealth { calls, faults, last_fault, .. })) =
        (plugin.shadow, &plugin.shadow_health)
    {
        let last = last_fault
            .as_ref()
            .map(|fault| format!("; the latest: {}: {}", fault.kind, line(&fault.message)))
            .unwrap_or_default();
        ctx.print(format_args!("shadow version {number}: {calls} calls, {faults} faults{last}"))?;
    }
    if let Some(recording) = plugin.recording.as_ref().filter(|of| ctx.now() <= of.until) {
        let filter = serde_json::to_string(&recording.filter)?;
        let until = recording.until;
        ctx.print(format_args!("calls that match {} are stored until {until}", line(&filter)))?;
    }
    if let Some(fault) = &plugin.health.last_fault {
        let when = output::when(fault.at, ctx.now());
        ctx.print(format_args!(
            "latest fault, {when}, version {}: {}: {}",
            fault.version,
            fault.kind,
            line(&fault.message)
        ))?;
        ctx.print(format_args!("  see them with `tidegate plugin faults {}`", plugin.name))?;
    }
    Ok(ExitCode::Ok)
}

fn render(look: OutputStyle, plugins: &[PluginView], now: Timestamp) -> String {
    let rows = plugins.iter().map(|plugin| {
        let PluginHealth { calls, faults, last_fault, .. } = &plugin.health;
        [
            plugin.name.to_string(),
            plugin.roles.iter().map(|role| word(*role)).collect::<Vec<_>>().join(", "),
            plugin.live.to_string(),
            plugin.shadow.map_or_else(output::dash, |number| number.to_string()),
            calls.to_string(),
            faults.to_string(),
            last_fault.as_ref().map_or_else(output::dash, |fault| {
                format!("{} {}", fault.kind, output::when(fault.at, now))
            }),
            plugin.used_by.iter().map(user).collect::<Vec<_>>().join(", "),
        ]
    });
    output::table(
        look,
        ["name", "roles", "live", "shadow", "calls", "faults", "last fault", "used by"],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::cli::{
        ExitCode,
        testing::{FakeServer, sample},
    };

    fn plugin() -> Value {
        let fault = sample::plugin_fault(json!({
            "version": 3, "kind": "timeout", "message": "it used up its fuel",
        }));
        let usage = json!({
            "fuel": 12345, "memory_bytes": 1_114_112, "took_seconds": 0.000_21, "host_calls": 3,
        });
        let description = json!({
            "about": "Shares a limit by region.", "config_schema": null, "state_version": 0,
            "group_by": [], "needs_running_jobs": false, "needs_data": false, "needs_ended": false,
            "needs_earlier": false,
        });
        sample::plugin(json!({
            "live": 3, "shadow": 4, "version": 9, "throttler": description,
            "used_by": [{"kind": "queue", "name": "mail"}, {"kind": "job_type", "name": "hook"}],
            "recording": {"filter": {"queue": "mail"}, "until": "2999-01-01T00:00:00Z"},
            "health": {"calls": 12000, "faults": 2, "last_fault": fault, "last_usage": usage},
            "shadow_health": sample::plugin_health(json!({
                "calls": 7, "faults": 1, "last_fault": sample::plugin_fault(json!({})),
            })),
        }))
    }

    #[tokio::test]
    async fn plugins_are_listed_with_their_users_and_faults() {
        let server = FakeServer::answering(|_| (200, json!({"plugins": [plugin()]}))).await;
        let (code, out) = server.run(&["plugin", "list"]).await;
        assert_eq!(code, ExitCode::Ok);
        for part in ["share", "throttler", "12000", "timeout", "queue mail, job type hook"] {
            assert!(out.contains(part), "{part} in {out}");
        }
    }

    #[tokio::test]
    async fn a_plugin_is_shown_with_its_description_and_faults() {
        let server = FakeServer::answering(|_| (200, plugin())).await;
        let (_, out) = server.run(&["plugin", "get", "share"]).await;
        assert_eq!(server.seen()[0].line(), "GET /v1/plugins/share");
        for part in [
            "throttler: Shares a limit by region.",
            "12345 fuel",
            "version 3: timeout: it used up its fuel",
            "plugin faults share",
            "shadow version 4: 7 calls, 1 faults; the latest: trapped",
            r#"calls that match {"queue":"mail"} are stored until 2999-01-01"#,
        ] {
            assert!(out.contains(part), "{part} in {out}");
        }
    }
}
