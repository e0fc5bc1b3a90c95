//! The host: loads a plugin, calls it within the bounds, checks its answer against the contract,
//! and records diagnostics for operators.

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
    diagnostics::{CompletedCall, Diagnostics, LogLine, PluginDiagnostics, ToAnswer},
    module_cache::ModuleCache,
    recording::{RecordedCall, RecordingRules, Unstored},
    runtime::{Loaded, Runtime},
};
use tidegate_core::{
    job::{Job, PluginName},
    port::{
        Clock,
        policy::{
            Call, Fault, FaultKind, Plugin, Policy, Problem, Purpose, RetryCall, RetryOutput,
            ThrottleAnswer, ThrottleCall, Usage,
        },
    },
    queue::plugin::Role,
};

/// The threads that run calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// The blocking threads of the async runtime, for servers: a call may take a quarter of a
    /// second.
    Aside,
    /// The calling thread, for simulations and tests. Its calls do not count in the metrics of the
    /// process.
    Here,
}

/// Runs plugins. A process needs only one: it has the compiled code, and a thread that limits the
/// time of calls.
pub struct PluginHost {
    pub(super) inner: Arc<Inner>,
    pub(super) run: Run,
    modules: ModuleCache,
}

pub(super) struct Inner {
    pub runtime: Arc<Runtime>,
    diagnostics: Diagnostics,
    clock: Arc<dyn Clock>,
}

impl PluginHost {
    /// A host that reads compiled plugins from `objects`, and takes the time of diagnostics from
    /// `clock`.
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
        let runtime = Arc::new(Runtime::new().map_err(unavailable)?);
        Ok(Self {
            inner: Arc::new(Inner {
                runtime,
                diagnostics: Diagnostics::counting(run == Run::Aside),
                clock,
            }),
            run,
            modules: ModuleCache::new(objects),
        })
    }

    /// The diagnostics of a plugin's calls by this host.
    pub fn seen(&self, plugin: &PluginName) -> PluginDiagnostics {
        self.inner.diagnostics.seen(plugin)
    }

    /// Takes what was counted and logged of each plugin since the latest call. The latest failed calls
    /// stay.
    pub fn take_new(&self) -> Vec<(PluginName, PluginDiagnostics)> {
        self.inner.diagnostics.take_new()
    }

    /// The usage of a plugin's latest call: a cheap part of [`PluginHost::seen`].
    pub fn last(&self, plugin: &PluginName) -> Option<Usage> {
        self.inner.diagnostics.last(plugin)
    }

    /// The lines of a plugin's log after the one of this number, oldest first.
    pub fn log_after(&self, plugin: &PluginName, number: u64) -> Vec<LogLine> {
        self.inner.diagnostics.log_after(plugin, number)
    }

    /// Sets which calls are recorded. Without it, only the latest faults are, in memory.
    pub fn set_recording_rules(&self, rules: RecordingRules) {
        self.inner.diagnostics.set_rules(rules);
    }

    /// The latest recorded calls of a plugin, oldest first.
    pub fn latest_calls(&self, plugin: &PluginName) -> Vec<Arc<RecordedCall<Call>>> {
        self.inner.diagnostics.latest(plugin)
    }

    /// Takes the recorded calls that are to be stored, oldest first.
    pub fn take_unstored(&self) -> Vec<Unstored> {
        self.inner.diagnostics.take_unstored()
    }

    /// Removes the diagnostics of a removed plugin.
    pub fn forget(&self, plugin: &PluginName) {
        self.inner.diagnostics.forget(plugin);
    }

    /// Makes sure that `plugin` can be called: fetches and loads its code, unless it is cached.
    ///
    /// # Errors
    ///
    /// [`FaultKind::Unavailable`] if it cannot be loaded.
    pub async fn load(&self, plugin: &Plugin) -> Result<(), Fault> {
        self.loaded(plugin).await.map(drop)
    }

    async fn loaded(&self, plugin: &Plugin) -> Result<Arc<Loaded>, Fault> {
        self.modules.get(&self.inner.runtime, plugin, |load| run(self.run, load)).await
    }

    /// Loads and calls `plugin`, and records the outcome.
    async fn record_call<T: ToAnswer + Send + 'static>(
        &self,
        plugin: &Plugin,
        request: CallRequest,
        call: impl FnOnce(&Inner, &Loaded) -> CallOutcome<T> + Send + 'static,
    ) -> Result<T, Fault> {
        let (inner, loaded) = (Arc::clone(&self.inner), self.loaded(plugin).await);
        let plugin = plugin.clone();
        let whole = move || {
            let outcome = match loaded {
                Ok(loaded) => call(&inner, &loaded),
                Err(fault) => CallOutcome::of(Err(fault)),
            };
            inner.record(&plugin, request, outcome)
        };
        run(self.run, whole).await
    }
}

/// Runs `work` on the thread of `run`.
pub(super) async fn run<T: Send + 'static>(
    run: Run,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match run {
        Run::Here => work(),
        Run::Aside => tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
            Err(Fault {
                kind: FaultKind::Unavailable,
                message: format!("the host stopped: {error}"),
            })
        }),
    }
}

/// The role, purpose and arguments of a call.
struct CallRequest {
    role: Role,
    purpose: Purpose,
    call: Option<Call>,
}

/// The outcome and the usage of a call.
pub(super) struct CallOutcome<T> {
    pub answer: Result<T, Fault>,
    usage: Usage,
    guest: Option<Guest>,
}

impl<T> CallOutcome<T> {
    fn of(answer: Result<T, Fault>) -> Self {
        Self { answer, usage: Usage::default(), guest: None }
    }

    /// Validates the answer with `check`.
    pub(super) fn then<U>(
        mut self,
        check: impl FnOnce(T, Option<&mut Guest>) -> Result<U, Fault>,
    ) -> CallOutcome<U> {
        let answer = self.answer.and_then(|answer| check(answer, self.guest.as_mut()));
        CallOutcome { answer, usage: self.usage, guest: self.guest }
    }
}

fn not_a(role: &str) -> Fault {
    Fault {
        kind: FaultKind::Unavailable,
        message: format!("it is not a {role}: its component does not export that role"),
    }
}

impl Inner {
    /// One call of a guest in a new store.
    pub(super) fn call<T>(
        &self,
        guest: Guest,
        call: impl FnOnce(&mut Store<Guest>) -> wasmtime::Result<T>,
    ) -> CallOutcome<T> {
        let took = stopwatch();
        let (said, store) = self.runtime.call(guest, call);
        let answer = said.map_err(|error| fault::of(&error, &store));
        // The engine does not store the remaining fuel when the time runs out.
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

    /// Records the outcome of a call.
    fn record<T: ToAnswer>(
        &self,
        plugin: &Plugin,
        request: CallRequest,
        outcome: CallOutcome<T>,
    ) -> Result<T, Fault> {
        let CallOutcome { answer, usage, guest } = outcome;
        let CallRequest { role, purpose, call } = request;
        let guest = guest.unwrap_or_else(|| Guest::new(None, Subject::Itself(role)));
        self.diagnostics.add(CompletedCall {
            plugin,
            role,
            purpose,
            at: self.clock.now(),
            usage,
            log: guest.log,
            log_dropped: guest.log_dropped,
            metrics: guest.metrics,
            metrics_dropped: guest.metrics_dropped,
            answer: answer.as_ref().map(|answer| answer as &dyn ToAnswer),
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
        let by_column = loaded.by_column && !description.needs_earlier;
        let candidates: &[Job] = if by_column { &[] } else { &call.candidates[..] };
        let said = self.call(guest, |store| {
            let instance = throttler.instantiate(&mut *store)?;
            let exported = instance.tidegate_plugin_throttle();
            lower::throttle(call, candidates, description, |context, round, candidates| {
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
    ) -> CallOutcome<RetryOutput> {
        let (Some(retry), Some(_)) = (&loaded.retry, &plugin.version.retry) else {
            return CallOutcome::of(Err(not_a("retry strategy")));
        };
        let guest = Guest::new(Some(Arc::clone(&plugin.version)), Subject::Retry(Arc::clone(call)));
        let said = self.call(guest, |store| {
            let instance = retry.instantiate(&mut *store)?;
            let exported = instance.tidegate_plugin_retry();
            lower::retry(call, |context, failed, last| {
                exported.call_on_failure(store, context, failed, last)
            })
            .transpose()
        });
        said.then(|said, guest| {
            let said = said.ok_or_else(|| Fault {
                kind: FaultKind::Unavailable,
                message: "the job has no failed attempt".into(),
            })?;
            let answer = answer::retry(call, said.map_err(fault::rejected)?)?;
            Ok(RetryOutput { answer, state: guest.and_then(|guest| guest.changed.take()) })
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

/// Measures the time since this call.
#[allow(
    clippy::disallowed_methods,
    reason = "a measurement for operators, on which nothing depends"
)]
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
        let request = CallRequest {
            role: Role::Throttler,
            purpose,
            call: Some(Call::Throttle(Arc::clone(&call))),
        };
        let called = plugin.clone();
        self.record_call(plugin, request, move |inner, loaded| {
            inner.throttle(&called, loaded, &call)
        })
        .await
    }

    async fn retry(
        &self,
        plugin: &Plugin,
        call: Arc<RetryCall>,
        purpose: Purpose,
    ) -> Result<RetryOutput, Fault> {
        let request =
            CallRequest { role: Role::Retry, purpose, call: Some(Call::Retry(Arc::clone(&call))) };
        let called = plugin.clone();
        self.record_call(plugin, request, move |inner, loaded| inner.retry(&called, loaded, &call))
            .await
    }

    async fn check(
        &self,
        plugin: &Plugin,
        role: Role,
        config: &str,
    ) -> Result<Vec<Problem>, Fault> {
        let config = config.to_owned();
        let request = CallRequest { role, purpose: Purpose::Check, call: None };
        self.record_call(plugin, request, move |inner, loaded| inner.check(loaded, role, &config))
            .await
    }

    fn report_fault(&self, plugin: &Plugin, call: &Call, fault: &Fault) {
        self.inner.diagnostics.add_fault(plugin, call, fault, self.inner.clock.now());
    }
}
