//! The connection of each engine to the store and to the work queue.

use std::{sync::Arc, time::Duration};

use object_store::memory::InMemory;
#[cfg(feature = "aws")]
use parking_lot::Mutex;
#[cfg(feature = "aws")]
use tidegate_backends::dynamodb::{
    DynamoStore, LowWatermarks, TickRequests, memory::MemoryTable, table::Table,
};
use tidegate_core::port::{Clock, WorkQueue};
use tidegate_engine::{Engine, Ports, Rules};

use super::super::{
    bugs::Bug,
    log::LogStore,
    model::ProcessNumber,
    releases::{Release, Releases},
    scheduler::{SharedEntropy, SkewedClock},
    shared::{Adapter, SharedBug},
    store::EngineStore,
};
#[cfg(feature = "aws")]
use super::{
    super::{model::Model, scheduler::Scheduler, table::ObservedTable},
    config::RunConfig,
};
use super::{World, config::StoreKind, messages::Messages, unclaimed::EngineProcess};
#[cfg(feature = "aws")]
use crate::dynamodb::emulator::EmulatedTable;

/// How long a write may be in flight on a store that writes one by one.
const MAX_IN_FLIGHT_WRITE: Duration = Duration::from_secs(5);

impl World {
    /// A new engine process at `index`, with its own store connection, clock and caches.
    pub(super) fn engine(self: &Arc<Self>, index: usize) -> EngineProcess {
        let in_flight = if self.config.slow { MAX_IN_FLIGHT_WRITE } else { Duration::ZERO };
        let in_flight = self.config.bug.map_or(in_flight, |bug| bug.in_flight_write(in_flight));
        let is_wrong = self.config.bug == Some(Bug::ClockAhead) && index == 0;
        let skew_millis = if is_wrong { 3_600_000 } else { self.scheduler.draw(801) as i64 - 400 };
        let clock: Arc<dyn Clock> =
            Arc::new(SkewedClock { scheduler: Arc::clone(&self.scheduler), skew_millis });
        let connection = self.store_connection(index, in_flight, &clock);
        let release = match (self.config.releases, index % 2 == 1) {
            (Releases::One, _) | (Releases::Two, false) => Release::This,
            (Releases::OneForgets, false) => Release::Forgetful,
            (_, true) => Release::Next,
        };
        connection.set_release(release);
        let faults_active = self.faults_active() && self.scheduler.steps() > 0;
        connection.set_faults(self.store_faults(faults_active));
        let number = {
            let mut connections = self.engine_stores.lock();
            connections.push(Arc::clone(&connection));
            ProcessNumber(connections.len())
        };
        let ports = Ports {
            store: connection,
            objects: Arc::new(InMemory::new()),
            work: self.work_queue(&clock),
            clock,
            entropy: Arc::new(SharedEntropy(Arc::clone(&self.scheduler))),
            policy: Arc::new(self.policy.clone()),
        };
        let rules = Rules { start_unclaimed: self.starts_unclaimed(), ..Rules::default() };
        EngineProcess { number, engine: Arc::new(Engine::new(ports, rules)) }
    }

    /// Whether several servers share the store, or might.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.config.store_kind, StoreKind::Shared | StoreKind::Postgres)
    }

    /// Whether a job may start before it is written as running. The servers of a shared store have the
    /// rule that it may not.
    pub(super) fn starts_unclaimed(&self) -> bool {
        !self.is_shared() || self.config.shared_bug == Some(SharedBug::StartsUnwritten)
    }

    /// The messages, and on a table its requests for ticks.
    fn work_queue(self: &Arc<Self>, clock: &Arc<dyn Clock>) -> Arc<dyn WorkQueue> {
        let messages = Messages(Arc::downgrade(self));
        #[cfg(feature = "aws")]
        if let Some(table) = &self.table {
            let entropy = Arc::new(SharedEntropy(Arc::clone(&self.scheduler)));
            let table = Arc::clone(table) as Arc<dyn Table>;
            return Arc::new(TickRequests::new(
                Arc::new(messages),
                table,
                Arc::clone(clock),
                entropy,
            ));
        }
        let _ = clock;
        Arc::new(messages)
    }

    /// A new connection of the engine at `index` to the store.
    fn store_connection(
        &self,
        index: usize,
        in_flight: Duration,
        clock: &Arc<dyn Clock>,
    ) -> Arc<EngineStore> {
        let observed = self.observed(index);
        #[cfg(feature = "aws")]
        if let Some(table) = &self.table {
            let entropy = Arc::new(SharedEntropy(Arc::clone(&self.scheduler)));
            let store =
                DynamoStore::new(Arc::clone(table) as Arc<dyn Table>, Arc::clone(clock), entropy);
            // A run is too short for low watermarks to save much. They are used here because a
            // wrong one would hide a job.
            let store = store.with_low_watermarks(LowWatermarks {
                worth: 1,
                stuck: 2,
                old: Duration::from_secs(30),
            });
            // While a deployment changes its number of shards, some of its processes know the new
            // number and some do not.
            let store = store.with_shards(1 + self.scheduler.draw(2) as u8);
            return EngineStore::direct(Arc::new(store), observed, in_flight, self.config.bug);
        }
        let _ = clock;
        if let Some(log) = &self.log {
            let store = Arc::new(LogStore::new(log));
            return EngineStore::direct(store, observed, in_flight, self.config.bug);
        }
        if self.config.store_kind == StoreKind::Shared {
            let adapter = Adapter::new(observed, &self.scheduled, self.config.shared_bug);
            return EngineStore::by(adapter, observed, self.config.bug);
        }
        let seed = self.config.seed ^ self.scheduler.steps();
        EngineStore::new(observed, seed, in_flight, self.config.bug)
    }

    #[cfg(feature = "aws")]
    pub(super) fn table(
        config: RunConfig,
        scheduler: &Arc<Scheduler>,
        model: &Arc<Mutex<Model>>,
    ) -> Option<Arc<ObservedTable>> {
        let table: Arc<dyn Table> = match config.store_kind {
            StoreKind::Table => Arc::new(MemoryTable::new()),
            StoreKind::Emulator => Arc::new(EmulatedTable::new()),
            StoreKind::Memory
            | StoreKind::Sqlite
            | StoreKind::Shared
            | StoreKind::Postgres
            | StoreKind::Log => return None,
        };
        let (scheduler, model) = (Arc::clone(scheduler), Arc::clone(model));
        Some(Arc::new(ObservedTable {
            table,
            scheduler,
            model,
            faults: Mutex::default(),
            bug: config.table_bug,
        }))
    }
}
