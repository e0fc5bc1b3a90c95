//! The measurements of a queue: waiting times, running weight and results of its jobs. A simulation
//! records every commit of its store; a trace records the history of a live queue. So both are
//! measured in the same way.

use std::collections::{BTreeMap, HashMap};

use super::series::Series;
use tidegate_core::{
    job::{Attributes, Job, JobId, Outcome, State, TypeName, lifecycle::Waiting},
    time::Timestamp,
};

/// Most values with a group of their own; jobs with further ones are counted as [`OTHERS`].
const MAX_GROUPS: usize = 100;
/// The group of jobs whose values exceed the maximum.
pub(super) const OTHERS: &str = "(others)";
/// The group of jobs without the attribute.
pub(super) const NONE: &str = "(none)";

/// How jobs are grouped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Their type.
    Type,
    /// The value of this attribute.
    Attribute(String),
}

impl By {
    /// By `type`, or by the attribute of this name.
    pub fn named(name: &str) -> Self {
        if name == "type" { Self::Type } else { Self::Attribute(name.to_owned()) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Type => "type",
            Self::Attribute(name) => name,
        }
    }

    /// The value of a job.
    fn value(&self, job_type: &TypeName, attributes: &Attributes) -> Option<String> {
        match self {
            Self::Type => Some(job_type.to_string()),
            Self::Attribute(name) => attributes.get(name).map(tidegate_core::job::Value::text),
        }
    }
}

/// The measurements of one job.
#[derive(Clone, Debug)]
pub(super) struct JobRecord {
    pub group: usize,
    /// Its weight against limits while it runs.
    weight: u64,
    /// Its first due time.
    pub due: Timestamp,
    /// Its first start.
    pub started: Option<Timestamp>,
    /// The start of its latest attempt.
    attempt_started: Option<Timestamp>,
    /// The indexes of the observed groups that it is in.
    watches: Vec<u32>,
    run_at: Timestamp,
    pub attempt: u16,
    pub running: bool,
    pub ended: Option<(Timestamp, Outcome)>,
}

/// The measurements of a group of jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub value: String,
    pub jobs: u64,
    pub running: Series,
    pub retries: u64,
    pub rescheduled: u64,
    /// How often a throttler held one of its jobs, by reason.
    pub held: BTreeMap<String, u64>,
}

/// A group of jobs that an expectation is about: those with this value, or all jobs.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub of: Option<(By, String)>,
    pub running: Series,
}

/// The measurements of a queue.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    pub start: Timestamp,
    pub by: By,
    pub jobs: Vec<JobRecord>,
    numbers: HashMap<JobId, usize>,
    pub groups: Vec<Group>,
    by_value: HashMap<String, usize>,
    pub all: Group,
    pub watches: Vec<Watch>,
    /// How often each rule held a candidate.
    pub held: BTreeMap<String, u64>,
    /// How long each attempt took, in seconds.
    pub runs: Vec<f64>,
    /// How many jobs run.
    pub running: u32,
    /// How many jobs have ended.
    pub ended: u64,
    /// The earliest instant at which the sweep must process a live job, since the last sweep.
    pub wake: Option<Timestamp>,
}

impl Recording {
    /// An empty record that starts at `start` and observes these groups.
    pub fn new(
        start: Timestamp,
        by: By,
        watches: impl IntoIterator<Item = Option<(By, String)>>,
    ) -> Self {
        Self {
            start,
            by,
            jobs: Vec::new(),
            numbers: HashMap::new(),
            groups: Vec::new(),
            by_value: HashMap::new(),
            all: Group { value: "all".into(), ..Group::default() },
            watches: watches
                .into_iter()
                .map(|of| Watch { of, running: Series::default() })
                .collect(),
            held: BTreeMap::new(),
            runs: Vec::new(),
            running: 0,
            ended: 0,
            wake: None,
        }
    }

    /// The index of a job in `jobs`, if it has arrived.
    pub fn number(&self, id: &JobId) -> Option<usize> {
        self.numbers.get(id).copied()
    }

    /// Records a job as it was committed at `now`.
    pub fn observe(&mut self, job: &Job, now: Timestamp) {
        let number = self.number(&job.id).unwrap_or_else(|| {
            let (spec, run_at) = (&job.spec, job.life.run_at().unwrap_or(now));
            let weight = if spec.critical { 0 } else { u64::from(spec.weight) };
            self.arrive(&job.id, &spec.job_type, &spec.attributes, weight, run_at)
        });
        if job.life.ended().is_none() {
            self.wake = self.wake.into_iter().chain(job.life.wake_at(&job.spec)).min();
        }
        let measured = &self.jobs[number];
        match &job.life.state {
            State::Running(_) if !measured.running => self.start(number, now),
            State::Running(_) => {}
            State::Scheduled { run_at, waiting } => {
                let group = measured.group;
                let moved = !measured.running
                    && *run_at > measured.run_at
                    && *waiting == Waiting::Throttler;
                if measured.running {
                    self.leave(number, now);
                }
                self.groups[group].rescheduled += u64::from(moved);
                self.all.rescheduled += u64::from(moved);
                self.jobs[number].run_at = *run_at;
            }
            State::Ended { outcome, .. } => self.end(number, *outcome, now),
        }
    }

    /// Records a new job. Returns its index in `jobs`.
    pub fn arrive(
        &mut self,
        id: &JobId,
        job_type: &TypeName,
        attributes: &Attributes,
        weight: u64,
        due: Timestamp,
    ) -> usize {
        let value = self.by.value(job_type, attributes).unwrap_or_else(|| NONE.to_owned());
        let group = self.group(value);
        let counts = |watch: &Watch| {
            watch.of.as_ref().is_none_or(|(by, value)| {
                by.value(job_type, attributes).as_deref() == Some(value.as_str())
            })
        };
        let watches = (0..)
            .zip(&self.watches)
            .filter(|(_, watch)| counts(watch))
            .map(|(index, _)| index)
            .collect();
        let number = self.jobs.len();
        self.jobs.push(JobRecord {
            group,
            weight,
            due,
            started: None,
            attempt_started: None,
            watches,
            run_at: due,
            attempt: 0,
            running: false,
            ended: None,
        });
        self.numbers.insert(id.clone(), number);
        self.groups[group].jobs += 1;
        self.all.jobs += 1;
        number
    }

    fn group(&mut self, value: String) -> usize {
        let value = if self.groups.len() < MAX_GROUPS || self.by_value.contains_key(&value) {
            value
        } else {
            OTHERS.to_owned()
        };
        if let Some(group) = self.by_value.get(&value) {
            return *group;
        }
        let group = self.groups.len();
        self.groups.push(Group { value: value.clone(), ..Group::default() });
        self.by_value.insert(value, group);
        group
    }

    /// A throttler held a job.
    pub fn hold(&mut self, id: &JobId, reason: String) {
        let Some(number) = self.number(id) else {
            return;
        };
        *self.groups[self.jobs[number].group].held.entry(reason.clone()).or_default() += 1;
        *self.all.held.entry(reason).or_default() += 1;
    }

    /// An attempt of a job starts.
    pub fn start(&mut self, number: usize, now: Timestamp) {
        let measured = &mut self.jobs[number];
        measured.started.get_or_insert(now);
        measured.attempt_started = Some(now);
        (measured.running, measured.attempt) = (true, measured.attempt + 1);
        let retry = u64::from(measured.attempt > 1);
        self.groups[measured.group].retries += retry;
        self.all.retries += retry;
        self.running += 1;
        self.weigh(number, now, true);
    }

    /// An attempt of a job is over.
    pub fn leave(&mut self, number: usize, now: Timestamp) {
        self.jobs[number].running = false;
        let began = self.jobs[number].attempt_started.take();
        self.runs.extend(began.map(|began| now.since(began).as_secs_f64()));
        self.running -= 1;
        self.weigh(number, now, false);
    }

    /// A job ends, whatever it did until now.
    pub fn end(&mut self, number: usize, outcome: Outcome, now: Timestamp) {
        if self.jobs[number].ended.is_some() {
            return;
        }
        if self.jobs[number].running {
            self.leave(number, now);
        }
        self.jobs[number].ended = Some((now, outcome));
        self.ended += 1;
    }

    /// The longest wait, in seconds, of the jobs in an observed group. `end` is in milliseconds from the
    /// start.
    pub fn longest_wait(&self, watch: u32, end: u64) -> f64 {
        let jobs = self.jobs.iter().filter(|job| job.watches.contains(&watch));
        jobs.filter_map(|job| self.wait(job, end)).fold(0.0, f64::max)
    }

    /// How many seconds a job waited for its first attempt; up to `end` if it still waits. A job
    /// that was dropped or expired before its first attempt has no waiting time.
    pub fn wait(&self, job: &JobRecord, end: u64) -> Option<f64> {
        let now = self.start + std::time::Duration::from_millis(end);
        let until = job.started.or(job.ended.is_none().then_some(now))?;
        Some(until.since(job.due).as_secs_f64())
    }

    fn weigh(&mut self, number: usize, now: Timestamp, more: bool) {
        let at = now.since(self.start).as_millis() as u64;
        let measured = &self.jobs[number];
        let watches = measured.watches.iter().map(|index| *index as usize);
        for index in watches {
            self.watches[index].running.change(at, measured.weight, more);
        }
        self.groups[measured.group].running.change(at, measured.weight, more);
        self.all.running.change(at, measured.weight, more);
    }
}
