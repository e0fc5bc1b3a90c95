//! The throttler's part of a round: over what the native limits leave, the queue's plugin decides.
//!
//! ```text
//!   page ─▶ each alone: does it fit the limits now? ─▶ ask the plugin about those that do
//!                                                          │ runs, in order, offered to a copy of the admission
//!             ask again without those that did not fit ◀───┤ some do not fit together
//!                                                          ▼ all fit
//!                              the copy counts, and the state of this answer
//! ```
//!
//! The one thing to know: **only the last answer of a page counts**. A plugin is a pure function of its call, so it may
//! be asked again about fewer jobs, and what it remembers then is exactly what was admitted. Its state is
//! committed with the head, or not at all.
//!
//! A fault is no answer: the page is held or run natively as the owner chose, and the plugin is left alone for a while.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::{
    Plan,
    search::{Rooms, Search},
};
use crate::{
    engine::{Engine, Error, View, verdicts::AHEAD, view::NewState},
    job::{Event, Job, JobId, PluginName, life::Waiting},
    port::policy::{Action, Decision, Ended, Fault, FaultKind, Plugin, PolicyState, RunningSet, ThrottleAnswer, ThrottleCall},
    queue::{
        Admission, Candidate, Grant, Limits, Rule, Verdict,
        admission::Hold,
        plugin::{Description, OnFailure, Throttler},
    },
    time::Timestamp,
};

/// A page for a throttler has at least this many candidates, however few workers ask.
pub(super) const PAGE: u32 = 100;
/// Most ended attempts that a round tells of.
const ENDED: usize = 1000;
/// Most bytes of a reason that are kept.
const REASON_BYTES: usize = 200;
/// The wait before a plugin that failed is asked again; it doubles up to the other.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A throttler's call, and what came of it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The plugin.
    pub plugin: Plugin,
    /// All that its answer depends on.
    pub call: Arc<ThrottleCall>,
    /// What it said.
    pub answer: Result<ThrottleAnswer, Fault>,
}

/// A throttler that failed, and until when it is left alone.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    plugin: Plugin,
    config: Arc<serde_json::Value>,
    wait: Duration,
    until: Timestamp,
}

/// The throttler of the round's queue.
pub(super) struct Throttling {
    name: PluginName,
    /// Its live version; none if there is no such plugin, or it is to be left alone.
    plugin: Option<Plugin>,
    /// The version of the plugin's item, under which a commit is made.
    item_version: u64,
    on_failure: OnFailure,
    config: Arc<serde_json::Value>,
    text: Arc<str>,
    /// As the last answer left it.
    state: Arc<PolicyState>,
    ended: Arc<Vec<Ended>>,
    shadowed: bool,
    answered: bool,
}

impl Throttling {
    /// The throttler of a queue with `limits`, if it has one. One in `trouble` is left alone.
    pub(super) fn of(
        catalog: &crate::engine::Catalog,
        limits: &Limits,
        view: &View,
        trouble: Option<&Trouble>,
        now: Timestamp,
    ) -> Option<Self> {
        let Throttler { plugin: name, config, on_failure } = limits.queue.throttler.clone()?;
        let plugin = limits.throttler.clone().map(|version| Plugin { name: name.clone(), version });
        let state = plugin.as_ref().map(|plugin| view.state(plugin)).unwrap_or_default();
        let left_alone = trouble.is_some_and(|trouble| now < trouble.until && trouble.is_of(plugin.as_ref(), &config));
        let plugin = plugin.filter(|_| !left_alone);
        let text = if plugin.is_some() { config.to_string() } else { String::new() }.into();
        let item = catalog.plugins.get(&name);
        let (item_version, shadowed) = item.map_or((0, false), |item| (item.version, item.shadow.is_some()));
        Some(Self { name, plugin, item_version, on_failure, config, text, state, ended: Arc::default(), shadowed, answered: false })
    }

    fn says(&self) -> Option<&Description> {
        self.plugin.as_ref()?.version.throttler.as_ref()
    }

    fn rule(&self) -> Rule {
        Rule::Throttler(self.name.clone())
    }

    /// Whether the plugin wants to hear of attempts that ended.
    pub(super) fn listens(&self) -> bool {
        self.says().is_some_and(|says| says.needs_ended)
    }

    /// Notes that the attempt which `grant` allowed is over, as `job` tells.
    pub(super) fn note_ended(&mut self, grant: &Grant, job: &Job) {
        // A grant that nobody claimed allowed no attempt; what the history ends with then was before it.
        let entry = job.life.history.last().filter(|entry| entry.ended_at >= grant.granted_at);
        let Some(entry) = entry.filter(|_| self.listens() && self.ended.len() < ENDED) else { return };
        let error = entry.error.as_ref();
        Arc::make_mut(&mut self.ended).push(Ended {
            id: job.id.clone(),
            job_type: job.spec.job_type.clone(),
            attributes: job.spec.attributes.clone(),
            attempt: entry.attempt,
            succeeded: entry.outcome == crate::job::Outcome::Succeeded,
            reason: error.map(|error| error.reason.as_str().to_owned()),
            status: error.and_then(|error| error.status),
        });
    }

    /// The version of the plugin's item under which this round was decided, if the plugin decided anything.
    pub(super) fn decided_under(&self) -> Option<(&PluginName, u64)> {
        self.answered.then_some((&self.name, self.item_version))
    }

    /// What the plugin remembers now, where that differs from what the head has.
    pub(super) fn new_state(&self, view: &View) -> Option<NewState> {
        let plugin = self.plugin.as_ref().filter(|_| self.answered)?;
        let state_version = self.says()?.state_version;
        let differs = *view.state(plugin) != *self.state;
        differs.then(|| NewState { plugin: self.name.clone(), state_version, state: PolicyState::clone(&self.state) })
    }
}

impl Trouble {
    fn is_of(&self, plugin: Option<&Plugin>, config: &Arc<serde_json::Value>) -> bool {
        plugin == Some(&self.plugin) && self.config == *config
    }
}

impl Plan {
    /// Whether the plugin is to be asked.
    pub(super) fn asks_throttler(&self) -> bool {
        self.throttling.as_ref().is_some_and(|throttling| throttling.plugin.is_some())
    }

    /// Whether a throttler that cannot be asked holds everybody; they are counted as held without being looked at.
    pub(super) fn throttler_holds_all(&mut self) -> bool {
        let holds = |throttling: &&Throttling| throttling.plugin.is_none() && throttling.on_failure == OnFailure::Hold;
        let Some(rule) = self.throttling.as_ref().filter(holds).map(Throttling::rule) else { return false };
        self.held.entry(rule).or_insert(1);
        let until = self.trouble.as_ref().map(|trouble| trouble.until);
        self.wake(until);
        true
    }
}

/// An answer under which everything that runs fits.
struct Agreed {
    call: Arc<ThrottleCall>,
    answer: ThrottleAnswer,
    /// What is said of each candidate.
    fates: Vec<Fate>,
}

/// What is said of a candidate.
enum Fate {
    /// It does not fit the limits, and was not asked about.
    Missed,
    /// The plugin's last word.
    Said(Decision),
    /// It was to run, and does not fit together with those before it.
    LeftOut(Option<Hold>),
    /// It was not asked about last, since it was not to run before.
    Earlier(Decision),
}

impl Engine {
    /// Tells the throttler of the attempts whose grants this round has released so far.
    pub(super) async fn note_ended(&self, view: &View, plan: &mut Plan) -> Result<(), Error> {
        let Some(throttling) = plan.throttling.as_mut().filter(|throttling| throttling.listens()) else { return Ok(()) };
        let left = plan.delta.released.iter().filter_map(|(job, version)| view.grant(job).filter(|grant| grant.version == *version));
        let grants: Vec<&Grant> = left.take(ENDED).collect();
        let mut jobs: HashMap<&JobId, Job> = plan.before.iter().map(|change| (&change.job.id, change.job.clone())).collect();
        let missing: Vec<JobId> = grants.iter().map(|grant| grant.job.clone()).filter(|job| !jobs.contains_key(job)).collect();
        if !missing.is_empty() {
            let read = self.ports.store.get(&missing).await?;
            jobs.extend(missing.iter().zip(read).filter_map(|(id, job)| Some((id, job?))));
        }
        for grant in grants {
            if let Some(job) = jobs.get(&grant.job) {
                throttling.note_ended(grant, job);
            }
        }
        Ok(())
    }

    /// Lets the throttler decide on a page of candidates. Whether those behind it may run too.
    pub(super) async fn throttle(
        &self,
        search: &Search<'_>,
        admission: &mut Admission<'_>,
        plan: &mut Plan,
        rooms: &mut Rooms<'_>,
        page: Vec<Job>,
    ) -> Result<bool, Error> {
        // What somebody reserves concerns those behind it alone, so the page starts again from here.
        let base = admission.clone();
        let mut jobs: Vec<(Job, bool)> = Vec::with_capacity(page.len());
        for job in page {
            if self.consider(search, plan, rooms, &job).is_none() {
                continue;
            }
            match admission.judge(Candidate::of(&job.spec)) {
                Verdict::Hold(hold) => {
                    plan.hold(hold);
                    jobs.push((job, false));
                }
                Verdict::Move(opening) => plan.await_window(&job, opening, search.now),
                Verdict::Run => jobs.push((job, true)),
            }
        }
        if !jobs.iter().any(|(_, fits)| *fits) {
            return Ok(true);
        }
        *admission = base;
        self.obey(search, admission, plan, rooms, jobs).await
    }

    /// Calls a throttler that listens and has not heard of every ended attempt: there were no candidates.
    pub(super) async fn tell_ended(
        &self,
        search: &Search<'_>,
        admission: &mut Admission<'_>,
        plan: &mut Plan,
        rooms: &mut Rooms<'_>,
    ) -> Result<(), Error> {
        if plan.throttling.as_ref().is_some_and(|throttling| throttling.plugin.is_some() && !throttling.ended.is_empty()) {
            self.obey(search, admission, plan, rooms, Vec::new()).await?;
        }
        Ok(())
    }

    /// Asks about those candidates that fit the limits alone (the others keep what they reserve), and does what is said.
    async fn obey(
        &self,
        search: &Search<'_>,
        admission: &mut Admission<'_>,
        plan: &mut Plan,
        rooms: &mut Rooms<'_>,
        jobs: Vec<(Job, bool)>,
    ) -> Result<bool, Error> {
        let agreed = match self.agree(search, admission, plan, rooms, &jobs).await? {
            Ok(agreed) => agreed,
            Err(asked) => return Ok(self.without(search, admission, plan, rooms, &jobs, *asked)),
        };
        let Agreed { call, answer, fates } = agreed;
        let throttling = plan.throttling.as_mut().expect("it was just asked");
        throttling.answered = true;
        throttling.ended = Arc::default();
        if let Some(state) = &answer.state {
            throttling.state = Arc::new(state.clone());
        }
        let (rule, plugin, shadowed) = (throttling.rule(), throttling.plugin.clone(), throttling.shadowed);
        plan.trouble = None;
        let now = search.now;
        for ((job, _), fate) in jobs.iter().zip(fates) {
            let Decision { action, reason } = match fate {
                Fate::Missed => continue,
                Fate::Said(decision) => decision,
                Fate::LeftOut(hold) => {
                    if let Some(hold) = hold {
                        plan.hold(hold);
                    }
                    continue;
                }
                Fate::Earlier(Decision { action: Action::Hold(until), reason }) => Decision { action: Action::Hold(until), reason },
                Fate::Earlier(Decision { reason, .. }) => Decision { action: Action::Hold(None), reason },
            };
            match action {
                Action::Run => {
                    let ask = rooms.find(&job.spec.job_type).expect("the trial found room for everyone that runs");
                    self.admit(search, plan, rooms, ask, job);
                    if search.limits.queue.partition_by.is_some() {
                        plan.turn = Some(job.spec.partition.clone());
                    }
                }
                Action::Hold(until) => {
                    // Asked again at once, the plugin would say the same.
                    let earliest_at = until.filter(|at| *at > now);
                    plan.hold(Hold { rule: rule.clone(), reason: reason.unwrap_or_default(), reserved: false, earliest_at });
                }
                Action::Reschedule(at) => {
                    plan.decided = true;
                    plan.put_off(job, at, Waiting::Throttler, reason, now);
                }
                Action::Drop => {
                    plan.decided = true;
                    let reason = reason.unwrap_or_else(|| format!("throttler {} dropped it", call_name(&rule)));
                    if let Ok(dropped) = job.apply(Event::Drop { reason }, now) {
                        plan.end(job, dropped);
                    }
                }
            }
        }
        let more = answer.more;
        if let Some(plugin) = plugin.filter(|_| shadowed) {
            plan.asked.push(Asked { plugin, call, answer: Ok(answer) });
        }
        Ok(more)
    }

    /// Asks until everything that is to run fits together: at most three times.
    ///
    /// The second time those are left out that did not fit; the third time only those are asked about that ran and
    /// fitted. Each is offered in its place with no more taken before it than the last time, so all of them fit again.
    async fn agree(
        &self,
        search: &Search<'_>,
        admission: &mut Admission<'_>,
        plan: &mut Plan,
        rooms: &Rooms<'_>,
        jobs: &[(Job, bool)],
    ) -> Result<Result<Agreed, Box<Asked>>, Error> {
        let throttling = plan.throttling.as_ref().expect("the caller has a throttler");
        let plugin = throttling.plugin.clone().expect("the caller asks only a plugin that may be asked");
        let fit: Vec<Job> = jobs.iter().filter(|(_, fits)| *fits).map(|(job, _)| job.clone()).collect();
        let data = self.data_for(throttling, &fit).await?;
        let mut fates: Vec<Fate> = jobs.iter().map(|_| Fate::Missed).collect();
        let mut among: Vec<usize> = (0..jobs.len()).filter(|index| jobs[*index].1).collect();
        for asks in 1.. {
            let call = Arc::new(ThrottleCall {
                queue: search.queue.clone(),
                now: search.now,
                seed: self.ports.entropy.bits() as u64,
                config: Arc::clone(&throttling.text),
                concurrency: search.limits.queue.concurrency,
                room: rooms.total(),
                running: running(search, plan),
                candidates: among.iter().map(|index| jobs[*index].0.clone()).collect(),
                ended: Arc::clone(&throttling.ended),
                state: Arc::clone(&throttling.state),
                data: among
                    .iter()
                    .filter_map(|index| data.get_key_value(&jobs[*index].0.id))
                    .map(|(id, text)| (id.clone(), text.clone()))
                    .collect(),
            });
            let answer = self.ports.policy.throttle(&plugin, Arc::clone(&call)).await.and_then(|answer| sound(&call, answer));
            let answer = match answer {
                Ok(answer) => answer,
                Err(fault) => return Ok(Err(Box::new(Asked { plugin, call, answer: Err(fault) }))),
            };
            for (index, decision) in among.iter().zip(&answer.decisions) {
                fates[*index] = Fate::Said(decision.clone());
            }
            let mut trial = admission.clone();
            let mut left = rooms.left.clone();
            let (mut ran, mut new_misfits) = (Vec::new(), 0);
            let mut would_fit = false;
            for (index, (job, _)) in jobs.iter().enumerate() {
                let candidate = Candidate::of(&job.spec);
                match &fates[index] {
                    // In their places they reserve what they do not fit.
                    Fate::Missed => drop(trial.judge(candidate)),
                    Fate::LeftOut(_) => would_fit |= trial.judge(candidate) == Verdict::Run,
                    Fate::Said(Decision { action: Action::Run, .. }) => {
                        let ask = rooms.find_in(&left, &job.spec.job_type);
                        let verdict = ask.map(|ask| (ask, trial.offer(candidate)));
                        fates[index] = match verdict {
                            Some((ask, Verdict::Run)) => {
                                left[ask] -= 1;
                                ran.push(index);
                                continue;
                            }
                            Some((_, Verdict::Hold(hold))) => Fate::LeftOut(Some(hold)),
                            // No worker takes it any more. (Windows were looked at before.)
                            Some((_, Verdict::Move(_))) | None => Fate::LeftOut(None),
                        };
                        new_misfits += 1;
                    }
                    Fate::Said(_) | Fate::Earlier(_) => {}
                }
            }
            if new_misfits == 0 {
                *admission = trial;
                if would_fit && rooms.total() as usize > ran.len() {
                    // Those it did not fit together with were not run in the end.
                    plan.wake(Some(search.now + FIRST_WAIT));
                }
                return Ok(Ok(Agreed { call, answer, fates }));
            }
            if asks == 1 {
                among.retain(|index| !matches!(fates[*index], Fate::LeftOut(_)));
            } else {
                for index in &among {
                    if let Fate::Said(decision) = &fates[*index]
                        && decision.action != Action::Run
                    {
                        fates[*index] = Fate::Earlier(decision.clone());
                    }
                }
                among = ran;
            }
        }
        unreachable!("each time fewer are asked about")
    }

    /// The data of candidates as JSON text, if the plugin wants it. A body that is gone is left out.
    async fn data_for(&self, throttling: &Throttling, jobs: &[Job]) -> Result<BTreeMap<JobId, String>, Error> {
        if !throttling.says().is_some_and(|says| says.needs_data) {
            return Ok(BTreeMap::new());
        }
        let loaded = match self.load(jobs.to_vec()).await {
            Ok(loaded) => loaded,
            Err(Error::Internal(_)) => {
                let mut loaded = Vec::with_capacity(jobs.len());
                for job in jobs {
                    loaded.extend(self.load(vec![job.clone()]).await.unwrap_or_default());
                }
                loaded
            }
            Err(error) => return Err(error),
        };
        let text = |job: &Job| String::from_utf8(job.data.inline()?.to_json().ok()?.into()).ok();
        Ok(loaded.iter().filter_map(|job| Some((job.id.clone(), text(job)?))).collect())
    }

    /// The throttler failed: its page is held, or run as the limits alone say. Whether the scan goes on.
    fn without(
        &self,
        search: &Search<'_>,
        admission: &mut Admission<'_>,
        plan: &mut Plan,
        rooms: &mut Rooms<'_>,
        jobs: &[(Job, bool)],
        asked: Asked,
    ) -> bool {
        let throttling = plan.throttling.as_mut().expect("it was just asked");
        throttling.plugin = None;
        let earlier = plan.trouble.take().filter(|trouble| trouble.is_of(Some(&asked.plugin), &throttling.config));
        let wait = earlier.map_or(FIRST_WAIT, |trouble| (trouble.wait * 2).min(LONGEST_WAIT));
        let until = search.now + wait;
        plan.trouble = Some(Trouble { plugin: asked.plugin.clone(), config: Arc::clone(&throttling.config), wait, until });
        let (hold, rule) = (throttling.on_failure == OnFailure::Hold, throttling.rule());
        plan.wake(Some(until));
        plan.faults.push(asked);
        if hold {
            *plan.held.entry(rule).or_default() += jobs.iter().filter(|(_, fits)| *fits).count() as u64;
            return false;
        }
        for (job, fits) in jobs {
            if !fits {
                admission.judge(Candidate::of(&job.spec));
                continue;
            }
            // It was seen to be a candidate already.
            let Some(ask) = rooms.find(&job.spec.job_type) else { continue };
            match admission.offer(Candidate::of(&job.spec)) {
                Verdict::Hold(hold) => plan.hold(hold),
                Verdict::Move(_) => {}
                Verdict::Run => self.admit(search, plan, rooms, ask, job),
            }
        }
        true
    }

    /// What the throttler would say of the last of `jobs`, which fit the limits alone; none if it would run.
    pub(in crate::engine) async fn ask_about(
        &self,
        limits: &Limits,
        view: &View,
        queue: &crate::job::QueueName,
        jobs: &[Job],
        now: Timestamp,
    ) -> Result<Option<Hold>, Error> {
        let Some(throttler) = &limits.queue.throttler else { return Ok(None) };
        let rule = Rule::Throttler(throttler.plugin.clone());
        let held = |reason: String, earliest_at| Ok(Some(Hold { rule: rule.clone(), reason, reserved: false, earliest_at }));
        let failed = |why: &dyn std::fmt::Display| format!("plugin {} failed: {why}", throttler.plugin);
        let catalog = self.catalog().await?;
        let Some(throttling) = Throttling::of(&catalog, limits, view, None, now) else { return Ok(None) };
        let Some(plugin) = throttling.plugin.clone() else {
            return if throttler.on_failure == OnFailure::Run { Ok(None) } else { held(failed(&"there is no such plugin"), None) };
        };
        let call = Arc::new(ThrottleCall {
            queue: queue.clone(),
            now,
            seed: self.ports.entropy.bits() as u64,
            config: Arc::clone(&throttling.text),
            concurrency: limits.queue.concurrency,
            room: jobs.len() as u32,
            running: RunningSet { batches: view.running(&[]), admitted: Arc::default() },
            candidates: jobs.to_vec(),
            ended: Arc::default(),
            state: Arc::clone(&throttling.state),
            data: self.data_for(&throttling, jobs).await?,
        });
        let answer = self.ports.policy.throttle(&plugin, Arc::clone(&call)).await.and_then(|answer| sound(&call, answer));
        let decision = match answer {
            Ok(mut answer) => answer.decisions.pop(),
            Err(fault) if throttler.on_failure == OnFailure::Hold => return held(failed(&fault), None),
            Err(_) => None,
        };
        let Some(Decision { action, reason }) = decision else { return Ok(None) };
        let name = &throttler.plugin;
        match action {
            Action::Run => Ok(None),
            Action::Hold(until) => held(reason.unwrap_or_else(|| format!("{name} holds it")), until.filter(|at| *at > now)),
            Action::Reschedule(at) => held(reason.unwrap_or_else(|| format!("{name} gives it a later time")), Some(at)),
            Action::Drop => held(reason.unwrap_or_else(|| format!("{name} drops it")), None),
        }
    }
}

fn call_name(rule: &Rule) -> String {
    if let Rule::Throttler(name) = rule { name.to_string() } else { rule.to_string() }
}

/// What runs: the head's grants without those that this round has released, and those that it has admitted.
fn running(search: &Search<'_>, plan: &Plan) -> RunningSet {
    let batches = search.granted.as_ref().map(|(view, _)| view.running(&plan.delta.released)).unwrap_or_default();
    RunningSet { batches, admitted: Arc::new(plan.delta.granted.clone()) }
}

/// The answer, if it makes sense.
fn sound(call: &ThrottleCall, mut answer: ThrottleAnswer) -> Result<ThrottleAnswer, Fault> {
    let nonsense = |message: String| Err(Fault { kind: FaultKind::InvalidAnswer, message });
    let (asked, answered) = (call.candidates.len(), answer.decisions.len());
    if asked != answered {
        return nonsense(format!("{answered} decisions on {asked} candidates"));
    }
    for (job, decision) in call.candidates.iter().zip(&mut answer.decisions) {
        if let Action::Reschedule(at) = decision.action
            && (at <= call.now || at > call.now + AHEAD)
        {
            return nonsense(format!("job {} is to be due at {at}, which is not after now and within 366 days", job.id));
        }
        if let Some(reason) = &mut decision.reason {
            let end = (0..=REASON_BYTES.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
            reason.truncate(end.unwrap_or(0));
        }
    }
    Ok(answer)
}
