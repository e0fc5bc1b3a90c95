//! The functions that a plugin imports.

use chrono::{Datelike as _, NaiveDate, Timelike as _};

use super::{Guest, MetricChange, MetricKind, Subject, denied};
use crate::wasm::{
    answer,
    bounds::{self, cut},
    contract::throttler::tidegate::plugin::{
        clock::{self, LocalTime, Shown},
        jobs,
        log::{self, Level},
        metrics, random,
        running::{self, Dimension, Group, RunningJob},
        state::{self, StateError},
        types::{self, AttributeResult},
        waiting,
    },
    lower::millis,
};
use tidegate_core::{
    calendar::window::{NotAZone, Zone},
    job::{Attributes, Value},
    port::policy::{FaultKind, RunningSet, StateValue},
    queue::{Grant, waiting::WaitingCount},
    time::Timestamp,
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

impl clock::Host for Guest {
    fn now(&mut self) -> wasmtime::Result<u64> {
        self.count_call()?;
        Ok(millis(self.subject.now()))
    }

    fn local(&mut self, zone: String, at: u64) -> wasmtime::Result<Result<Shown, String>> {
        self.count_call()?;
        Ok(shown(&zone, at))
    }

    fn instant(&mut self, zone: String, time: LocalTime) -> wasmtime::Result<Result<u64, String>> {
        self.count_call()?;
        Ok(instant_of(&zone, time))
    }
}

/// The largest amount that is added to a counter: the whole numbers up to it are exact.
const MOST_ADDED: f64 = 9_007_199_254_740_992.0;

/// What `zone` shows at `at`.
fn shown(zone: &str, at: u64) -> Result<Shown, String> {
    let at = answer::instant(at);
    if at > Timestamp::MAX {
        return Err("at: must be before the year 10000".into());
    }
    let shown = parse(zone)?.at(at);
    let time = LocalTime {
        year: shown.year(),
        month: shown.month() as u8,
        day: shown.day() as u8,
        hour: shown.hour() as u8,
        minute: shown.minute() as u8,
        second: shown.second() as u8,
        millisecond: shown.timestamp_subsec_millis() as u16,
    };
    let weekday = shown.weekday().number_from_monday() as u8;
    Ok(Shown { time, weekday, offset: shown.offset().local_minus_utc() })
}

/// The instant at which `zone` shows `time`.
fn instant_of(zone: &str, time: LocalTime) -> Result<u64, String> {
    let LocalTime { year, month, day, hour, minute, second, millisecond } = time;
    let zone = parse(zone)?;
    let date = NaiveDate::from_ymd_opt(year, month.into(), day.into())
        .filter(|_| (1970..=9998).contains(&year))
        .ok_or("time: must be a date from 1970 to 9998")?;
    let local = date
        .and_hms_milli_opt(hour.into(), minute.into(), second.into(), millisecond.into())
        .filter(|_| millisecond < 1000)
        .ok_or("time: must be a time of day from 00:00:00.000 to 23:59:59.999")?;
    Ok(millis(zone.first(local)))
}

fn parse(zone: &str) -> Result<Zone, String> {
    zone.parse().map_err(|error: NotAZone| format!("zone: {error}"))
}

impl random::Host for Guest {
    fn next(&mut self) -> wasmtime::Result<u64> {
        self.count_call()?;
        // Splitmix64, as in the SDKs.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Ok(mixed ^ (mixed >> 31))
    }
}

impl metrics::Host for Guest {
    fn add(&mut self, name: String, label: String, amount: f64) -> wasmtime::Result<()> {
        self.change_metric(MetricKind::Counter, name, label, amount)
    }

    fn set(&mut self, name: String, label: String, value: f64) -> wasmtime::Result<()> {
        self.change_metric(MetricKind::Gauge, name, label, value)
    }
}

impl Guest {
    /// Records the change of a metric, or that it was dropped.
    fn change_metric(
        &mut self,
        kind: MetricKind,
        name: String,
        label: String,
        value: f64,
    ) -> wasmtime::Result<()> {
        self.count_call()?;
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let is_valid = (1..=bounds::METRIC_NAME_BYTES).contains(&name.len())
            && name.bytes().all(is_name)
            && label.len() <= bounds::METRIC_NAME_BYTES
            && value.is_finite()
            && (kind == MetricKind::Gauge || (0.0..=MOST_ADDED).contains(&value));
        if is_valid && self.metrics.len() < bounds::METRIC_CHANGES {
            self.metrics.push(MetricChange { kind, name, label, value });
        } else {
            self.metrics_dropped += 1;
        }
        Ok(())
    }
}

impl state::Host for Guest {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        self.count_call()?;
        let now = self.subject.now();
        let state = self.state()?;
        Ok(state.get(&key).filter(|value| value.counts(now)).map(|value| value.text.clone()))
    }

    fn set(
        &mut self,
        key: String,
        value: String,
        expires_at: Option<u64>,
    ) -> wasmtime::Result<Result<(), StateError>> {
        self.count_call()?;
        if key.is_empty() || key.len() > bounds::STATE_KEY_BYTES {
            return Ok(Err(StateError::InvalidKey));
        }
        if value.len() > bounds::STATE_VALUE_BYTES {
            return Ok(Err(StateError::ValueTooLong));
        }
        let value = StateValue {
            text: value,
            expires_at: expires_at.map(|at| answer::instant(at).min(Timestamp::MAX)),
        };
        if self.state()?.get(&key) == Some(&value) {
            return Ok(Ok(()));
        }
        let now = self.subject.now();
        let state = self.change()?;
        if !value.counts(now) {
            state.remove(&key);
        } else if state.bytes_with(&key, &value) > bounds::STATE_BYTES {
            return Ok(Err(StateError::Full));
        } else {
            state.set(key, value);
        }
        Ok(Ok(()))
    }

    fn delete(&mut self, key: String) -> wasmtime::Result<()> {
        self.count_call()?;
        if self.state()?.get(&key).is_some() {
            self.change()?.remove(&key);
        }
        Ok(())
    }

    fn keys(&mut self, prefix: String) -> wasmtime::Result<Vec<String>> {
        self.count_call()?;
        let now = self.subject.now();
        let state = self.state()?;
        let entries = state.iter().filter(|(_, value)| value.counts(now));
        let mut keys: Vec<String> =
            entries.map(|(key, _)| key).filter(|key| key.starts_with(&prefix)).cloned().collect();
        keys.sort_unstable();
        Ok(keys)
    }
}

impl running::Host for Guest {
    fn count(&mut self) -> wasmtime::Result<u32> {
        self.count_call()?;
        Ok(self.totals().0)
    }

    fn weight(&mut self) -> wasmtime::Result<u64> {
        self.count_call()?;
        Ok(self.totals().1)
    }

    fn groups(&mut self, by: Dimension) -> wasmtime::Result<Vec<Group>> {
        self.count_call()?;
        let groups = Self::groups(self, by)?.iter();
        let group = |(value, &(count, weight)): (&String, &(u32, u64))| Group {
            value: value.clone(),
            count,
            weight,
        };
        Ok(groups.map(group).collect())
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

/// All attributes of a job, sorted by name.
pub(super) fn attributes_of(attributes: &Attributes) -> Vec<AttributeResult> {
    let attribute = |(name, value): (&String, &Value)| AttributeResult {
        name: name.clone(),
        value: value.text(),
    };
    attributes.iter().map(attribute).collect()
}

fn running_job(grant: &Grant) -> RunningJob {
    RunningJob {
        id: grant.job.as_str().into(),
        job_type: grant.job_type.as_str().into(),
        priority: grant.priority,
        weight: grant.weight,
        critical: grant.critical,
        attributes: attributes_of(&grant.attributes),
        granted_at: millis(grant.granted_at),
    }
}

impl waiting::Host for Guest {
    fn groups(&mut self, by: String) -> wasmtime::Result<Vec<waiting::Group>> {
        self.count_call()?;
        let groups = self.waiting_by(&by)?.into_iter().flatten();
        Ok(groups.map(|(value, count)| waiting_group(value.clone(), *count)).collect())
    }

    fn others(&mut self) -> wasmtime::Result<Option<waiting::Group>> {
        self.count_call()?;
        let others = self.waiting().and_then(|waiting| waiting.others);
        Ok(others.map(|count| waiting_group(String::new(), count)))
    }

    fn counted_at(&mut self) -> wasmtime::Result<Option<u64>> {
        self.count_call()?;
        Ok(self.waiting().and_then(|waiting| waiting.counted_at).map(millis))
    }
}

fn waiting_group(value: String, count: WaitingCount) -> waiting::Group {
    let WaitingCount { jobs, weight, oldest_due_at, at_least } = count;
    waiting::Group { value, count: jobs, weight, oldest_due_at: millis(oldest_due_at), at_least }
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
