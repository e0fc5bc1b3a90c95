//! The host: loads a plugin, calls it within the bounds, holds its answer against the contract, and keeps what
//! operators want to see of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use object_store::ObjectStore;
use wasmtime::Store;

use super::{
    answer, fault,
    guest::{Guest, Subject},
    lower,
};
use crate::wasm::{
    diagnostics::{Called, Diagnostics, PluginDiagnostics},
    module_cache::Shelf,
    runtime::{Loaded, Runtime},
};
use tidegate_core::{
    job::PluginName,
    port::{
        Clock,
        policy::{
            Call, Fault, FaultKind, Plugin, Policy, Problem, Purpose, RetryAnswer, RetryCall,
            ThrottleAnswer, ThrottleCall, Usage,
        },
    },
    queue::plugin::Role,
};

/// Where calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// On the runtime's threads for what blocks, for servers: a call may take a quarter of a second.
    Aside,
    /// Where the question is asked, for simulations and tests: nothing else happens meanwhile.
    Here,
}

/// Runs plugins. One for a process: it holds compiled code, and a thread that watches the time of calls.
pub struct PluginHost {
    pub(super) inner: Arc<Inner>,
    pub(super) run: Run,
    shelf: Shelf,
}

pub(super) struct Inner {
    pub machine: Arc<Runtime>,
    journal: Diagnostics,
    clock: Arc<dyn Clock>,
}

impl PluginHost {
    /// A host that finds compiled plugins in `objects`, and dates what it keeps for operators by `clock`.
    ///
    /// # Errors
    ///
    /// [`FaultKind::Unavailable`] if this machine cannot run plugins.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        clock: Arc<dyn Clock>,
        run: Run,
    ) -> Result<Self, Fault> {
        let unavailable = |error| Fault {
            kind: FaultKind::Unavailable,
            message: format!("this machine runs no plugins: {error:#}"),
        };
        let machine = Arc::new(Runtime::new().map_err(unavailable)?);
        Ok(Self {
            inner: Arc::new(Inner { machine, journal: Diagnostics::default(), clock }),
            run,
            shelf: Shelf::new(objects),
        })
    }

    /// What is known of the calls that this host made of a plugin.
    pub fn seen(&self, plugin: &PluginName) -> PluginDiagnostics {
        self.inner.journal.seen(plugin)
    }

    /// What the latest call of a plugin used, if it was called: a part of [`PluginHost::seen`] that costs next to nothing.
    pub fn last(&self, plugin: &PluginName) -> Option<Usage> {
        self.inner.journal.last(plugin)
    }

    /// Forgets what is known of a plugin that was removed.
    pub fn forget(&self, plugin: &PluginName) {
        self.inner.journal.forget(plugin);
    }

    /// Makes sure that `plugin` can be called: fetches and loads its code, unless it is held.
    ///
    /// # Errors
    ///
    /// [`FaultKind::Unavailable`] if it cannot be loaded.
    pub async fn load(&self, plugin: &Plugin) -> Result<(), Fault> {
        self.loaded(plugin).await.map(drop)
    }

    async fn loaded(&self, plugin: &Plugin) -> Result<Arc<Loaded>, Fault> {
        self.shelf.get(&self.inner.machine, plugin, |load| run(self.run, load)).await
    }

    /// Loads `plugin` and makes a call of it; what comes of it is kept.
    async fn ask<T: Send + 'static>(
        &self,
        plugin: &Plugin,
        ask: CallRequest,
        answer: impl FnOnce(&Inner, &Loaded) -> CallOutcome<T> + Send + 'static,
    ) -> Result<T, Fault> {
        let (inner, loaded) = (Arc::clone(&self.inner), self.loaded(plugin).await);
        let plugin = plugin.clone();
        let whole = move || {
            let outcome = match loaded {
                Ok(loaded) => answer(&inner, &loaded),
                Err(fault) => CallOutcome::of(Err(fault)),
            };
            inner.note(&plugin, ask, outcome)
        };
        run(self.run, whole).await
    }
}

/// Runs `work` where it is to be run.
pub(super) async fn run<T: Send + 'static>(
    place: Run,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match place {
        Run::Here => work(),
        Run::Aside => tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
            Err(Fault {
                kind: FaultKind::Unavailable,
                message: format!("the host broke off: {error}"),
            })
        }),
    }
}

/// In which role a plugin is asked, what for, and what.
struct CallRequest {
    role: Role,
    purpose: Purpose,
    call: Option<Call>,
}

/// What came of a call, and what it used.
pub(super) struct CallOutcome<T> {
    pub answer: Result<T, Fault>,
    usage: Usage,
    guest: Option<Guest>,
}

impl<T> CallOutcome<T> {
    fn of(answer: Result<T, Fault>) -> Self {
        Self { answer, usage: Usage::default(), guest: None }
    }

    /// With what the guest said held against what it may say.
    pub(super) fn then<U>(
        mut self,
        hold: impl FnOnce(T, Option<&mut Guest>) -> Result<U, Fault>,
    ) -> CallOutcome<U> {
        let answer = self.answer.and_then(|said| hold(said, self.guest.as_mut()));
        CallOutcome { answer, usage: self.usage, guest: self.guest }
    }
}

fn not_a(what: &str) -> Fault {
    Fault {
        kind: FaultKind::Unavailable,
        message: format!("it is not a {what}: its component does not export that role"),
    }
}

impl Inner {
    /// One call of a guest in a store of its own.
    pub(super) fn call<T>(
        &self,
        guest: Guest,
        call: impl FnOnce(&mut Store<Guest>) -> wasmtime::Result<T>,
    ) -> CallOutcome<T> {
        let took = stopwatch();
        let (said, store) = self.machine.call(guest, call);
        let answer = said.map_err(|error| fault::of(&error, &store));
        // The register that counts fuel is not written back when the time runs out.
        let timed_out = matches!(&answer, Err(fault) if fault.kind == FaultKind::Timeout);
        let left = store.get_fuel().unwrap_or_default();
        let data = store.data();
        let usage = Usage {
            fuel: (!timed_out).then(|| super::bounds::FUEL - left),
            memory_bytes: data.limiter.memory as u64,
            host_calls: data.host_calls,
            took: Duration::ZERO,
        };
        let guest = store.into_data();
        CallOutcome { answer, usage: Usage { took: took(), ..usage }, guest: Some(guest) }
    }

    /// Keeps what came of a call.
    fn note<T>(
        &self,
        plugin: &Plugin,
        ask: CallRequest,
        outcome: CallOutcome<T>,
    ) -> Result<T, Fault> {
        let CallOutcome { answer, usage, guest } = outcome;
        let (log, log_dropped) =
            guest.map(|guest| (guest.log, guest.log_dropped)).unwrap_or_default();
        let fault = answer.as_ref().err();
        let CallRequest { role, purpose, call } = ask;
        self.journal.add(Called {
            plugin,
            role,
            purpose,
            at: self.clock.now(),
            usage,
            log,
            log_dropped,
            fault,
            call,
        });
        answer
    }

    fn throttle(
        &self,
        plugin: &Plugin,
        loaded: &Loaded,
        call: &Arc<ThrottleCall>,
    ) -> CallOutcome<ThrottleAnswer> {
        let (Some(throttler), Some(description)) = (&loaded.throttler, &plugin.version.throttler)
        else {
            return CallOutcome::of(Err(not_a("throttler")));
        };
        let guest =
            Guest::new(Some(Arc::clone(&plugin.version)), Subject::Throttle(Arc::clone(call)));
        let said = self.call(guest, |store| {
            let instance = throttler.instantiate(&mut *store)?;
            let exported = instance.tidegate_plugin_throttle();
            lower::throttle(call, description.needs_ended, |context, round, candidates| {
                exported.call_decide(store, context, round, candidates)
            })
        });
        said.then(|said, guest| {
            let answer = answer::throttle(call, said.map_err(fault::rejected)?)?;
            Ok(ThrottleAnswer { state: guest.and_then(|guest| guest.changed.take()), ..answer })
        })
    }

    fn retry(
        &self,
        plugin: &Plugin,
        loaded: &Loaded,
        call: &Arc<RetryCall>,
    ) -> CallOutcome<RetryAnswer> {
        let (Some(retry), Some(_)) = (&loaded.retry, &plugin.version.retry) else {
            return CallOutcome::of(Err(not_a("retry strategy")));
        };
        let guest = Guest::new(Some(Arc::clone(&plugin.version)), Subject::Retry(Arc::clone(call)));
        let said = self.call(guest, |store| {
            let instance = retry.instantiate(&mut *store)?;
            let exported = instance.tidegate_plugin_retry();
            lower::retry(call, |context, failed| exported.call_on_failure(store, context, failed))
                .transpose()
        });
        said.then(|said, _| {
            let said = said.ok_or_else(|| Fault {
                kind: FaultKind::Unavailable,
                message: "the job has no failed attempt".into(),
            })?;
            answer::retry(call, said.map_err(fault::rejected)?)
        })
    }

    pub(super) fn check(
        &self,
        loaded: &Loaded,
        role: Role,
        config: &str,
    ) -> CallOutcome<Vec<Problem>> {
        let guest = Guest::new(None, Subject::Itself(role));
        let said = match (role, &loaded.throttler, &loaded.retry) {
            (Role::Throttler, Some(throttler), _) => self.call(guest, |store| {
                throttler
                    .instantiate(&mut *store)?
                    .tidegate_plugin_throttle()
                    .call_check_config(store, config)
            }),
            (Role::Retry, _, Some(retry)) => self.call(guest, |store| {
                retry
                    .instantiate(&mut *store)?
                    .tidegate_plugin_retry()
                    .call_check_config(store, config)
            }),
            (Role::Throttler, None, _) => return CallOutcome::of(Err(not_a("throttler"))),
            (Role::Retry, _, None) => return CallOutcome::of(Err(not_a("retry strategy"))),
        };
        said.then(|said, _| Ok(answer::problems(said)))
    }
}

/// Says how long ago it was made.
#[allow(clippy::disallowed_methods, reason = "a measurement for people, which decides nothing")]
fn stopwatch() -> impl FnOnce() -> Duration {
    let start = Instant::now();
    move || start.elapsed()
}

#[async_trait]
impl Policy for PluginHost {
    async fn throttle(
        &self,
        plugin: &Plugin,
        call: Arc<ThrottleCall>,
        purpose: Purpose,
    ) -> Result<ThrottleAnswer, Fault> {
        let ask = CallRequest {
            role: Role::Throttler,
            purpose,
            call: Some(Call::Throttle(Arc::clone(&call))),
        };
        let asked = plugin.clone();
        self.ask(plugin, ask, move |inner, loaded| inner.throttle(&asked, loaded, &call)).await
    }

    async fn retry(
        &self,
        plugin: &Plugin,
        call: Arc<RetryCall>,
        purpose: Purpose,
    ) -> Result<RetryAnswer, Fault> {
        let ask =
            CallRequest { role: Role::Retry, purpose, call: Some(Call::Retry(Arc::clone(&call))) };
        let asked = plugin.clone();
        self.ask(plugin, ask, move |inner, loaded| inner.retry(&asked, loaded, &call)).await
    }

    async fn check(
        &self,
        plugin: &Plugin,
        role: Role,
        config: &str,
    ) -> Result<Vec<Problem>, Fault> {
        let config = config.to_owned();
        let ask = CallRequest { role, purpose: Purpose::Check, call: None };
        self.ask(plugin, ask, move |inner, loaded| inner.check(loaded, role, &config)).await
    }

    fn report_fault(&self, plugin: &Plugin, call: &Call, fault: &Fault) {
        self.inner.journal.found(plugin, call, fault, self.inner.clock.now());
    }
}
