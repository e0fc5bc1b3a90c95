//! Checks of plugins against the queues, job types and jobs that use them.

use std::sync::Arc;

use super::{set_item, unavailable, users};
use crate::{Catalog, Engine, Error, jobs::enqueue::fault};
use tidegate_core::{
    error_code::ErrorCode,
    job::{PluginName, retry::Retry},
    port::{
        Write,
        job_store::ItemKind,
        policy::{FaultKind, Plugin},
    },
    queue::plugin::{PluginItem, PluginVersion, Role},
    validate,
};

/// Most different retry strategies, each with its configuration, that one request may bring: a
/// check may take a quarter of a second.
const MAX_STRATEGIES_PER_REQUEST: usize = 20;

/// The field names of a retry strategy and of its configuration.
const RETRY_FIELDS: [&str; 2] = ["retry.plugin", "retry.config"];

/// The strategies of the jobs of one request, with the result of each check.
#[derive(Default)]
pub(crate) struct Checked(Vec<(Retry, Result<(), Error>)>);

impl Engine {
    /// Refuses a version that does not suit a queue or type that uses the plugin.
    pub(super) async fn refuse_unfit(
        &self,
        catalog: &Catalog,
        name: &PluginName,
        version: &Arc<PluginVersion>,
    ) -> Result<(), Error> {
        for (queue, item) in &catalog.queues {
            let config = &item.config;
            let uses = config.throttler.as_ref().is_some_and(|one| one.plugin == *name);
            let description = version.description(Role::Throttler).filter(|_| uses);
            let problem =
                description.and_then(|said| said.waiting_problem(config.partition_attributes()));
            if let Some(problem) = problem {
                return Err(Error::Conflict {
                    code: ErrorCode::ConfigRefused,
                    message: format!("the partition_by of queue {queue} {problem}"),
                    holder: None,
                });
            }
        }
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

    /// Checks a use of a plugin in `role`: that it exists, has the role, and accepts `config`.
    /// `fields` are the field names of the plugin and of its configuration.
    ///
    /// The caller commits the returned write together with the queue or type that uses the plugin.
    /// The write raises the version of the plugin, so the check still holds at the commit. A push,
    /// rollback or removal that did not see the new user conflicts and starts again.
    ///
    /// # Errors
    ///
    /// 400 at the wrong field; 503 if the plugin cannot be called here.
    pub(crate) async fn check_plugin(
        &self,
        catalog: &Catalog,
        role: Role,
        name: &PluginName,
        config: &serde_json::Value,
        fields: [&str; 2],
    ) -> Result<Write, Error> {
        catalog.refuse_unreadable(ItemKind::Plugin, name.as_str())?;
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
                format!("cannot be checked because plugin {name} failed: {fault}"),
            )),
        }
    }

    /// Checks the retry strategy that a job names itself, if it is a plugin. Many jobs of a request
    /// may share one, so each strategy with its configuration is checked once in a request
    /// (`checked`), and not again while the catalog is unchanged.
    ///
    /// # Errors
    ///
    /// As for a throttler, at `retry.plugin` and `retry.config`; also for more than 20 different
    /// ones in one request.
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
        if checked.0.len() >= MAX_STRATEGIES_PER_REQUEST {
            let message = format!(
                "must be one of at most {MAX_STRATEGIES_PER_REQUEST} strategies in one request; \
                 send the other jobs in another request"
            );
            return Err(Error::invalid("retry", message));
        }
        let answer =
            self.check_plugin(catalog, Role::Retry, name, config, RETRY_FIELDS).await.map(drop);
        if answer.is_ok() {
            let mut good = self.good_retries.lock();
            if good.0 == catalog.version && good.1.len() < MAX_STRATEGIES_PER_REQUEST {
                good.1.push(retry.clone());
            }
        }
        checked.0.push((retry.clone(), answer.clone()));
        answer
    }

    /// Checks the retry strategy of a type. Returns the write to commit together with the type.
    ///
    /// # Errors
    ///
    /// As for the strategy of a job.
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
