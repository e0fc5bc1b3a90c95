//! Calls of a throttler.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::job::{Context, JobJson, any_type, first, given, one, raw};
use super::{super::lower, failure::leave_out};
use tidegate_core::{
    job::{Attributes, Job, JobId, TypeName, Version},
    port::policy::{Ended, RunningSet, StatePage, TargetHosts, ThrottleCall},
    queue::{
        Grant,
        waiting::{Waiting, WaitingCount},
    },
    stored::UnknownFields,
    time::Timestamp,
};

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct ThrottleJson {
    context: Context,
    round: RoundJson,
    running: Vec<RunningJson>,
    candidates: Vec<JobJson>,
    /// Absent if the throttler does not receive it.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<WaitingJson>,
    state: StatePage,
    pub data: BTreeMap<JobId, Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub data_left_out: BTreeMap<JobId, usize>,
    /// How many attempts lack their message and details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub texts_left_out: Option<usize>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct WaitingJson {
    /// By attribute and value.
    groups: BTreeMap<String, BTreeMap<String, WaitingGroupJson>>,
    others: Option<WaitingGroupJson>,
    counted_at: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WaitingGroupJson {
    count: u32,
    /// Default: 1 for each job.
    #[serde(default)]
    weight: Option<u64>,
    #[serde(default)]
    oldest_due_at: Timestamp,
    #[serde(default)]
    at_least: bool,
}

impl WaitingGroupJson {
    fn of(count: &WaitingCount) -> Self {
        let WaitingCount { jobs, weight, oldest_due_at, at_least } = *count;
        Self { count: jobs, weight: Some(weight), oldest_due_at, at_least }
    }

    fn count(self) -> WaitingCount {
        let Self { count, weight, oldest_due_at, at_least } = self;
        WaitingCount {
            jobs: count,
            weight: weight.unwrap_or(count.into()),
            oldest_due_at,
            at_least,
        }
    }
}

impl WaitingJson {
    /// None if the throttler does not receive what waits.
    fn of(waiting: &Waiting) -> Option<Self> {
        let groups = waiting.groups.iter().map(|(name, groups)| {
            let groups = groups.iter();
            let groups = groups.map(|(value, count)| (value.clone(), WaitingGroupJson::of(count)));
            (name.clone(), groups.collect())
        });
        let written = Self {
            groups: groups.collect(),
            others: waiting.others.as_ref().map(WaitingGroupJson::of),
            counted_at: waiting.counted_at,
        };
        (!written.groups.is_empty()).then_some(written)
    }

    fn waiting(self) -> Waiting {
        let groups = self.groups.into_iter().map(|(name, groups)| {
            let groups = groups.into_iter().map(|(value, group)| (value, group.count()));
            (name, groups.collect())
        });
        Waiting {
            counted_at: self.counted_at,
            groups: groups.collect(),
            others: self.others.map(WaitingGroupJson::count),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct RoundJson {
    concurrency: Option<u32>,
    room: u32,
    ended: Vec<EndedJson>,
}

impl Default for RoundJson {
    fn default() -> Self {
        Self { concurrency: None, room: 1000, ended: Vec::new() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct EndedJson {
    #[serde(default = "no_id")]
    id: JobId,
    #[serde(default = "any_type")]
    job_type: TypeName,
    #[serde(default)]
    priority: i32,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    attributes: Attributes,
    #[serde(default)]
    target_host: Option<String>,
    #[serde(default = "first")]
    attempt: u16,
    #[serde(default)]
    started_at: Timestamp,
    #[serde(default)]
    ended_at: Timestamp,
    succeeded: bool,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    status: Option<u16>,
    #[serde(default)]
    details: Option<Box<RawValue>>,
    #[serde(default)]
    not_before: Option<Timestamp>,
}

impl EndedJson {
    fn of(ended: &Ended, host: Option<&str>) -> Self {
        let ended = ended.clone();
        Self {
            id: ended.id,
            job_type: ended.job_type,
            priority: ended.priority,
            weight: ended.weight,
            attributes: ended.attributes,
            target_host: host.map(str::to_owned),
            attempt: ended.attempt,
            started_at: ended.started_at,
            ended_at: ended.ended_at,
            succeeded: ended.succeeded,
            reason: ended.reason,
            message: ended.message,
            status: ended.status,
            details: ended.details.as_deref().map(raw),
            not_before: ended.not_before,
        }
    }

    fn ended(self, retry_target: Option<String>) -> Ended {
        Ended {
            id: self.id,
            job_type: self.job_type,
            priority: self.priority,
            weight: self.weight,
            attributes: self.attributes,
            retry_target,
            attempt: self.attempt,
            started_at: self.started_at,
            ended_at: self.ended_at,
            succeeded: self.succeeded,
            reason: self.reason,
            message: self.message,
            status: self.status,
            details: self.details.map(|details| details.get().to_owned()),
            not_before: self.not_before,
        }
    }
}

fn no_id() -> JobId {
    given("job")
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RunningJson {
    #[serde(default = "no_id")]
    id: JobId,
    #[serde(default = "any_type")]
    job_type: TypeName,
    #[serde(default)]
    priority: i32,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    critical: bool,
    #[serde(default)]
    attributes: Attributes,
    #[serde(default)]
    granted_at: Timestamp,
}

impl RunningJson {
    fn of(grant: &Grant) -> Self {
        Self {
            id: grant.job.clone(),
            job_type: grant.job_type.clone(),
            priority: grant.priority,
            weight: grant.weight,
            critical: grant.critical,
            attributes: grant.attributes.clone(),
            granted_at: grant.granted_at,
        }
    }

    fn grant(self) -> Grant {
        let Self { id, job_type, priority, weight, critical, attributes, granted_at } = self;
        Grant {
            waits_until: None,
            job: id,
            version: Version(1),
            job_type,
            priority,
            weight,
            critical,
            attributes,
            granted_at,
            unknown: UnknownFields::default(),
        }
    }
}

impl ThrottleJson {
    /// Leaves out messages and details of attempts beyond `room` bytes.
    pub(super) fn leave_out_failures(&mut self, mut room: usize) {
        let mut count = 0;
        for ended in &mut self.round.ended {
            count += usize::from(leave_out(&mut ended.message, &mut ended.details, &mut room));
        }
        for failure in self.candidates.iter_mut().flat_map(|job| &mut job.earlier) {
            count += usize::from(failure.leave_out(&mut room));
        }
        self.texts_left_out = Some(count).filter(|count| *count > 0);
    }

    pub(super) fn of(call: &ThrottleCall) -> Self {
        let ended = |ended: &Ended| {
            EndedJson::of(ended, call.hosts.of(&ended.job_type, ended.retry_target.as_deref()))
        };
        Self {
            context: Context {
                queue: call.queue.clone(),
                now: call.now,
                seed: call.seed,
                config: raw(&call.config),
            },
            round: RoundJson {
                concurrency: call.concurrency,
                room: call.room,
                ended: call.ended.iter().map(ended).collect(),
            },
            running: call.running.iter().map(RunningJson::of).collect(),
            candidates: call
                .candidates
                .iter()
                .map(|job| {
                    let chosen = job.spec.retry_target.as_deref();
                    let host = call.hosts.of(&job.spec.job_type, chosen);
                    JobJson::of(job, lower::next_attempt(&job.life), host)
                })
                .collect(),
            waiting: WaitingJson::of(&call.waiting),
            state: call.state.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            data: call.data.iter().map(|(id, data)| (id.clone(), raw(data))).collect(),
            data_left_out: BTreeMap::new(),
            texts_left_out: None,
        }
    }

    pub(super) fn call(self) -> ThrottleCall {
        let queue = self.context.queue;
        let mut hosts = TargetHosts::default();
        let mut target =
            |job_type: &TypeName, host: Option<&String>| hosts.name_of(job_type, host?);
        let candidates = self.candidates.into_iter();
        let candidates: Vec<Job> = candidates
            .map(|written| {
                let begun = written.attempt.saturating_sub(1);
                let chosen = target(&written.job_type, written.target_host.as_ref());
                written.job(&queue, begun, chosen)
            })
            .collect();
        let ended = self.round.ended.into_iter();
        let ended = ended.map(|written| {
            let chosen = target(&written.job_type, written.target_host.as_ref());
            written.ended(chosen)
        });
        let ended: Vec<Ended> = ended.collect();
        let waiting = match self.waiting {
            Some(written) => {
                let mut waiting = written.waiting();
                waiting.cover(&candidates);
                waiting
            }
            None => Waiting::default(),
        };
        ThrottleCall {
            now: self.context.now,
            seed: self.context.seed,
            config: self.context.config.get().into(),
            concurrency: self.round.concurrency,
            room: self.round.room,
            running: RunningSet {
                batches: Vec::new(),
                admitted: Arc::new(self.running.into_iter().map(RunningJson::grant).collect()),
            },
            candidates,
            waiting: Arc::new(waiting),
            ended: Arc::new(ended),
            state: Arc::new(self.state.into_iter().collect()),
            hosts: Arc::new(hosts),
            data: self.data.into_iter().map(|(id, data)| (id, data.get().to_owned())).collect(),
            queue,
        }
    }
}
