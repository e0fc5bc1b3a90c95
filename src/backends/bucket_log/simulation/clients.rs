//! The clients of a world, which read and write until every write is made.

use std::sync::{Arc, atomic::Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    bugs::Bug,
    executor::Actor,
    kv::{Command, Version},
    oracle::Read,
    world::{NODES, World},
};
use crate::bucket_log::LogRefusal;

const KEYS: i64 = 3;
/// How long a client waits for an answer of a node.
const CALL_TIMEOUT: i64 = 4_000;

impl World {
    pub async fn client(self: Arc<Self>) {
        let executor = &self.executor;
        executor.elapse(executor.between(0, 3_000)).await;
        let (mut target, mut made) = (0, 0);
        while made < self.scenario.writes {
            let (key, began) = (executor.between(0, KEYS) as u8, executor.now());
            let is_consistent = executor.happens(0.5);
            let world = Arc::clone(&self);
            let read = self.call(&mut target, move |node| async move {
                world.read(node, key, is_consistent).await
            });
            let Some(version) = read.await else {
                executor.elapse(300).await;
                continue;
            };
            self.oracle.lock().reads.push(Read { key, version, began, is_consistent });
            let write = self.next_attempt();
            made += u64::from(self.write(&mut target, write, key, version.0).await);
            let pause = if self.has_faults() { executor.between(0, 4_000) } else { 50 };
            executor.elapse(pause).await;
        }
    }

    /// Repeats a write until its outcome is known.
    async fn write(self: &Arc<Self>, target: &mut usize, write: u64, key: u8, was: u64) -> bool {
        loop {
            let attempt = self.next_attempt();
            let command = Command { write, attempt, key, was };
            let world = Arc::clone(self);
            let executed =
                self.call(target, move |node| async move { world.execute(node, command).await });
            if let Some(made) = executed.await {
                if made {
                    self.left.fetch_sub(1, Ordering::Relaxed);
                }
                return made;
            }
            self.executor.elapse(300).await;
        }
    }

    /// The number of a write, or of an attempt to make one.
    pub fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Calls a node: its answer, if there is one in time.
    async fn call<T: Send + 'static, F: Future<Output = Option<T>> + Send + 'static>(
        &self,
        target: &mut usize,
        serve: impl FnOnce(usize) -> F + Send + 'static,
    ) -> Option<T> {
        let executor = &self.executor;
        let any = || executor.between(0, NODES as i64) as usize;
        if executor.happens(0.3) {
            *target = any();
        }
        let (node, loses_answer) = (*target, self.has_faults() && executor.happens(0.03));
        let (reply, answer) = oneshot::channel();
        let reply = Arc::new(Mutex::new(Some(reply)));
        let timeout = Arc::clone(&reply);
        executor.after(CALL_TIMEOUT, move || drop(timeout.lock().take()));
        let runner = Arc::clone(executor);
        executor.after(10, move || {
            let back = Arc::clone(&runner);
            runner.spawn(Actor::Node(node), async move {
                let served = serve(node).await;
                if !loses_answer {
                    back.after(10, move || {
                        if let Some(reply) = reply.lock().take() {
                            let _ = reply.send(served);
                        }
                    });
                }
            });
        });
        let answered = answer.await.ok().flatten();
        if answered.is_none() {
            *target = any();
        }
        answered
    }

    async fn read(&self, node: usize, key: u8, is_consistent: bool) -> Option<Version> {
        let open = self.open(node)?;
        if is_consistent {
            open.epoch()?;
            if self.bug != Some(Bug::ReadWithoutProof) {
                open.prove_leadership().await.ok()?;
            }
        }
        Some(open.state().value(key))
    }

    pub async fn execute(&self, node: usize, command: Command) -> Option<bool> {
        let open = self.open(node)?;
        let early = open.epoch().and(self.bug).map(|bug| match bug {
            Bug::AppliedBeforeDurable => open.execute_early(command),
            _ => open.state().execute(command),
        });
        if self.bug == Some(Bug::EffectBeforeDurable) && early == Some(true) {
            self.oracle.lock().effects.push(command.attempt);
        }
        let submitted = open.submit(command).await;
        let mut oracle = self.oracle.lock();
        match submitted {
            Ok(made) => {
                let made = match (self.bug, early) {
                    (Some(Bug::EvaluatedBeforeDurable), Some(early)) => early,
                    _ => made,
                };
                oracle.note_acknowledged(node, command, made, self.executor.now());
                Some(made)
            }
            Err(LogRefusal::NotLeader) => {
                oracle.refused.push(command.attempt);
                None
            }
            Err(LogRefusal::OutcomeUnknown | LogRefusal::TooLarge) => None,
        }
    }
}
