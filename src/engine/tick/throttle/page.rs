//! A page of candidates that the throttler decides on: asked about, asked again until what runs fits together, obeyed.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc, time::Duration};

use super::{ThrottlerCall, Throttling, one_call};
use crate::{
    Error,
    plugins::circuit_breaker::{FIRST_WAIT, OpenCircuit},
    tick::search::{Search, position},
};
use tidegate_core::{
    job::{Event, Job, lifecycle::Waiting},
    port::policy::{
        Action, Call, Decision, Fault, FaultKind, Purpose, RunningSet, ThrottleAnswer, ThrottleCall,
    },
    queue::{
        AdmissionDecision, Candidate, Rule, admission::Hold, order::Position, plugin::OnFailure,
    },
};

/// A round that has lasted so long begins no further page but the one at which its scan stands, so that this gets on: what its queue's
/// workers report waits for it. One call takes a quarter of it at most; reading its candidates' data comes on top of that.
const TIME: Duration = Duration::from_secs(1);

/// An answer under which everything that runs fits.
struct Agreed {
    call: Arc<ThrottleCall>,
    /// Without its decisions, unless a version in the shadow is to be compared with them.
    answer: ThrottleAnswer,
    /// What is said of each candidate.
    fates: Vec<CandidateOutcome>,
    /// Whether somebody was to run who is too large for the space that is left.
    full: bool,
}

/// What is said of a candidate.
enum CandidateOutcome {
    /// It does not fit the limits, and was not asked about.
    Missed,
    /// The plugin's last word.
    Said(Decision),
    /// It was to run, and does not fit together with those before it.
    LeftOut(Option<Hold>),
    /// It was not asked about last, since it was not to run before.
    Earlier(Decision),
}

impl Search<'_> {
    /// Lets the throttler decide on the first `size` candidates of `line`. Whether those behind them are looked at too; who was asked about
    /// last, if this round has taken its time. Those whom nobody was asked about stay in the line.
    pub(crate) async fn throttle(
        &mut self,
        line: &mut std::vec::IntoIter<Job>,
        size: usize,
    ) -> Result<ControlFlow<Option<Position>>, Error> {
        let mut left = size.min(line.len());
        while left > 0 {
            let call = one_call(self.plan.throttling.as_ref(), &line.as_slice()[..left]);
            let jobs: Vec<Job> = line.take(call).collect();
            left -= jobs.len();
            let last = jobs.last().map(position);
            if !Box::pin(self.throttle_at_once(jobs)).await? {
                return Ok(ControlFlow::Break(None));
            }
            let late = self.engine.now() >= self.now + TIME;
            // Then those that nobody was asked about are looked at again from the front.
            if (late || left > 0) && (self.admission.closed(false) || self.capacities.total() == 0)
            {
                return Ok(ControlFlow::Break(None));
            }
            if late {
                return Ok(ControlFlow::Break(last));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A job was admitted: the next partition is the one behind its own.
    fn pass_turn(&mut self, job: &Job) {
        if self.limits.queue.partition_by.is_some() {
            self.plan.last_partition = Some(job.spec.partition.clone());
        }
    }

    /// The same with as many as one call may be about.
    async fn throttle_at_once(&mut self, page: Vec<Job>) -> Result<bool, Error> {
        if !self.plan.asks_throttler() {
            // It has failed since, and its owner lets the limits alone decide.
            for job in &page {
                if self.try_admit(job) {
                    self.pass_turn(job);
                }
            }
            return Ok(true);
        }
        // What somebody reserves concerns those behind it alone, so the page starts again from here.
        let base = self.admission.clone();
        let mut jobs: Vec<(Job, Option<usize>)> = Vec::with_capacity(page.len());
        for job in page {
            if self.consider(&job).is_none() {
                continue;
            }
            match self.admission.check(Candidate::of(&job.spec)) {
                AdmissionDecision::Hold(hold) => {
                    self.plan.hold(hold);
                    jobs.push((job, None));
                }
                AdmissionDecision::Move(opening) => self.plan.await_window(&job, opening, self.now),
                AdmissionDecision::Run => {
                    let bytes = self.capacities.bytes(&job);
                    jobs.push((job, Some(bytes)));
                }
            }
        }
        if !jobs.iter().any(|(_, fits)| fits.is_some()) {
            return Ok(true);
        }
        self.admission = base;
        self.apply(jobs).await
    }

    /// Calls a throttler that listens and has not heard of every ended attempt: there were no candidates.
    pub(crate) async fn tell_ended(&mut self) -> Result<(), Error> {
        if self.plan.throttling.as_ref().is_some_and(|throttling: &Throttling| {
            throttling.asks() && !throttling.ended.is_empty()
        }) {
            self.apply(Vec::new()).await?;
        }
        Ok(())
    }

    /// Asks about those candidates that fit the limits alone, each with the space it takes (the others keep what they reserve), and does
    /// what is said.
    async fn apply(&mut self, jobs: Vec<(Job, Option<usize>)>) -> Result<bool, Error> {
        let agreed = match self.reconcile(&jobs).await? {
            Ok(agreed) => agreed,
            Err(asked) => return Ok(self.without(&jobs, *asked)),
        };
        let Agreed { call, answer, fates, full } = agreed;
        let throttling = self.plan.throttling.as_mut().expect("it was just asked");
        throttling.answered = true;
        throttling.ended = Arc::default();
        if let Some(state) = &answer.state {
            throttling.state = Arc::new(state.clone());
        }
        let (rule, plugin, shadowed) =
            (throttling.rule(), throttling.plugin.clone(), throttling.shadowed);
        self.plan.trouble = None;
        let now = self.now;
        let mut held = 0;
        for ((job, bytes), fate) in jobs.iter().zip(fates) {
            let Decision { action, reason } = match fate {
                CandidateOutcome::Missed => continue,
                CandidateOutcome::Said(decision) => decision,
                CandidateOutcome::LeftOut(hold) => {
                    if let Some(hold) = hold {
                        self.plan.hold(hold);
                    }
                    continue;
                }
                CandidateOutcome::Earlier(Decision { action: Action::Hold(until), reason }) => {
                    Decision { action: Action::Hold(until), reason }
                }
                CandidateOutcome::Earlier(Decision { reason, .. }) => {
                    Decision { action: Action::Hold(None), reason }
                }
            };
            match action {
                Action::Run => {
                    let ask = self
                        .capacities
                        .find(job)
                        .expect("the trial found room for everyone that runs");
                    self.admit(ask, job, bytes.unwrap_or_default());
                    self.pass_turn(job);
                }
                Action::Hold(until) => {
                    held += 1;
                    // Asked again at once, the plugin would say the same.
                    self.plan.wake(until.filter(|at| *at > now));
                }
                Action::Reschedule(at) => {
                    self.plan.decided = true;
                    self.plan.put_off(job, at, Waiting::Throttler, reason, now);
                }
                Action::Drop => {
                    self.plan.decided = true;
                    let reason = reason
                        .unwrap_or_else(|| format!("throttler {} dropped it", call_name(&rule)));
                    if let Ok(dropped) = job.apply(Event::Drop { reason }, now) {
                        self.plan.end(job, dropped);
                    }
                }
            }
        }
        self.capacities.full |= full;
        if held > 0 {
            *self.plan.held.entry(rule).or_default() += held;
        }
        let more = answer.more;
        if let Some(plugin) = plugin.filter(|_| shadowed) {
            self.plan.asked.push(ThrottlerCall { plugin, call, answer: Ok(answer) });
        }
        Ok(more)
    }

    /// Asks until everything that is to run fits together: at most three times.
    ///
    /// The second time those are left out that did not fit; the third time only those are asked about that ran and
    /// fitted. Each is offered in its place with no more taken before it than the last time, so all of them fit again.
    async fn reconcile(
        &mut self,
        jobs: &[(Job, Option<usize>)],
    ) -> Result<Result<Agreed, Box<ThrottlerCall>>, Error> {
        let throttling = self.plan.throttling.as_ref().expect("the caller has a throttler");
        let plugin =
            throttling.plugin.clone().expect("the caller asks only a plugin that may be asked");
        let wanted = jobs.iter().filter(|(_, fits)| fits.is_some()).map(|(job, _)| job);
        let (data, unread) = match self.engine.data_for(throttling, wanted).await {
            Ok(data) => (data, None),
            // Whoever needs no data, critical jobs say, does not wait for it.
            Err(Error::Unavailable { message, .. }) => (
                BTreeMap::new(),
                Some(Fault {
                    kind: FaultKind::Unavailable,
                    message: format!("it needs data, and {message}"),
                }),
            ),
            Err(error) => return Err(error),
        };
        let mut fates: Vec<CandidateOutcome> =
            jobs.iter().map(|_| CandidateOutcome::Missed).collect();
        let mut among: Vec<usize> =
            (0..jobs.len()).filter(|index| jobs[*index].1.is_some()).collect();
        let mut full = false;
        for asks in 1.. {
            let call = Arc::new(ThrottleCall {
                queue: self.queue.clone(),
                now: self.now,
                seed: self.engine.ports.entropy.bits() as u64,
                config: Arc::clone(&throttling.text),
                concurrency: self.limits.queue.concurrency,
                room: self.capacities.total(),
                running: self.running(),
                candidates: among.iter().map(|index| jobs[*index].0.clone()).collect(),
                ended: Arc::clone(&throttling.ended),
                state: Arc::clone(&throttling.state),
                data: among
                    .iter()
                    .filter_map(|index| data.get_key_value(&jobs[*index].0.id))
                    .map(|(id, text)| (id.clone(), text.clone()))
                    .collect(),
            });
            let policy = &self.engine.ports.policy;
            let answer = match &unread {
                None => policy
                    .throttle(&plugin, Arc::clone(&call), Purpose::Live)
                    .await
                    .and_then(|answer| answer.validated(&call)),
                Some(fault) => {
                    policy.report_fault(&plugin, &Call::Throttle(Arc::clone(&call)), fault);
                    Err(fault.clone())
                }
            };
            let mut answer = match answer {
                Ok(answer) => answer,
                Err(fault) => {
                    return Ok(Err(Box::new(ThrottlerCall { plugin, call, answer: Err(fault) })));
                }
            };
            // With a version in its shadow, the answer is to be compared whole.
            let decisions = if throttling.shadowed {
                answer.decisions.clone()
            } else {
                std::mem::take(&mut answer.decisions)
            };
            for (index, decision) in among.iter().zip(decisions) {
                fates[*index] = CandidateOutcome::Said(decision);
            }
            let mut trial = self.admission.clone();
            let mut rooms = self.capacities.clone();
            let (mut ran, mut new_misfits) = (Vec::new(), 0);
            let mut would_fit = false;
            for (index, (job, bytes)) in jobs.iter().enumerate() {
                let candidate = Candidate::of(&job.spec);
                match &fates[index] {
                    // In their places they reserve what they do not fit.
                    CandidateOutcome::Missed => drop(trial.check(candidate)),
                    CandidateOutcome::LeftOut(_) => {
                        would_fit |= trial.check(candidate) == AdmissionDecision::Run
                    }
                    CandidateOutcome::Said(Decision { action: Action::Run, .. }) => {
                        let ask = rooms.find(job);
                        let bytes = bytes.unwrap_or_default();
                        let verdict = ask.and_then(|ask| {
                            Some((ask, rooms.try_admit(&mut trial, candidate, bytes)?))
                        });
                        fates[index] = match verdict {
                            Some((ask, AdmissionDecision::Run)) => {
                                rooms.take(ask, bytes);
                                ran.push(index);
                                continue;
                            }
                            Some((_, AdmissionDecision::Hold(hold))) => {
                                CandidateOutcome::LeftOut(Some(hold))
                            }
                            // No worker takes it any more, or there is no space for it. (Windows were looked at before.)
                            Some((_, AdmissionDecision::Move(_))) | None => {
                                CandidateOutcome::LeftOut(None)
                            }
                        };
                        new_misfits += 1;
                    }
                    CandidateOutcome::Said(_) | CandidateOutcome::Earlier(_) => {}
                }
            }
            full |= rooms.full;
            if new_misfits == 0 {
                self.admission = trial;
                if would_fit && self.capacities.total() as usize > ran.len() {
                    // Those it did not fit together with were not run in the end.
                    self.plan.wake(Some(self.now + FIRST_WAIT));
                }
                return Ok(Ok(Agreed { call, answer, fates, full }));
            }
            if asks == 1 {
                among.retain(|index| !matches!(fates[*index], CandidateOutcome::LeftOut(_)));
            } else {
                for index in &among {
                    if let CandidateOutcome::Said(decision) = &fates[*index]
                        && decision.action != Action::Run
                    {
                        fates[*index] = CandidateOutcome::Earlier(decision.clone());
                    }
                }
                among = ran;
            }
        }
        unreachable!("each time fewer are asked about")
    }

    /// What runs: the head's grants without those that this round has released, and those that it has admitted.
    fn running(&self) -> RunningSet {
        let delta = &self.plan.delta;
        let batches = self
            .granted
            .as_ref()
            .map(|(view, _)| view.running(&delta.released))
            .unwrap_or_default();
        RunningSet { batches, admitted: Arc::new(delta.granted.clone()) }
    }

    /// The throttler failed: its page is held, or run as the limits alone say. Whether the scan goes on.
    fn without(&mut self, jobs: &[(Job, Option<usize>)], asked: ThrottlerCall) -> bool {
        let throttling = self.plan.throttling.as_mut().expect("it was just asked");
        throttling.failed = true;
        let trouble =
            OpenCircuit::after(self.plan.trouble.take(), &asked.plugin, &throttling.text, self.now);
        let until = trouble.until;
        self.plan.trouble = Some(trouble);
        let (hold, rule) = (throttling.on_failure == OnFailure::Hold, throttling.rule());
        self.plan.wake(Some(until));
        self.plan.faults.push(asked);
        if hold {
            *self.plan.held.entry(rule).or_default() +=
                jobs.iter().filter(|(_, fits)| fits.is_some()).count() as u64;
            return false;
        }
        for (job, fits) in jobs {
            let Some(bytes) = *fits else {
                self.admission.check(Candidate::of(&job.spec));
                continue;
            };
            // It was seen to be a candidate already.
            let Some(ask) = self.capacities.find(job) else {
                continue;
            };
            match self.capacities.try_admit(&mut self.admission, Candidate::of(&job.spec), bytes) {
                Some(AdmissionDecision::Hold(hold)) => self.plan.hold(hold),
                Some(AdmissionDecision::Run) => {
                    self.admit(ask, job, bytes);
                    self.pass_turn(job);
                }
                Some(AdmissionDecision::Move(_)) | None => {}
            }
        }
        true
    }
}

fn call_name(rule: &Rule) -> String {
    if let Rule::Throttler(name) = rule { name.to_string() } else { rule.to_string() }
}
