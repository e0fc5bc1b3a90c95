//! The leaders of a log, and what happens to their machines.

use std::{sync::Arc, time::Duration};

use super::{
    super::log::{Log, NODES},
    World,
};

/// The longest time until the first node leads.
const MAX_START: Duration = Duration::from_mins(1);
/// For how many seconds a node is frozen. A standby takes over meanwhile, or not.
const FROZEN: [u64; 3] = [3, 15, 40];
/// The probability that the clock of a machine is set when a fault happens.
const CLOCK_SET: f64 = 0.4;

impl World {
    /// Starts the nodes of the log, if there is one, and waits until one leads.
    pub(super) fn await_leader(self: &Arc<Self>) -> Result<(), String> {
        let Some(log) = &self.log else { return Ok(()) };
        (0..NODES).for_each(|node| log.boot(node));
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.follow_leaders().await });
        self.scheduler.run(self.scheduler.now() + MAX_START, || log.has_led());
        self.violation()?;
        if log.has_led() { Ok(()) } else { Err("B8: no node of the log leads".into()) }
    }

    /// Lets the nodes of the log go on. When another one leads, its process begins new engines.
    async fn follow_leaders(self: Arc<Self>) {
        let Some(log) = self.log.clone() else { return };
        loop {
            log.executor.turn();
            if log.note_leader() {
                self.begin_engines(&log);
            }
            self.scheduler.elapse_until(log.executor.next_at()).await;
        }
    }

    /// Replaces the engines by those of the process that leads. What the ones before have begun fails, or
    /// happens late.
    fn begin_engines(self: &Arc<Self>, log: &Log) {
        log.check_leader(&self.queue);
        let count = self.engines.lock().len();
        for index in 0..count {
            let process = self.engine(index);
            self.engines.lock()[index] = process;
        }
    }

    /// Freezes nodes of the log, crashes their machines and sets their clocks, until the faults end.
    pub(super) fn start_log_faults(self: &Arc<Self>) {
        let Some(log) = self.log.clone() else { return };
        let world = Arc::clone(self);
        self.scheduler.spawn(async move {
            let s = &world.scheduler;
            while world.faults_active() {
                let node = s.draw(NODES);
                if s.happens(0.5) {
                    log.executor.freeze(node, Duration::from_secs(s.pick(&FROZEN)));
                } else {
                    log.crash(node);
                }
                if s.happens(CLOCK_SET) {
                    log.set_clock(s.draw(NODES));
                }
                s.elapse(Duration::from_secs(8) + s.span(20.0)).await;
            }
        });
    }
}
