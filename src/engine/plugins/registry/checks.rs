//! Checks of plugins against the queues, job types and jobs that use them.

use std::sync::Arc;

use super::{set_item, unavailable, users};
use crate::{Catalog, Engine, Error, jobs::enqueue::fault};
use tidegate_core::{
    error_code::ErrorCode,
    job::{PluginName, retry::Retry},
    port::{
        Write,
        policy::{FaultKind, Plugin},
    },
    queue::plugin::{PluginItem, PluginVersion, Role},
    validate,
};

/// Most retry strategies, each with its configuration, that are checked in one request: a check may take a quarter of a second.
const STRATEGIES: usize = 20;

/// The names of a retry strategy's fields.
const RETRY_FIELDS: [&str; 2] = ["retry.plugin", "retry.config"];

/// The strategies that the jobs of one request brought, and what was found of each.
#[derive(Default)]
pub(crate) struct Checked(Vec<(Retry, Result<(), Error>)>);

impl Engine {
    /// Refuses a version that a queue or type which uses the plugin could not go on with.
    pub(super) async fn refuse_unfit(
        &self,
        catalog: &Catalog,
        name: &PluginName,
        version: &Arc<PluginVersion>,
    ) -> Result<(), Error> {
        for (user, role, config) in users(catalog, name) {
            if version.description(role).is_none() {
                let message =
                    format!("{user} uses it as its {}, which this version is not", word(role));
                return Err(Error::Conflict {
                    code: ErrorCode::PluginInUse,
                    message,
                    holder: None,
                });
            }
            let plugin = Plugin { name: name.clone(), version: Arc::clone(version) };
            let refused =
                |message| Error::Conflict { code: ErrorCode::ConfigRefused, message, holder: None };
            match self.ports.policy.check(&plugin, role, &config.to_string()).await {
                Ok(problems) => {
                    if let Some(problem) = problems.first() {
                        return Err(refused(format!(
                            "it refuses the config of {user}: {} {}",
                            problem.path, problem.message
                        )));
                    }
                }
                Err(fault) if fault.kind == FaultKind::Unavailable => {
                    return Err(unavailable(fault.message));
                }
                Err(fault) => {
                    return Err(refused(format!("it cannot check the config of {user}: {fault}")));
                }
            }
        }
        Ok(())
    }

    /// Checks what somebody says of a plugin in `role`: that it is there, has the role, and takes `config`. `fields` are the names of
    /// the plugin's and its config's fields.
    ///
    /// What comes back is to be written together with what makes a queue or a type use the plugin: it raises the plugin's version. So this
    /// answer still holds then, and a push, a rollback or a removal that did not see the new user is refused and looks again.
    ///
    /// # Errors
    ///
    /// 400 at the field that is to blame; 503 if the plugin cannot be asked here.
    pub(crate) async fn check_plugin(
        &self,
        catalog: &Catalog,
        role: Role,
        name: &PluginName,
        config: &serde_json::Value,
        fields: [&str; 2],
    ) -> Result<Write, Error> {
        let item = catalog.plugins.get(name).ok_or_else(|| {
            Error::invalid(fields[0], format!("must be a plugin; there is no {name}"))
        })?;
        let plugin = catalog.plugin(name, role).ok_or_else(|| {
            Error::invalid(
                fields[0],
                format!(
                    "must be a {}, which plugin {name} is not in its version {}",
                    word(role),
                    item.live
                ),
            )
        })?;
        match self.ports.policy.check(&plugin, role, &config.to_string()).await {
            Ok(problems) => match problems.into_iter().next() {
                None => set_item(
                    name,
                    &PluginItem { version: item.version + 1, ..(**item).clone() },
                    item.version,
                ),
                Some(problem) => {
                    Err(Error::invalid(format!("{}{}", fields[1], problem.path), problem.message))
                }
            },
            Err(fault) if fault.kind == FaultKind::Unavailable => Err(unavailable(fault.message)),
            Err(fault) => Err(Error::invalid(
                fields[1],
                format!("cannot be checked, for plugin {name} failed: {fault}"),
            )),
        }
    }

    /// Checks the retry strategy of a job, if it is a plugin of the job's own choice. Jobs come in their thousands with the same: each strategy
    /// with its configuration is checked once in a request (`checked`), and not again while the configuration stands.
    ///
    /// # Errors
    ///
    /// As for a throttler, at `retry.plugin` and `retry.config`; also for those beyond 20 different ones in one request.
    pub(crate) async fn check_retry(
        &self,
        catalog: &Catalog,
        retry: &Retry,
        checked: &mut Checked,
    ) -> Result<(), Error> {
        let Retry::Plugin(name, config) = retry else {
            return Ok(());
        };
        if let Some((_, answer)) = checked.0.iter().find(|(known, _)| known == retry) {
            return answer.clone();
        }
        validate::check_retry(retry).map_err(fault)?;
        {
            let mut good = self.good_retries.lock();
            if good.0 != catalog.version {
                *good = (catalog.version, Vec::new());
            }
            if good.1.contains(retry) {
                return Ok(());
            }
        }
        if checked.0.len() >= STRATEGIES {
            let message = format!(
                "must be one of at most {STRATEGIES} different ones that the jobs of one request bring; send the others in another"
            );
            return Err(Error::invalid("retry", message));
        }
        let answer =
            self.check_plugin(catalog, Role::Retry, name, config, RETRY_FIELDS).await.map(drop);
        if answer.is_ok() {
            let mut good = self.good_retries.lock();
            if good.0 == catalog.version && good.1.len() < STRATEGIES {
                good.1.push(retry.clone());
            }
        }
        checked.0.push((retry.clone(), answer.clone()));
        answer
    }

    /// Checks the retry strategy that a type is given: what is to be written with it.
    ///
    /// # Errors
    ///
    /// As for a job's.
    pub(crate) async fn take_retry(
        &self,
        catalog: &Catalog,
        retry: &Retry,
    ) -> Result<Option<Write>, Error> {
        let Retry::Plugin(name, config) = retry else {
            return Ok(None);
        };
        validate::check_retry(retry).map_err(fault)?;
        self.check_plugin(catalog, Role::Retry, name, config, RETRY_FIELDS).await.map(Some)
    }
}

fn word(role: Role) -> &'static str {
    match role {
        Role::Throttler => "throttler",
        Role::Retry => "retry strategy",
    }
}
