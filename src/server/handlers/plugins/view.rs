//! The view of a plugin.

use tidegate_api::{PluginHealth, PluginView, VersionView};

use crate::runtime::{PluginSeen, Server};
use tidegate_backends::wasm::{ENGINE, TARGET};
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
    let live = item.numbered(item.live);
    let PluginSeen { live: live_calls, shadow: of_shadow, .. } = server.plugin_seen(name).await?;
    let shadow_health = item.shadow.map(|number| {
        let is_called = of_shadow.version == number;
        if is_called { of_shadow.health } else { PluginHealth::default() }
    });
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
        health: live_calls.health,
        shadow_health,
        recording: item.recording.clone(),
        version: item.version,
    })
}
