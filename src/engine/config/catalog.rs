//! The configuration as an engine sees it: a snapshot, reloaded when the store has a newer version.

use std::{
    collections::{BTreeMap, HashMap},
    str::FromStr,
    sync::Arc,
};

use serde::de::DeserializeOwned;

use crate::{Engine, Error, jobs::job_writes};
use tidegate_core::{
    event::{Trigger, Triggers, trigger::TriggerItem},
    job::{PluginName, QueueName, ScheduleName, TriggerName, TypeName, type_config::TypeItem},
    port::{
        job_store::{Item, ItemKind},
        policy::Plugin,
    },
    queue::{
        Limits,
        config::QueueItem,
        plugin::{PluginItem, Role},
    },
    schedule::ScheduleItem,
    time::Timestamp,
};

/// Every queue, type, plugin, schedule, trigger and drained worker at one moment.
#[derive(Default)]
pub struct Catalog {
    /// The store's number for this moment.
    pub version: u64,
    /// The queues.
    pub queues: HashMap<QueueName, QueueItem>,
    /// The types.
    pub types: HashMap<TypeName, Arc<TypeItem>>,
    /// The plugins.
    pub plugins: HashMap<PluginName, Arc<PluginItem>>,
    /// The schedules.
    pub schedules: BTreeMap<ScheduleName, Arc<ScheduleItem>>,
    /// The pull workers that are drained, and since when.
    pub drains: BTreeMap<String, Timestamp>,
    /// The triggers, as they are stored.
    pub triggers: BTreeMap<TriggerName, TriggerItem>,
    /// The same, compiled, to be matched with events.
    pub rules: Arc<Triggers>,
    /// The limits of each queue.
    limits: HashMap<QueueName, Arc<Limits>>,
}

impl Catalog {
    /// The limits of `queue`; a queue without a configuration has none.
    pub fn limits(&self, queue: &QueueName) -> Arc<Limits> {
        self.limits.get(queue).cloned().unwrap_or_default()
    }

    /// The types whose jobs wait in `queue`.
    pub fn types_of(&self, queue: &QueueName) -> impl Iterator<Item = (&TypeName, &Arc<TypeItem>)> {
        self.types.iter().filter(move |(_, item)| item.config.queue == *queue)
    }

    /// The live version of a plugin, if there is one and it has this role.
    pub fn plugin(&self, name: &PluginName, role: Role) -> Option<Plugin> {
        let item = self.plugins.get(name)?;
        let version =
            item.numbered(item.live).filter(|version| version.description(role).is_some())?;
        Some(Plugin { name: name.clone(), version: Arc::clone(version) })
    }

    fn of(
        version: u64,
        queues: HashMap<QueueName, QueueItem>,
        mut types: HashMap<TypeName, Arc<TypeItem>>,
        plugins: HashMap<PluginName, Arc<PluginItem>>,
    ) -> Self {
        let mut catalog = Self { version, plugins, ..Self::default() };
        let callback = TypeItem { config: job_writes::callback_type(), version: 0, leaving: false };
        types.insert(
            job_writes::CALLBACK_TYPE.parse().expect("it is a valid name"),
            Arc::new(callback),
        );
        let missing = QueueItem::default();
        let mut limited: HashMap<&QueueName, BTreeMap<TypeName, u32>> = HashMap::new();
        for (name, item) in &types {
            if let Some(most) = item.config.concurrency {
                limited.entry(&item.config.queue).or_default().insert(name.clone(), most);
            }
        }
        let implicit = types.values().map(|item| (&item.config.queue, &missing));
        let limits = implicit
            .chain(&queues)
            .map(|(name, item)| {
                let types = limited.get(name).cloned().unwrap_or_default();
                let throttler = item.config.throttler.as_ref();
                let throttler = throttler
                    .and_then(|throttler| catalog.plugin(&throttler.plugin, Role::Throttler));
                let throttler = throttler.map(|plugin| plugin.version);
                let limits = Limits {
                    version: item.version,
                    queue: item.config.clone(),
                    paused: item.paused,
                    types,
                    throttler,
                };
                (name.clone(), Arc::new(limits))
            })
            .collect();
        (catalog.queues, catalog.types, catalog.limits) = (queues, types, limits);
        catalog
    }

    /// Adds the triggers, and compiles those that can be used.
    fn add_triggers(&mut self, items: Vec<(TriggerName, u64, TriggerItem)>) {
        let mut rules = Vec::new();
        for (name, version, item) in items {
            let trigger = TriggerItem { version, ..item };
            match Trigger::new(&name, &trigger.config) {
                Ok(rule) => rules.push(rule),
                // It was valid when it was put: another release has other bounds. Everything else
                // goes on without it.
                Err(fault) => {
                    tracing::error!(
                        trigger = %name,
                        %fault,
                        "a trigger cannot be used; set it again"
                    );
                }
            }
            self.triggers.insert(name, trigger);
        }
        self.rules = Arc::new(Triggers::new(rules));
    }
}

impl Engine {
    /// The version of the configuration that was loaded last. Of two concurrent reads the slower
    /// one may have stored an older version. The process that changes the configuration publishes
    /// the change to those that depend on this number.
    pub fn seen_version(&self) -> u64 {
        self.catalog.load().version
    }

    /// The configuration that was loaded last, which may be outdated. It suits reads that decide
    /// nothing, right after a decision.
    ///
    /// # Errors
    ///
    /// The error of the store, if nothing was ever loaded.
    pub async fn known_catalog(&self) -> Result<Arc<Catalog>, Error> {
        let seen = self.catalog.load_full();
        if seen.version > 0 { Ok(seen) } else { self.catalog().await }
    }

    /// The current configuration.
    ///
    /// # Errors
    ///
    /// The store's; [`Error::Internal`] if an item cannot be read.
    pub async fn catalog(&self) -> Result<Arc<Catalog>, Error> {
        let version = self.ports.store.items_version().await?;
        let seen = self.catalog.load_full();
        if seen.version == version && version > 0 {
            return Ok(seen);
        }
        let mut queues = HashMap::new();
        for (name, version, queue) in self.read_items(ItemKind::Queue, "queue").await? {
            queues.insert(name, QueueItem { version, ..queue });
        }
        let mut types = HashMap::new();
        for (name, version, job_type) in self.read_items(ItemKind::Type, "type").await? {
            types.insert(name, Arc::new(TypeItem { version, ..job_type }));
        }
        let mut plugins = HashMap::new();
        for (name, version, plugin) in self.read_items(ItemKind::Plugin, "plugin").await? {
            plugins.insert(name, Arc::new(PluginItem { version, ..plugin }));
        }
        let mut schedules = BTreeMap::new();
        for (name, version, schedule) in self.read_items(ItemKind::Schedule, "schedule").await? {
            schedules.insert(name, Arc::new(ScheduleItem { version, ..schedule }));
        }
        let mut drains = BTreeMap::new();
        for (name, _, since) in self.read_items(ItemKind::Drain, "drain").await? {
            drains.insert(name, since);
        }
        let mut catalog =
            Catalog { schedules, drains, ..Catalog::of(version, queues, types, plugins) };
        let triggers = self.read_items(ItemKind::Trigger, "trigger").await?;
        catalog.add_triggers(triggers);
        let catalog = Arc::new(catalog);
        self.catalog.store(Arc::clone(&catalog));
        Ok(catalog)
    }

    /// The items of `kind`, each with its name and version. `what` is the kind in error messages.
    async fn read_items<N: FromStr, T: DeserializeOwned>(
        &self,
        kind: ItemKind,
        what: &str,
    ) -> Result<Vec<(N, u64, T)>, Error> {
        let read = |item: Item| {
            let name = item
                .name
                .parse()
                .map_err(|_| Error::Internal(format!("bad {what} name {:?}", item.name)))?;
            let value = serde_json::from_slice(&item.bytes).map_err(|error| {
                Error::Internal(format!(
                    "the configuration of {} cannot be read: {error}",
                    item.name
                ))
            })?;
            Ok((name, item.version, value))
        };
        self.ports.store.items(kind).await?.into_iter().map(read).collect()
    }
}
