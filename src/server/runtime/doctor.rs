//! `doctor`: the checks of both deployment modes, and those that each mode adds.

use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path};

use super::Server;
use tidegate_backends::wasm::{ENGINE, TARGET};
use tidegate_core::{
    error_chain::ErrorChain,
    port::health_check::{Check, CheckLevel},
};

/// The age at which the latest maintenance sweep counts as missing. Two sweeps may be late.
const MAX_SWEEP_AGE: Duration = Duration::from_secs(150);
/// The prefix of the objects that test whether objects can be written.
const PROBE: &str = "doctor";

impl Server {
    /// The results of all checks, with remedies. They leave nothing behind, except on AWS one message
    /// to each queue that carries no work and disappears when its function receives it.
    pub async fn doctor(&self) -> Vec<Check> {
        let mut checks =
            vec![Check::ok("version", format!("tidegate {}", env!("CARGO_PKG_VERSION")))];
        let store = self.inner.engine.catalog().await;
        checks.push(match &store {
            Ok(catalog) => Check::ok(
                "store",
                format!(
                    "it answers; {} queues and {} types are configured",
                    catalog.queues.len(),
                    catalog.types.len()
                ),
            ),
            Err(error) => Check::new(
                CheckLevel::Error,
                "store",
                error.to_string(),
                "see the other checks of it; until it answers, no job is accepted",
            ),
        });
        checks.push(self.check_objects().await);
        if store.is_ok() {
            checks.extend(self.check_plugins().await);
            checks.extend(self.check_maintenance_sweep().await);
        }
        checks.push(self.check_public_url());
        if let Some(added) = &self.inner.health_check {
            checks.extend(added.checks().await);
        }
        checks
    }

    /// Writes an object, reads it, lists it and removes it.
    async fn check_objects(&self) -> Check {
        let objects = &self.inner.engine.ports().objects;
        let path = Path::from(format!("{PROBE}/{:032x}", self.inner.engine.ports().entropy.bits()));
        let probe = async {
            objects.put(&path, "probe".into()).await.map_err(|error| ("put", error))?;
            let read = objects
                .get(&path)
                .await
                .map_err(|error| ("read", error))?
                .bytes()
                .await
                .map_err(|error| ("read", error))?;
            let prefix = Path::from(PROBE);
            let listed: Vec<_> = objects
                .list(Some(&prefix))
                .try_collect()
                .await
                .map_err(|error| ("listed", error))?;
            objects.delete(&path).await.map_err(|error| ("removed", error))?;
            Ok((&read[..] == b"probe", listed.iter().any(|object| object.location == path)))
        };
        let advice = "large bodies and plugins lie there: see that it exists, in this region, and that this server may put, get, list and \
                      delete its objects";
        match probe.await {
            Ok((true, true)) => Check::ok("objects", "a probe was put, read, listed and removed"),
            Ok((read, _)) => {
                let found = if read {
                    "a probe that was put is not in the list"
                } else {
                    "a probe came back as something else"
                };
                Check::new(CheckLevel::Error, "objects", found, advice)
            }
            Err((what, error)) => Check::new(
                CheckLevel::Error,
                "objects",
                format!("a probe could not be {what}: {}", ErrorChain(&error)),
                advice,
            ),
        }
    }

    /// Checks that the live version of each plugin has code for this release.
    async fn check_plugins(&self) -> Vec<Check> {
        let Ok(catalog) = self.inner.engine.catalog().await else {
            return Vec::new();
        };
        let runnable = |item: &tidegate_core::queue::plugin::PluginItem| {
            item.numbered(item.live).is_some_and(|version| {
                version.compiled.iter().any(|code| code.target == TARGET && code.engine == ENGINE)
            })
        };
        let mut old: Vec<&str> = catalog
            .plugins
            .iter()
            .filter(|(_, item)| !runnable(item))
            .map(|(name, _)| name.as_str())
            .collect();
        old.sort_unstable();
        vec![if old.is_empty() {
            Check::ok(
                "plugins",
                format!("{} are there, each with code for this release", catalog.plugins.len()),
            )
        } else {
            let found = format!("no code for this release has been made of: {}", old.join(", "));
            let advice = if self.inner.is_serverless() {
                "one request to the function `plugins` compiles them (`curl \"${PLUGINS_URL%/}/healthz\"`); they hold or are passed over until then"
            } else {
                "push their components again: `tidegate plugin push NAME FILE`"
            };
            Check::new(CheckLevel::Error, "plugins", found, advice)
        }]
    }

    /// Checks the age, failures and release of the latest maintenance sweep.
    async fn check_maintenance_sweep(&self) -> Option<Check> {
        if !self.inner.is_serverless() {
            return None;
        }
        let about = "minute's round";
        let error =
            |found: String, advice: &str| Check::new(CheckLevel::Error, about, found, advice);
        let missing = "see that the rule is enabled and may invoke `tick`, and look into the log of `tick`: without it what was lost is not found";
        Some(match self.inner.engine.last_sweep().await {
            Err(why) => error(why.to_string(), missing),
            Ok(None) => Check::new(
                CheckLevel::Warning,
                about,
                "there was none yet that handed on what is due soon",
                missing,
            ),
            Ok(Some(last)) => {
                let ago = self.now().since(last.at).as_secs();
                if self.now().since(last.at) > MAX_SWEEP_AGE {
                    error(
                        format!("the last one that handed on what was due soon began {ago} s ago"),
                        missing,
                    )
                } else if last.failed > 0 {
                    let advice = "the log of `tick` says which and why; what failed is done by the next one that can";
                    error(format!("{} parts of the latest one failed", last.failed), advice)
                } else if last.release != env!("CARGO_PKG_VERSION") {
                    let found = format!(
                        "`tick` runs tidegate {}, and this function {}",
                        last.release,
                        env!("CARGO_PKG_VERSION")
                    );
                    Check::new(
                        CheckLevel::Warning,
                        about,
                        found,
                        "an upgrade may be under way; if not, deploy the stack as a whole from one CodePrefix",
                    )
                } else {
                    Check::ok(about, format!("the last one began {ago} s ago, of this release"))
                }
            }
        })
    }

    /// Checks the prefix of callback URLs.
    fn check_public_url(&self) -> Check {
        let url = &self.inner.options.public_url;
        let about = "public URL";
        if url.is_empty() && self.inner.is_serverless() {
            return Check::ok(
                about,
                "this function builds no callback URLs; the setting is that of `deliver`",
            );
        }
        match url::Url::parse(url) {
            Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.has_host() => {
                let clear = self.inner.is_serverless() && parsed.scheme() == "http";
                if clear {
                    Check::new(
                        CheckLevel::Warning,
                        about,
                        format!("{url} is not encrypted"),
                        "attempts' tokens go over it: make it https",
                    )
                } else {
                    Check::ok(about, format!("callback URLs start with {url}"))
                }
            }
            _ => Check::new(
                CheckLevel::Error,
                about,
                format!("{url:?} is no URL"),
                "workers that answer later cannot call back: set it to where this server is reached",
            ),
        }
    }
}
