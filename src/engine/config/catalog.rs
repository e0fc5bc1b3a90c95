//! The configuration as an engine sees it: a snapshot, reloaded when the store has a newer version.

use std::{
    collections::{BTreeMap, HashMap},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use url::Url;

use super::{drain::Drain, schema::Schema, unreadable::UnreadableItem};
use crate::{Engine, Error, events::ends, jobs::job_writes};
use tidegate_core::{
    document::{self, Document},
    error_code::ErrorCode,
    event::{Trigger, Triggers, trigger::TriggerItem},
    job::{
        PluginName, QueueName, ScheduleName, Spec, TriggerName, TypeName,
        retry::{BUILT_IN, Retry},
        type_config::TypeItem,
    },
    port::{
        Write,
        job_store::{Item, ItemKind},
        policy::{Plugin, TargetHosts},
    },
    queue::{
        Limits,
        config::QueueItem,
        plugin::{PluginItem, Role},
    },
    schedule::ScheduleItem,
    target::TargetConfig,
    time::Timestamp,
};

/// The age up to which a configuration counts as just read: far less than a write may be in flight,
/// for which a first limit waits.
const MAX_CATALOG_AGE: Duration = Duration::from_secs(1);

/// Every queue, type, plugin, schedule, trigger and drained worker at one moment.
#[derive(Default)]
pub struct Catalog {
    /// The store's number for this moment.
    pub version: u64,
    /// The schema record, with its version.
    pub schema: (u64, Schema),
    /// The queues.
    pub queues: HashMap<QueueName, QueueItem>,
    /// The types.
    pub types: HashMap<TypeName, Arc<TypeItem>>,
    /// The plugins.
    pub plugins: HashMap<PluginName, Arc<PluginItem>>,
    /// The schedules.
    pub schedules: BTreeMap<ScheduleName, Arc<ScheduleItem>>,
    /// The pull workers that get no more jobs.
    pub drains: BTreeMap<String, Drain>,
    /// The triggers, as they are stored.
    pub triggers: BTreeMap<TriggerName, TriggerItem>,
    /// The same, compiled, to be matched with events.
    pub rules: Arc<Triggers>,
    /// The hosts of the types' targets, for plugins.
    pub hosts: Arc<TargetHosts>,
    /// The limits of each queue.
    limits: HashMap<QueueName, Arc<Limits>>,
    /// The items that have fields of a newer release.
    extended: HashMap<(ItemKind, String), Document>,
    /// The items that cannot be read.
    pub(super) unreadable: BTreeMap<(ItemKind, String), UnreadableItem>,
}

/// Items of one kind, each with its name and version.
type ReadItems<N, T> = Vec<(N, u64, T)>;

impl Catalog {
    /// The limits of `queue`; a queue without a configuration has none.
    pub fn limits(&self, queue: &QueueName) -> Arc<Limits> {
        self.limits.get(queue).cloned().unwrap_or_default()
    }

    /// The types whose jobs wait in `queue`.
    pub fn types_of(&self, queue: &QueueName) -> impl Iterator<Item = (&TypeName, &Arc<TypeItem>)> {
        self.types.iter().filter(move |(_, item)| item.config.queue == *queue)
    }

    /// The host of the URL that receives the next attempt of a job, if its type has one.
    pub fn host_of(&self, spec: &Spec) -> Option<String> {
        self.hosts.of(&spec.job_type, spec.retry_target.as_deref()).map(str::to_owned)
    }

    /// The live version of a plugin, if there is one and it has this role.
    pub fn plugin(&self, name: &PluginName, role: Role) -> Option<Plugin> {
        let item = self.plugins.get(name)?;
        let version =
            item.numbered(item.live).filter(|version| version.description(role).is_some())?;
        Some(Plugin { name: name.clone(), version: Arc::clone(version) })
    }

    /// The configuration of a type.
    ///
    /// # Errors
    ///
    /// 404 `job_type_not_found`; otherwise as [`Self::refuse_unreadable`].
    pub fn job_type(&self, name: &TypeName) -> Result<&Arc<TypeItem>, Error> {
        self.refuse_unreadable(ItemKind::Type, name.as_str())?;
        self.types.get(name).filter(|_| !name.is_internal()).ok_or_else(|| Error::NotFound {
            code: ErrorCode::JobTypeNotFound,
            what: format!("job type {name}"),
        })
    }

    /// Adds to items that are about to be written the fields of a newer release that they have.
    pub(super) fn keep_unknown_fields(&self, writes: &mut [Write]) -> Result<(), Error> {
        for write in writes {
            let Write::SetItem { kind, name, bytes: Some(bytes), was: 1.., .. } = write else {
                continue;
            };
            if let Some(document) = self.extended.get(&(*kind, name.clone())) {
                let new = serde_json::from_slice(bytes).map_err(|error| unwritten(&error))?;
                *bytes = serde_json::to_vec(&document.updated(new))
                    .map_err(|error| unwritten(&error))?;
            }
        }
        Ok(())
    }

    /// The items of a kind that can be read. The others hold what depends on them.
    fn read<N: FromStr, T: DeserializeOwned + Serialize>(
        &mut self,
        kind: ItemKind,
        items: Vec<Item>,
    ) -> ReadItems<N, T> {
        let mut read = Vec::with_capacity(items.len());
        for Item { name, version, bytes } in items {
            let document =
                bytes.and_then(|bytes| document::read(&bytes).map_err(|error| error.to_string()));
            match (name.parse(), document) {
                (Ok(parsed), Ok((value, document))) => {
                    if let Some(document) = document {
                        self.extended.insert((kind, name), document);
                    }
                    read.push((parsed, version, value));
                }
                (Ok(_), Err(error)) => self.add_unreadable(kind, name, version, &error),
                (Err(_), _) => self.add_unreadable(kind, name, version, "it has no valid name"),
            }
        }
        read
    }

    /// Whether the built-in retry strategy of an item can be read. If not, the item cannot.
    fn has_known_retry(
        &mut self,
        kind: ItemKind,
        name: &str,
        version: u64,
        retry: Option<&Retry>,
    ) -> bool {
        let is_known =
            !matches!(retry, Some(Retry::Plugin(plugin, _)) if plugin.as_str() == BUILT_IN);
        if !is_known {
            self.add_unreadable(kind, name.into(), version, "its retry config is not known");
        }
        is_known
    }

    fn add_unreadable(&mut self, kind: ItemKind, name: String, version: u64, why: &str) {
        let what = kind.as_str();
        tracing::error!(
            kind = what,
            name,
            version,
            why,
            "a configuration cannot be read: a newer release wrote it, or it is damaged"
        );
        if let (ItemKind::Queue, Ok(queue)) = (kind, name.parse()) {
            let limits = Limits { version, paused: true, unreadable: true, ..Limits::default() };
            self.limits.insert(queue, Arc::new(limits));
        }
        let item = UnreadableItem { version, reason: why.to_owned() };
        self.unreadable.insert((kind, name), item);
    }

    /// Adds the queues, the types and the limits that follow from them and the plugins.
    fn add_queues(
        &mut self,
        queues: HashMap<QueueName, QueueItem>,
        mut types: HashMap<TypeName, Arc<TypeItem>>,
    ) {
        for (name, config) in [
            (job_writes::CALLBACK_TYPE, job_writes::callback_type()),
            (ends::END_EVENT_TYPE, ends::end_event_type()),
        ] {
            let item = TypeItem { config, version: 0, leaving: false };
            types.insert(name.parse().expect("it is a valid name"), Arc::new(item));
        }
        let missing = QueueItem::default();
        let mut limited: HashMap<&QueueName, BTreeMap<TypeName, u32>> = HashMap::new();
        for (name, item) in &types {
            if let Some(most) = item.config.concurrency {
                limited.entry(&item.config.queue).or_default().insert(name.clone(), most);
            }
        }
        let implicit = types.values().map(|item| (&item.config.queue, &missing));
        let limits: Vec<_> = implicit
            .chain(&queues)
            .filter(|&(name, _)| !self.limits.contains_key(name))
            .map(|(name, item)| {
                let types = limited.get(name).cloned().unwrap_or_default();
                let throttler = item.config.throttler.as_ref();
                let throttler =
                    throttler.and_then(|throttler| self.plugin(&throttler.plugin, Role::Throttler));
                let throttler = throttler.map(|plugin| plugin.version);
                let limits = Limits {
                    version: item.version,
                    queue: item.config.clone(),
                    paused: item.paused,
                    unreadable: false,
                    types,
                    throttler,
                };
                (name.clone(), Arc::new(limits))
            })
            .collect();
        self.limits.extend(limits);
        let own = types.iter().filter(|(name, _)| !name.is_internal());
        let mut hosts = TargetHosts::default();
        for (name, item) in own {
            let own = match &item.config.target {
                Some(TargetConfig::Push(push)) => Some((None, &push.url)),
                _ => None,
            };
            let others = item.config.retry_targets.iter();
            let others = others.map(|(target, url)| (Some(target.as_str()), url));
            for (target, url) in own.into_iter().chain(others) {
                let url = Url::parse(url).ok();
                if let Some(host) = url.as_ref().and_then(Url::host_str) {
                    hosts.insert(name, target, host);
                }
            }
        }
        self.hosts = Arc::new(hosts);
        (self.queues, self.types) = (queues, types);
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

    /// The configuration as it was a moment ago: every request of every queue reads its version, so
    /// a step that follows another one does without. It suits decisions that a write in flight could
    /// have made as well.
    ///
    /// # Errors
    ///
    /// As [`Self::catalog`].
    pub(crate) async fn recent_catalog(&self) -> Result<Arc<Catalog>, Error> {
        let seen = self.catalog.load_full();
        if self.is_recent(&seen) { Ok(seen) } else { self.catalog().await }
    }

    /// Whether this process has just read that `catalog` is the current configuration. On an atomic
    /// store, where no write is in flight, it never counts as such.
    pub(crate) fn is_recent(&self, catalog: &Catalog) -> bool {
        let is_atomic = self.ports.store.capabilities().atomicity.is_atomic();
        !is_atomic && self.is_checked(catalog, MAX_CATALOG_AGE)
    }

    /// Whether a read that began at most `age` ago found that `catalog` is the current configuration.
    fn is_checked(&self, catalog: &Catalog, age: Duration) -> bool {
        let checked = *self.catalog_checked.lock();
        checked.is_some_and(|(version, at)| {
            let now = self.now();
            version == catalog.version && at <= now && now <= at + age
        })
    }

    /// The configuration, if a read that began at most `age` ago found it to be the current one;
    /// otherwise it is read.
    ///
    /// The latest read counts. So the configuration is at least that of any earlier call of
    /// [`Self::catalog`], and a step of several calls that have read it needs no read of its own.
    ///
    /// # Errors
    ///
    /// As [`Self::catalog`].
    pub async fn catalog_within(&self, age: Duration) -> Result<Arc<Catalog>, Error> {
        let seen = self.catalog.load_full();
        if self.is_checked(&seen, age) { Ok(seen) } else { self.catalog().await }
    }

    /// Has the next step read the configuration again. The triggers stay known: another queue may be
    /// about to end jobs, and the events of their ends are decided with the commit.
    pub(crate) fn forget_catalog(&self) {
        let rules = Arc::clone(&self.catalog.load().rules);
        self.catalog.store(Arc::new(Catalog { rules, ..Catalog::default() }));
    }

    /// Forgets when the configuration was read: this process has changed it.
    pub(super) fn forget_catalog_check(&self) {
        *self.catalog_checked.lock() = None;
    }

    /// Notes that `version` was the current one when its read `began`. A concurrent read may have
    /// begun later, or in the same millisecond and found a later version.
    fn note_catalog_check(&self, version: u64, began: Timestamp) {
        let mut checked = self.catalog_checked.lock();
        let is_later =
            |(known, at): (u64, Timestamp)| at < began || (at == began && known <= version);
        if version > 0 && checked.is_none_or(is_later) {
            *checked = Some((version, began));
        }
    }

    /// The current configuration. An item that cannot be read holds what depends on it alone.
    ///
    /// # Errors
    ///
    /// The store's; [`Error::Unavailable`] if a release has used the store whose data this one
    /// cannot read.
    pub async fn catalog(&self) -> Result<Arc<Catalog>, Error> {
        let began = self.now();
        let version = self.ports.store.items_version().await?;
        let seen = self.catalog.load_full();
        if seen.version == version && version > 0 {
            self.note_catalog_check(version, began);
            return Ok(seen);
        }
        let items = async |kind| self.ports.store.items(kind).await;
        let schema = Schema::of(&items(ItemKind::Schema).await?)?;
        let mut catalog = Catalog { version, schema, ..Catalog::default() };
        let queues: ReadItems<QueueName, QueueItem> =
            catalog.read(ItemKind::Queue, items(ItemKind::Queue).await?);
        let types: ReadItems<TypeName, TypeItem> =
            catalog.read(ItemKind::Type, items(ItemKind::Type).await?);
        let plugins: ReadItems<PluginName, PluginItem> =
            catalog.read(ItemKind::Plugin, items(ItemKind::Plugin).await?);
        let plugins = plugins.into_iter();
        catalog.plugins = plugins
            .map(|(name, version, plugin)| (name, Arc::new(PluginItem { version, ..plugin })))
            .collect();
        let queues = queues.into_iter();
        let types = types.into_iter().filter(|(name, version, item)| {
            catalog.has_known_retry(
                ItemKind::Type,
                name.as_str(),
                *version,
                Some(&item.config.retry),
            )
        });
        let types: Vec<_> = types.collect();
        let types = types.into_iter();
        catalog.add_queues(
            queues.map(|(name, version, queue)| (name, QueueItem { version, ..queue })).collect(),
            types
                .map(|(name, version, item)| (name, Arc::new(TypeItem { version, ..item })))
                .collect(),
        );
        let schedules: ReadItems<ScheduleName, ScheduleItem> =
            catalog.read(ItemKind::Schedule, items(ItemKind::Schedule).await?);
        let schedules = schedules.into_iter().filter(|(name, version, item)| {
            let retry = item.config.options.retry.as_ref();
            catalog.has_known_retry(ItemKind::Schedule, name.as_str(), *version, retry)
        });
        let schedules: Vec<_> = schedules.collect();
        catalog.schedules = schedules
            .into_iter()
            .map(|(name, version, item)| (name, Arc::new(ScheduleItem { version, ..item })))
            .collect();
        let drains: ReadItems<String, Drain> =
            catalog.read(ItemKind::Drain, items(ItemKind::Drain).await?);
        catalog.drains = drains.into_iter().map(|(name, _, drain)| (name, drain)).collect();
        let triggers: ReadItems<TriggerName, TriggerItem> =
            catalog.read(ItemKind::Trigger, items(ItemKind::Trigger).await?);
        catalog.add_triggers(triggers);
        let catalog = Arc::new(catalog);
        self.catalog.store(Arc::clone(&catalog));
        self.note_catalog_check(version, began);
        Ok(catalog)
    }
}

fn unwritten(error: &serde_json::Error) -> Error {
    Error::Internal(format!("a configuration cannot be written: {error}"))
}
