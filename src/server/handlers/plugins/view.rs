//! The view of a plugin.

use tidegate_api::{FaultView, PluginHealth, PluginView, UsageView, VersionView};

use super::calls;
use crate::runtime::{Server, ShownCall};
use tidegate_backends::wasm::{ENGINE, TARGET, diagnostics::Calls};
use tidegate_core::{job::PluginName, queue::plugin::PluginItem};
use tidegate_engine::Error;

/// `item` with its users and its health.
///
/// # Errors
///
/// The store's.
pub async fn plugin(
    server: &Server,
    name: &PluginName,
    item: &PluginItem,
) -> Result<PluginView, Error> {
    let (live, seen) = (item.numbered(item.live), server.plugin_seen(name));
    let shadow = item.shadow.map(|number| {
        if seen.shadow.version == number { seen.shadow.clone() } else { Calls::default() }
    });
    let catalog = server.engine().known_catalog().await?;
    let last_fault = |calls: &Calls| {
        let failed = calls.failed.back()?;
        calls::fault(ShownCall::of_fault(failed, &catalog))
    };
    Ok(PluginView {
        name: name.clone(),
        roles: live.map(|version| VersionView::roles(version)).unwrap_or_default(),
        live: item.live,
        runnable: live.is_some_and(|version| {
            version.compiled.iter().any(|code| code.target == TARGET && code.engine == ENGINE)
        }),
        shadow: item.shadow,
        pushed: None,
        throttler: live.and_then(|version| version.throttler.clone()),
        retry: live.and_then(|version| version.retry.clone()),
        used_by: server.plugin_users(name).await?,
        health: health(&seen.live, last_fault(&seen.live)),
        shadow_health: shadow.map(|calls| health(&calls, last_fault(&calls))),
        recording: item.recording.clone(),
        version: item.version,
    })
}

fn health(seen: &Calls, last_fault: Option<FaultView>) -> PluginHealth {
    let by_kind = seen.faults.iter().map(|(kind, count)| ((*kind).into(), *count));
    PluginHealth {
        calls: seen.calls,
        faults: seen.faults.values().sum(),
        failing: seen.failing,
        faults_by_kind: by_kind.collect(),
        last_fault,
        last_usage: seen.last.as_ref().map(UsageView::from),
    }
}
