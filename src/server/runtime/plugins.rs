//! Plugins as methods of the server, and the log of failed calls.

use std::sync::Arc;

use super::{Inner, Server, shadow::LiveCall};
use tidegate_core::{
    job::{PluginName, QueueName},
    port::policy::{Fault, Plugin},
    queue::plugin::PluginItem,
};
use tidegate_engine::{
    Error, ThrottlerCall,
    plugins::{
        registry::{NewVersion, Pushed, Stage},
        retry_decisions::{AnsweredRetryCall, RetryDecisions, RetryFault},
    },
};

impl Inner {
    /// Submits a tick's throttler calls to the shadow version, and logs the failed ones.
    pub(super) fn record_throttling(
        &self,
        queue: &QueueName,
        calls: Vec<ThrottlerCall>,
        faults: Vec<ThrottlerCall>,
    ) {
        for ThrottlerCall { plugin, call, answer } in calls {
            if let Ok(answer) = answer {
                self.shadow.submit(&plugin, LiveCall::Tick(call, answer));
            }
        }
        for ThrottlerCall { plugin, answer, .. } in faults {
            if let Err(fault) = answer {
                Self::log_fault(&plugin, queue, &fault);
            }
        }
    }

    /// Announces retry decisions, submits their calls to the shadow version, and logs the failed
    /// ones.
    pub(super) fn on_retry_decisions(self: &Arc<Self>, decisions: &mut RetryDecisions) {
        for AnsweredRetryCall { plugin, call, answer } in decisions.shadowed_calls.drain(..) {
            self.shadow.submit(&plugin, LiveCall::Retry(call, answer));
        }
        for RetryFault { plugin, call, fault } in &decisions.faults {
            if let Some(plugin) = plugin {
                Self::log_fault(plugin, &call.queue, fault);
            } else {
                tracing::warn!(
                    job = %call.job.id,
                    %fault,
                    "the built-in backoff replaced a retry strategy"
                );
            }
        }
        for (job, version) in &decisions.changed {
            self.on_superseded(job, *version);
        }
    }

    /// Logs a failed call. Its record has the call.
    fn log_fault(plugin: &Plugin, queue: &QueueName, fault: &Fault) {
        let (version, kind) = (plugin.version.number, fault.kind.as_str());
        tracing::warn!(plugin = %plugin.name, version, %queue, kind, %fault, "a plugin failed");
    }

    /// Applies changed plugins to every queue.
    fn on_plugins_changed(self: &Arc<Self>) {
        self.wake_known();
    }
}

impl Server {
    /// Adds a version of a plugin: live at the next tick of every queue, or as the shadow version.
    ///
    /// # Errors
    ///
    /// As for [`tidegate_engine::Engine::push_plugin`].
    pub async fn push_plugin(
        &self,
        name: &PluginName,
        version: NewVersion,
        stage: Stage,
    ) -> Result<Pushed, Error> {
        let pushed = self.inner.engine.push_plugin(name, version, stage).await?;
        self.inner.on_plugins_changed();
        Ok(pushed)
    }

    /// Every plugin, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn plugins(&self) -> Result<Vec<(PluginName, Arc<PluginItem>)>, Error> {
        self.inner.engine.plugins().await
    }

    /// A plugin with all its versions.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn plugin(&self, name: &PluginName) -> Result<Arc<PluginItem>, Error> {
        self.inner.engine.plugin(name).await
    }

    /// Makes version `to` live; `None` selects the previous live version.
    ///
    /// # Errors
    ///
    /// 404; 409 `config_refused` or `plugin_in_use`.
    pub async fn rollback_plugin(
        &self,
        name: &PluginName,
        to: Option<u32>,
    ) -> Result<PluginItem, Error> {
        self.prepare(name, |item| to.or(item.previous())).await?;
        let item = self.inner.engine.rollback_plugin(name, to).await?;
        self.inner.on_plugins_changed();
        Ok(item)
    }

    /// Makes version `number` the shadow version; `None` removes the shadow version.
    ///
    /// # Errors
    ///
    /// 404; 400 for the live version.
    pub async fn shadow_plugin(
        &self,
        name: &PluginName,
        number: Option<u32>,
    ) -> Result<PluginItem, Error> {
        self.prepare(name, |_| number).await?;
        self.inner.engine.shadow_plugin(name, number).await
    }

    /// Removes the old versions of a plugin, or with `write` off returns which ones it would
    /// remove.
    ///
    /// # Errors
    ///
    /// As for [`tidegate_engine::Engine::prune_plugin`].
    pub async fn prune_plugin(
        &self,
        name: &PluginName,
        keep: usize,
        write: bool,
    ) -> Result<(PluginItem, Vec<u32>), Error> {
        self.inner.engine.prune_plugin(name, keep, write).await
    }

    /// Removes a plugin with all its versions.
    ///
    /// # Errors
    ///
    /// 404; 409 `plugin_in_use`.
    pub async fn delete_plugin(&self, name: &PluginName) -> Result<(), Error> {
        self.inner.engine.delete_plugin(name).await?;
        self.inner.end_recording_rules_of(name).await;
        if let Some(hosted) = &self.inner.hosted {
            hosted.host.forget(name);
        }
        self.inner.forget_plugin_calls(name).await;
        self.inner.forget_plugin_seen(name).await;
        Ok(())
    }
}
