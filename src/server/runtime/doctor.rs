//! `doctor`: what both homes look at, and what each looks at besides.

use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path};

use super::Server;
use tidegate_backends::wasm::{ENGINE, TARGET};
use tidegate_core::port::health_check::{Check, CheckLevel};

/// After so long without a minute's round it is missing. Two rounds may be late.
const MISSING: Duration = Duration::from_secs(150);
/// Under this name lie the objects that are put to see whether they can be.
const PROBE: &str = "doctor";

impl Server {
    /// How this server is: everything that was looked at, and what to do about it. It leaves nothing behind, but
    /// on AWS a message to each queue that asks for nothing, which is gone when its function takes it.
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
                "see what else is said of it; until it answers, nothing is accepted",
            ),
        });
        checks.push(self.check_objects().await);
        if store.is_ok() {
            checks.extend(self.check_plugins().await);
            checks.extend(self.check_minute().await);
        }
        checks.push(self.check_public_url());
        if let Some(home) = &self.inner.health_check {
            checks.extend(home.checks().await);
        }
        checks
    }

    /// Puts an object, reads it, finds it in a list and removes it.
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
                format!("a probe could not be {what}: {}", whole(&error)),
                advice,
            ),
        }
    }

    /// Plugins whose live version has no code for this release.
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

    /// Whether the minute's round has been, how it went, and of which release it was.
    async fn check_minute(&self) -> Option<Check> {
        if !self.inner.is_serverless() {
            return None;
        }
        let about = "minute's round";
        let error =
            |found: String, advice: &str| Check::new(CheckLevel::Error, about, found, advice);
        let missing = "see that the rule is enabled and may invoke `tick`, and look into the log of `tick`: without it what was lost is not found";
        Some(match self.inner.engine.last_round().await {
            Err(why) => error(why.to_string(), missing),
            Ok(None) => Check::new(
                CheckLevel::Warning,
                about,
                "there was none yet that handed on what is due soon",
                missing,
            ),
            Ok(Some(last)) => {
                let ago = self.now().since(last.at).as_secs();
                if self.now().since(last.at) > MISSING {
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

    /// What callback URLs start with.
    fn check_public_url(&self) -> Check {
        let url = &self.inner.options.public_url;
        let about = "public URL";
        if url.is_empty() && self.inner.is_serverless() {
            return Check::ok(
                about,
                "this function builds no callback URLs; `deliver` is told what they start with",
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

/// An error with what caused it.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
