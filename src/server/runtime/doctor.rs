//! `doctor`: the checks of both deployment modes, and those that each mode adds.

use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt, path::Path};

use super::Server;
use tidegate_backends::wasm::{ENGINE, TARGET};
use tidegate_core::{
    error_chain::ErrorChain,
    port::health_check::{Check, CheckLevel},
    queue::plugin::PluginItem,
};
use tidegate_engine::{Catalog, LastSweep};

/// The age at which the latest maintenance sweep counts as missing. Two sweeps may be late.
const MAX_SWEEP_AGE: Duration = Duration::from_secs(150);
/// The prefix of the objects that test whether objects can be written.
const PROBE_PREFIX: &str = "doctor";
/// What the check of the maintenance sweep is about.
const SWEEP_CHECK: &str = "maintenance sweep";
/// The remedy for a maintenance sweep that does not run.
const MISSING_SWEEP_ADVICE: &str = "see that the rule is enabled and may invoke `sweep`, and read \
    the log of `sweep`: without the sweep, jobs whose messages were lost do not run";
/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The content of a probe.
const PROBE: &str = "probe";

/// The operation on the probe that failed, and its error.
type FailedStep = (&'static str, object_store::Error);

/// What a read and a listing returned of the probe.
struct Probe {
    content_matches: bool,
    is_listed: bool,
}

/// Reads the probe at `path`, and lists the probes until it is found. A list has the objects below
/// its prefix, so the whole path would select nothing.
async fn use_probe(objects: &dyn ObjectStore, path: &Path) -> Result<Probe, FailedStep> {
    let step = |what: &'static str| move |error| (what, error);
    let found = objects.get(path).await.map_err(step("read"))?;
    let content = found.bytes().await.map_err(step("read"))?;
    let is_listed = objects
        .list(Some(&Path::from(PROBE_PREFIX)))
        .try_any(async |object| object.location == *path)
        .await
        .map_err(step("listed"))?;
    Ok(Probe { content_matches: content == PROBE, is_listed })
}

/// Checks whether every item of the configuration can be read.
fn check_configuration(catalog: &Catalog) -> Check {
    let unreadable: Vec<String> = catalog
        .unreadable()
        .map(|(kind, name, why)| format!("{} {name}: {why}", kind.as_str()))
        .collect();
    if unreadable.is_empty() {
        return Check::ok("configuration", "every item can be read");
    }
    Check::new(
        CheckLevel::Error,
        "configuration",
        unreadable.join("; "),
        "run the release that wrote these, or restore a backup; until then nothing that depends on \
         them starts",
    )
}

impl Server {
    /// The results of all checks, with remedies. They leave nothing behind, except on AWS one
    /// message to each queue that carries no work and disappears when its function receives it.
    pub async fn doctor(&self) -> Vec<Check> {
        let mut checks = vec![Check::ok("version", format!("tidegate {VERSION}"))];
        let store = self.inner.engine.catalog().await;
        checks.push(match &store {
            Ok(catalog) => Check::ok(
                "store",
                format!(
                    "it answers; {} queues and {} types are configured; its data has form {}",
                    catalog.queues.len(),
                    catalog.types.len(),
                    catalog.schema.1.writes
                ),
            ),
            Err(error) => Check::new(
                CheckLevel::Error,
                "store",
                ErrorChain(error).to_string(),
                "see the other checks of the store; no job is accepted until it answers",
            ),
        });
        if let Ok(catalog) = &store {
            checks.push(check_configuration(catalog));
        }
        checks.push(self.check_objects().await);
        if store.is_ok() {
            checks.extend(self.check_plugins().await);
            checks.extend(self.check_maintenance_sweep().await);
        }
        checks.push(self.check_public_url());
        for added in &self.inner.health_checks {
            checks.extend(added.checks().await);
        }
        checks
    }

    /// Checks whether objects can be written, read, listed and removed.
    async fn check_objects(&self) -> Check {
        let finding = match self.exercise_probe().await {
            Ok(Probe { content_matches: true, is_listed: true }) => {
                return Check::ok("objects", "a probe was put, read, listed and removed");
            }
            Ok(Probe { content_matches: true, .. }) => {
                "a probe that was put is not in the list".to_owned()
            }
            Ok(_) => "a probe was read with other content than was put".to_owned(),
            Err((step, error)) => {
                format!("a probe could not be {step}: {}", ErrorChain(&error))
            }
        };
        Check::new(
            CheckLevel::Error,
            "objects",
            finding,
            "large bodies and plugins are stored there: see that it exists, in this region, and \
             that this server may put, get, list and delete its objects",
        )
    }

    /// Puts a probe, uses it, and removes it whatever the uses returned.
    async fn exercise_probe(&self) -> Result<Probe, FailedStep> {
        let ports = self.inner.engine.ports();
        let objects = &ports.objects;
        let path = Path::from(format!("{PROBE_PREFIX}/{:032x}", ports.entropy.bits()));

        // A put without an answer may have put it.
        let used = match objects.put(&path, PROBE.into()).await {
            Ok(_) => use_probe(objects, &path).await,
            Err(error) => Err(("put", error)),
        };
        let removed = objects.delete(&path).await;
        let probe = used?;
        removed.map_err(|error| ("removed", error))?;
        Ok(probe)
    }

    /// Checks that the live version of each plugin has code for this release.
    async fn check_plugins(&self) -> Option<Check> {
        let catalog = self.inner.engine.catalog().await.ok()?;
        let runnable = |item: &PluginItem| {
            item.numbered(item.live).is_some_and(|version| {
                version.compiled.iter().any(|code| code.target == TARGET && code.engine == ENGINE)
            })
        };
        let mut outdated: Vec<&str> = catalog
            .plugins
            .iter()
            .filter(|(_, item)| !runnable(item))
            .map(|(name, _)| name.as_str())
            .collect();
        if outdated.is_empty() {
            return Some(Check::ok(
                "plugins",
                format!("{} exist, each with code for this release", catalog.plugins.len()),
            ));
        }
        outdated.sort_unstable();
        let advice = if self.inner.is_serverless() {
            "one request to the function `plugins` compiles them \
             (`curl \"${PLUGINS_URL%/}/healthz\"`); until then each holds its jobs or is skipped"
        } else {
            "push their components again: `tidegate plugin push NAME FILE`"
        };
        let finding = format!("no code for this release was compiled of: {}", outdated.join(", "));
        Some(Check::new(CheckLevel::Error, "plugins", finding, advice))
    }

    /// Checks the age, failures and release of the latest maintenance sweep. `None` in the embedded
    /// mode, which has none.
    async fn check_maintenance_sweep(&self) -> Option<Check> {
        if !self.inner.is_serverless() {
            return None;
        }
        let (level, finding) = match self.inner.engine.last_sweep().await {
            Ok(Some(latest)) => return Some(self.check_latest_sweep(&latest)),
            Ok(None) => (CheckLevel::Warning, "none has dispatched the jobs due soon".to_owned()),
            Err(error) => (CheckLevel::Error, ErrorChain(&error).to_string()),
        };
        Some(Check::new(level, SWEEP_CHECK, finding, MISSING_SWEEP_ADVICE))
    }

    fn check_latest_sweep(&self, latest: &LastSweep) -> Check {
        let age = self.now().since(latest.at);
        let seconds = age.as_secs();
        if age > MAX_SWEEP_AGE {
            Check::new(
                CheckLevel::Error,
                SWEEP_CHECK,
                format!("the latest that dispatched the jobs due soon began {seconds} s ago"),
                MISSING_SWEEP_ADVICE,
            )
        } else if latest.failed > 0 {
            Check::new(
                CheckLevel::Error,
                SWEEP_CHECK,
                format!("{} parts of the latest one failed", latest.failed),
                "the log of `sweep` has the errors; the next sweep repeats the failed parts",
            )
        } else if latest.release != VERSION {
            Check::new(
                CheckLevel::Warning,
                SWEEP_CHECK,
                format!("`sweep` runs tidegate {}, and this function {VERSION}", latest.release),
                "an upgrade may be in progress; if not, deploy the whole stack from one CodePrefix",
            )
        } else {
            Check::ok(SWEEP_CHECK, format!("the latest began {seconds} s ago, with this release"))
        }
    }

    /// Checks the prefix of callback URLs.
    fn check_public_url(&self) -> Check {
        let url = &self.inner.options.public_url;
        let about = "public URL";
        if url.is_empty() && self.inner.is_serverless() {
            return Check::ok(
                about,
                "this function builds no callback URLs; the function `deliver` has the setting",
            );
        }
        let scheme =
            url::Url::parse(url).ok().filter(url::Url::has_host).map(|url| url.scheme().to_owned());
        match scheme.as_deref() {
            Some("http") if self.inner.is_serverless() => Check::new(
                CheckLevel::Warning,
                about,
                format!("{url} is not encrypted"),
                "the tokens of attempts are sent to it: make it https",
            ),
            Some("http" | "https") => Check::ok(about, format!("callback URLs start with {url}")),
            _ => Check::new(
                CheckLevel::Error,
                about,
                format!("{url:?} is not an HTTP URL"),
                "workers that answer later cannot call back: set it to the URL of this server",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStore;

    use super::*;
    use crate::runtime::testing::server_on_faulty_objects;
    use tidegate_engine::testkit::objects::ObjectRequest;

    #[tokio::test]
    async fn the_probe_is_removed_whatever_step_fails() {
        let (server, objects) = server_on_faulty_objects().await;
        for (failing, finding) in [
            (None, "a probe was put, read, listed and removed"),
            (Some(ObjectRequest::Put), "could not be put"),
            (Some(ObjectRequest::Get), "could not be read"),
            (Some(ObjectRequest::List), "could not be listed"),
            (Some(ObjectRequest::Delete), "could not be removed"),
        ] {
            objects.fail(failing);
            let check = server.check_objects().await;
            assert!(check.found.contains(finding), "{failing:?}: {}", check.found);
            let left: Vec<_> = objects.inner.list(None).try_collect().await.unwrap();
            let is_left = failing == Some(ObjectRequest::Delete);
            assert_eq!(left.len(), usize::from(is_left), "{failing:?}");
        }
    }
}
