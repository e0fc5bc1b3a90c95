//! The job filter of a request, from a body or from the parameters of a query.

use std::collections::{BTreeMap, BTreeSet};

use serde::{
    Deserialize,
    de::value::{Error as NotAWord, StrDeserializer},
};
use tidegate_api::{FilterBody, Words};

use super::super::{error::Problem, params::Params};
use tidegate_core::{
    job::{JobId, Outcome, Phase, lifecycle::Reason},
    port::{
        JobFilter,
        job_filter::{ErrorFilter, TimeRange},
        job_store::StateFilter,
    },
};

/// The message for a word that names no state.
const NO_STATE: &str =
    "must be scheduled, running, succeeded, failed, expired, cancelled, dropped or ended";

/// The message for a word that names no reason.
const NO_REASON: &str = "must be failed, timeout, lease_expired, connection_lost, not_delivered, \
     outcome_unknown or deadline";

/// The filter that a body describes. Faults name its fields after `prefix`, such as `filter.`.
///
/// # Errors
///
/// 400 with the name of the wrong field.
pub(crate) fn job_filter(body: FilterBody, prefix: &str) -> Result<JobFilter, Problem> {
    let FilterBody {
        job_type,
        queue,
        id,
        state,
        phase,
        attribute,
        min_attempt,
        max_attempt,
        worker,
        error_reason,
        error_contains,
        error_pattern,
        created_from,
        created_to,
        due_from,
        due_to,
        started_from,
        started_to,
        ended_from,
        ended_to,
        data,
    } = body;
    let invalid =
        |name: &str, message: String| Problem::invalid(format!("{prefix}{name}"), message);
    // A caller whose list is empty by mistake must not change every other job.
    let has_none = |words: Option<&Words>| words.is_some_and(|words| words.as_slice().is_empty());
    for (name, is_empty) in [
        ("id", has_none(id.as_ref())),
        ("state", has_none(state.as_ref())),
        ("phase", has_none(phase.as_ref())),
        ("error_reason", has_none(error_reason.as_ref())),
        ("attribute", attribute.as_ref().is_some_and(BTreeMap::is_empty)),
        ("data", data.as_ref().is_some_and(BTreeMap::is_empty)),
    ] {
        if is_empty {
            return Err(invalid(name, "must not be empty: leave it out for no condition".into()));
        }
    }
    let mut states = Vec::new();
    for word in words(state.as_ref()) {
        states.extend(states_of(word).ok_or_else(|| invalid("state", NO_STATE.into()))?);
    }
    let mut phases = Vec::new();
    for word in words(phase.as_ref()) {
        phases.push(word.parse::<Phase>().map_err(|error| invalid("phase", error.to_string()))?);
    }
    let mut reasons = Vec::new();
    for word in words(error_reason.as_ref()) {
        let reason = Reason::deserialize(StrDeserializer::<NotAWord>::new(word));
        reasons.push(reason.map_err(|_| invalid("error_reason", NO_REASON.into()))?);
    }
    let mut ids = BTreeSet::new();
    for word in words(id.as_ref()) {
        ids.insert(word.parse::<JobId>().map_err(|error| invalid("id", error.to_string()))?);
    }
    let filter = JobFilter {
        job_type,
        queue,
        ids,
        states,
        phases,
        attributes: attribute.unwrap_or_default(),
        min_attempt,
        max_attempt,
        worker,
        error: ErrorFilter { reasons, contains: error_contains, pattern: error_pattern },
        created: TimeRange { from: created_from, to: created_to },
        due: TimeRange { from: due_from, to: due_to },
        started: TimeRange { from: started_from, to: started_to },
        ended: TimeRange { from: ended_from, to: ended_to },
        data: data.unwrap_or_default(),
    };
    filter.check().map_err(|fault| invalid(&fault.field, fault.message))?;
    Ok(filter)
}

fn words(words: Option<&Words>) -> &[String] {
    words.map_or(&[], Words::as_slice)
}

/// The states that a word names.
fn states_of(word: &str) -> Option<Vec<StateFilter>> {
    match word {
        "ended" => Some(Outcome::ALL.map(StateFilter::Ended).to_vec()),
        _ => word.parse().ok().map(|state| vec![state]),
    }
}

impl Params {
    /// The filter that the parameters describe. Several words are separated by commas, or are
    /// several parameters.
    ///
    /// # Errors
    ///
    /// 400 with the name of the wrong parameter.
    pub(crate) fn filter(&mut self) -> Result<JobFilter, Problem> {
        let body = FilterBody {
            job_type: self.one("type")?,
            queue: self.one("queue")?,
            id: self.words("id"),
            state: self.words("state"),
            phase: self.words("phase"),
            attribute: self.named_values("attribute")?,
            min_attempt: self.one("min_attempt")?,
            max_attempt: self.one("max_attempt")?,
            worker: self.one("worker")?,
            error_reason: self.words("error_reason"),
            error_contains: self.one("error_contains")?,
            error_pattern: self.one("error_pattern")?,
            created_from: self.one("created_from")?,
            created_to: self.one("created_to")?,
            due_from: self.one("due_from")?,
            due_to: self.one("due_to")?,
            started_from: self.one("started_from")?,
            started_to: self.one("started_to")?,
            ended_from: self.one("ended_from")?,
            ended_to: self.one("ended_to")?,
            data: self.named_values("data")?,
        };
        job_filter(body, "")
    }

    fn words(&mut self, name: &str) -> Option<Words> {
        let values = self.all(name);
        let words = values.iter().flat_map(|value| value.split(',')).map(str::to_owned);
        Some(words.collect()).filter(|_| !values.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{job::Value, time::Timestamp};

    use super::*;

    fn filter_of(query: &str) -> Result<JobFilter, Problem> {
        let mut params = Params::parse(query);
        let filter = params.filter()?;
        params.done().map(|()| filter)
    }

    /// A filter with every condition, as a body.
    fn every() -> FilterBody {
        let at = |seconds: i64| Some(Timestamp::from_millis(seconds * 1000));
        let value =
            |name: &str, text: &str| Some([(name.to_owned(), Value::Text(text.to_owned()))].into());
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        FilterBody {
            job_type: Some("mail".parse().unwrap()),
            queue: Some("slow".parse().unwrap()),
            id: words(&["a", "b"]),
            state: words(&["failed", "running"]),
            phase: words(&["retrying"]),
            attribute: value("region", "eu & us"),
            min_attempt: Some(1),
            max_attempt: Some(7),
            worker: Some("w/1".into()),
            error_reason: words(&["timeout", "lease_expired"]),
            error_contains: Some("a,b".into()),
            error_pattern: Some("HTTP 503: *".into()),
            created_from: at(1),
            created_to: at(2),
            due_from: at(3),
            due_to: at(4),
            started_from: at(5),
            started_to: at(6),
            ended_from: at(7),
            ended_to: at(8),
            data: value("/user/id", "7"),
        }
    }

    #[test]
    fn a_query_and_a_body_describe_the_same_filter() {
        let body = every();
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let query = query.extend_pairs(body.query()).finish();
        let json = serde_json::to_string(&body).unwrap();
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&json).unwrap();
        assert_eq!(fields.len(), 21, "every condition is given: {json}");
        assert_eq!(serde_json::from_str::<FilterBody>(&json).unwrap(), body);
        let filter = job_filter(body, "filter.").unwrap();
        assert_eq!(filter_of(&query).unwrap(), filter, "{query}");
        assert_eq!(filter.error.reasons, [Reason::Timeout, Reason::LeaseExpired]);
        assert_eq!(filter_of("").unwrap(), JobFilter::default());
    }

    #[test]
    fn several_words_are_one_parameter_or_several() {
        let filter = filter_of("state=failed,running&state=scheduled&attribute.n=5").unwrap();
        let states =
            [StateFilter::Ended(Outcome::Failed), StateFilter::Running, StateFilter::Scheduled];
        assert_eq!(filter.states, states);
        assert_eq!(filter.attributes["n"], Value::Text("5".into()));
        assert_eq!(filter_of("state=ended").unwrap().states.len(), 5);
        assert_eq!(
            filter_of("phase=retrying,ready").unwrap().stored_states(),
            [StateFilter::Scheduled]
        );
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        let ids: Vec<String> = (0..1001).map(|id| format!("id={id}")).collect();
        for (query, field) in [
            (&*ids.join("&"), "id"),
            ("id=a%20b", "id"),
            ("state=done", "state"),
            ("state=", "state"),
            ("phase=ended", "phase"),
            ("created_from=yesterday", "created_from"),
            ("type=a&type=b", "type"),
            ("queue=a%20b", "queue"),
            ("error_reason=late", "error_reason"),
            ("error_contains=", "error_contains"),
            ("min_attempt=x", "min_attempt"),
            ("data[user]=1", "data[user]"),
            ("attribute.x=1&attribute.x=2", "attribute.x"),
            ("attribute.x=1&attribute[x]=2", "attribute[x]"),
            ("attribute[x=1", "attribute[x"),
            ("stat=failed", "stat"),
        ] {
            let problem = filter_of(query).unwrap_err();
            assert_eq!(problem.field(), Some(field), "{query}");
        }
        let body = FilterBody { state: Some(Words::One("done".into())), ..FilterBody::default() };
        assert_eq!(job_filter(body, "filter.").unwrap_err().field(), Some("filter.state"));
    }
}
