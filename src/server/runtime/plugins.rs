//! Plugins as the server has them: the verbs, and what is told to the log of calls that failed.

use std::sync::Arc;

use super::{
    Inner, Server,
    shadow::{Comparison, Live},
};
use tidegate_backends::wasm::record;
use tidegate_core::{
    job::{PluginName, QueueName},
    port::policy::{Call, Fault, Plugin},
    queue::plugin::PluginItem,
};
use tidegate_engine::{
    Error, ThrottlerCall,
    plugins::{
        registry::{NewVersion, Pushed, Stage},
        retry_decisions::{RetryDecisions, RetryFault},
    },
};

impl Inner {
    /// Takes note of what a round's throttler said.
    pub(super) fn note_round(
        &self,
        queue: &QueueName,
        asked: Vec<ThrottlerCall>,
        faults: Vec<ThrottlerCall>,
    ) {
        for ThrottlerCall { plugin, call, answer } in asked {
            if let Ok(answer) = answer {
                self.shadow.submit(&plugin, Live::Round(call, answer));
            }
        }
        for ThrottlerCall { plugin, call, answer } in faults {
            if let Err(fault) = answer {
                self.failed(&plugin, queue, &fault, &Call::Throttle(call));
            }
        }
    }

    /// Takes note of what retry strategies said.
    pub(super) fn note_verdicts(&self, verdicts: &mut RetryDecisions) {
        for asked in verdicts.asked.drain(..) {
            self.shadow.submit(&asked.plugin, Live::Verdict(asked.call, asked.answer));
        }
        for RetryFault { plugin, call, fault } in &verdicts.faults {
            if let Some(plugin) = plugin {
                self.failed(plugin, &call.queue, fault, &Call::Retry(Arc::clone(call)));
            } else {
                tracing::warn!(job = %call.job.id, %fault, "the built-in backoff stood in for a retry strategy");
            }
        }
    }
}

impl Inner {
    /// Each fault is kept with its call by whoever runs plugins; here it is told to the log, with the call where that process does not stay to be
    /// asked for it.
    fn failed(&self, plugin: &Plugin, queue: &QueueName, fault: &Fault, call: &Call) {
        let (version, kind, call) = (
            plugin.version.number,
            fault.kind.as_str(),
            self.serverless.is_some().then(|| record::to_bounded_json(call)),
        );
        tracing::warn!(plugin = %plugin.name, version, %queue, kind, %fault, call, "a plugin failed");
    }

    /// Plugins changed: every queue is looked at under them.
    fn plugins_changed(self: &Arc<Self>) {
        self.wake_known();
    }
}

impl Server {
    /// Adds a version of a plugin, live at the next round of every queue, or in the shadow of the live one.
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
        self.inner.plugins_changed();
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

    /// Makes version `to` live, or without a number the one that was live before.
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
        self.inner.plugins_changed();
        Ok(item)
    }

    /// Has version `number` asked beside the live one, or with none nothing.
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

    /// Removes a plugin with all its versions.
    ///
    /// # Errors
    ///
    /// 404; 409 `plugin_in_use`.
    pub async fn delete_plugin(&self, name: &PluginName) -> Result<(), Error> {
        self.inner.engine.delete_plugin(name).await?;
        if let Some(hosted) = &self.inner.hosted {
            hosted.host.forget(name);
        }
        Ok(())
    }

    /// Where the version in the shadow of a plugin differs from the live one, as far as this process asked it.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn plugin_differences(&self, name: &PluginName) -> Result<Comparison, Error> {
        let item = self.plugin(name).await?;
        let seen = self
            .inner
            .shadow
            .differences(name)
            .filter(|seen| item.shadow.is_none_or(|number| number == seen.version));
        Ok(seen.unwrap_or_else(|| Comparison {
            version: item.shadow.unwrap_or(0),
            ..Comparison::default()
        }))
    }
}
