//! The candidates of a throttler by column, or packed. Each function makes lists of at most a thousand
//! candidates.

use super::{Guest, Subject, imports::attributes_of};
use crate::wasm::{
    contract::throttler::tidegate::plugin::{
        candidates::{self, InstantColumn, NumberColumn, PackedCandidates, TextColumn},
        types::AttributeResult,
    },
    lower::{millis, next_attempt, run_at},
};
use tidegate_core::{
    job::{Job, JobId, Value},
    port::policy::ThrottleCall,
};

impl Guest {
    /// The call of a throttler; none if the plugin describes itself.
    fn throttle_call(&self) -> Option<&ThrottleCall> {
        match &self.subject {
            Subject::Throttle(call) => Some(call),
            Subject::Retry(_) | Subject::Itself(_) => None,
        }
    }

    /// A value of each candidate, in their order.
    fn column<T>(&mut self, value: impl Fn(&ThrottleCall, &Job) -> T) -> wasmtime::Result<Vec<T>> {
        self.count_call()?;
        let Some(call) = self.throttle_call() else { return Ok(Vec::new()) };
        Ok(call.candidates.iter().map(|job| value(call, job)).collect())
    }
}

impl candidates::Host for Guest {
    fn count(&mut self) -> wasmtime::Result<u32> {
        self.count_call()?;
        Ok(self.throttle_call().map_or(0, |call| call.candidates.len() as u32))
    }

    fn texts(&mut self, field: TextColumn) -> wasmtime::Result<Vec<Option<String>>> {
        self.column(|call, job| {
            let spec = &job.spec;
            let text = match field {
                TextColumn::Id => Some(job.id.as_str()),
                TextColumn::JobType => Some(spec.job_type.as_str()),
                TextColumn::TargetHost => {
                    call.hosts.of(&spec.job_type, spec.retry_target.as_deref())
                }
                TextColumn::ReplayOf => spec.replay_of.as_ref().map(JobId::as_str),
                TextColumn::CorrelationKey => spec.correlation_key.as_deref(),
            };
            text.map(str::to_owned)
        })
    }

    fn numbers(&mut self, field: NumberColumn) -> wasmtime::Result<Vec<u32>> {
        self.column(|_, job| match field {
            NumberColumn::Weight => job.spec.weight,
            NumberColumn::Attempt => next_attempt(&job.life).into(),
            NumberColumn::Attempts => job.spec.max_attempts.into(),
        })
    }

    fn priorities(&mut self) -> wasmtime::Result<Vec<i32>> {
        self.column(|_, job| job.spec.priority)
    }

    fn instants(&mut self, field: InstantColumn) -> wasmtime::Result<Vec<Option<u64>>> {
        self.column(|_, job| {
            let at = match field {
                InstantColumn::CreatedAt => Some(job.spec.created_at),
                InstantColumn::RunAt => Some(run_at(job)),
                InstantColumn::ExpiresAt => job.spec.expires_at,
                InstantColumn::DeadlineAt => job.spec.deadline_at,
            };
            at.map(millis)
        })
    }

    fn attribute_values(&mut self, name: String) -> wasmtime::Result<Vec<Option<String>>> {
        self.column(|_, job| job.spec.attributes.get(&name).map(Value::text))
    }

    fn attributes(&mut self, index: u32) -> wasmtime::Result<Vec<AttributeResult>> {
        self.count_call()?;
        let job = self.throttle_call().and_then(|call| call.candidates.get(index as usize));
        Ok(job.map(|job| attributes_of(&job.spec.attributes)).unwrap_or_default())
    }

    fn packed(&mut self) -> wasmtime::Result<PackedCandidates> {
        self.count_call()?;
        let mut packed = PackedCandidates { words: Vec::new(), text: String::new() };
        if let Some(call) = self.throttle_call() {
            packed.words.reserve(call.candidates.len() * USUAL_WORDS);
            call.candidates.iter().for_each(|job| pack(&mut packed, call, job));
        }
        Ok(packed)
    }
}

/// Words of a candidate with three attributes.
const USUAL_WORDS: usize = 16;

/// Adds the words and the texts of a candidate.
fn pack(packed: &mut PackedCandidates, call: &ThrottleCall, job: &Job) {
    let PackedCandidates { words, text } = packed;
    let spec = &job.spec;
    words.extend([
        i64::from(spec.priority) as u64,
        spec.weight.into(),
        next_attempt(&job.life).into(),
        spec.max_attempts.into(),
        millis(spec.created_at),
        millis(run_at(job)),
    ]);
    let instants = [spec.expires_at, spec.deadline_at];
    let texts = [
        call.hosts.of(&spec.job_type, spec.retry_target.as_deref()),
        spec.replay_of.as_ref().map(JobId::as_str),
        spec.correlation_key.as_deref(),
    ];
    let has = instants.iter().map(Option::is_some).chain(texts.iter().map(Option::is_some));
    words.push(has.enumerate().map(|(bit, has)| u64::from(has) << bit).sum());
    words.extend(instants.into_iter().flatten().map(millis));
    let mut add = |words: &mut Vec<u64>, part: &str| {
        words.push(part.len() as u64);
        text.push_str(part);
    };
    add(words, job.id.as_str());
    add(words, spec.job_type.as_str());
    texts.into_iter().flatten().for_each(|part| add(words, part));
    words.push(spec.attributes.len() as u64);
    for (name, value) in &spec.attributes {
        add(words, name);
        add(words, &value.as_text());
    }
}
