//! The conformance plugin: it writes what it receives into its state, and answers as its
//! configuration says. `cases` has the configurations and the expected texts.

use serde::Deserialize;
use tidegate_plugin::{
    About, Answer, Call, Chance, Data, Decision, Dimension, Ended, Failure, Group, Job, Plan,
    Problem, RetryStrategy, Round, Running, State, StateError, Throttler, Verdict, Waiting,
    WaitingGroup, clock, debug, error, info, metrics, warn,
};

/// The configuration of both roles.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What it writes into its state.
    show: Vec<String>,
    /// What it decides: an action for each candidate, or one for a failed job.
    decide: Vec<String>,
    attribute: String,
    value: String,
    reason: String,
    zone: String,
    at: u64,
    more: bool,
    data: Option<String>,
    priority: Option<i32>,
    weight: Option<u32>,
    attempts_left: Option<u32>,
    timeout: Option<u64>,
    target: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            show: Vec::new(),
            decide: Vec::new(),
            attribute: "region".to_owned(),
            value: String::new(),
            reason: String::new(),
            zone: "UTC".to_owned(),
            at: 0,
            more: true,
            data: None,
            priority: None,
            weight: None,
            attempts_left: None,
            timeout: None,
            target: None,
        }
    }
}

impl Config {
    fn shows(&self, what: &str) -> bool {
        self.show.iter().any(|shown| shown == what)
    }

    fn action(&self, index: usize) -> &str {
        self.decide.get(index).map_or("", String::as_str)
    }

    fn problems(&self) -> Vec<Problem> {
        if self.attribute.is_empty() {
            vec![Problem::new("/attribute", "must not be empty")]
        } else {
            Vec::new()
        }
    }
}

/// A value as text, and an absent one as a dash.
fn or<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn joined<T>(list: &[T], text: impl Fn(&T) -> String) -> String {
    list.iter().map(text).collect::<Vec<_>>().join(";")
}

fn failure_text(failure: &Failure) -> String {
    format!(
        "{},{},{},{},{},{},{},{}",
        failure.attempt,
        failure.reason,
        or(failure.message.as_ref()),
        or(failure.status),
        or(failure.details.as_ref()),
        failure.started_at,
        failure.ended_at,
        or(failure.not_before)
    )
}

fn job_text(job: &Job) -> String {
    format!(
        "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}",
        job.id,
        job.job_type,
        job.priority,
        job.weight,
        job.attempt,
        job.attempts,
        job.created_at,
        job.run_at,
        or(job.expires_at),
        or(job.deadline_at),
        or(job.target_host.as_ref()),
        or(job.replay_of.as_ref()),
        or(job.correlation_key.as_ref())
    )
}

/// What throttlers and retry strategies can use.
struct Common<'a> {
    config: &'a Config,
    state: &'a State,
    data: &'a Data,
    now: u64,
    seed: u64,
}

impl Common<'_> {
    fn set(&self, key: &str, value: &str) -> Result<(), String> {
        self.state.set(key, value).map_err(|error| format!("{error:?}"))
    }

    fn show(&self, jobs: &[Job]) -> Result<(), String> {
        for job in jobs {
            self.show_job(job)?;
        }
        if self.config.shows("state") {
            self.show_state()?;
        }
        if self.config.shows("full") {
            self.show_full()?;
        }
        if self.config.shows("clock") {
            self.show_clock()?;
        }
        if self.config.shows("wrong") {
            self.show_wrong()?;
        }
        if self.config.shows("random") {
            let mut chance = Chance::new(self.seed);
            self.set("random", &(chance.draw() != chance.draw()).to_string())?;
        }
        if self.config.shows("metrics") {
            metrics::add("conformance_calls", &self.config.value, 3.0);
            metrics::set("conformance_level", &self.config.value, -0.5);
        }
        if self.config.shows("log") {
            debug!("{}", self.config.reason);
            info!("{}", self.config.reason);
            warn!("{}", self.config.reason);
            error!("{}", self.config.reason);
        }
        Ok(())
    }

    fn show_job(&self, job: &Job) -> Result<(), String> {
        let id = &job.id;
        if self.config.shows("jobs") {
            self.set(&format!("job {id}"), &job_text(job))?;
        }
        if self.config.shows("attributes") {
            let all = joined(&job.attributes, |own| format!("{}={}", own.name, own.value));
            let one = or(job.attribute(&self.config.attribute));
            let absent = or(job.attribute("absent"));
            self.set(&format!("attributes {id}"), &format!("{all}|{one}|{absent}"))?;
        }
        if self.config.shows("earlier") {
            self.set(&format!("earlier {id}"), &joined(&job.earlier, failure_text))?;
        }
        if self.config.shows("data") {
            self.set(&format!("data {id}"), &or(self.data.text(id)))?;
        }
        Ok(())
    }

    fn show_state(&self) -> Result<(), String> {
        let kept = ["kept", "missing", "gone"].map(|key| or(self.state.get(key))).join("|");
        let keys = self.state.keys("k").join(",");
        self.set("state", &format!("{kept}|{keys}"))?;
        self.state.delete("old");
        self.set("new", "ä🚲")?;
        self.state
            .set_until("soon", "1", Some(self.config.at))
            .map_err(|error| format!("{error:?}"))?;
        let key = self.state.set(&"k".repeat(129), "v").is_err();
        let value = self.state.set("k", &"v".repeat(16_385)).is_err();
        self.set("refused", &format!("{key}|{value}"))
    }

    /// How many long values the state takes, and whether the next one is refused for its bound.
    fn show_full(&self) -> Result<(), String> {
        let value = "v".repeat(16_000);
        let mut count = 0;
        let refused = loop {
            match self.state.set(&format!("full {count}"), &value) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        let first = self.state.get("full 0").unwrap_or_default().len();
        let last = or(self.state.get(&format!("full {count}")));
        for number in 0..count {
            self.state.delete(&format!("full {number}"));
        }
        let is_full = matches!(refused, StateError::Full);
        self.set("full", &format!("{count}|{is_full}|{first}|{last}"))
    }

    fn show_wrong(&self) -> Result<(), String> {
        let zone = clock::local(&self.config.zone, 0).is_err();
        let at = clock::local("UTC", self.config.at).is_err();
        let (hour, minute, second, millisecond) = (24, 0, 0, 0);
        let time =
            clock::LocalTime { year: 2026, month: 1, day: 1, hour, minute, second, millisecond };
        let time = clock::instant("UTC", time).is_err();
        self.set("wrong", &format!("{zone}|{at}|{time}"))
    }

    fn show_clock(&self) -> Result<(), String> {
        let shown = clock::local(&self.config.zone, self.config.at)?;
        let time = shown.time;
        let date = format!("{}-{}-{}", time.year, time.month, time.day);
        let day = format!("{}:{}:{}.{}", time.hour, time.minute, time.second, time.millisecond);
        let (weekday, offset) = (shown.weekday, shown.offset);
        let instant = clock::instant(&self.config.zone, time)?;
        let now = self.now;
        self.set("clock", &format!("{now}|{date} {day}|{weekday}|{offset}|{instant}"))
    }

    fn show_ended(&self, ended: &[Ended]) -> Result<(), String> {
        for one in ended {
            let text = format!(
                "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}",
                one.id,
                one.job_type,
                one.priority,
                one.weight,
                or(one.attribute(&self.config.attribute)),
                or(one.target_host.as_ref()),
                one.attempt,
                one.started_at,
                one.ended_at,
                one.succeeded,
                or(one.reason.as_ref()),
                or(one.message.as_ref()),
                or(one.status),
                or(one.details.as_ref()),
                or(one.not_before)
            );
            self.set(&format!("ended {}", one.id), &text)?;
        }
        Ok(())
    }

    fn show_running(&self, running: &Running) -> Result<(), String> {
        self.set("running", &format!("{}|{}", running.count(), running.weight()))?;
        for job in running.page(0, 1000) {
            let text = format!(
                "{}|{}|{}|{}|{}|{}|{}",
                job.id,
                job.job_type,
                job.priority,
                job.weight,
                job.critical,
                or(job.attribute(&self.config.attribute)),
                job.granted_at
            );
            self.set(&format!("running {}", job.id), &text)?;
        }
        let page: Vec<String> = running.page(1, 2).into_iter().map(|job| job.id).collect();
        self.set("page", &page.join(","))
    }

    fn show_groups(&self, running: &Running) -> Result<(), String> {
        let text = |groups: Vec<Group>| {
            joined(&groups, |group| format!("{}={},{}", group.value, group.count, group.weight))
        };
        let by = Dimension::attribute(&self.config.attribute);
        self.set("by type", &text(running.groups(&Dimension::JobType)))?;
        self.set("by priority", &text(running.groups(&Dimension::Priority)))?;
        self.set("by attribute", &text(running.groups(&by)))?;
        let one = running.in_group(&by, &self.config.value);
        let none = running.in_group(&Dimension::JobType, "none");
        let text = format!("{},{}|{},{}", one.count, one.weight, none.count, none.weight);
        self.set("in group", &text)
    }

    fn show_waiting(&self, waiting: &Waiting) -> Result<(), String> {
        let text = |group: &WaitingGroup| {
            let WaitingGroup { count, weight, oldest_due_at, at_least, .. } = group;
            format!("{count},{weight},{oldest_due_at},{at_least}")
        };
        let groups = waiting.groups(&self.config.attribute);
        let groups = joined(&groups, |group| format!("{}={}", group.value, text(group)));
        self.set("waiting", &groups)?;
        self.set("others", &or(waiting.others().map(|group| text(&group))))?;
        self.set("counted at", &or(waiting.counted_at()))
    }
}

mod throttle {
    use super::{About, Answer, Common, Config, Decision, Job, Problem, Round, Throttler, or};

    /// The throttler.
    pub struct Plugin;

    impl Throttler for Plugin {
        type Config = Config;
        const ABOUT: About = About {
            state_version: 1,
            group_by: &["*"],
            needs_running_jobs: true,
            needs_data: true,
            needs_ended: true,
            needs_earlier: true,
            waiting_by: &["*"],
            ..About::new("Shows all that a throttler receives.")
        };

        fn check(config: &Config) -> Vec<Problem> {
            config.problems()
        }

        fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
            let Round { queue, now, seed, concurrency, room, .. } = round;
            let (state, data) = (&round.state, &round.data);
            let common = Common { config, state, data, now: *now, seed: *seed };
            if config.shows("round") {
                let (concurrency, count) = (or(*concurrency), candidates.len());
                common.set("round", &format!("{queue}|{now}|{concurrency}|{room}|{count}"))?;
            }
            common.show(candidates)?;
            if config.shows("ended") {
                common.show_ended(&round.ended)?;
            }
            if config.shows("running") {
                common.show_running(&round.running)?;
            }
            if config.shows("groups") {
                common.show_groups(&round.running)?;
            }
            if config.shows("waiting") {
                common.show_waiting(&round.waiting)?;
            }
            if config.action(0) == "error" {
                return Err(config.reason.clone());
            }
            let decisions = (0..candidates.len()).map(|index| decision(config, index));
            Ok(Answer { decisions: decisions.collect(), more: config.more })
        }
    }

    fn decision(config: &Config, index: usize) -> Decision {
        match config.action(index) {
            "hold" => Decision::hold(&config.reason),
            "hold-until" => Decision::hold_until(config.at, &config.reason),
            "reschedule" => Decision::reschedule(config.at, &config.reason),
            "drop" => Decision::drop(&config.reason),
            _ => Decision::run(),
        }
    }

    tidegate_plugin::export_throttler!(Plugin);
}

mod retry {
    use super::{
        About, Call, Common, Config, Failure, Job, Plan, Problem, RetryStrategy, Verdict,
        failure_text,
    };

    /// The retry strategy.
    pub struct Plugin;

    impl RetryStrategy for Plugin {
        type Config = Config;
        const ABOUT: About = About {
            state_version: 1,
            needs_data: true,
            ..About::new("Shows all that a retry strategy receives.")
        };

        fn check(config: &Config) -> Vec<Problem> {
            config.problems()
        }

        fn on_failure(
            config: &Config,
            call: &Call,
            job: &Job,
            last: &Failure,
        ) -> Result<Verdict, String> {
            let Call { now, seed, state, data, .. } = call;
            let common = Common { config, state, data, now: *now, seed: *seed };
            if config.shows("call") {
                common.set("call", &format!("{}|{}", call.queue, call.now))?;
            }
            if config.shows("last") {
                common.set("last", &failure_text(last))?;
            }
            common.show(std::slice::from_ref(job))?;
            match config.action(0) {
                "error" => Err(config.reason.clone()),
                "give-up" => Ok(Verdict::GiveUp(Some(config.reason.clone()))),
                "give-up-silently" => Ok(Verdict::GiveUp(None)),
                _ => Ok(Verdict::Retry(Plan {
                    at: config.at,
                    data: config.data.clone(),
                    priority: config.priority,
                    weight: config.weight,
                    attempts_left: config.attempts_left,
                    timeout: config.timeout,
                    target: config.target.clone(),
                })),
            }
        }
    }

    tidegate_plugin::export_retry!(Plugin);
}
