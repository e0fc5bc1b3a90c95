//! Plugins as closures: the decisions that a test needs, without a component.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use tidegate_core::{
    job::Job,
    port::{
        Policy,
        policy::{
            Action, Call, Decision, Fault, FaultKind, Plugin, Problem, Purpose, RetryAnswer,
            RetryCall, RetryOutput, ThrottleAnswer, ThrottleCall,
        },
    },
    queue::plugin::Role,
};

type Throttle = dyn Fn(&Plugin, &ThrottleCall) -> Result<ThrottleAnswer, Fault> + Send + Sync;
type Retry = dyn Fn(&Plugin, &RetryCall) -> Result<RetryOutput, Fault> + Send + Sync;
type Check = dyn Fn(&Plugin, Role, &str) -> Result<Vec<Problem>, Fault> + Send + Sync;

/// A policy made of closures. Calls in a role without a closure are faults. Without a check, every
/// configuration is valid.
#[derive(Clone)]
pub struct FnPolicy {
    throttle: Arc<Throttle>,
    retry: Arc<Retry>,
    check: Arc<Check>,
    faults: Arc<Mutex<Vec<Fault>>>,
}

impl Default for FnPolicy {
    fn default() -> Self {
        Self {
            throttle: Arc::new(|_, _| Err(no_role())),
            retry: Arc::new(|_, _| Err(no_role())),
            check: Arc::new(|_, _, _| Ok(Vec::new())),
            faults: Arc::default(),
        }
    }
}

impl FnPolicy {
    /// Decides admissions with this closure.
    #[must_use]
    pub fn throttling(
        mut self,
        throttle: impl Fn(&Plugin, &ThrottleCall) -> Result<ThrottleAnswer, Fault>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.throttle = Arc::new(throttle);
        self
    }

    /// Decides retries with this closure.
    #[must_use]
    pub fn retrying(
        mut self,
        retry: impl Fn(&Plugin, &RetryCall) -> Result<RetryAnswer, Fault> + Send + Sync + 'static,
    ) -> Self {
        self.retry = Arc::new(move |plugin, call| retry(plugin, call).map(RetryOutput::from));
        self
    }

    /// Decides retries with this closure, which also returns the new state.
    #[must_use]
    pub fn retrying_with_state(
        mut self,
        retry: impl Fn(&Plugin, &RetryCall) -> Result<RetryOutput, Fault> + Send + Sync + 'static,
    ) -> Self {
        self.retry = Arc::new(retry);
        self
    }

    /// Checks configurations with this closure.
    #[must_use]
    pub fn checking(
        mut self,
        check: impl Fn(&Plugin, Role, &str) -> Result<Vec<Problem>, Fault> + Send + Sync + 'static,
    ) -> Self {
        self.check = Arc::new(check);
        self
    }

    /// The faults that were reported to it.
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.lock().clone()
    }
}

#[async_trait]
impl Policy for FnPolicy {
    async fn throttle(
        &self,
        plugin: &Plugin,
        call: Arc<ThrottleCall>,
        _: Purpose,
    ) -> Result<ThrottleAnswer, Fault> {
        (self.throttle)(plugin, &call)
    }

    async fn retry(
        &self,
        plugin: &Plugin,
        call: Arc<RetryCall>,
        _: Purpose,
    ) -> Result<RetryOutput, Fault> {
        (self.retry)(plugin, &call)
    }

    async fn check(
        &self,
        plugin: &Plugin,
        role: Role,
        config: &str,
    ) -> Result<Vec<Problem>, Fault> {
        (self.check)(plugin, role, config)
    }

    fn report_fault(&self, _: &Plugin, _: &Call, fault: &Fault) {
        self.faults.lock().push(fault.clone());
    }
}

fn no_role() -> Fault {
    fault("this test has no such plugin")
}

/// The fault of a plugin that trapped.
pub fn fault(message: &str) -> Fault {
    Fault { kind: FaultKind::Trapped, message: message.into() }
}

/// The answer that decides each candidate on its own, in order.
pub fn each(call: &ThrottleCall, mut decide: impl FnMut(&Job) -> Decision) -> ThrottleAnswer {
    ThrottleAnswer {
        decisions: call.candidates.iter().map(&mut decide).collect(),
        more: true,
        state: None,
    }
}

/// The candidate starts.
pub fn run() -> Decision {
    Decision { action: Action::Run, reason: None }
}

/// The candidate is held, for this reason.
pub fn hold(reason: &str) -> Decision {
    Decision { action: Action::Hold(None), reason: Some(reason.into()) }
}
