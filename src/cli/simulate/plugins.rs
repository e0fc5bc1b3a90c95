//! The components of a simulation, compiled in this process.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use anyhow::Context as _;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use serde_json::Value as Json;

use crate::cli::{
    UsageError, args,
    plugin::{component, local},
};
use tidegate_backends::{
    system::SystemClock,
    wasm::{PluginHost, Run},
};
use tidegate_core::{
    job::PluginName,
    port::policy::Plugin,
    queue::plugin::{OnFailure, Role, Throttler},
};
use tidegate_engine::{
    plugins::registry::{NewCode, NewVersion},
    simulate::{Plugins, Scenario, policies::Measured},
};

/// The name of the throttler in a scenario that does not name it.
const UNNAMED: &str = "simulated";

/// A component, and the configuration that replaces the scenario's.
pub(super) type Given<'a> = Option<(&'a Path, Option<&'a str>)>;

/// Returns the plugins of a simulation, compiled in this process.
pub(super) async fn plugins(
    scenario: &Scenario,
    throttler: Given<'_>,
    retry: Given<'_>,
) -> anyhow::Result<Plugins> {
    if throttler.is_none() && retry.is_none() {
        return Ok(Plugins::default());
    }
    let objects = Arc::new(InMemory::new());
    let host = Arc::new(PluginHost::new(objects.clone(), Arc::new(SystemClock), Run::Here)?);
    let throttler = match throttler {
        None => None,
        Some((file, given)) => {
            let version = compiled(&host, file, Role::Throttler).await?;
            Some((version, configured(scenario, given).await?))
        }
    };
    let retry = match retry {
        None => None,
        Some((file, given)) => {
            let none = || Arc::new(Json::Object(serde_json::Map::new()));
            Some((
                compiled(&host, file, Role::Retry).await?,
                config(given).await?.unwrap_or_else(none),
            ))
        }
    };
    let metered = Arc::clone(&host);
    // The number of the last line that was read of each plugin's log.
    let logged = Mutex::new(BTreeMap::<PluginName, u64>::new());
    let meter = Arc::new(move |plugin: &Plugin| {
        let usage = metered.last(&plugin.name)?;
        let mut logged = logged.lock();
        let last = logged.entry(plugin.name.clone()).or_default();
        let lines = metered.log_after(&plugin.name, *last);
        *last = lines.last().map_or(*last, |line| line.number);
        let log = lines.into_iter().map(|line| (line.level.as_str(), line.text)).collect();
        Some(Measured { usage, log })
    });
    let strategies = BTreeMap::new();
    Ok(Plugins { policy: host, objects, throttler, retry, strategies, meter: Some(meter) })
}

/// Returns the throttler of the scenario's queue, with the configuration in `given` if there is
/// one.
async fn configured(scenario: &Scenario, given: Option<&str>) -> anyhow::Result<Throttler> {
    let mut throttler = scenario.queue.throttler.clone().unwrap_or_else(|| Throttler {
        plugin: UNNAMED.parse::<PluginName>().expect("the name is valid"),
        config: Arc::new(Json::Object(serde_json::Map::new())),
        on_failure: OnFailure::default(),
    });
    if let Some(config) = config(given).await? {
        throttler.config = config;
    }
    Ok(throttler)
}

/// Reads a configuration; `-` reads standard input.
async fn config(text: Option<&str>) -> anyhow::Result<Option<Arc<Json>>> {
    let Some(json) = args::json_from(text, None).await? else {
        return Ok(None);
    };
    Ok(Some(Arc::new(serde_json::from_str(json.0.get())?)))
}

/// Compiles the component in `file`, which must have `role`.
async fn compiled(host: &PluginHost, file: &Path, role: Role) -> anyhow::Result<NewVersion> {
    let wasm = component(file).await?;
    let refused = || format!("{} cannot be used as a plugin", file.display());
    let artifact = host.compile(wasm.into(), &local::compiler()).await.with_context(refused)?;
    let (throttler, retry) = (artifact.throttler, artifact.retry);
    match role {
        Role::Throttler if throttler.is_none() => {
            return Err(UsageError(format!("{} is no throttler", file.display())).into());
        }
        Role::Retry if retry.is_none() => {
            return Err(UsageError(format!("{} is no retry strategy", file.display())).into());
        }
        _ => {}
    }
    let code = vec![NewCode {
        target: artifact.compiled.target,
        engine: artifact.compiled.engine,
        code: artifact.code,
    }];
    Ok(NewVersion { wasm: artifact.wasm, throttler, retry, code })
}
