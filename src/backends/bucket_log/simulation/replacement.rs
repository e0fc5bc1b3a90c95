//! A node that is started to replace a busy leader, and one that is lost whenever it has claimed an
//! epoch.

use std::{sync::Arc, time::Duration};

use super::{
    bugs::Bug,
    executor::Actor,
    kv::Command,
    oracle::{self, longest_gap},
    scenario::{self, Scenario, WITH_HINTS, WITHOUT_HINTS},
    world::{END_AT, NODES, World},
};
use crate::bucket_log::{
    NodeSettings,
    body::{self, EpochClaim},
    key::{Epoch, ObjectKey},
    object::Object,
};

/// The node that replaces the leader, whenever it starts.
const REPLACEMENT: usize = NODES - 1;
/// The time between two writes. It is about the time of a request, and a candidate needs several from
/// an empty slot to its seal there.
const WRITE_INTERVAL: i64 = 100;
/// How long the leader has been busy when the replacement starts.
const BUSY_FOR: i64 = 40_000;
/// The longest time from a claim until its node leads.
const MAX_REPLACEMENT: i64 = 8_000;
/// How many replacements are started that are lost.
const LOST_REPLACEMENTS: u32 = 5;
/// The time until the next one is started, and the longest one until it claims.
const REPLACEMENT_INTERVAL: i64 = 10_000;

/// One of these nodes replaces the leader, whenever it starts.
pub const REPLACED: Scenario = Scenario { settings, ..WITHOUT_HINTS };

fn settings(node: usize) -> NodeSettings {
    NodeSettings {
        leads_at_start: node == REPLACEMENT,
        handover_interval: Duration::from_secs(5),
        ..scenario::settings(node)
    }
}

/// The bounds of such nodes, with epochs that do not end by themselves. Standbys have the usual
/// patience, because the test is about another node.
fn settings_of_long_epochs(node: usize) -> NodeSettings {
    NodeSettings {
        rollover_records: 10_000,
        patience: (Duration::from_secs(8), Duration::from_secs(12)),
        handover_interval: Duration::from_secs(10),
        ..settings(node)
    }
}

/// What became of replacements that were lost.
#[derive(Debug)]
pub struct Lost {
    /// How many there were.
    pub times: u32,
    /// The longest time, in milliseconds, without an acknowledgement.
    pub silence: i64,
    /// The longest time, in milliseconds, without a beat that differs from the one before.
    pub beatless: i64,
}

impl World {
    /// Starts a node that replaces a busy leader. Returns how many milliseconds after its claim it
    /// leads; none if it does not in time.
    ///
    /// # Errors
    ///
    /// The invariant that broke.
    pub fn replace_busy_leader(seed: u64, bug: Option<Bug>) -> Result<Option<i64>, String> {
        let world = Self::with_busy_leader(seed, bug);
        world.boot(REPLACEMENT);
        world.executor.run(END_AT, || world.claimed_by_replacement().is_some());
        let claimed_at = world.executor.now();
        let leads = || world.led_by(REPLACEMENT).is_some();
        let is_late = || world.executor.now() >= claimed_at + MAX_REPLACEMENT;
        world.executor.run(END_AT, || leads() || is_late());
        let took = leads().then(|| world.executor.now() - claimed_at);
        let checked = oracle::check_so_far(&world);
        world.end();
        checked.map(|()| took)
    }

    /// Starts a node that replaces a busy leader again and again, and stops it once it has claimed an
    /// epoch.
    ///
    /// # Errors
    ///
    /// The invariant that broke, or that another node leads.
    pub fn lose_replacements(seed: u64) -> Result<Lost, String> {
        let world = Self::with_busy_leader(seed, None);
        let leader = world.leader().map(|(_, node)| node);
        let (began, mut lost, mut seen) = (world.executor.now(), 0, None);
        for _ in 0..LOST_REPLACEMENTS {
            world.boot(REPLACEMENT);
            let end = world.executor.now() + REPLACEMENT_INTERVAL;
            let is_over = || world.executor.now() >= end;
            world.executor.run(END_AT, || world.claimed_by_replacement() > seen || is_over());
            let claimed = world.claimed_by_replacement();
            lost += u32::from(claimed > seen);
            seen = seen.max(claimed);
            world.stop(REPLACEMENT);
            world.run_until(world.executor.now() + REPLACEMENT_INTERVAL);
        }
        let now = world.executor.now();
        let silence = world.oracle.lock().longest_silence(began, now);
        let beatless = longest_gap(began, now, world.objects.lock().beats.iter().copied());
        let later = world.leader().map(|(_, node)| node);
        let checked = oracle::check_so_far(&world);
        world.end();
        checked?;
        if leader.is_none() || later != leader {
            return Err(format!("{leader:?} led, and {later:?} does now"));
        }
        Ok(Lost { times: lost, silence, beatless })
    }

    /// A world in which a node has led for a while without a pause between writes.
    fn with_busy_leader(seed: u64, bug: Option<Bug>) -> Arc<Self> {
        let scenario = Scenario { settings: settings_of_long_epochs, ..WITH_HINTS };
        let world = Self::without_faults(seed, bug, scenario);
        (0..REPLACEMENT).for_each(|node| world.boot(node));
        world.executor.spawn(Actor::Client, Arc::clone(&world).write_forever());
        world.run_until(world.executor.now() + BUSY_FOR);
        world
    }

    async fn write_forever(self: Arc<Self>) {
        loop {
            for node in 0..NODES {
                let (write, attempt) = (self.next_attempt(), self.next_attempt());
                let command = Command { write, attempt, key: 0, was: 0 };
                let world = Arc::clone(&self);
                self.executor.spawn(Actor::Node(node), async move {
                    world.execute(node, command).await;
                });
            }
            self.executor.elapse(WRITE_INTERVAL).await;
        }
    }

    /// The newest claim, if it is that of the replacement.
    fn claimed_by_replacement(&self) -> Option<Epoch> {
        let objects = self.objects.lock();
        let epoch = objects.claimed?;
        let claim = Object::decode(objects.now.get(&ObjectKey::Claim(epoch))?.clone()).ok()?;
        let claim: EpochClaim = body::decode(&claim.body).ok()?;
        claim.replaces.then_some(epoch)
    }
}
