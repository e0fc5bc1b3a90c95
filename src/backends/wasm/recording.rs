//! Recorded calls of plugins: what each was called with, answered and logged.
//!
//! ```text
//!   call ──▶ the latest of each plugin, as they were made      read while the process lives
//!       └──▶ failed, matching or sampled ones, written as JSON ──taken──▶ stored by the server
//! ```
//!
//! The latest calls are written as JSON only when they are read, because most of them never are.
//! What is to be stored waits for the server in bounded space; what exceeds it is not stored.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{diagnostics::LogLevel, record};
use tidegate_core::{
    job::{PluginName, QueueName},
    port::policy::{Answer, Call, Decision, Fault, PolicyState, RetryAnswer, RunningSet, Usage},
    queue::{plugin::Role, plugin_calls::CallRecording},
    time::Timestamp,
};

/// Most of the latest calls of a plugin in memory.
pub const MAX_LATEST_CALLS: usize = 20;
/// Most estimated bytes of them.
const MAX_LATEST_BYTES: usize = 4 << 20;
/// Most estimated bytes of the latest calls of all plugins.
const MAX_ALL_LATEST_BYTES: usize = 32 << 20;
/// Most calls that wait to be stored.
const MAX_UNSTORED: usize = 64;
/// Most estimated bytes of them.
const MAX_UNSTORED_BYTES: usize = 16 << 20;
/// Most calls of a plugin that are stored in a minute because they failed.
const MAX_FAULTS_PER_MINUTE: u32 = 20;
/// Most calls of a plugin that are stored in a minute because they match its filter.
const MAX_MATCHES_PER_MINUTE: u32 = 60;
/// Most queues whose calls of a plugin a process samples in one span.
const MAX_SAMPLED_QUEUES: usize = 20;
/// Most bytes of a call's JSON that is kept. Of a larger one, only the answer and the log are.
pub const MAX_CALL_BYTES: usize = 1 << 20;

/// Why a call is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is one of the latest.
    Latest,
    /// It failed.
    Fault,
    /// The plugin's filter matches it.
    Filter,
    /// It is the first one about its queue in a span of time.
    Sample,
}

impl Reason {
    /// The reason's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Latest => "latest",
            Self::Fault => "fault",
            Self::Filter => "filter",
            Self::Sample => "sample",
        }
    }
}

/// A recorded call. Its input is JSON, or for the latest calls what the plugin was called with.
#[derive(Clone, Debug)]
pub struct RecordedCall<C = Option<Arc<str>>> {
    /// Unique among the calls of this process.
    pub number: u64,
    /// When the call was made.
    pub at: Timestamp,
    /// The number of the plugin's version.
    pub version: u32,
    /// The role in which it was called.
    pub role: Role,
    /// Whether it was called for comparison with the live version.
    pub shadow: bool,
    /// The queue that it is about.
    pub queue: QueueName,
    /// What it used.
    pub usage: Usage,
    /// The answer, or the fault.
    pub answer: Result<Answer, Fault>,
    /// What the plugin logged in this call.
    pub log: Vec<(LogLevel, String)>,
    /// The call, to repeat it. As JSON it has at most [`MAX_CALL_BYTES`], and none if it is larger.
    pub call: C,
}

impl RecordedCall<Call> {
    /// The record with the call as bounded JSON.
    pub fn written(&self) -> RecordedCall {
        let json = record::to_bounded_json(&self.call);
        self.clone().with((json.len() <= MAX_CALL_BYTES).then(|| json.into()))
    }
}

impl<C> RecordedCall<C> {
    fn with<D>(self, call: D) -> RecordedCall<D> {
        let Self { number, at, version, role, shadow, queue, usage, answer, log, .. } = self;
        RecordedCall { number, at, version, role, shadow, queue, usage, answer, log, call }
    }
}

/// Which calls are recorded, in addition to the latest faults in memory.
#[derive(Clone, Debug, Default)]
pub struct RecordingRules {
    /// Whether the latest calls of each plugin are in memory.
    pub latest: bool,
    /// Whether failed calls are to be stored.
    pub faults: bool,
    /// The first call of each plugin about each queue in each such span is to be stored. Spans have
    /// numbers ([`span_number`]), so that processes can agree on one call.
    pub sample: Option<Duration>,
    /// The calls of plugins that are to be stored.
    pub filters: HashMap<PluginName, CallRecording>,
}

/// The number of the span in which `at` is: such spans follow each other from 1970.
pub fn span_number(span: Duration, at: Timestamp) -> i64 {
    at.millis().div_euclid((span.as_millis() as i64).max(1))
}

impl RecordingRules {
    /// Whether the filter of the plugin selects a live call that was answered.
    pub(super) fn selects(
        &self,
        plugin: &PluginName,
        call: &Call,
        answer: &Answer,
        now: Timestamp,
    ) -> bool {
        self.filters.get(plugin).is_some_and(|recording| {
            now <= recording.until && recording.filter.matches(call, answer)
        })
    }
}

/// A call that is to be stored.
#[derive(Clone, Debug)]
pub struct Unstored {
    /// The plugin.
    pub plugin: PluginName,
    /// Why.
    pub reason: Reason,
    /// The call.
    pub call: Arc<RecordedCall>,
}

impl Unstored {
    /// About how many bytes of memory it holds.
    fn bytes(&self) -> usize {
        self.call.call.as_ref().map_or(0, |json| json.len()) + bytes_of_outcome(&self.call)
    }
}

/// The recorded calls of one plugin.
#[derive(Debug, Default)]
struct OfPlugin {
    /// The latest ones with their estimated bytes, oldest first.
    latest: VecDeque<(usize, Arc<RecordedCall<Call>>)>,
    bytes: usize,
    /// The span that is sampled, and the queues that have a sample in it.
    sampled_span: i64,
    sampled: HashSet<QueueName>,
    /// The minute that is counted.
    minute: i64,
    faults: u32,
    matches: u32,
}

impl OfPlugin {
    /// Drops the oldest of the latest calls, and returns its estimated bytes.
    fn drop_oldest(&mut self) -> usize {
        let bytes = self.latest.pop_front().map_or(0, |(bytes, _)| bytes);
        self.bytes -= bytes;
        bytes
    }
}

/// The recorded calls of a process.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    number: u64,
    plugins: HashMap<PluginName, OfPlugin>,
    /// Estimated bytes of the latest calls of all plugins.
    latest_bytes: usize,
    unstored: VecDeque<Unstored>,
    unstored_bytes: usize,
}

impl Recordings {
    /// The number of the next call.
    pub(super) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Adds a call to the latest ones. The plugin's oldest ones make room for it, and for the bound
    /// of all plugins the oldest ones of the plugin with most bytes.
    pub(super) fn add_latest(&mut self, plugin: &PluginName, call: Arc<RecordedCall<Call>>) {
        let of = self.plugins.entry(plugin.clone()).or_default();
        let bytes = estimated_bytes(&call);
        of.latest.push_back((bytes, call));
        of.bytes += bytes;
        self.latest_bytes += bytes;
        while of.latest.len() > MAX_LATEST_CALLS || of.bytes > MAX_LATEST_BYTES {
            self.latest_bytes -= of.drop_oldest();
        }
        while self.latest_bytes > MAX_ALL_LATEST_BYTES
            && let Some(largest) = self.plugins.values_mut().max_by_key(|of| of.bytes)
        {
            self.latest_bytes -= largest.drop_oldest();
        }
    }

    /// The latest calls of a plugin, oldest first.
    pub(super) fn latest(&self, plugin: &PluginName) -> Vec<Arc<RecordedCall<Call>>> {
        let of = self.plugins.get(plugin).into_iter().flat_map(|of| &of.latest);
        of.map(|(_, call)| Arc::clone(call)).collect()
    }

    /// Whether the call at `now` about `queue` is its sample of the span.
    pub(super) fn is_sample(
        &mut self,
        plugin: &PluginName,
        queue: &QueueName,
        span: Duration,
        now: Timestamp,
    ) -> bool {
        let of = self.plugins.entry(plugin.clone()).or_default();
        let number = span_number(span, now);
        if of.sampled_span != number {
            of.sampled_span = number;
            of.sampled.clear();
        }
        of.sampled.len() < MAX_SAMPLED_QUEUES && of.sampled.insert(queue.clone())
    }

    /// Whether another call may be stored for `reason` in the minute of `now`, which is counted.
    pub(super) fn may_store(
        &mut self,
        plugin: &PluginName,
        reason: Reason,
        now: Timestamp,
    ) -> bool {
        let of = self.plugins.entry(plugin.clone()).or_default();
        let minute = now.millis().div_euclid(60_000);
        if of.minute != minute {
            (of.minute, of.faults, of.matches) = (minute, 0, 0);
        }
        let (count, most) = match reason {
            Reason::Fault => (&mut of.faults, MAX_FAULTS_PER_MINUTE),
            Reason::Filter => (&mut of.matches, MAX_MATCHES_PER_MINUTE),
            Reason::Latest | Reason::Sample => return true,
        };
        let may = *count < most;
        *count += u32::from(may);
        may
    }

    /// Adds a call that is to be stored, if there is room.
    pub(super) fn add_unstored(&mut self, unstored: Unstored) {
        let bytes = unstored.bytes();
        if self.unstored.len() < MAX_UNSTORED && self.unstored_bytes + bytes <= MAX_UNSTORED_BYTES {
            self.unstored_bytes += bytes;
            self.unstored.push_back(unstored);
        }
    }

    /// Takes the calls that are to be stored, oldest first.
    pub(super) fn take_unstored(&mut self) -> Vec<Unstored> {
        self.unstored_bytes = 0;
        self.unstored.drain(..).collect()
    }

    pub(super) fn forget(&mut self, plugin: &PluginName) {
        if let Some(of) = self.plugins.remove(plugin) {
            self.latest_bytes -= of.bytes;
        }
        self.unstored.retain(|unstored| unstored.plugin != *plugin);
        self.unstored_bytes = self.unstored.iter().map(Unstored::bytes).sum();
    }
}

/// About how many bytes of memory a recorded call holds. Parts that it shares with others count
/// too.
fn estimated_bytes(recorded: &RecordedCall<Call>) -> usize {
    bytes_of_outcome(recorded) + bytes_of_call(&recorded.call)
}

/// The bytes of the answer, or of the fault, and of the log.
fn bytes_of_outcome<C>(recorded: &RecordedCall<C>) -> usize {
    let log: usize = recorded.log.iter().map(|(_, text)| text.len()).sum();
    let answer = match &recorded.answer {
        Ok(answer) => bytes_of_answer(answer),
        Err(fault) => fault.message.len(),
    };
    log + answer
}

fn bytes_of_answer(answer: &Answer) -> usize {
    const DECISION_BYTES: usize = 64;
    let (new, rest) = match answer {
        Answer::Throttle(answer) => {
            let decisions = answer.decisions.iter();
            let bytes = |decision: &Decision| {
                DECISION_BYTES + decision.reason.as_deref().map_or(0, str::len)
            };
            (&answer.state, decisions.map(bytes).sum())
        }
        Answer::Retry(output) => {
            let text = match &output.answer {
                RetryAnswer::Retry(plan) => plan.data.as_ref(),
                RetryAnswer::GiveUp(message) => message.as_ref(),
            };
            (&output.state, DECISION_BYTES + text.map_or(0, String::len))
        }
    };
    rest + new.as_ref().map_or(0, PolicyState::bytes)
}

fn bytes_of_call(call: &Call) -> usize {
    const JOB_BYTES: usize = 1024;
    const GRANT_BYTES: usize = 256;
    const GROUP_BYTES: usize = 64;
    let grants = |running: &RunningSet| {
        let batches = running.batches.iter().map(|(batch, _)| batch.grants.len());
        batches.sum::<usize>() + running.admitted.len()
    };
    match call {
        Call::Throttle(call) => {
            let data: usize = call.data.values().map(String::len).sum();
            let ended = call.ended.iter().map(|ended| {
                let details = ended.details.as_ref().map_or(0, String::len);
                GRANT_BYTES + details + ended.message.as_ref().map_or(0, String::len)
            });
            let groups = call.waiting.groups.values().flat_map(|groups| groups.keys());
            data + ended.sum::<usize>()
                + groups.map(|value| value.len() + GROUP_BYTES).sum::<usize>()
                + call.candidates.len() * JOB_BYTES
                + grants(&call.running) * GRANT_BYTES
                + call.state.bytes()
                + call.config.len()
        }
        Call::Retry(call) => {
            let history = call.job.life.history.len() * JOB_BYTES;
            let data = call.data.as_ref().map_or(0, String::len);
            JOB_BYTES + history + data + call.state.bytes() + call.config.len()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{
        port::policy::{FaultKind, ThrottleAnswer},
        queue::plugin_calls::CallFilter,
    };

    fn name(text: &str) -> PluginName {
        text.parse().expect("a name")
    }

    fn a_call(state_bytes: usize) -> Call {
        let state = serde_json::json!({"k": "x".repeat(state_bytes)});
        let json = serde_json::json!({"throttle": {"candidates": [{"id": "a"}], "state": state}});
        record::from_json(&json.to_string()).expect("a call")
    }

    fn recorded(number: u64, call: Call) -> RecordedCall<Call> {
        RecordedCall {
            number,
            at: Timestamp::from_millis(1000),
            version: 1,
            role: Role::Throttler,
            shadow: false,
            queue: call.queue().clone(),
            usage: Usage::default(),
            answer: Ok(Answer::Throttle(ThrottleAnswer {
                decisions: Vec::new(),
                more: false,
                state: None,
            })),
            log: Vec::new(),
            call,
        }
    }

    #[test]
    fn the_latest_calls_are_bounded_in_number_and_bytes() {
        let mut recordings = Recordings::default();
        let add = |recordings: &mut Recordings, plugin: &str, number: u64, bytes: usize| {
            recordings.add_latest(&name(plugin), Arc::new(recorded(number, a_call(bytes))));
        };
        let numbers = |recordings: &Recordings, plugin: &str| -> Vec<u64> {
            recordings.latest(&name(plugin)).iter().map(|call| call.number).collect()
        };
        (1..=25).for_each(|number| add(&mut recordings, "a", number, 10));
        assert_eq!(numbers(&recordings, "a"), (6..=25).collect::<Vec<u64>>());
        // Five of them have more than 4 MiB.
        (31..=40).for_each(|number| add(&mut recordings, "b", number, 1 << 20));
        assert_eq!(numbers(&recordings, "b"), [38, 39, 40]);
        // Ten more plugins with 3 MiB each fill the memory for all.
        for plugin in 0..12 {
            (0..3).for_each(|number| add(&mut recordings, &format!("p{plugin}"), number, 1 << 20));
        }
        assert!(recordings.latest_bytes <= MAX_ALL_LATEST_BYTES);
        assert_eq!(numbers(&recordings, "a").len(), 20, "small ones lose none of theirs");
        add(&mut recordings, "new", 1, 1 << 20);
        assert_eq!(numbers(&recordings, "new"), [1], "a larger plugin makes room");
        assert!(recordings.latest_bytes <= MAX_ALL_LATEST_BYTES);
        recordings.forget(&name("b"));
        let sum: usize = recordings.plugins.values().map(|of| of.bytes).sum();
        assert_eq!(recordings.latest_bytes, sum);
        assert!(numbers(&recordings, "b").is_empty());
    }

    #[test]
    fn states_waiting_groups_answers_and_log_count_as_bytes() {
        let text = "x".repeat(10_000);
        let call = |json: serde_json::Value| record::from_json(&json.to_string()).expect("a call");
        let bytes = |call: Call| estimated_bytes(&recorded(1, call));
        let retry = call(serde_json::json!({"retry": {
            "failed": {"id": "a"}, "last": {}, "state": {"k": text},
        }}));
        assert!(bytes(retry) >= 10_000);
        let groups: std::collections::BTreeMap<String, serde_json::Value> =
            (0..100).map(|n| (format!("value-{n}"), serde_json::json!({"count": 1}))).collect();
        let waiting = call(serde_json::json!({"throttle": {
            "waiting": {"groups": {"tenant": groups}},
        }}));
        assert!(bytes(waiting) >= 100 * (64 + 7));
        let small = || recorded(1, a_call(1));
        let logged = RecordedCall { log: vec![(LogLevel::Info, text.clone())], ..small() };
        assert!(estimated_bytes(&logged) >= 10_000);
        let state = Some(PolicyState::from([("k", text.as_str())]));
        let answer = ThrottleAnswer { decisions: Vec::new(), more: false, state };
        let answered = RecordedCall { answer: Ok(Answer::Throttle(answer)), ..small() };
        assert!(estimated_bytes(&answered) >= 10_000);
    }

    #[test]
    fn what_is_to_be_stored_is_bounded_per_minute_and_in_bytes() {
        let mut recordings = Recordings::default();
        let plugin = name("a");
        let now = Timestamp::from_millis(59_000);
        let allowed = |recordings: &mut Recordings, reason, now| {
            (0..100).filter(|_| recordings.may_store(&plugin, reason, now)).count() as u32
        };
        assert_eq!(allowed(&mut recordings, Reason::Fault, now), MAX_FAULTS_PER_MINUTE);
        assert_eq!(allowed(&mut recordings, Reason::Filter, now), MAX_MATCHES_PER_MINUTE);
        let next = now + Duration::from_secs(1);
        assert_eq!(allowed(&mut recordings, Reason::Fault, next), MAX_FAULTS_PER_MINUTE);

        let fault = Fault { kind: FaultKind::Trapped, message: "no".into() };
        let failed = RecordedCall { answer: Err(fault), ..recorded(1, a_call(900_000)) };
        let unstored = || Unstored {
            plugin: plugin.clone(),
            reason: Reason::Fault,
            call: Arc::new(failed.written()),
        };
        (0..100).for_each(|_| recordings.add_unstored(unstored()));
        let taken = recordings.take_unstored();
        let bytes: usize = taken.iter().map(Unstored::bytes).sum();
        assert!((17..=18).contains(&taken.len()) && bytes <= MAX_UNSTORED_BYTES, "{bytes}");
        recordings.add_unstored(unstored());
        assert_eq!(recordings.take_unstored().len(), 1, "there is room again");
        // Answers count too, each of more than 1 MiB.
        let text = "x".repeat(1 << 20);
        let state = Some(PolicyState::from([("k", text.as_str())]));
        let answer = ThrottleAnswer { decisions: Vec::new(), more: false, state };
        let answered = RecordedCall { answer: Ok(Answer::Throttle(answer)), ..failed.written() };
        let unstored = Unstored { plugin, reason: Reason::Filter, call: Arc::new(answered) };
        (0..100).for_each(|_| recordings.add_unstored(unstored.clone()));
        assert_eq!(recordings.take_unstored().len(), 8);
        assert!(recorded(1, a_call(MAX_CALL_BYTES)).written().call.is_none());
    }

    #[test]
    fn each_queue_has_one_sample_in_each_span() {
        let mut recordings = Recordings::default();
        let (plugin, span) = (name("a"), Duration::from_mins(1));
        let mut is_sample = |queue: &str, seconds: i64| {
            let at = Timestamp::from_millis(seconds * 1000);
            recordings.is_sample(&plugin, &queue.parse().expect("a name"), span, at)
        };
        let samples = [59, 60, 61, 119, 120, 179].map(|seconds| is_sample("mail", seconds));
        assert_eq!(samples, [true, true, false, false, true, false]);
        assert!(is_sample("other", 179), "a queue has its own");
        let count = (0..100).filter(|n| is_sample(&format!("q{n}"), 180)).count();
        assert_eq!(count, MAX_SAMPLED_QUEUES);
    }

    #[test]
    fn rules_select_what_a_filter_matches_until_its_end() {
        let until = Timestamp::from_millis(5000);
        let filter =
            CallFilter { queue: Some("mail".parse().expect("a name")), ..Default::default() };
        let rules = RecordingRules {
            filters: [(name("a"), CallRecording { filter, until })].into(),
            ..RecordingRules::default()
        };
        let json = r#"{"throttle": {"context": {"queue": "mail"}}}"#;
        let call = record::from_json(json).expect("a call");
        let Ok(answer) = recorded(1, call.clone()).answer else { unreachable!("it has one") };
        let selects = |plugin: &str, call: &Call, now: Timestamp| {
            rules.selects(&name(plugin), call, &answer, now)
        };
        assert!(selects("a", &call, until));
        assert!(!selects("a", &call, until + Duration::from_millis(1)));
        assert!(!selects("b", &call, until) && !selects("a", &a_call(1), until));
    }
}
