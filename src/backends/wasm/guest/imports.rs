//! The functions that a plugin imports.

use super::{Guest, Subject, denied};
use crate::wasm::{
    bounds::{self, cut},
    contract::throttler::tidegate::plugin::{
        jobs,
        log::{self, Level},
        running::{self, Dimension, Group, RunningJob},
        state::{self, StateError},
        types::{self, AttributeResult},
    },
    lower::millis,
};
use tidegate_core::{
    port::policy::{FaultKind, RunningSet},
    queue::Grant,
};

impl types::Host for Guest {}

impl log::Host for Guest {
    fn write(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        self.count_call()?;
        let room = bounds::LOG_BYTES - self.log_bytes;
        if self.log.len() >= bounds::LOG_LINES || room == 0 {
            self.log_dropped += 1;
            return Ok(());
        }
        let line = cut(message, room.min(bounds::LOG_LINE_BYTES));
        self.log_bytes += line.len();
        self.log.push((level, line));
        Ok(())
    }
}

impl state::Host for Guest {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        self.count_call()?;
        Ok(self.state()?.get(&key).cloned())
    }

    fn set(&mut self, key: String, value: String) -> wasmtime::Result<Result<(), StateError>> {
        self.count_call()?;
        if key.len() > bounds::STATE_KEY_BYTES {
            return Ok(Err(StateError::KeyTooLong));
        }
        let state = self.state()?;
        if state.get(&key) == Some(&value) {
            return Ok(Ok(()));
        }
        let others = state.iter().filter(|(other, _)| **other != key);
        let (keys, bytes) = others
            .fold((1, key.len() + value.len()), |(keys, bytes), (key, value)| {
                (keys + 1, bytes + key.len() + value.len())
            });
        if keys > bounds::STATE_KEYS || bytes > bounds::STATE_BYTES {
            return Ok(Err(StateError::Full));
        }
        self.change()?.insert(key, value);
        Ok(Ok(()))
    }

    fn delete(&mut self, key: String) -> wasmtime::Result<()> {
        self.count_call()?;
        if self.state()?.contains_key(&key) {
            self.change()?.remove(&key);
        }
        Ok(())
    }

    fn keys(&mut self) -> wasmtime::Result<Vec<String>> {
        self.count_call()?;
        Ok(self.state()?.keys().cloned().collect())
    }
}

impl running::Host for Guest {
    fn count(&mut self) -> wasmtime::Result<u32> {
        self.count_call()?;
        Ok(self.groups(Dimension::JobType)?.values().map(|(count, _)| count).sum())
    }

    fn weight(&mut self) -> wasmtime::Result<u64> {
        self.count_call()?;
        Ok(self.groups(Dimension::JobType)?.values().map(|(_, weight)| weight).sum())
    }

    fn groups(&mut self, by: Dimension) -> wasmtime::Result<Vec<Group>> {
        self.count_call()?;
        let groups = Self::groups(self, by)?.iter();
        let mut groups: Vec<Group> = groups
            .map(|(value, (count, weight))| Group {
                value: value.clone(),
                count: *count,
                weight: *weight,
            })
            .collect();
        // A map has no order, and an answer must not depend on one.
        groups.sort_unstable_by(|a, b| a.value.cmp(&b.value));
        Ok(groups)
    }

    fn in_group(&mut self, by: Dimension, value: String) -> wasmtime::Result<Group> {
        self.count_call()?;
        let (count, weight) = Self::groups(self, by)?.get(&value).copied().unwrap_or_default();
        Ok(Group { value, count, weight })
    }

    fn page(&mut self, offset: u32, limit: u32) -> wasmtime::Result<Vec<RunningJob>> {
        self.count_call()?;
        if !self.declares(|description| description.needs_running_jobs) {
            return Err(denied(
                FaultKind::InvalidAnswer,
                "called `running.page`, for which its description must say `needs-running-jobs`",
            ));
        }
        let running = self.subject.running().into_iter().flat_map(RunningSet::iter);
        let page: Vec<_> = running
            .skip(offset as usize)
            .take(limit.min(bounds::PAGE) as usize)
            .map(running_job)
            .collect();
        self.paged += page.len() as u32;
        if self.paged > bounds::PAGED {
            return Err(denied(
                FaultKind::ResourceExhausted,
                format!("paged through more than {} running jobs", bounds::PAGED),
            ));
        }
        Ok(page)
    }
}

fn running_job(grant: &Grant) -> RunningJob {
    let attribute = |(name, value): (&String, &tidegate_core::job::Value)| AttributeResult {
        name: name.clone(),
        value: value.text(),
    };
    RunningJob {
        id: grant.job.as_str().into(),
        job_type: grant.job_type.as_str().into(),
        priority: grant.priority,
        weight: grant.weight,
        critical: grant.critical,
        attributes: grant.attributes.iter().map(attribute).collect(),
        granted_at: millis(grant.granted_at),
    }
}

impl jobs::Host for Guest {
    fn data(&mut self, id: String) -> wasmtime::Result<Option<String>> {
        self.count_call()?;
        if !self.declares(|description| description.needs_data) {
            return Err(denied(
                FaultKind::InvalidAnswer,
                "called `jobs.data`, for which its description must say `needs-data`",
            ));
        }
        Ok(match &self.subject {
            Subject::Throttle(call) => call.data.get(id.as_str()).cloned(),
            Subject::Retry(call) if call.job.id.as_str() == id => call.data.clone(),
            Subject::Retry(_) | Subject::Itself(_) => None,
        })
    }
}
