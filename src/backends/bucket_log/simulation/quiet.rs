//! Worlds without random faults, to which at most one thing happens.

use super::{
    oracle,
    scenario::{WITH_HINTS, WITHOUT_HINTS},
    world::{END_AT, NODES, QUIET_AT, World},
};

impl World {
    /// Freezes a leader that has no clients, until others lead. Returns the epoch that it led, and
    /// the one that it counts as leading a while after it goes on. There are no other faults.
    pub fn freeze_idle_leader(seed: u64) -> (u64, Option<u64>) {
        let world = Self::without_faults(seed, None, WITHOUT_HINTS);
        (0..NODES).for_each(|node| world.boot(node));
        world.run_until(QUIET_AT + 30_000);
        // Without hints, an idle leader is often taken over from. Then no node leads for a moment.
        world.executor.run(END_AT, || world.leader().is_some());
        let (epoch, leader) = world.leader().expect("a node leads");
        let frozen_at = world.executor.now();
        world.executor.freeze(leader, 120_000);
        world.run_until(frozen_at + 170_000);
        let later = world.led_by(leader);
        world.end();
        (epoch, later)
    }

    /// The epoch that a node leads when nodes with hints have been idle for a while, and the one some
    /// minutes later. There are no faults.
    pub fn stay_idle(seed: u64) -> (Option<u64>, Option<u64>) {
        let world = Self::without_faults(seed, None, WITH_HINTS);
        (0..NODES).for_each(|node| world.boot(node));
        let epoch_at = |at| {
            world.run_until(at);
            world.leader().map(|(epoch, _)| epoch)
        };
        let epochs = (epoch_at(QUIET_AT + 90_000), epoch_at(QUIET_AT + 400_000));
        world.end();
        epochs
    }

    /// Checks a world whose nodes are all lost when its faults end.
    ///
    /// # Errors
    ///
    /// The invariant that broke.
    pub fn lose_all_nodes(seed: u64) -> Result<(), String> {
        let world = Self::without_faults(seed, None, WITHOUT_HINTS);
        (0..NODES).for_each(|node| world.boot(node));
        world.executor.run(END_AT, || world.leader().is_some());
        (0..NODES).for_each(|node| world.stop(node));
        world.oracle.lock().calm_at = Some(world.executor.now());
        world.executor.run(END_AT, || {
            oracle::note_leader(&world);
            false
        });
        let checked = oracle::check(&world);
        world.end();
        checked
    }
}
