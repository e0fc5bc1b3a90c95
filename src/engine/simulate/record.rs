//! What happened in a queue: who waited how long, who ran when, how each job ended. A simulation fills it from everything that
//! its store commits, a trace from what a live queue did, so that both are measured alike.

use std::collections::{BTreeMap, HashMap};

use super::series::Series;
use tidegate_core::{
    job::{Attributes, Job, JobId, Outcome, State, TypeName, lifecycle::Waiting},
    time::Timestamp,
};

/// Most values that are told apart; further ones are counted as [`OTHERS`].
const MOST_GROUPS: usize = 100;
/// The group of the values that are too many.
pub(super) const OTHERS: &str = "(others)";
/// The group of jobs without the attribute.
pub(super) const NONE: &str = "(none)";

/// By what jobs are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Their type.
    Type,
    /// The value of this attribute.
    Attribute(String),
}

impl By {
    /// `type`, or an attribute's name.
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

/// A job as far as it is measured.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub group: usize,
    /// What it takes of limits while it runs.
    weight: u64,
    /// When it was due first.
    pub due: Timestamp,
    /// When it started first.
    pub started: Option<Timestamp>,
    /// Which of the watched sums count it.
    watches: Vec<u32>,
    run_at: Timestamp,
    pub attempt: u16,
    pub running: bool,
    pub ended: Option<(Timestamp, Outcome)>,
}

/// What is counted of jobs that are alike.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub value: String,
    pub jobs: u64,
    pub running: Series,
    pub retries: u64,
    pub rescheduled: u64,
    /// How often a throttler held one of them, by its reason.
    pub held: BTreeMap<String, u64>,
}

/// A sum of running weight that an expectation is about: of jobs with this value (none: of all).
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub of: Option<(By, String)>,
    pub running: Series,
}

/// What happened.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    pub start: Timestamp,
    pub by: By,
    pub jobs: Vec<Note>,
    numbers: HashMap<JobId, usize>,
    pub groups: Vec<Group>,
    by_value: HashMap<String, usize>,
    pub all: Group,
    pub watches: Vec<Watch>,
    /// How often each rule held a candidate.
    pub held: BTreeMap<String, u64>,
    /// How many jobs run.
    pub running: u32,
    /// How many jobs have ended.
    pub ended: u64,
    /// The earliest instant at which something must be done with a live job, since it was taken last.
    pub wake: Option<Timestamp>,
}

impl Recording {
    /// An empty record that begins at `start` and watches these sums.
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
            running: 0,
            ended: 0,
            wake: None,
        }
    }

    /// The number of a job, if it came.
    pub fn number(&self, id: &JobId) -> Option<usize> {
        self.numbers.get(id).copied()
    }

    /// Takes note of a job as it was committed at `now`.
    pub fn see(&mut self, job: &Job, now: Timestamp) {
        let number = self.number(&job.id).unwrap_or_else(|| {
            let (spec, run_at) = (&job.spec, job.life.run_at().unwrap_or(now));
            let weight = if spec.critical { 0 } else { u64::from(spec.weight) };
            self.come(&job.id, &spec.job_type, &spec.attributes, weight, run_at)
        });
        if job.life.ended().is_none() {
            self.wake = self.wake.into_iter().chain(job.life.wake_at(&job.spec)).min();
        }
        let note = &self.jobs[number];
        match &job.life.state {
            State::Running(_) if !note.running => self.start(number, now),
            State::Running(_) => {}
            State::Scheduled { run_at, waiting } => {
                let group = note.group;
                let moved =
                    !note.running && *run_at > note.run_at && *waiting == Waiting::Throttler;
                if note.running {
                    self.leave(number, now);
                }
                self.groups[group].rescheduled += u64::from(moved);
                self.all.rescheduled += u64::from(moved);
                self.jobs[number].run_at = *run_at;
            }
            State::Ended { outcome, .. } => self.end(number, *outcome, now),
        }
    }

    /// Takes note of a new job.
    pub fn come(
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
        self.jobs.push(Note {
            group,
            weight,
            due,
            started: None,
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
        let value = if self.groups.len() < MOST_GROUPS || self.by_value.contains_key(&value) {
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
        let note = &mut self.jobs[number];
        note.started.get_or_insert(now);
        (note.running, note.attempt) = (true, note.attempt + 1);
        let retry = u64::from(note.attempt > 1);
        self.groups[note.group].retries += retry;
        self.all.retries += retry;
        self.running += 1;
        self.weigh(number, now, true);
    }

    /// An attempt of a job is over.
    pub fn leave(&mut self, number: usize, now: Timestamp) {
        self.jobs[number].running = false;
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

    fn weigh(&mut self, number: usize, now: Timestamp, more: bool) {
        let at = now.since(self.start).as_millis() as u64;
        let note = &self.jobs[number];
        let watches = note.watches.iter().map(|index| *index as usize);
        for index in watches {
            self.watches[index].running.change(at, note.weight, more);
        }
        self.groups[note.group].running.change(at, note.weight, more);
        self.all.running.change(at, note.weight, more);
    }
}
