//! The job filter: the same options for lists, error groups and bulk operations.

use std::collections::BTreeSet;

use crate::cli::{
    args::{self, When},
    client::Request,
};
use tidegate_api::{AttributeValue, FilterBody, Reason, Words};
use tidegate_core::{
    job::{JobId, Phase, QueueName, TypeName},
    time::Timestamp,
};

/// The filter. A job matches if it fits every option. An instant is RFC 3339, or a span from now such
/// as -1h.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Filter")]
pub struct Filter {
    /// Jobs of this type.
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<TypeName>,
    /// Jobs of this queue.
    #[arg(long)]
    queue: Option<QueueName>,
    /// The job with this id; several are separated by commas.
    #[arg(long = "id", value_name = "ID", id = "filter_ids", value_delimiter = ',')]
    ids: Vec<JobId>,
    /// Jobs in this state; several are separated by commas, `ended` means all final states.
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',')]
    states: Vec<String>,
    /// Jobs in this phase; several are separated by commas.
    #[arg(long = "phase", value_name = "PHASE", value_delimiter = ',')]
    phases: Vec<Phase>,
    /// Jobs with this attribute; repeatable.
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = args::attribute)]
    attributes: Vec<(String, AttributeValue)>,
    /// Jobs with this value at a JSON pointer in their data, for example /user/id=7; repeatable.
    #[arg(long, value_name = "POINTER=VALUE", value_parser = args::attribute)]
    data_at: Vec<(String, AttributeValue)>,
    /// Jobs with at least this many attempts.
    #[arg(long, value_name = "N")]
    min_attempt: Option<u16>,
    /// Jobs with at most this many attempts.
    #[arg(long, value_name = "N")]
    max_attempt: Option<u16>,
    /// Jobs whose latest attempt runs or ran at this worker.
    #[arg(long)]
    worker: Option<String>,
    /// Jobs whose latest error has this reason; several are separated by commas.
    #[arg(long = "error-reason", value_name = "REASON", value_delimiter = ',', value_parser = reason)]
    error_reasons: Vec<Reason>,
    /// Jobs whose latest error contains this text, in upper or lower case.
    #[arg(long, value_name = "TEXT")]
    error_contains: Option<String>,
    /// Jobs whose latest error has this pattern, as `tidegate jobs errors` shows it.
    #[arg(long, value_name = "PATTERN")]
    error_pattern: Option<String>,
    /// Jobs accepted at this instant or later.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    created_from: Option<When>,
    /// Jobs accepted before this instant.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    created_to: Option<When>,
    /// Jobs first due at this instant or later.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    due_from: Option<When>,
    /// Jobs first due before this instant.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    due_to: Option<When>,
    /// Jobs whose latest attempt started at this instant or later.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    started_from: Option<When>,
    /// Jobs whose latest attempt started before this instant.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    started_to: Option<When>,
    /// Jobs that ended at this instant or later.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    ended_from: Option<When>,
    /// Jobs that ended before this instant.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    ended_to: Option<When>,
}

/// Reads a reason of a failure.
fn reason(text: &str) -> Result<Reason, String> {
    let read = serde_json::from_value(text.into());
    read.map_err(|_| "must be failed, timeout, lease_expired, ... as a job's error shows it".into())
}

impl Filter {
    /// Whether every job fits.
    pub fn is_empty(&self) -> bool {
        self.body(Timestamp::EPOCH) == FilterBody::default()
    }

    /// Returns the filter as a request body. Spans count from `now`.
    pub fn body(&self, now: Timestamp) -> FilterBody {
        let at = |when: Option<When>| when.map(|when| when.at(now));
        let named = |values: &[(String, AttributeValue)]| {
            (!values.is_empty()).then(|| values.iter().cloned().collect())
        };
        FilterBody {
            job_type: self.job_type.clone(),
            queue: self.queue.clone(),
            id: words(&self.ids, ToString::to_string),
            state: words(&self.states, Clone::clone),
            phase: words(&self.phases, |phase| phase.as_str().to_owned()),
            attribute: named(&self.attributes),
            min_attempt: self.min_attempt,
            max_attempt: self.max_attempt,
            worker: self.worker.clone(),
            error_reason: words(&self.error_reasons, |reason| reason.as_str().to_owned()),
            error_contains: self.error_contains.clone(),
            error_pattern: self.error_pattern.clone(),
            created_from: at(self.created_from),
            created_to: at(self.created_to),
            due_from: at(self.due_from),
            due_to: at(self.due_to),
            started_from: at(self.started_from),
            started_to: at(self.started_to),
            ended_from: at(self.ended_from),
            ended_to: at(self.ended_to),
            data: named(&self.data_at),
        }
    }

    /// The one queue and the one type whose jobs fit, if there are.
    pub fn queue_and_type(&self) -> (Option<&QueueName>, Option<&TypeName>) {
        (self.queue.as_ref(), self.job_type.as_ref())
    }

    /// Adds the filter to `request`, for these of its jobs alone. None if none of them can fit.
    pub fn query_of<'a>(
        &self,
        ids: &BTreeSet<JobId>,
        request: Request<'a>,
        now: Timestamp,
    ) -> Option<Request<'a>> {
        let fits = |id: &&JobId| self.ids.is_empty() || self.ids.contains(id);
        let ids: Vec<JobId> = ids.iter().filter(fits).cloned().collect();
        let body = FilterBody { id: words(&ids, ToString::to_string), ..self.body(now) };
        let parameters = body.query();
        let parameters = parameters.iter();
        (!ids.is_empty())
            .then(|| parameters.fold(request, |request, (name, value)| request.query(name, value)))
    }

    /// Adds the filter to `request` as query parameters. Spans count from `now`.
    pub fn query<'a>(&self, request: Request<'a>, now: Timestamp) -> Request<'a> {
        let parameters = self.body(now).query();
        parameters.iter().fold(request, |request, (name, value)| request.query(name, value))
    }
}

/// The texts of a list, if it has any.
fn words<T>(values: &[T], text: impl Fn(&T) -> String) -> Option<Words> {
    (!values.is_empty()).then(|| values.iter().map(text).collect())
}
